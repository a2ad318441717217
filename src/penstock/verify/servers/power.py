"""Simulates a power cut for a SQLite file: unsynced writes are lost.

A process that has called `track_syncs` records, in a file beside the database, how much of the write-ahead
log SQLite has synced to disk. When all processes that have the file open are dead, `cut` truncates the log to
that size. The next process that opens the file finds the state after a power cut.

A checkpoint syncs the log before it writes the database, and syncs the database before the log restarts. So
the database contains everything of an older log, and the file is consistent after every cut.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.stores.sqlite import file

__all__ = ["cut", "start_tracking", "track_syncs"]

_HEAD, _FRAME = 32, 24  # size of the log's header and of each frame's header (bytes)
_note = struct.Struct("<8sQQ")  # id of the log, its synced bytes, time of the sync (wall clock, ms)


def track_syncs() -> None:
    """Make new connections of this process record their syncs, for files with `start_tracking`."""
    file.connection_class = SyncTrackingConnection


def start_tracking(path: Path) -> None:
    """Start recording the syncs of this file. No process may have the file open yet."""
    track_syncs()
    _note_of(path).write_bytes(_note.pack(b"", 0, 0))


def cut(path: Path) -> int:
    """Drop the unsynced end of this file's log. Returns the time of the last sync (wall clock, ms).

    No process may have the file open, and the last one must have been killed: closing the file syncs it.
    """
    log = Path(f"{path}-wal")
    which, synced, since = _read_note(path)
    with suppress(FileNotFoundError), log.open("r+b") as whole:
        found, _ = _head(whole.fileno())
        whole.truncate(synced if found == which else 0)
        os.fsync(whole.fileno())
    return since


class SyncTrackingConnection(sqlite3.Connection):
    """A SQLite connection that records each sync of the log."""

    def __init__(self, database: Any, *args: Any, **options: Any) -> None:
        super().__init__(database, *args, **options)
        self._path = Path(os.fsdecode(database))
        self._full = True  # SQLite's own default
        self._changes = 0
        self._seen = b"", _HEAD

    def execute(self, sql: str, /, *parameters: Any) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA synchronous ="):
            self._full = sql.endswith("FULL")
        elif sql.startswith("BEGIN"):
            self._changes = self.total_changes
        elif sql.startswith("PRAGMA wal_checkpoint"):  # a checkpoint first syncs the log
            self._synced()
        cursor = super().execute(sql, *parameters)
        if sql == "COMMIT" and self._full and self.total_changes != self._changes:
            self._synced()
        return cursor

    def _synced(self) -> None:
        """Record that all committed frames are on disk. Called by the only writer at the time."""
        with suppress(FileNotFoundError), _note_of(self._path).open("r+b", buffering=0) as note:
            with Path(f"{self._path}-wal").open("rb") as log:
                self._seen = which, end = _committed(log.fileno(), *self._seen)
            note.write(_note.pack(which, end, time.time_ns() // 1_000_000))


def _note_of(path: Path) -> Path:
    return Path(f"{path}.synced")


def _read_note(path: Path) -> tuple[bytes, int, int]:
    which, synced, since = _note.unpack(_note_of(path).read_bytes())
    return which, synced, since


def _head(log: int) -> tuple[bytes, int]:
    """The id of the log (its salts, which change when the log restarts), and the page size."""
    head = os.pread(log, _HEAD, 0)
    if len(head) < _HEAD:
        return b"", 0
    return head[16:24], int.from_bytes(head[8:12], "big")


def _committed(log: int, which: bytes, end: int) -> tuple[bytes, int]:
    """The id of the log and the end of its last commit; `which` and `end` are an earlier result."""
    found, page = _head(log)
    if not found:
        return b"", 0
    if found != which:
        end = _HEAD
    at = end
    while True:
        frame = os.pread(log, _FRAME, at)
        if len(frame) < _FRAME or frame[8:16] != found:
            return found, end
        at += _FRAME + page
        if frame[4:8] != bytes(4):  # only the last frame of a transaction has the size of the database
            end = at
