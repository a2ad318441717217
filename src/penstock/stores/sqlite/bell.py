"""How a sleeper hears of a commit in another process: a byte written to a file that it watches.

Two files beside the database: `work` is rung when there may be something to fetch, promote or look up,
`ended` when a job has ended or gone. Who waits watches the file with inotify, which costs nothing while
nothing happens; without inotify it reads the file's eight bytes every few milliseconds. A ring can be
lost (another version, a full disk), so whoever waits looks for himself now and then as well.

A watch is kept as long as its event loop or thread: to close one takes the kernel 9 ms (measured; it waits
for all processors to have seen it go), to open one 50 µs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import select
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["ENDED", "WORK", "Bell", "LoopEar", "ThreadEar"]

WORK, ENDED = "work", "ended"

#: How often a file is read where it cannot be watched (seconds).
POLL = 0.003

_IN_MODIFY = 0x02
_EVENT = struct.Struct("iIII")
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)


class Bell:
    """One file to ring or to read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._ears = threading.local()

    def open(self) -> None:
        """Make it if need be; raises OSError."""
        if self._fd < 0:
            self._fd = os.open(self.path, _FLAGS, 0o666)
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

    def thread_ear(self) -> ThreadEar:
        """The ear of this thread; a fork's child does not share its parent's."""
        ear: tuple[int, ThreadEar] | None = getattr(self._ears, "ear", None)
        if ear is None or ear[0] != os.getpid():
            ear = self._ears.ear = (os.getpid(), ThreadEar(self))
        return ear[1]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._ears = threading.local()


class LoopEar:
    """Hears one bell for the coroutines of one event loop, which is bothered only while one listens."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._calls: set[Callable[[], None]] = set()
        self._watch: _Watch | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that watches for us, while somebody listens

    @contextlib.contextmanager
    def listening(self) -> Iterator[Listener]:
        """From here on no ring is missed."""
        event = asyncio.Event()
        with self._called(event.set):
            yield Listener(event, self._bell, polls=self._loop is None)

    @contextlib.contextmanager
    def calling(self, heard: Callable[[], None]) -> Iterator[None]:
        """`heard` is called at every ring from here on."""
        with self._called(heard):
            poller = _Poller(self._bell, heard) if self._loop is None else None
            try:
                yield
            finally:
                if poller is not None:
                    poller.end()

    @contextlib.contextmanager
    def _called(self, heard: Callable[[], None]) -> Iterator[None]:
        if not self._calls:
            self._begin()
        self._calls.add(heard)
        try:
            yield
        finally:
            self._calls.discard(heard)
            if not self._calls:
                self._end()

    def _begin(self) -> None:
        if self._watch is None:
            self._watch = _watch(self._bell.path)
        if self._watch is not None:
            self._watch.drain()  # of what was rung while nobody listened
            loop = asyncio.get_running_loop()
            try:
                loop.add_reader(self._watch.fd, self._heard)
            except NotImplementedError:  # a loop without add_reader
                return
            self._loop = loop

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        # who left an iteration without closing it may be found out when his loop is closed
        if self._watch is not None and loop is not None and not loop.is_closed():
            loop.remove_reader(self._watch.fd)

    def _heard(self) -> None:
        if self._watch is not None:
            self._watch.drain()
        for call in list(self._calls):
            call()


class Listener:
    """One coroutine's ear at the bell."""

    __slots__ = ("_bell", "_event", "_last", "_polls")

    def __init__(self, event: asyncio.Event, bell: Bell, *, polls: bool) -> None:
        self._event = event
        self._bell = bell
        self._polls = polls
        self._last = bell.read() if polls else b""

    async def heard(self, seconds: float) -> bool:
        """Whether it was rung since the last time, or is within that time."""
        if self._polls:
            return await self._poll(seconds)
        if not self._event.is_set():
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    await self._event.wait()
            except TimeoutError:
                return False
        self._event.clear()
        return True

    async def _poll(self, seconds: float) -> bool:
        ends = time.monotonic() + seconds
        while (now := self._bell.read()) == self._last:
            left = ends - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(POLL, left))
        self._last = now
        return True


class _Poller:
    """Reads a bell every few milliseconds where it cannot be watched."""

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


class ThreadEar:
    """Hears one bell for one thread."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._watch = _watch(bell.path)
        self._last = bell.read()

    def heard(self, seconds: float) -> bool:
        """Whether it was rung since the last time, or is within that time."""
        if self._watch is not None:
            return self._watch.wait(seconds)
        ends = time.monotonic() + seconds
        while (now := self._bell.read()) == self._last:
            left = ends - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(POLL, left))
        self._last = now
        return True


# ── inotify ──────────────────────────────────────────────────────────────────────────────────────


class _Watch:
    """An inotify descriptor with one watch."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd).atexit = False

    def drain(self) -> None:
        try:
            while len(os.read(self.fd, 4096)) >= 4096 - _EVENT.size:
                pass
        except BlockingIOError:
            pass

    def wait(self, seconds: float) -> bool:
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        rung = bool(poller.poll(max(0, seconds) * 1000))
        if rung:
            self.drain()
        return rung


def _watch(path: Path) -> _Watch | None:
    """A watch on that file, or None where there is no inotify or no room for one more watch."""
    libc = _libc()
    if libc is None:
        return None
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(fd)
        return None
    return _Watch(fd)


@functools.cache
def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.inotify_init1.argtypes = [ctypes.c_int]
        libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
    except (OSError, AttributeError):  # no C library that we can call
        return None
    return libc
