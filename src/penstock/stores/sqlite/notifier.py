"""Notify waiters in other processes of a commit, by writing a few bytes to a file that they watch.

Two files beside the database: `work` is written when there may be something to fetch, promote or look up,
`ended` when a job has ended or was removed. All waiters of a process share one watch on that file. A
notification can be lost (another version, a full disk), so waiters also re-check at an interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.stores.sqlite.modes import open_beside
from penstock.stores.sqlite.watch import POLL, Watch, watch_on

__all__ = ["ENDED", "WORK", "LoopListener", "LoopWaiter", "Notifier", "ThreadListener"]

WORK, ENDED = "work", "ended"


class Notifier:
    """One notification file: write it to notify, watch it to be notified."""

    def __init__(self, path: Path, database: Path | None = None) -> None:
        self.path = path
        self._database = database  # the notification file gets the mode of this file
        self._fd = -1
        self._watch: Watch | None = None

    def open(self) -> None:
        """Open the file, creating it if needed; raises OSError."""
        if self._fd < 0:
            self._fd = open_beside(self.path, self._database, lock=False)
            if os.fstat(self._fd).st_size < 8:
                os.pwrite(self._fd, bytes(8), 0)

    def notify(self) -> None:
        """Wake all waiters; takes about a microsecond."""
        try:
            os.pwrite(self._fd, time.monotonic_ns().to_bytes(8, "little"), 0)
        except OSError:  # a full disk or a closed file: waiters re-check within a second
            pass

    def read(self) -> bytes:
        """Return the bytes of the last notification; b"" if the file cannot be read."""
        try:
            return os.pread(self._fd, 8, 0)
        except OSError:
            return b""

    @property
    def watch(self) -> Watch:
        """The watch of this process on the file, shared by all notifiers of this file."""
        watch = self._watch
        if watch is None or watch.left_behind:
            watch = self._watch = watch_on(self.path)
        return watch

    @contextlib.contextmanager
    def listening(self) -> Iterator[ThreadListener]:
        """Listen from a thread. No notification is missed after the block is entered."""
        listener = ThreadListener()
        with self.watch.calling_in_thread(listener.notified.set):
            yield listener

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._watch = None


class ThreadListener:
    """Listens to one notifier for one thread."""

    __slots__ = ("notified",)

    def __init__(self) -> None:
        self.notified = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Whether a notification came since the last wait, or comes within this time."""
        notified = self.notified.wait(max(0.0, seconds))
        self.notified.clear()
        return notified


class LoopListener:
    """Listens to one notifier for the coroutines of one event loop; inactive while none of them waits."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._calls: set[Callable[[], None]] = set()
        self._listening = contextlib.ExitStack()  # not empty while there are calls

    @contextlib.contextmanager
    def listening(self) -> Iterator[LoopWaiter]:
        """Listen from a coroutine. No notification is missed after the block is entered."""
        event = asyncio.Event()
        with self.calling(event.set):
            yield LoopWaiter(event)

    @contextlib.contextmanager
    def calling(self, call: Callable[[], None]) -> Iterator[None]:
        """Call `call` at every notification, until the end of the block."""
        if not self._calls:
            self._begin()
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._listening.close()

    def _begin(self) -> None:
        loop, watch = asyncio.get_running_loop(), self._notifier.watch
        if watch.reads_in(loop):
            self._listening.enter_context(watch.calling_in_loop(loop, self._notified))
        else:
            self._listening.callback(_Poller(self._notifier, self._notified).end)

    def _notified(self) -> None:
        for call in list(self._calls):
            call()


class LoopWaiter:
    """One waiting coroutine."""

    __slots__ = ("_event",)

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def wait(self, seconds: float) -> bool:
        """Whether a notification came since the last wait, or comes within this time."""
        if not self._event.is_set():
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    await self._event.wait()
            except TimeoutError:
                return False
        self._event.clear()
        return True


class _Poller:
    """Reads a notification file every few milliseconds, for an event loop that cannot watch it."""

    def __init__(self, notifier: Notifier, notified: Callable[[], None]) -> None:
        self._notifier = notifier
        self._notified = notified
        self._last = notifier.read()
        self._timer = asyncio.get_running_loop().call_later(POLL, self._read)

    def end(self) -> None:
        self._timer.cancel()

    def _read(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(POLL, self._read)
        if (now := self._notifier.read()) != self._last:
            self._last = now
            self._notified()
