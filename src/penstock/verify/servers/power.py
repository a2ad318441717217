"""A power cut for a store that is a SQLite file: what was written and not synced is gone.

A process that has called `watch` writes down, beside the file, how much of its write-ahead log is on the
disk: as far as SQLite was told to sync, not as far as our code believes. When all who have the file open are
dead, `cut` takes the rest of the log; the next who opens the file finds what a machine has that went dark.

A checkpoint syncs the log before it touches the database, and the database before the log begins anew. So the
database has all that an older log had, and the file is whole after every cut.
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

__all__ = ["begin", "cut", "watch"]

_HEAD, _FRAME = 32, 24  # bytes before the first frame of a log, and before each frame's page
_note = struct.Struct("<8sQQ")  # which log, how many bytes of it, since when (wall clock, ms)


def watch() -> None:
    """Let new connections of this process write down what they sync, where that is asked for."""
    file.connection_class = WatchedConnection


def begin(path: Path) -> None:
    """Ask all who watch to write down what they sync of this file. Nobody may have it open yet."""
    watch()
    _note_of(path).write_bytes(_note.pack(b"", 0, 0))


def cut(path: Path) -> int:
    """Take what was not synced from this file's log; since when (wall clock, ms) nothing was.

    Nobody may have it open, and the last who had must not have closed it: that would have synced all.
    """
    log = Path(f"{path}-wal")
    which, synced, since = _read_note(path)
    with suppress(FileNotFoundError), log.open("r+b") as whole:
        found, _ = _head(whole.fileno())
        whole.truncate(synced if found == which else 0)
        os.fsync(whole.fileno())
    return since


class WatchedConnection(sqlite3.Connection):
    """A connection that notes each sync of the log."""

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
        elif sql.startswith("PRAGMA wal_checkpoint"):  # the first that it does
            self._synced()
        cursor = super().execute(sql, *parameters)
        if sql == "COMMIT" and self._full and self.total_changes != self._changes:
            self._synced()
        return cursor

    def _synced(self) -> None:
        """All that is committed by now is on the disk. Called by the one writer that there is at a time."""
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
    """Which log it is (its salts: they change when it begins anew), and the size of a page."""
    head = os.pread(log, _HEAD, 0)
    if len(head) < _HEAD:
        return b"", 0
    return head[16:24], int.from_bytes(head[8:12], "big")


def _committed(log: int, which: bytes, end: int) -> tuple[bytes, int]:
    """Up to where the log is committed; `which` and `end` are what an earlier look has found."""
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
        if frame[4:8] != bytes(4):  # the last of a transaction says how large the database is then
            end = at
