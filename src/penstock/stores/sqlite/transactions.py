"""The connection of a process to its SQLite file, the transactions on it, and checkpoints.

For one thread at a time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from penstock.core.clock import Clock
from penstock.core.errors import StoreCorrupt, StoreError
from penstock.stores.sql.notifying import ENDED, WORK
from penstock.stores.sql.transaction_context import TransactionContext
from penstock.stores.sql.transactions import PendingCall, Transactions
from penstock.stores.sqlite.fair_write_lock import FairWriteLock
from penstock.stores.sqlite.file import busy, is_ready, open_file, os_fault, prepare, sidecar, translated
from penstock.stores.sqlite.modes import PRIVATE
from penstock.stores.sqlite.notifier import FileNotifier

_log = logging.getLogger("penstock.stores")

#: Interval (seconds) of the check that the open file is still the file at this path.
_LOOK_AT_FILE = 1.0


class FileTransactions(Transactions):
    """Opens the file when needed. `patience`: ms that a write waits for other writers before StoreBusy."""

    def __init__(
        self,
        path: Path,
        *,
        namespace: str,
        clock: Clock,
        full_sync: bool,
        patience: int,
        on_open: Callable[[TransactionContext], None],
        mode: int = PRIVATE,
    ) -> None:
        super().__init__()
        self.path = path
        self.patience = patience / 1000
        folder = path.with_name(path.name + "-penstock")
        self.notifiers = self._files = {name: FileNotifier(folder / name, path) for name in (WORK, ENDED)}
        self.write_lock = FairWriteLock(folder, path)
        self._namespace = namespace
        self._clock = clock
        self._full_sync = full_sync
        self._on_open = on_open
        self._mode = mode
        self._checkpointer = Checkpointer(patience)
        self._cx: sqlite3.Connection | None = None
        self._synced_fully = False
        self._sidecar_open = False
        self._inode = self._looked_at = 0.0

    def make_ready(self) -> None:
        """Open the files that a write needs. Call it before acquire: opening may take the write lock."""
        if time.monotonic() >= self._looked_at + _LOOK_AT_FILE:
            self._look_at_file()
        self._connection()
        if not self._sidecar_open:
            self._open_sidecar()

    def _begins(self, cx: sqlite3.Connection, calls: Sequence[PendingCall]) -> None:
        if self._full_sync:
            self._sync(any(call.syncs for call in calls))

    def _failed(self, cx: sqlite3.Connection, error: BaseException) -> None:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            self._make_room(cx)

    def tidy(self) -> None:
        """Run a checkpoint if due, inside the fair write lock. A failed one is retried the next time."""
        assert self._cx is not None
        try:
            self._checkpointer.tick(self._cx)
        except sqlite3.Error:
            pass

    def _make_room(self, cx: sqlite3.Connection) -> None:
        """Run a checkpoint because the disk is full: a reset log may have space for a smaller transaction."""
        with contextlib.suppress(sqlite3.Error):
            self._checkpointer.checkpoint(cx)

    def _sync(self, syncs: bool) -> None:
        if syncs is not self._synced_fully:
            self._connection().execute(f"PRAGMA synchronous = {'FULL' if syncs else 'NORMAL'}")
            self._synced_fully = syncs

    # ── errors ──

    def ours(self, error: BaseException) -> BaseException:
        """Translate an error of SQLite or the system to ours; return any other error unchanged."""
        if isinstance(error, sqlite3.Error):
            ours: StoreError = translated(error, self.path)
        elif isinstance(error, OSError):
            ours = os_fault(error, self.path)
        elif isinstance(error, (msgspec.DecodeError, UnicodeDecodeError)):
            ours = StoreCorrupt(
                f"{self.path}: a job cannot be read ({error}), possibly because another program has written "
                "to the tables of Penstock: restore a backup, or delete that row"
            )
        else:
            return error
        ours.__cause__ = error
        return ours

    def too_long(self) -> StoreError:
        return busy(self.path, f"another process has held it for {self.patience:.3g} s")

    # ── opening and closing ──

    def _connection(self) -> sqlite3.Connection:
        return self._cx or self._open()

    def _open(self) -> sqlite3.Connection:
        cx = open_file(self.path, int(self.patience * 1000), self._mode)
        try:
            if not is_ready(cx, self.path):
                self._prepare(cx)
            cx.execute(f"PRAGMA synchronous = {'FULL' if self._full_sync else 'NORMAL'}")
            self._synced_fully = self._full_sync
            self._try_sidecar()
            self._inode = os.stat(self.path).st_ino
            self._looked_at = time.monotonic()
            self._context = tx = TransactionContext(cx, self._namespace, self._clock)
            self._on_open(tx)
        except BaseException:  # boundary: a connection that is not kept is closed, after any error
            cx.close()
            raise
        self._cx = cx
        return cx

    def _prepare(self, cx: sqlite3.Connection) -> None:
        self._open_sidecar()
        ends = time.monotonic() + self.patience
        try:
            while not self.write_lock.try_acquire():
                if time.monotonic() > ends:
                    raise self.too_long()
                time.sleep(0.002)  # happens only when a file is new or migrated
            prepare(cx, self.path, self._clock)
        finally:
            self.write_lock.release()

    def _open_sidecar(self) -> None:
        sidecar(self.path)
        self.write_lock.open()
        for notifier in self._files.values():
            notifier.open()
        self._sidecar_open = True

    def _try_sidecar(self) -> None:
        """Open the folder beside the file, if permitted. Readers need it only for notifications."""
        if not self._sidecar_open:
            try:
                self._open_sidecar()
            except OSError:
                pass

    def _look_at_file(self) -> None:
        """Close the file if it was deleted or replaced: jobs written to the old file would be lost."""
        self._looked_at = time.monotonic()
        if self._cx is None:
            return
        try:
            inode = os.stat(self.path).st_ino
        except FileNotFoundError:
            inode = -1
        if inode != self._inode:
            _log.warning("%s was deleted or replaced while it was open: opening it again", self.path)
            self.close()

    def close(self) -> None:
        """Close all files; the next verb opens them again."""
        if self._cx is not None:
            with contextlib.suppress(sqlite3.Error):
                self._cx.close()
        self._forget()

    def leave_alone(self) -> None:
        """Abandon the connection in a forked child: its locks belong to the parent."""
        if self._cx is not None:
            _LEFT_ALONE.append(self._cx)  # kept open: closing it would drop locks of this process
        self._forget()

    def _forget(self) -> None:
        self._cx = self._context = None
        self._sidecar_open = False
        self.write_lock.close()
        for notifier in self._files.values():
            notifier.close()


_LEFT_ALONE: list[sqlite3.Connection] = []


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────────

# They copy the write-ahead log into the database from time to time, so that the log stays small. They run
# only inside the fair write lock. The length of the log is estimated, because SQLite returns it only as the
# result of a checkpoint. Each result corrects the estimate, because other processes write, too, and jobs
# may be large. The aim: checkpoints spread over many commits, and a bounded log.


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
