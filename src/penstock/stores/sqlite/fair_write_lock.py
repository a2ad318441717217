"""A fair write lock for one SQLite file: processes write in the order in which they asked.

SQLite's busy handler sleeps and retries, so one of two busy writers can starve. This lock uses two lock
files: take `next`, take `main`, release `next`, write, release `main`. Only one process at a time waits for
`main`, and the kernel grants `next` in the order of the requests.

Checkpoints run inside the lock, too: SQLite before 3.51.3 (3.50.7, 3.44.6) can lose a committed write when a
checkpoint races a commit. On a platform without flock the lock is always free, and writers rely on
`BEGIN IMMEDIATE` and its busy handler.
"""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

from penstock.stores.sqlite.modes import open_beside


class FairWriteLock:
    """The two lock files of one database, for one thread at a time.

    The lock files are never deleted: a process that waits for a deleted file would exclude nobody.

    A signal handler or a timeout may raise between two statements. So callers acquire inside a `try` and
    release in its `finally`; releasing a lock that is not held does nothing.
    """

    def __init__(self, folder: Path, database: Path | None = None) -> None:
        self._folder = folder
        self._database = database  # the lock files get the mode of this file
        self._next = self._main = -1

    def open(self) -> None:
        """Open the lock files, creating them if needed; raises OSError."""
        if fcntl is None:
            return
        if self._main < 0:  # else an earlier call has failed at the second file
            self._main = open_beside(self._folder / "main", self._database, lock=True)
        if self._next < 0:
            self._next = open_beside(self._folder / "next", self._database, lock=True)

    def try_acquire(self) -> bool:
        """Take the lock if no process holds it or waits for it; return whether it was taken."""
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
        """Wait for the lock without a timeout. Call it only in a thread that may block."""
        if fcntl is None:
            return
        try:
            fcntl.flock(self._next, fcntl.LOCK_EX)
            fcntl.flock(self._main, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def release(self) -> None:
        """Release the lock; does nothing if it is not held."""
        if fcntl is not None and self._main >= 0:
            fcntl.flock(self._main, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock files. In a forked child this does not release the parent's locks."""
        for fd in (self._next, self._main):
            if fd >= 0:
                os.close(fd)
        self._next = self._main = -1


_NOW = 0 if fcntl is None else fcntl.LOCK_EX | fcntl.LOCK_NB


def vulnerable(version: tuple[int, int, int]) -> bool:
    """Return True if this SQLite can lose a commit that races a checkpoint outside the fair write lock.

    https://sqlite.org/wal.html, "the WAL-reset bug": fixed in 3.51.3, and in 3.50.7 and 3.44.6.
    """
    if version >= (3, 51, 3):
        return False
    return not ((3, 50, 7) <= version < (3, 51, 0) or (3, 44, 6) <= version < (3, 45, 0))
