"""The one watch of a process on a file: all who wait for it share an inotify instance, for a user has 128.

An event loop has its selector watch the descriptor, threads have one thread of ours do it while any of them
waits. Whoever reads that the file was written tells all others. Where there is no inotify, or no instance is
left, loops and that thread read the file every few milliseconds.

A watch is kept as long as a store has the file open: to close one takes the kernel 9 ms (measured; it waits
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

from penstock.core.forks import begins_anew, lock

__all__ = ["POLL", "Watch", "watch_on"]

#: How often a file is read where it cannot be watched (seconds).
POLL = 0.003

#: So long after the last wait (seconds) the thread that watched for threads ends.
_LINGER = 1.0
_IN_MODIFY = 0x02
_EVENT = struct.Struct("iIII")

Told = Callable[[], None]


class Watch:
    """Of one file, for all stores, threads and event loops of this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[object, Told] = {}  # each step below is one of a dict: no lock
        self._readers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int] = weakref.WeakKeyDictionary()
        self._threads = 0  # that wait
        self._lock = lock()  # of that number, and of the thread
        self._thread: threading.Thread | None = None
        self._fd = -1
        self._close: Callable[[], object] | None = None
        #: Whether this is the watch of a parent, in a fork's child.
        self.left_behind = False
        self._open()
        begins_anew(self)

    def begin_life(self) -> None:
        """In a fork's child: what it read would be missing in the parent."""
        self.left_behind = True
        self._told.clear()
        if self._close is not None:
            self._close()
        self._fd, self._thread, self._threads = -1, None, 0

    def _open(self) -> None:
        self._fd = _inotify(self._path)
        if self._fd >= 0:
            self._close = close = weakref.finalize(self, os.close, self._fd)
            close.atexit = False

    # ── event loops ──

    def reads_in(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this loop's selector can watch it; else somebody must read the file now and then."""
        if self._fd < 0:
            self._open()  # one may have become free
        if self._fd < 0:
            return False
        self.look()  # at earlier notifications
        try:
            if not self._readers.get(loop):
                loop.add_reader(self._fd, self.look)
        except NotImplementedError:  # a loop without add_reader
            return False
        self._readers[loop] = self._readers.get(loop, 0) + 1
        return True

    @contextlib.contextmanager
    def telling_loop(self, loop: asyncio.AbstractEventLoop, told: Told) -> Iterator[None]:
        """After `reads_in`: `told` is called in that loop at each change, until the end of the block."""

        def tell() -> None:
            if asyncio._get_running_loop() is loop:
                told()
            else:
                with contextlib.suppress(RuntimeError):  # it was closed a moment ago
                    loop.call_soon_threadsafe(told)

        self._told[told] = tell
        try:
            yield
        finally:
            self._told.pop(told, None)
            self._readers[loop] = left = self._readers.get(loop, 1) - 1
            # who left an iteration without closing it may be found out when his loop is closed
            if not left and self._fd >= 0 and not loop.is_closed():
                loop.remove_reader(self._fd)

    # ── threads ──

    @contextlib.contextmanager
    def telling_thread(self, told: Told) -> Iterator[None]:
        """`told` is called, in some thread, at each change until the end of the block."""
        if self._fd >= 0:
            self.look()  # at earlier notifications
        with self._lock:
            self._threads += 1
            if self._thread is None:
                self._thread = _started(self._serve)
        self._told[told] = told
        try:
            yield
        finally:
            self._told.pop(told, None)
            with self._lock:
                self._threads -= 1

    def _serve(self) -> None:
        try:
            self._serve_threads()
        finally:
            if (
                self._thread is threading.current_thread()
            ):  # it ended by an error: the next wait starts another
                self._thread = None

    def _serve_threads(self) -> None:
        """The life of our thread: while threads wait, and a moment longer."""
        if self._fd < 0:
            self._open()
        changed = self._polled if self._fd < 0 else self._watched
        idle_since = time.monotonic()
        for told in changed():
            if told:
                self._tell()
            if self._threads:
                idle_since = time.monotonic()
            elif told or time.monotonic() - idle_since >= _LINGER:
                with self._lock:
                    if not self._threads:
                        self._thread = None
                        return

    def _watched(self) -> Iterator[bool]:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while not self.left_behind:
            yield bool(poller.poll(_LINGER * 1000)) and self._drained()

    def _polled(self) -> Iterator[bool]:
        last = _written(self._path)
        while not self.left_behind:
            time.sleep(POLL)
            now = _written(self._path)
            yield now != last
            last = now

    # ── telling ──

    def look(self) -> None:
        """If the file was written since the last look, tell all."""
        if self._drained():
            self._tell()

    def _tell(self) -> None:
        for tell in list(self._told.values()):
            tell()

    def _drained(self) -> bool:
        changed = False
        try:
            while len(read := os.read(self._fd, 4096)) >= 4096 - _EVENT.size:
                changed = True
            changed = changed or bool(read)
        except BlockingIOError:
            pass
        return changed


def _started(life: Callable[[], None]) -> threading.Thread | None:
    """None where the system gives no thread: who waits looks again after a while anyway."""
    thread = threading.Thread(target=life, name="penstock-sqlite-watch", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


_watches: weakref.WeakValueDictionary[tuple[int, int], Watch] = weakref.WeakValueDictionary()
_watches_lock = lock()


def watch_on(path: Path) -> Watch:
    """The watch of this process on this file, made if it is not there."""
    try:
        status = os.stat(path)
        key = (status.st_dev, status.st_ino)
    except OSError:  # nothing to watch: whoever waits looks for himself
        return Watch(path)
    with _watches_lock:
        watch = _watches.get(key)
        if watch is None or watch.left_behind:
            watch = _watches[key] = Watch(path)
        return watch


def _written(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _inotify(path: Path) -> int:
    """A descriptor with a watch on that file; -1 where there is no inotify or no room for one more."""
    libc = _libc()
    if libc is None:
        return -1
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(fd)
        return -1
    return fd


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
