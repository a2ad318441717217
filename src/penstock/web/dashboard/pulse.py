"""Reads the sizes of all queues once per interval, for all open pages together, and remembers depths."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from penstock.core.errors import PenstockError
from penstock.core.job import State
from penstock.inspector import Inspector, QueueView

__all__ = ["Depth", "Pulse", "QueueSnapshot"]

_log = logging.getLogger("penstock.web")

#: Seconds between two remembered depths, and how many are remembered: two hours.
_DEPTH_EVERY, _DEPTHS = 10.0, 720
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
            self._task = asyncio.get_running_loop().create_task(self._run())
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
        ready = {q.name: q.counts.get(State.AVAILABLE.value, 0) for q in snapshot.queues[:_MOST_QUEUES]}
        self.depths.append(Depth(now, {name: n for name, n in ready.items() if n}))
