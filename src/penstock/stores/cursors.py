"""Read the cursors of pages: numbers separated by colons, with a meaning of each store's own."""

from __future__ import annotations

import re

from penstock.core.errors import ConfigError

__all__ = ["not_a_cursor", "numbers_of"]

_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def numbers_of(after: str, count: int) -> tuple[int, ...]:
    """Return the numbers of a cursor; raises ConfigError if it has not this many."""
    parts = after.split(":", count)
    if len(parts) != count or not all(_NUMBER.fullmatch(part) for part in parts):
        raise not_a_cursor(after)
    return tuple(int(part) for part in parts)


def not_a_cursor(after: str) -> ConfigError:
    """Return the error for a text that is not a cursor of this verb."""
    return ConfigError(f"after={after[:100]!r} is not a cursor: pass the `next` of the previous page")
