"""The stream of server-sent events: one per browser, one event per snapshot."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from penstock.inspector import QueueView
from penstock.web.access_tokens import Right
from penstock.web.dashboard.pulse import Pulse, QueueSnapshot
from penstock.web.dashboard.visitor import Visitor

__all__ = ["event_stream", "event_text", "totals"]

#: Seconds without an event after which a comment keeps proxies from closing the connection.
_QUIET = 15.0
#: A stream ends after this many events, and the browser opens another one, which checks the login again.
_EVENTS = 150


async def event_stream(pulse: Pulse, visitor: Visitor) -> AsyncGenerator[bytes, None]:
    """The bytes of a stream for this visitor."""
    yield b"retry: 3000\n\n"
    with pulse.followed():
        for _ in range(_EVENTS):
            snapshot = await pulse.next(_QUIET)
            if pulse.closed:
                return
            yield b": still here\n\n" if snapshot is None else event_text(snapshot, visitor)


def event_text(snapshot: QueueSnapshot, visitor: Visitor) -> bytes:
    """A snapshot as an event: its number, whether something changed, and the totals by state."""
    seen = [queue for queue in snapshot.queues if visitor.may(Right.READ, queue.name)]
    data = {"changed": snapshot.changed, "totals": totals(seen), "error": bool(snapshot.error)}
    return b"id: %d\nevent: state\ndata: %b\n\n" % (snapshot.number, msgspec.json.encode(data))


def totals(queues: list[QueueView]) -> dict[str, int]:
    """The number of jobs by state in these queues together."""
    found: dict[str, int] = {}
    for queue in queues:
        for state, n in queue.counts.items():
            found[state] = found.get(state, 0) + n
    return found
