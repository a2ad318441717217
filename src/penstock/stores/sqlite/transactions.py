"""The connection of a process to its SQLite file, and the transactions on it. For one thread at a time."""

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
from penstock.stores.sqlite.calls import PendingCall
from penstock.stores.sqlite.checkpoint import Checkpointer
from penstock.stores.sqlite.fair_write_lock import FairWriteLock
from penstock.stores.sqlite.faults import busy, os_fault, translated
from penstock.stores.sqlite.file import is_ready, open_file, prepare, sidecar
from penstock.stores.sqlite.modes import PRIVATE
from penstock.stores.sqlite.notifier import ENDED, WORK, Notifier
from penstock.stores.sqlite.rows import UnreadableRow
from penstock.stores.sqlite.running import causes_of, run_probe, run_verb, run_without
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.needs_write import NEEDS_WRITE

__all__ = ["Transactions"]

_log = logging.getLogger("penstock.stores")

#: Interval (seconds) of the check that the open file is still the file at this path.
_LOOK_AT_FILE = 1.0


class Transactions:
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
        self.path = path
        self.patience = patience / 1000
        folder = path.with_name(path.name + "-penstock")
        self.notifiers = {name: Notifier(folder / name, path) for name in (WORK, ENDED)}
        self.write_lock = FairWriteLock(folder, path)
        self._namespace = namespace
        self._clock = clock
        self._full_sync = full_sync
        self._on_open = on_open
        self._mode = mode
        self._checkpointer = Checkpointer(patience)
        self._cx: sqlite3.Connection | None = None
        self._context: TransactionContext | None = None  # reused by every transaction of this connection
        self._synced_fully = False
        self._sidecar_open = False
        self._inode = self._looked_at = 0.0

    # ── transactions ──

    def probe(self, calls: Sequence[PendingCall]) -> list[PendingCall]:
        """Answer calls by reading alone; mark and return the calls that need a write."""
        cx = self._connection()
        left = []
        try:
            cx.execute("BEGIN")
            tx = self._fresh_context()
            for call in calls:
                tx.begin(call.namespace)
                probe = call.verb.probe
                assert probe is not None
                try:
                    call.answer = run_probe(call, tx, probe)
                except BaseException as error:  # noqa: BLE001  # boundary: errors are per call
                    call.error = self.ours(error)
                if call.answer is NEEDS_WRITE:
                    call.writes = True
                    left.append(call)
        finally:
            if cx.in_transaction:
                cx.execute("COMMIT")
        return left

    def make_ready(self) -> None:
        """Open the files that a write needs. Call it before acquire: opening may take the write lock."""
        if time.monotonic() >= self._looked_at + _LOOK_AT_FILE:
            self._look_at_file()
        self._connection()
        if not self._sidecar_open:
            self._open_sidecar()

    def write(self, calls: Sequence[PendingCall]) -> None:
        """Run all calls in one transaction. An error in one of several calls undoes only that call.

        Call it only inside the fair write lock.
        """
        cx = self._connection()
        if self._full_sync:
            self._sync(any(call.syncs for call in calls))
        try:
            cx.execute("BEGIN IMMEDIATE")
            tx = self._run_all(calls)
            cx.execute("COMMIT")
        except BaseException as error:  # boundary: after any error nothing may stay half done
            if cx.in_transaction:
                cx.execute("ROLLBACK")
            if self._context is not None:
                self._context.drop_set_aside()  # the rollback has undone their setting aside
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                self._make_room(cx)
            raise
        if tx.work:
            self.notifiers[WORK].notify()
        if tx.ended:
            self.notifiers[ENDED].notify()

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

    def _run_all(self, calls: Sequence[PendingCall]) -> TransactionContext:
        """Run the calls, without savepoints if at most one writes; if one fails, repeat with savepoints."""
        tx = self._fresh_context()
        if sum(not call.verb.reads for call in calls) <= 1:
            try:
                for call in calls:
                    self._run_alone(call, tx)
                return tx
            except BaseException:  # boundary: the second run below finds the call that fails
                if len(calls) == 1 or not tx.cx.in_transaction:
                    raise
            tx.execute("ROLLBACK")
            tx.execute("BEGIN IMMEDIATE")
            tx.drop_set_aside()
            tx = self._fresh_context()
        for call in calls:
            self._run_apart(call, tx)
        return tx

    def _run_alone(self, call: PendingCall, tx: TransactionContext) -> None:
        """Run a call without a savepoint; start the transaction again if it finds an unreadable job."""
        try:
            run_verb(call, tx)
        except (UnreadableRow, sqlite3.OperationalError) as error:
            causes = causes_of(error)
            tx.execute("ROLLBACK")
            tx.execute("BEGIN IMMEDIATE")
            run_without(call, tx, causes)

    def _run_apart(self, call: PendingCall, tx: TransactionContext) -> None:
        cx = tx.cx
        cx.execute("SAVEPOINT call")
        try:
            try:
                run_verb(call, tx)
            except (UnreadableRow, sqlite3.OperationalError) as error:
                causes = causes_of(error)
                cx.execute("ROLLBACK TO call")
                run_without(call, tx, causes)
        except BaseException as error:  # boundary: errors are per call
            if not cx.in_transaction:  # SQLite has rolled back everything, e.g. on a full disk
                raise
            cx.execute("ROLLBACK TO call")
            call.error = self.ours(error)
        cx.execute("RELEASE call")

    def _fresh_context(self) -> TransactionContext:
        tx = self._context
        assert tx is not None
        tx.start()
        return tx

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
        for notifier in self.notifiers.values():
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
        for notifier in self.notifiers.values():
            notifier.close()


_LEFT_ALONE: list[sqlite3.Connection] = []
