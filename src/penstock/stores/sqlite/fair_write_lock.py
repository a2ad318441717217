"""A fair queue of processes before one SQLite file: who came first writes first.

SQLite's own busy handler sleeps and tries again, so that of two busy writers one can starve. Two locks
on two files do better: take `next`, take `main`, give `next` back, write, give `main` back. Whoever
waits for `main` is alone there, and the kernel serves those who wait for `next` in their order.

Checkpoints run inside it too: SQLite before 3.51.3 (3.50.7, 3.44.6) can lose a committed write when a
checkpoint races a commit. On a platform without flock the lock is always free, and
`BEGIN IMMEDIATE` with its busy handler has to do.
"""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

from penstock.stores.sqlite.modes import open_beside

__all__ = ["FairWriteLock", "vulnerable"]


class FairWriteLock:
    """The two locks of one file, for one thread at a time. The lock files are never deleted: a process
    that still waits at a deleted one would be alone there.

    A signal's handler, or a timeout, may raise between two statements. So to give back is harmless where
    nothing was taken, and callers do both inside of one `try`: `release` belongs into its `finally`.
    """

    def __init__(self, folder: Path, database: Path | None = None) -> None:
        self._folder = folder
        self._database = database  # whose mode the files have
        self._next = self._main = -1

    def open(self) -> None:
        """Open the lock files, making them if need be; raises OSError."""
        if self._next >= 0 or fcntl is None:
            return
        self._main = open_beside(self._folder / "main", self._database, lock=True)
        self._next = open_beside(self._folder / "next", self._database, lock=True)

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it and nobody waits for it; whether it was taken."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(self._next, _NOW)
            fcntl.flock(self._main, _NOW)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)
        return True

    def acquire(self) -> None:
        """Wait for the lock, however long that takes: only for a thread that may block."""
        if fcntl is None:
            return
        try:
            fcntl.flock(self._next, fcntl.LOCK_EX)
            fcntl.flock(self._main, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def release(self) -> None:
        """Give the lock to the next waiter; nothing if it is not held."""
        if fcntl is not None and self._main >= 0:
            fcntl.flock(self._main, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the files. In a fork's child this leaves the parent's locks alone."""
        for fd in (self._next, self._main):
            if fd >= 0:
                os.close(fd)
        self._next = self._main = -1


_NOW = 0 if fcntl is None else fcntl.LOCK_EX | fcntl.LOCK_NB


def vulnerable(version: tuple[int, int, int]) -> bool:
    """Whether this SQLite can lose a commit that races a checkpoint made without the fair write lock.

    https://sqlite.org/wal.html, "the WAL-reset bug": fixed in 3.51.3, and in 3.50.7 and 3.44.6.
    """
    if version >= (3, 51, 3):
        return False
    return not ((3, 50, 7) <= version < (3, 51, 0) or (3, 44, 6) <= version < (3, 45, 0))
