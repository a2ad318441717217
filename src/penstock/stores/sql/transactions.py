"""Verbs, their calls, and the transactions of one connection to a SQLite database.

Calls run in a transaction: each verb with its own context, an unreadable job is set aside and the verb runs
again, and waiters are notified after the commit. For one thread at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from penstock.core.errors import StoreError
from penstock.stores.sql.notifying import ENDED, WORK, Notifier
from penstock.stores.sql.rows import UnreadableRow
from penstock.stores.sql.transaction_context import NEEDS_WRITE, NeedsWrite, TransactionContext
from penstock.stores.sql.verbs.aside import put_aside
from penstock.stores.sql.verbs.flow_session import count_ends

P = ParamSpec("P")
R = TypeVar("R")

_OLDEST_LIBRARY = (3, 37, 0)  # STRICT tables


def check_library(scheme: str) -> None:
    """Raise StoreError if the library is too old for a store with this scheme (`sqlite://`)."""
    if sqlite3.sqlite_version_info < _OLDEST_LIBRARY:
        raise StoreError(
            f"this Python has SQLite {sqlite3.sqlite_version}; {scheme} needs "
            f"{'.'.join(map(str, _OLDEST_LIBRARY))} or later: use a newer Python, or another store"
        )


# ── verbs and their calls ────────────────────────────────────────────────────────────────────────


class Verb(Generic[P, R]):
    """A function of a TransactionContext, and how to run it.

    - `reads`: the verb changes nothing and needs no write lock.
    - `probe`: a read-only function that may answer the verb without a write.
    - `syncs`: True if the verb's writes must survive a power cut once it is answered; or a function of the
      arguments that decides this.
    """

    __slots__ = ("act", "probe", "reads", "syncs")

    def __init__(
        self,
        act: Callable[Concatenate[TransactionContext, P], R],
        *,
        probe: Callable[Concatenate[TransactionContext, P], R | NeedsWrite] | None = None,
        reads: bool = False,
        syncs: Callable[P, bool] | bool = True,
    ) -> None:
        self.act = act
        self.probe = act if reads else probe
        self.reads = reads
        self.syncs: Callable[..., bool] | bool = False if reads else syncs


class PendingCall:
    """One call of a verb. Its answer goes to a future of an event loop, or to a thread that waits for it."""

    __slots__ = (
        "answer",
        "answered",
        "args",
        "asked_at",
        "error",
        "future",
        "loop",
        "namespace",
        "verb",
        "writes",
    )

    def __init__(self, namespace: str, verb: Verb[..., Any], args: tuple[Any, ...]) -> None:
        self.namespace = namespace
        self.verb = verb
        self.args = args
        self.writes = verb.probe is None  # a probe may set it later
        self.answer: Any = None
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Any] | None = None
        self.answered: threading.Event | None = None
        self.asked_at = 0.0

    @property
    def syncs(self) -> bool:
        """True if the commit must be on disk before the call is answered."""
        syncs = self.verb.syncs
        return syncs if isinstance(syncs, bool) else syncs(*self.args)


# ── transactions ─────────────────────────────────────────────────────────────────────────────────


class Transactions:
    """Runs calls in transactions of a connection, and notifies waiters after a commit."""

    notifiers: Mapping[str, Notifier]

    def __init__(self) -> None:
        self._context: TransactionContext | None = None  # reused by every transaction of the connection

    @abstractmethod
    def _connection(self) -> sqlite3.Connection:
        """The connection, opened if needed; its context is in `_context` then."""

    @abstractmethod
    def ours(self, error: BaseException) -> BaseException:
        """Translate an error of the driver or the system to ours; return any other error unchanged."""

    def _begins(self, cx: sqlite3.Connection, calls: Sequence[PendingCall]) -> None:
        """Prepare the connection for a transaction with these calls."""

    def _failed(self, cx: sqlite3.Connection, error: BaseException) -> None:
        """Do what follows a transaction that was rolled back."""

    def _notify(self, name: str, queues: Collection[str] | None) -> None:
        """Wake the waiters for these queues after a commit; None: all."""
        self.notifiers[name].notify(queues)

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
                    call.answer = _run_probe(call, cx, tx, probe)
                except BaseException as error:  # noqa: BLE001  # boundary: errors are per call
                    call.error = self.ours(error)
                if call.answer is NEEDS_WRITE:
                    call.writes = True
                    left.append(call)
        finally:
            if cx.in_transaction:
                cx.execute("COMMIT")
        return left

    def write(self, calls: Sequence[PendingCall]) -> None:
        """Run all calls in one transaction. An error in one of several calls undoes only that call.

        Call it only while no other connection writes.
        """
        cx = self._connection()
        self._begins(cx, calls)
        try:
            cx.execute("BEGIN IMMEDIATE")
            tx = self._run_all(calls, cx)
            cx.execute("COMMIT")
        except BaseException as error:  # boundary: after any error nothing may stay half done
            if cx.in_transaction:
                cx.execute("ROLLBACK")
            if self._context is not None:
                self._context.drop_set_aside()  # the rollback has undone their setting aside
            self._failed(cx, error)
            raise
        if tx.work or tx.signalled:
            self._notify(WORK, None if tx.signalled else tx.work)
        if tx.ended:
            self._notify(ENDED, None)

    def _run_all(self, calls: Sequence[PendingCall], cx: sqlite3.Connection) -> TransactionContext:
        """Run the calls, without savepoints if at most one writes; if one fails, repeat with savepoints."""
        tx = self._fresh_context()
        if sum(not call.verb.reads for call in calls) <= 1:
            try:
                for call in calls:
                    _run_unprotected(call, cx, tx)
                return tx
            except BaseException:  # boundary: the second run below finds the call that fails
                if len(calls) == 1 or not cx.in_transaction:
                    raise
            cx.execute("ROLLBACK")
            cx.execute("BEGIN IMMEDIATE")
            tx.drop_set_aside()
            tx = self._fresh_context()
        for call in calls:
            self._run_in_savepoint(call, cx, tx)
        return tx

    def _run_in_savepoint(self, call: PendingCall, cx: sqlite3.Connection, tx: TransactionContext) -> None:
        cx.execute("SAVEPOINT call")
        try:
            try:
                _run(call, tx)
            except (UnreadableRow, sqlite3.OperationalError) as error:
                causes = _causes_of(error)
                cx.execute("ROLLBACK TO call")
                _run_without(causes, call, cx, tx)
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


# ── one call ─────────────────────────────────────────────────────────────────────────────────────


def _run_unprotected(call: PendingCall, cx: sqlite3.Connection, tx: TransactionContext) -> None:
    """Run a call without a savepoint; start the transaction again if it finds an unreadable job."""
    try:
        _run(call, tx)
    except (UnreadableRow, sqlite3.OperationalError) as error:
        causes = _causes_of(error)
        cx.execute("ROLLBACK")
        cx.execute("BEGIN IMMEDIATE")
        _run_without(causes, call, cx, tx)


def _run(call: PendingCall, tx: TransactionContext) -> None:
    tx.begin(call.namespace)
    call.answer = call.verb.act(tx, *call.args)
    if tx.flow_ends:
        count_ends(tx)
    tx.flush()


def _run_without(
    causes: dict[int, str], call: PendingCall, cx: sqlite3.Connection, tx: TransactionContext
) -> None:
    """Set aside the jobs that a verb could not read and run the verb again, until it can read all."""
    tx.begin(call.namespace)
    unreported = len(tx.set_aside)
    cx.execute("SAVEPOINT whole")
    with _any_text(cx):
        while True:
            try:
                tx.begin(call.namespace)
                put_aside(tx, causes)
                count_ends(tx)
                tx.flush()
                _run(call, tx)
                break
            except UnreadableRow as more:
                if more.causes.keys() <= causes.keys():
                    raise
                causes |= more.causes
                del tx.set_aside[unreported:]
                cx.execute("ROLLBACK TO whole")
    cx.execute("RELEASE whole")


def _run_probe(
    call: PendingCall, cx: sqlite3.Connection, tx: TransactionContext, probe: Callable[..., Any]
) -> Any:
    try:
        return probe(tx, *call.args)
    except sqlite3.OperationalError as error:
        _causes_of(error)
        with _any_text(cx):
            return probe(tx, *call.args)


def _causes_of(error: UnreadableRow | sqlite3.OperationalError) -> dict[int, str]:
    """Return the unreadable jobs to set aside: none for text that is not UTF-8. Re-raises other errors."""
    if isinstance(error, UnreadableRow):
        return dict(error.causes)
    if "UTF-8" in str(error):
        return {}
    raise error


@contextlib.contextmanager
def _any_text(cx: sqlite3.Connection) -> Iterator[None]:
    """Allow text that is not UTF-8. Not the default, because it costs a Python call per text."""
    cx.text_factory = lambda text: text.decode(errors="replace")
    try:
        yield
    finally:
        cx.text_factory = str
