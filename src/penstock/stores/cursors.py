"""The cursors of pages: what a page of jobs or flows gives, to get the page behind it.

The cursor of jobs is numbers separated by colons, with a meaning of each store's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.core.errors import ConfigError
from penstock.core.flow import FlowInfo

_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def numbers_of(after: str, count: int) -> tuple[int, ...]:
    """Return the numbers of a cursor; raises ConfigError if it has not this many."""
    parts = after.split(":", count)
    if len(parts) != count or not all(_NUMBER.fullmatch(part) for part in parts):
        raise not_a_cursor(after)
    return tuple(int(part) for part in parts)


def cursor_of(numbers: Iterable[int]) -> str:
    """The cursor that `numbers_of` reads."""
    return ":".join(map(str, numbers))


def not_a_cursor(after: str) -> ConfigError:
    """Return the error for a text that is not a cursor of this verb."""
    return ConfigError(f"after={after[:100]!r} is not a cursor: pass the `next` of the previous page")


# ── flows ────────────────────────────────────────────────────────────────────────────────────────


#: The place of a flow in the list: time of creation, queue, id.
FlowPlace = tuple[int, str, str]


def place_of(flow: FlowInfo) -> FlowPlace:
    return flow.created_at, flow.spec.queue, flow.spec.id


def flow_cursor(after: str) -> FlowPlace:
    """Read a cursor: "created at/queue/id". Raises ConfigError."""
    created, _, rest = after.partition("/")
    queue, _, id = rest.partition("/")
    if not created.isascii() or not created.isdigit() or not queue or not id:
        raise not_a_cursor(after)
    return int(created), queue, id


def cursor_before_names(after: str) -> str:
    """A cursor before this one that names no flow: flows of the same millisecond come again."""
    created, _, _ = flow_cursor(after)
    return f"{created + 1}/!/!"  # no name begins with a character so low
