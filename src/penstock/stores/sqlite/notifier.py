"""Notify waiters in other processes of a commit, by writing a few bytes to a file that they watch.

Two files beside the database: `work` is written when there may be something to fetch, promote or look up,
`ended` when a job has ended or was removed. All waiters of a process share one watch on that file. A
notification can be lost (another version, a full disk), so waiters also re-check at an interval.
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
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from penstock.core.forks import lock, reset_after_fork
from penstock.stores.sql.notifying import LoopListener, ThreadListener
from penstock.stores.sqlite.modes import open_beside


class FileNotifier:
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

    def notify(self, queues: Collection[str] | None = None) -> None:
        """Wake all waiters, of any queue; takes about a microsecond."""
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

    def loop_listener(self) -> LoopListener:
        """Make a listener for the running event loop."""
        return _FileListener(self)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._watch = None


class _FileListener(LoopListener):
    def __init__(self, notifier: FileNotifier) -> None:
        super().__init__()
        self._notifier = notifier

    def _begin(self) -> None:
        loop, watch = asyncio.get_running_loop(), self._notifier.watch
        if watch.reads_in(loop):
            self._listening.enter_context(watch.calling_in_loop(loop, self._notified))
        else:
            self._listening.callback(_Poller(self._notifier, self._notified).end)


class _Poller:
    """Reads a notification file every few milliseconds, for an event loop that cannot watch it."""

    def __init__(self, notifier: FileNotifier, notified: Callable[[], None]) -> None:
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


# ── watching a file ──────────────────────────────────────────────────────────────────────────────

# One inotify instance per process, because a user may have only 128 of them. An event loop watches the
# inotify descriptor with its selector. For waiting threads, one background thread watches it. The first
# reader of an event notifies all listeners. Without inotify, or if no instance is left, event loops and the
# background thread read the file every few milliseconds.
#
# A watch stays open as long as a store has the file open: the kernel takes 9 ms to close a watch (measured;
# it waits for all processors), and 50 µs to open one.


#: Interval (seconds) of reading a file that cannot be watched.
POLL = 0.003

#: The background thread ends this long (seconds) after the last wait.
_LINGER = 1.0
_IN_MODIFY = 0x02
_EVENT = struct.Struct("iIII")

Callback = Callable[[], None]


class Watch:
    """The watch on one file, for all stores, threads and event loops of this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._callbacks: dict[object, Callback] = {}  # needs no lock: every change is one dict operation
        self._readers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int] = weakref.WeakKeyDictionary()
        self._threads = 0  # number of waiting threads
        self._lock = lock()  # guards that number and the background thread
        self._thread: threading.Thread | None = None
        self._fd = -1
        self._close: Callable[[], object] | None = None
        #: True in a forked child, for the watch of the parent.
        self.left_behind = False
        self._open()
        reset_after_fork(self)

    def reset_in_child(self) -> None:
        """Close the watch in a forked child: an event read here would be missing in the parent."""
        self.left_behind = True
        self._callbacks.clear()
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
        """Watch the file with this loop's selector; return False if the loop must poll the file instead."""
        if self._fd < 0:
            self._open()  # an inotify instance may be free again
        if self._fd < 0:
            return False
        self.look()  # consume earlier notifications
        try:
            if not self._readers.get(loop):
                loop.add_reader(self._fd, self.look)
        except NotImplementedError:  # a loop without add_reader
            return False
        self._readers[loop] = self._readers.get(loop, 0) + 1
        return True

    @contextlib.contextmanager
    def calling_in_loop(self, loop: asyncio.AbstractEventLoop, callback: Callback) -> Iterator[None]:
        """Call `callback` in this loop at each write, until the end of the block. Call `reads_in` first."""

        def call() -> None:
            if asyncio._get_running_loop() is loop:
                callback()
            else:
                with contextlib.suppress(RuntimeError):  # the loop was just closed
                    loop.call_soon_threadsafe(callback)

        self._callbacks[callback] = call
        try:
            yield
        finally:
            self._callbacks.pop(callback, None)
            self._readers[loop] = left = self._readers.get(loop, 1) - 1
            # an async generator that was not closed may end here after its loop was closed
            if not left and self._fd >= 0 and not loop.is_closed():
                loop.remove_reader(self._fd)

    # ── threads ──

    @contextlib.contextmanager
    def calling_in_thread(self, callback: Callback) -> Iterator[None]:
        """Call `callback`, in any thread, at each write, until the end of the block."""
        if self._fd >= 0:
            self.look()  # consume earlier notifications
        with self._lock:
            self._threads += 1
            if self._thread is None:
                self._thread = _started(self._serve)
        self._callbacks[callback] = callback
        try:
            yield
        finally:
            self._callbacks.pop(callback, None)
            with self._lock:
                self._threads -= 1

    def _serve(self) -> None:
        try:
            self._serve_threads()
        finally:
            if self._thread is threading.current_thread():  # after an error: the next wait starts another
                self._thread = None

    def _serve_threads(self) -> None:
        """Run the background thread while threads wait, and for `_LINGER` seconds after the last wait."""
        if self._fd < 0:
            self._open()
        changed = self._polled if self._fd < 0 else self._watched
        idle_since = time.monotonic()
        for written in changed():
            if written:
                self._notify()
            if self._threads:
                idle_since = time.monotonic()
            elif written or time.monotonic() - idle_since >= _LINGER:
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

    # ── notifying ──

    def look(self) -> None:
        """Notify all listeners if the file was written since the last call."""
        if self._drained():
            self._notify()

    def _notify(self) -> None:
        for call in list(self._callbacks.values()):
            call()

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
    """Start a thread; None if the system refuses one: waiters also re-check at an interval."""
    thread = threading.Thread(target=life, name="penstock-sqlite-watch", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


_watches: weakref.WeakValueDictionary[tuple[int, int], Watch] = weakref.WeakValueDictionary()
_watches_lock = lock()


def watch_on(path: Path) -> Watch:
    """Return this process's watch on this file, created if needed."""
    try:
        status = os.stat(path)
        key = (status.st_dev, status.st_ino)
    except OSError:  # nothing to watch: waiters also re-check at an interval
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
    """Return an inotify descriptor that watches this file; -1 without inotify, or if none is left."""
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
    except (OSError, AttributeError):  # no usable C library
        return None
    return libc
