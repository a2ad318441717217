"""Snapshots of all queues, and the server-sent events that refresh open pages."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass, field, replace

import msgspec
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.core.errors import PenstockError
from penstock.core.job import State
from penstock.core.loops import start_later
from penstock.inspector import Inspector, QueueView
from penstock.web.access_tokens import Right
from penstock.web.dashboard.identification import Visitor

_log = logging.getLogger("penstock.web")

#: Seconds between two remembered depths, and how many are remembered: two hours.
_DEPTH_EVERY, _DEPTHS = 10.0, 720


# ── snapshots of all queues ──────────────────────────────────────────────────────────────────────

#: Seconds between two reads while no page is open.
_IDLE = 10.0
_MOST_QUEUES = 500


@dataclass(frozen=True)
class QueueSnapshot:
    """The queues at one moment. `changed`: something differs from the snapshot before; `error`: why not.

    `version`: of the queues, by which a page knows whether it was made before a change.
    """

    number: int
    queues: list[QueueView] = field(default_factory=list)
    changed: bool = True
    error: str = ""
    version: str = ""


@dataclass(frozen=True)
class Depth:
    """The number of ready jobs of each queue at an instant (ms)."""

    at: int
    ready: dict[str, int]


class Pulse:
    """One read of the store per interval, however many pages are open.

    `on_change` is called before a snapshot is published that differs from the one before.
    """

    def __init__(
        self, inspector: Inspector, interval: float, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._inspector = inspector
        self._interval = interval
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None
        self._users = 0
        self._wake = asyncio.Event()
        self._next: asyncio.Future[QueueSnapshot] | None = None
        #: Versions of this process: another one has seen other changes.
        self._name = secrets.token_hex(4)
        self._changes = 0
        #: The number of open streams.
        self.followers = 0
        #: Whether the server stops.
        self.closed = False
        #: What was read last.
        self.latest = QueueSnapshot(0)
        #: The remembered depths, oldest first.
        self.depths: deque[Depth] = deque(maxlen=_DEPTHS)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read while this block lasts, also when no page is open."""
        self._users += 1
        if self._task is None:
            self._task = start_later(self._run())
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0 and self._task is not None:
                self._task.cancel()
                self._task = None

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Read once per interval while this block lasts: a page is open."""
        with self.running():
            self.followers += 1
            self._wake.set()  # without a page the reader sleeps longer
            try:
                yield
            finally:
                self.followers -= 1

    async def next(self, timeout: float) -> QueueSnapshot | None:
        """The next snapshot; None if there is none within `timeout` seconds, or the server stops."""
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
        coming = self._next
        await asyncio.wait([coming], timeout=timeout)
        return coming.result() if coming.done() and not self.closed else None

    @property
    def version(self) -> str:
        """The version that a page shows at least if its request begins now."""
        return f"{self._name}-{self._changes}"

    def close(self) -> None:
        """End all streams: the server stops."""
        self.closed = True
        self._answer(self.latest)

    async def _run(self) -> None:
        while True:
            self._publish(await self._read())
            self._wake.clear()
            interval = self._interval if self.followers else max(_IDLE, self._interval)
            try:
                await asyncio.wait_for(self._wake.wait(), interval)
            except TimeoutError:
                continue

    async def _read(self) -> QueueSnapshot:
        before = self.latest
        try:
            queues = await self._inspector.queues()
        except PenstockError as error:
            if not before.error:
                _log.warning("the dashboard cannot read the store: %s", error)
            return QueueSnapshot(before.number + 1, before.queues, not before.error, str(error))
        except Exception as error:  # noqa: BLE001  # boundary: a fault in one read must not end all streams
            if not before.error:
                _log.exception("the dashboard cannot read the store")
            return QueueSnapshot(before.number + 1, before.queues, not before.error, type(error).__name__)
        return QueueSnapshot(before.number + 1, queues, queues != before.queues or bool(before.error))

    def _publish(self, snapshot: QueueSnapshot) -> None:
        if snapshot.changed:
            self._changes += 1
            self._on_change()
        snapshot = replace(snapshot, version=self.version)
        self.latest = snapshot
        if not snapshot.error:
            self._remember(snapshot)
        self._answer(snapshot)

    def _answer(self, snapshot: QueueSnapshot) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(snapshot)

    def _remember(self, snapshot: QueueSnapshot) -> None:
        now = time.time_ns() // 1_000_000
        if self.depths and now - self.depths[-1].at < _DEPTH_EVERY * 1000:
            return
        ready = {q.name: q.counts.get(State.AVAILABLE, 0) for q in snapshot.queues[:_MOST_QUEUES]}
        self.depths.append(Depth(now, {name: n for name, n in ready.items() if n}))


# ── server-sent events ───────────────────────────────────────────────────────────────────────────

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
