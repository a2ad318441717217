"""Checkpoints: copy the write-ahead log into the database from time to time, so that the log stays small.

Checkpoints run only inside the fair write lock. The length of the log is estimated, because SQLite returns it
only as the result of a checkpoint. Each result corrects the estimate, because other processes write, too, and
jobs may be large. The aim: checkpoints spread over many commits, and a bounded log.
"""

from __future__ import annotations

import sqlite3

__all__ = ["LOG_LIMIT", "Checkpointer"]

#: A log file larger than this (bytes) is truncated when it is reset.
LOG_LIMIT = 16 * 2**20

_PAGES = 4_000  # of 2 KiB: 8 MB between two checkpoints
_PER_COMMIT = 5.0  # pages that even the smallest enqueue changes
_PER_CHANGE = 0.25  # pages per changed row: jobs that are changed together share pages
_TOO_LONG = 32_000  # pages: overlapping readers keep the log from being reset
_READERS_MS = 50


class Checkpointer:
    """Estimates the log's length from this process's commits, corrected by the results of checkpoints."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._guess = 0.0
        self._changes = 0
        self._limit = float(_PAGES)

    def tick(self, cx: sqlite3.Connection) -> None:
        """Count a commit, and run a checkpoint if one is due."""
        changes = cx.total_changes
        self._guess += _PER_COMMIT + max(0, changes - self._changes) * _PER_CHANGE
        self._changes = changes
        if self._guess >= self._limit:
            self.checkpoint(cx)

    def checkpoint(self, cx: sqlite3.Connection) -> None:
        """Checkpoint without waiting for readers; if the log is too long, wait up to 50 ms for them."""
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
