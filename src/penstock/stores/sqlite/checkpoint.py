"""Moves what is in the write-ahead log into the database now and then, so that the log stays small.

Only inside the fair write lock. The length of the log is estimated, for SQLite tells it only in answer to a
checkpoint, and each answer corrects the estimate (for others write too, and jobs may be large). What
matters is that the work is spread over many commits and that the log is bounded.
"""

from __future__ import annotations

import sqlite3

__all__ = ["LOG_LIMIT", "Checkpointer"]

#: A log file that has grown beyond this is cut back when it begins anew (bytes).
LOG_LIMIT = 16 * 2**20

_PAGES = 4_000  # of 2 KiB: 8 MB between two checkpoints
_PER_COMMIT = 5.0  # the pages that even the smallest enqueue changes
_PER_CHANGE = 0.25  # jobs that are changed together lie together
_TOO_LONG = 32_000  # pages: somebody reads and reads, and keeps the log from beginning anew
_READERS_MS = 50


class Checkpointer:
    """Counts what this process commits; what others do shows in the answers."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._guess = 0.0
        self._changes = 0
        self._limit = float(_PAGES)

    def tick(self, cx: sqlite3.Connection) -> None:
        """After a commit."""
        changes = cx.total_changes
        self._guess += _PER_COMMIT + max(0, changes - self._changes) * _PER_CHANGE
        self._changes = changes
        if self._guess >= self._limit:
            self.checkpoint(cx)

    def checkpoint(self, cx: sqlite3.Connection) -> None:
        """As much as can be done without waiting for readers; for a log that is too long wait a little."""
        _, log, done = cx.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if self._guess > 0 and done == log > 0:
            wrong = min(8.0, max(0.5, log / self._guess))
            self._limit = _PAGES / wrong
        self._guess = 0.0
        if log < _TOO_LONG:
            return
        cx.execute(f"PRAGMA busy_timeout = {_READERS_MS}")
        try:
            cx.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        finally:
            cx.execute(f"PRAGMA busy_timeout = {self._patience}")
