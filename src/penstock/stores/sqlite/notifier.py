"""How a sleeper hears of a commit in another process: a byte written to a file that it watches.

Two files beside the database: `work` is rung when there may be something to fetch, promote or look up,
`ended` when a job has ended or gone. All who wait share the one watch of this process on that file. A ring
can be lost (another version, a full disk), so whoever waits looks for himself now and then as well.
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

__all__ = ["ENDED", "WORK", "Bell", "Listener", "LoopEar", "ThreadEar"]

WORK, ENDED = "work", "ended"


class Bell:
    """One file to ring or to read."""

    def __init__(self, path: Path, database: Path | None = None) -> None:
        self.path = path
        self._database = database  # whose mode it has
        self._fd = -1
        self._watch: Watch | None = None

    def open(self) -> None:
        """Make it if need be; raises OSError."""
        if self._fd < 0:
            self._fd = open_beside(self.path, self._database, lock=False)
            if os.fstat(self._fd).st_size < 8:
                os.pwrite(self._fd, bytes(8), 0)

    def ring(self) -> None:
        """Wake everybody who waits for this; about a microsecond."""
        try:
            os.pwrite(self._fd, time.monotonic_ns().to_bytes(8, "little"), 0)
        except OSError:  # a full disk or a closed file: sleepers look for themselves within a second
            pass

    def read(self) -> bytes:
        """What the last ring wrote; b"" if that cannot be read."""
        try:
            return os.pread(self._fd, 8, 0)
        except OSError:
            return b""

    @property
    def watch(self) -> Watch:
        """That of this process, which all bells of this file share."""
        watch = self._watch
        if watch is None or watch.left_behind:
            watch = self._watch = watch_on(self.path)
        return watch

    @contextlib.contextmanager
    def listening(self) -> Iterator[ThreadEar]:
        """The ear of a thread: from here on no ring is missed."""
        ear = ThreadEar()
        with self.watch.telling_thread(ear.rung.set):
            yield ear

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._watch = None


class ThreadEar:
    """Hears one bell for one thread."""

    __slots__ = ("rung",)

    def __init__(self) -> None:
        self.rung = threading.Event()

    def heard(self, seconds: float) -> bool:
        """Whether it was rung since the last time, or is within that time."""
        rung = self.rung.wait(max(0.0, seconds))
        self.rung.clear()
        return rung


class LoopEar:
    """Hears one bell for the coroutines of one event loop, which is bothered only while one listens."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._calls: set[Callable[[], None]] = set()
        self._listening = contextlib.ExitStack()  # while there are any

    @contextlib.contextmanager
    def listening(self) -> Iterator[Listener]:
        """From here on no ring is missed."""
        event = asyncio.Event()
        with self.calling(event.set):
            yield Listener(event)

    @contextlib.contextmanager
    def calling(self, heard: Callable[[], None]) -> Iterator[None]:
        """`heard` is called at every ring from here on."""
        if not self._calls:
            self._begin()
        self._calls.add(heard)
        try:
            yield
        finally:
            self._calls.discard(heard)
            if not self._calls:
                self._listening.close()

    def _begin(self) -> None:
        loop, watch = asyncio.get_running_loop(), self._bell.watch
        if watch.reads_in(loop):
            self._listening.enter_context(watch.telling_loop(loop, self._heard))
        else:
            self._listening.callback(_Poller(self._bell, self._heard).end)

    def _heard(self) -> None:
        for call in list(self._calls):
            call()


class Listener:
    """One coroutine's ear at the bell."""

    __slots__ = ("_event",)

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def heard(self, seconds: float) -> bool:
        """Whether it was rung since the last time, or is within that time."""
        if not self._event.is_set():
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    await self._event.wait()
            except TimeoutError:
                return False
        self._event.clear()
        return True


class _Poller:
    """Reads a bell every few milliseconds in a loop that cannot be told of a ring."""

    def __init__(self, bell: Bell, heard: Callable[[], None]) -> None:
        self._bell = bell
        self._heard = heard
        self._last = bell.read()
        self._timer = asyncio.get_running_loop().call_later(POLL, self._read)

    def end(self) -> None:
        self._timer.cancel()

    def _read(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(POLL, self._read)
        if (now := self._bell.read()) != self._last:
            self._last = now
            self._heard()
