"""Moves what is in the write-ahead log into the database now and then, so that the log stays small.

Only inside the turnstile. The length of the log is estimated, for SQLite tells it only in answer to a
checkpoint: what matters is that the work is spread over many commits and that the log is bounded.
"""

from __future__ import annotations

import sqlite3

__all__ = ["LOG_LIMIT", "Checkpointer"]

#: A log file that has grown beyond this is cut back when it begins anew (bytes).
LOG_LIMIT = 16 * 2**20

_PAGES = 2_000  # 8 MB between two checkpoints
_PER_COMMIT = 5  # the last page of each table and index that an enqueue touches
_PER_CHANGE = 8  # jobs that are changed together lie together
_TOO_LONG = 16_000  # pages: somebody reads and reads, and keeps the log from beginning anew
_READERS_MS = 50


class Checkpointer:
    """Counts what this process commits; others count for themselves."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._pages = 0
        self._changes = 0

    def tick(self, cx: sqlite3.Connection) -> None:
        """After a commit."""
        changes = cx.total_changes
        self._pages += _PER_COMMIT + max(0, changes - self._changes) // _PER_CHANGE
        self._changes = changes
        if self._pages >= _PAGES:
            self._pages = 0
            self.checkpoint(cx)

    def checkpoint(self, cx: sqlite3.Connection) -> None:
        """As much as can be done without waiting for readers; for a log that is too long wait a little."""
        _, log, _ = cx.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if log < _TOO_LONG:
            return
        cx.execute(f"PRAGMA busy_timeout = {_READERS_MS}")
        try:
            cx.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        finally:
            cx.execute(f"PRAGMA busy_timeout = {self._patience}")
