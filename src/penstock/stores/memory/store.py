"""The memory store: jobs in the memory of one process, in an SQLite database without a file.

`MemoryStore` is for event loops, `MemoryStore.sync` for threads. A verb runs in the caller's thread, one at a
time. No job survives the process, and no other process can see the jobs: in a forked child every verb raises
StoreError.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import functools
import os
import sqlite3
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from penstock.core import forks
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import StoreError, StoreReentered
from penstock.stores.rate_limiter import ExactRateLimiter, RateLimiter
from penstock.stores.sql.notifying import ENDED, WORK, LoopListener, Notifier, ThreadListener
from penstock.stores.sql.statements import SQL
from penstock.stores.sql.store import BASELINE, SeenCounts, SqlStore
from penstock.stores.sql.transaction_context import TransactionContext
from penstock.stores.sql.transactions import PendingCall, Transactions, Verb, check_library
from penstock.stores.statements import migrations


class MemoryStore(SqlStore):
    """A store in the memory of this process.

    Stores with the same name share their jobs, and the clock of the first one. A store without a name has its
    own jobs. `exact`: with a rate, jobs cannot be fetched ahead of their start.
    """

    def __init__(
        self, name: str = "", *, namespace: str = "", clock: Clock | None = None, exact: bool = False
    ) -> None:
        clock = clock or SystemClock()
        self._url = f"memory://{name}"
        self._memory = named(name, self._url, clock) if name else MemoryRunner(self._url, clock, exact=exact)
        self._in(namespace)
        self._memory.run_sync(namespace, BASELINE, self._seen_counts)

    def _in(self, namespace: str) -> None:
        self._clock = self._memory.clock
        self._set_up(namespace, self._memory, SeenCounts())

    def _view(self, namespace: str) -> MemoryStore:
        view = MemoryStore.__new__(MemoryStore)
        view._url, view._memory = self._url, self._memory
        view._in(namespace)  # its counts begin at its first wait: a view is made without SQLite
        return view

    @property
    def url(self) -> str:
        return self._url

    def close(self) -> None:
        """Do nothing: the jobs live as long as the store, or the process if it has a name."""


# ── running verbs ────────────────────────────────────────────────────────────────────────────────


P = ParamSpec("P")
R = TypeVar("R")


class MemoryRunner:
    """The jobs of one store, for the process that made it."""

    def __init__(self, url: str, clock: Clock, *, exact: bool = False) -> None:
        self.url = url
        self.clock = clock
        self._pid = os.getpid()
        self._in_verb = False
        with _SQLITE.lock:
            self._transactions = _MemoryTransactions(url, clock, ExactRateLimiter if exact else RateLimiter)
        weakref.finalize(self, _SQLITE.drop, self._transactions.cx)

    @property
    def is_left_behind(self) -> bool:
        """Whether this process is a fork of the one that made it."""
        return self._pid != os.getpid()

    @property
    def notifiers(self) -> Mapping[str, Notifier]:
        return self._transactions.notifiers

    async def run(self, namespace: str, verb: Verb[P, R], *args: P.args, **_: P.kwargs) -> R:
        """Run a verb in this namespace; it waits for nothing."""
        answer: R = self._run(PendingCall(namespace, verb, args))
        return answer

    def run_sync(self, namespace: str, verb: Verb[P, R], *args: P.args, **_: P.kwargs) -> R:
        """The same for a thread."""
        answer: R = self._run(PendingCall(namespace, verb, args))
        return answer

    def _run(self, call: PendingCall) -> Any:
        if self.is_left_behind:  # no worker would see its copy
            raise StoreError(
                f"{self.url} belongs to one process, and this is a fork of it: jobs stored here are lost; "
                "use sqlite:///FILE to share jobs between processes"
            )
        transactions = self._transactions
        with _SQLITE.lock:
            if self._in_verb:  # a signal handler or a `__del__` in the middle of a verb
                raise StoreReentered(self.url)
            self._in_verb = True
            try:
                if call.writes or transactions.probe([call]):
                    transactions.write([call])
            except sqlite3.Error as error:
                raise transactions.ours(error) from error
            finally:
                self._in_verb = False
            committed = transactions.take_committed()
        for name, queues in committed:  # a listener may take locks of its own: none is held here
            transactions.notifiers[name].notify(queues)
        if call.error is not None:
            raise call.error
        return call.answer


_runners: dict[str, MemoryRunner] = {}
_runners_lock = forks.lock()


def named(name: str, url: str, clock: Clock) -> MemoryRunner:
    """The jobs of the stores with this name, made if needed; they exist as long as the process."""
    with _runners_lock:
        runner = _runners.get(name)
        if runner is None or runner.is_left_behind:
            runner = _runners[name] = MemoryRunner(url, clock)
        return runner


class _MemoryTransactions(Transactions):
    def __init__(self, url: str, clock: Clock, limiter: Callable[..., RateLimiter]) -> None:
        super().__init__()
        self._url = url
        self.notifiers = {WORK: _MemoryNotifier(), ENDED: _MemoryNotifier()}
        self._committed: list[tuple[str, Collection[str] | None]] = []
        self.cx = cx = _SQLITE.opened()
        cx.execute(SQL["counters.new_boot"], (clock.boot_id(),))
        self._context = TransactionContext(cx, "", clock, limiter)

    def take_committed(self) -> list[tuple[str, Collection[str] | None]]:
        """Return the notifications of the commits since the last call: name, queues."""
        committed, self._committed = self._committed, []
        return committed

    def _notify(self, name: str, queues: Collection[str] | None) -> None:
        self._committed.append((name, queues))

    def _connection(self) -> sqlite3.Connection:
        return self.cx

    def ours(self, error: BaseException) -> BaseException:
        if not isinstance(error, sqlite3.Error):
            return error
        ours = StoreError(f"{self._url}: {type(error).__name__}: {error}")
        ours.__cause__ = error
        return ours


# ── SQLite in this process ───────────────────────────────────────────────────────────────────────


#: Databases of dropped stores that are kept for the next ones, and the most pages that such a one may have.
_SPARE, _SPARE_PAGES = 16, 1_000


class _Sqlite:
    """Lets one thread at a time into SQLite for the databases in memory, and none during a fork.

    SQLite has locks of the whole process (of its allocator, for one). In a fork's child a lock that another
    thread held is never free again, so a store that the child opens would wait for ever.
    """

    def __init__(self) -> None:
        #: Re-entrant: a signal handler may use another store in the middle of a verb.
        self.lock = forks.lock()
        self._dropped: collections.deque[sqlite3.Connection] = collections.deque()
        self._spare = _SPARE
        forks.pause_during_fork(self)
        atexit.register(self._end)

    def opened(self) -> sqlite3.Connection:
        """A database with empty tables. Under the lock.

        It is one of a dropped store if there is one: that has read the tables and prepared the statements,
        which takes longer than all that a short test does with its store.
        """
        while self._dropped:
            cx = self._dropped.popleft()
            if _emptied(cx):
                return cx
            cx.close()
        tables, cx = _tables(), _connect()
        with contextlib.closing(_connect()) as template:
            template.deserialize(tables)
            template.backup(cx)
        return cx

    def drop(self, cx: sqlite3.Connection) -> None:
        """Keep the database of a store that is gone for the next store, or close one.

        It waits for nobody: the garbage collector may call it while this thread holds any lock.
        """
        self._dropped.append(cx)
        self._close_more_than_spare()

    def _close_more_than_spare(self) -> None:
        while len(self._dropped) > self._spare and self.lock.acquire(blocking=False):
            try:
                with contextlib.suppress(IndexError):  # the garbage collector has dropped one meanwhile
                    self._dropped.popleft().close()
            finally:
                self.lock.release()

    def _end(self) -> None:
        self._spare = 0
        self._close_more_than_spare()

    def before_fork(self, seconds: float) -> bool:
        """As `forks.Paused`."""
        return self.lock.acquire(timeout=seconds)

    def after_fork(self) -> None:
        """As `forks.Paused`."""
        self.lock.release()


_SQLITE = _Sqlite()


def _connect() -> sqlite3.Connection:
    cx = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=256)
    cx.execute("PRAGMA temp_store = MEMORY")
    cx.execute("PRAGMA secure_delete = OFF")  # some builds overwrite deleted data: a second write
    return cx


@functools.cache
def _tables() -> bytes:
    """A database with all tables, made once in a process."""
    check_library("memory://")
    with contextlib.closing(_connect()) as cx:
        cx.execute("BEGIN")
        for migration in migrations("penstock.stores.sql"):
            for statement in migration.statements:
                cx.execute(statement)
        cx.execute("COMMIT")
        return cx.serialize()


@functools.cache
def _emptying() -> list[tuple[str, tuple[Any, ...]]]:
    """Statements with their values that bring all tables back to how `_tables` has them."""
    made: list[tuple[str, tuple[Any, ...]]] = []
    with contextlib.closing(_connect()) as cx:
        cx.deserialize(_tables())
        # sqlite_sequence last: SQLite itself writes to it when rows are inserted
        names = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name = 'sqlite_sequence'"
        for (table,) in cx.execute(names).fetchall():
            made.append((f"DELETE FROM {table}", ()))  # noqa: S608 (a table of ours)
            for row in cx.execute(f"SELECT * FROM {table}").fetchall():  # noqa: S608 (a table of ours)
                marks = ", ".join("?" * len(row))
                made.append((f"INSERT INTO {table} VALUES ({marks})", row))  # noqa: S608 (a table of ours)
    return made


def _emptied(cx: sqlite3.Connection) -> bool:
    """Empty the tables; False: closing the database is cheaper, or nobody knows its state."""
    if cx.in_transaction or cx.execute("PRAGMA page_count").fetchone()[0] > _SPARE_PAGES:
        return False
    cx.execute("BEGIN")
    for statement, values in _emptying():
        cx.execute(statement, values)
    cx.execute("COMMIT")
    return True


# ── notifications ────────────────────────────────────────────────────────────────────────────────


class _MemoryNotifier:
    """Notifies the listeners of this process, in their own threads and event loops."""

    def __init__(self) -> None:
        #: Needs no lock: every change is one dict operation.
        self.calls: dict[object, Callable[[Collection[str] | None], None]] = {}

    def notify(self, queues: Collection[str] | None = None) -> None:
        for call in list(self.calls.values()):
            call(queues)

    @contextlib.contextmanager
    def calling(self, call: Callable[[Collection[str] | None], None]) -> Iterator[None]:
        """Call this at each notification, in the thread that has committed, until the end of the block."""
        key = object()
        self.calls[key] = call
        try:
            yield
        finally:
            self.calls.pop(key, None)

    @contextlib.contextmanager
    def listening(self) -> Iterator[ThreadListener]:
        """Listen from a thread. No notification is missed after the block is entered."""
        listener = ThreadListener()
        with self.calling(lambda _: listener.notified.set()):
            yield listener

    def loop_listener(self) -> LoopListener:
        """Make a listener for the running event loop."""
        return _Listener(self)


class _Listener(LoopListener):
    """Notifies its waiters in a later turn of their loop: in this one, the committing task goes on."""

    def __init__(self, notifier: _MemoryNotifier) -> None:
        super().__init__()
        self._notifier = notifier
        #: The queues to notify of; None: all. Every change is one operation on the set.
        self._queues: set[str | None] = set()
        self._is_scheduled = False

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()

        def call(queues: Collection[str] | None) -> None:
            self._queues.update((None,) if queues is None else queues)
            if not self._is_scheduled:  # asked after the queues were added, and reset before they are taken
                self._is_scheduled = True
                if _runs_here(loop):
                    loop.call_soon(self._notify_waiters)
                else:
                    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits there
                        loop.call_soon_threadsafe(self._notify_waiters)

        self._listening.enter_context(self._notifier.calling(call))

    def _notify_waiters(self) -> None:
        self._is_scheduled = False
        popped = []
        while self._queues:
            popped.append(self._queues.pop())
        names = [name for name in popped if name is not None]
        self._notified(None if len(names) < len(popped) else names)


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is a task of the loop; a signal handler is none while the loop waits for events."""
    try:
        return asyncio.get_running_loop() is loop and asyncio.current_task(loop) is not None
    except RuntimeError:  # no loop runs in this thread
        return False
