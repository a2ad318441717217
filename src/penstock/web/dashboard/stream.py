"""The streams of server-sent events: one per browser, one event per snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager

import msgspec
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.core.errors import PenstockError
from penstock.inspector import QueueView
from penstock.web.access_tokens import Right
from penstock.web.dashboard.pulse import Pulse, QueueSnapshot
from penstock.web.dashboard.visitor import Visitor

__all__ = ["EventStreams", "event_text", "totals"]

#: Seconds without an event after which a comment keeps proxies from closing the connection.
_QUIET = 15.0
#: A stream ends after this many events, and the browser opens another one. The server of a host application
#: waits for open streams when it stops, and does not say that it stops: there they are short.
_EVENTS, _EVENTS_IN_HOST = 150, 8
#: At each snapshot whose number this divides, all streams check their logins: together, with one read.
_CHECKED = 8
#: The most open streams: in all, and of one visitor.
_MOST, _MOST_OF_ONE = 500, 100
_HEADERS = {"X-Accel-Buffering": "no"}
_TYPE = "text/event-stream"

#: Who the visitor of a request is now; None after the login has ended.
Recheck = Callable[[], Awaitable[Visitor | None]]


class EventStreams:
    """The open streams of a dashboard. Their number is bounded, and each ends with its login."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._open: Counter[str] = Counter()
        #: Whether `Pulse.close` is called when the server stops.
        self.are_closed = False

    def answer(self, method: str, visitor: Visitor, again: Recheck) -> Response:
        """A new stream; it is a refusal if too many are open when it begins."""
        if method == "HEAD":  # a stream without a body would only hold the connection
            return Response(media_type=_TYPE, headers=_HEADERS)
        return _EventStream(self._events(visitor, again), lambda: self._counted(visitor.name))

    @contextmanager
    def _counted(self, name: str) -> Iterator[bool]:
        """Count a stream while this block lasts; False if it is one too many."""
        if self._open.total() >= _MOST or self._open[name] >= _MOST_OF_ONE:
            yield False
            return
        self._open[name] += 1
        try:
            yield True
        finally:
            self._open[name] -= 1
            self._open += Counter()  # forgets visitors without streams

    async def _events(self, visitor: Visitor, again: Recheck) -> AsyncGenerator[bytes, None]:
        # another stream is opened at once after one that has ended by itself
        yield b"retry: %d\n\n" % (3000 if self.are_closed else 1000)
        with self._pulse.followed():
            for _ in range(_EVENTS if self.are_closed else _EVENTS_IN_HOST):
                snapshot = await self._pulse.next(_QUIET)
                if self._pulse.closed:
                    return
                if snapshot is None:
                    yield b": still here\n\n"
                    continue
                if snapshot.number % _CHECKED == 0:
                    try:
                        known = await again()
                    except PenstockError:  # nothing new can be read either; the event says so
                        known = visitor
                    if known is None:
                        return
                    visitor = known
                yield event_text(snapshot, visitor)


class _EventStream(StreamingResponse):
    """A response that closes its events at once when the browser has gone, or a refusal.

    It is counted here, before anything is awaited: many requests at once would all see room for one.
    """

    def __init__(
        self, events: AsyncGenerator[bytes, None], counted: Callable[[], AbstractContextManager[bool]]
    ) -> None:
        super().__init__(events, media_type=_TYPE, headers=_HEADERS)
        self._events = events
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = PlainTextResponse("too many event streams are open\n", 503, {"Retry-After": "30"})
        with self._counted() as allowed:
            async with aclosing(self._events):
                await (super().__call__ if allowed else refusal)(scope, receive, send)


def event_text(snapshot: QueueSnapshot, visitor: Visitor) -> bytes:
    """A snapshot as an event: its number, whether something changed, its version, the totals by state."""
    seen = [queue for queue in snapshot.queues if visitor.may(Right.READ, queue.name)]
    data = {"changed": snapshot.changed, "version": snapshot.version, "totals": totals(seen)}
    data["error"] = bool(snapshot.error)
    return b"id: %d\nevent: state\ndata: %b\n\n" % (snapshot.number, msgspec.json.encode(data))


def totals(queues: list[QueueView]) -> dict[str, int]:
    """The number of jobs by state in these queues together."""
    found: dict[str, int] = {}
    for queue in queues:
        for state, n in queue.counts.items():
            found[state] = found.get(state, 0) + n
    return found
