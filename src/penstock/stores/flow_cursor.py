"""The order of a list of flows, and the cursors of its pages."""

from __future__ import annotations

from penstock.core.flow import FlowInfo
from penstock.stores.cursors import not_a_cursor

__all__ = ["FlowPlace", "cursor_before_names", "flow_cursor", "place_of"]

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
