"""Faults of a SQLite file: its disk is full, or loses its power and with it all unsynced writes.

A process that has called `track_syncs` records, in a file beside the database, how much of the write-ahead
log SQLite has synced to disk. When all processes that have the file open are dead, `cut_power` truncates the
log to that size. The next process that opens the file finds the state after a power cut.

A checkpoint syncs the log before it writes the database, and syncs the database before the log restarts. So
the database contains everything of an older log, and the file is consistent after every cut.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import subprocess
import sys
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Self

from penstock.core.errors import ConfigError
from penstock.stores.sqlite import file

# ── a full disk ──────────────────────────────────────────────────────────────────────────────────


# Unmounts when its input ends: when this process closes the pipe, or ends for any reason.
_KEEPER = 'cat >/dev/null; exec umount -l "$1"'


class SmallDisk:
    """A small file system in this folder: a tmpfs, which only root on Linux can mount.

    Raises ConfigError if it cannot be mounted. It is removed with its contents when it is closed or when this
    process ends.
    """

    def __init__(self, folder: Path, megabytes: int = 64) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"
        if sys.platform != "linux" or os.geteuid() != 0:
            raise ConfigError(
                "a disk that can be filled has to be mounted, and only root on Linux can do that"
            )
        folder.mkdir(parents=True, exist_ok=True)
        options = f"size={megabytes}m,mode=700"
        mount = ["mount", "-t", "tmpfs", "-o", options, "penstock-verify", str(folder)]
        try:
            done = subprocess.run(mount, capture_output=True, text=True, check=False)  # noqa: S603 (a program of ours, in words of ours)
        except OSError as error:  # a small container may have no `mount` program
            raise ConfigError(f"a disk that can be filled cannot be mounted here: {error}") from None
        if done.returncode:
            raise ConfigError(f"a disk that can be filled cannot be mounted here: {done.stderr.strip()}")
        self._keeper = subprocess.Popen(  # noqa: S603 (a program of ours, in words of ours)
            ["sh", "-c", _KEEPER, "sh", str(folder)],  # noqa: S607 (found on the path, as a shell would)
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def fill_disk(self, seconds: float) -> str:
        """Fill the disk for this many seconds. Returns a description."""
        ends = time.monotonic() + seconds
        try:
            with FileIO(self._ballast, "wb") as ballast:
                while time.monotonic() < ends:
                    _take_all_room(ballast)  # again: a checkpoint frees space
                    time.sleep(0.02)
                size = ballast.tell()
        finally:
            self._ballast.unlink(missing_ok=True)
        return f"the last {size / 2**20:.1f} MB of its disk were taken"

    def close(self) -> None:
        """Unmount the disk; a second call does nothing."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _take_all_room(ballast: FileIO) -> None:
    for size in (1 << 20, 4_096, 1):
        try:
            while True:
                ballast.write(bytes(size))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


# ── a power cut ──────────────────────────────────────────────────────────────────────────────────


_HEAD, _FRAME = 32, 24  # size of the log's header and of each frame's header (bytes)
_note = struct.Struct("<8sQQ")  # id of the log, its synced bytes, time of the sync (wall clock, ms)


def track_syncs() -> None:
    """Make new connections of this process record their syncs, for files with `start_tracking`."""
    file.connection_class = SyncTrackingConnection


def start_tracking(path: Path) -> None:
    """Start recording the syncs of this file. No process may have the file open yet."""
    track_syncs()
    _note_of(path).write_bytes(_note.pack(b"", 0, 0))


def cut_power(path: Path) -> int:
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
