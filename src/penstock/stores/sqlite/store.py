"""The store in one SQLite file: durable, for several processes of one host, with nothing to install.

`SqliteStore` is for event loops, `SqliteStore.sync` for threads. Both pass the verbs of `verb_table.py` to
the store's `Runner`, which owns the connection and the transactions. This module has the verbs that wait, the
checkup, and closing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
import weakref
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import size_text
from penstock.core.job import Job, Ref
from penstock.core.per_loop import PerLoop
from penstock.stores.contract import Finding, Level, OnDue, SyncStore, Wake, WorkerOffer
from penstock.stores.facade import StoreFacade, SyncFacade, VerbTable
from penstock.stores.namespace_views import NamespaceViews
from penstock.stores.result_waiter import EndedJobs, ResultWaiter
from penstock.stores.sqlite.calls import Verb
from penstock.stores.sqlite.fair_write_lock import vulnerable
from penstock.stores.sqlite.modes import open_to_others, read_mode
from penstock.stores.sqlite.namespace_runner import NamespaceRunner
from penstock.stores.sqlite.notifier import ENDED, WORK, LoopListener, ThreadListener
from penstock.stores.sqlite.runner import Runner
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.transactions import Transactions
from penstock.stores.sqlite.verb_table import verb_table
from penstock.stores.sqlite.verbs import listing, producing, waiting
from penstock.stores.wake_counts import WakeCounts

__all__ = ["SqliteStore"]

_ALL_ENDED = Verb(producing.all_ended, reads=True)
_FIND_ENDED = Verb(producing.find_ended, reads=True)
_LOOK = Verb(waiting.look, reads=True)
_UNREADABLE_SETTINGS = Verb(listing.unreadable_settings, reads=True)

#: Waiters re-check at this interval (seconds) even if no notification arrived.
_SAFETY = 1.0
#: A thread that waits for jobs sleeps after a query longer than `_SHORT` for as long as the query took, at
#: most `_REST` (seconds).
_SHORT, _REST = 0.001, 0.1

_DURABILITIES = ("full", "normal")


class SqliteStore(NamespaceViews, StoreFacade):
    """A store in a SQLite file. A missing file is created; a missing directory is an error.

    - `durability="full"`: an acknowledged job survives a power cut. `"normal"`: an acknowledged job survives
      the crash of any process, but a power cut can lose the last commits.
    - `patience`: how long (ms) to wait for other writers before StoreBusy.
    - `mode`: the mode of a new file, e.g. 0600 (private) or 0660 (its group, too). An existing file keeps its
      mode.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "",
        durability: str = "full",
        clock: Clock | None = None,
        patience: int = 30_000,
        mode: str = "0600",
    ) -> None:
        if durability not in _DURABILITIES:
            hint = did_you_mean(durability, _DURABILITIES)
            raise ConfigError(f"durability={durability!r} is neither 'full' nor 'normal'{hint}")
        text = os.fspath(path)
        if text in ("", ":memory:") or "\0" in text:
            raise ConfigError(f"{text!r} is not the path of a file; for jobs in memory use memory://")
        self._clock = clock or SystemClock()
        self._mode, self._full_sync = read_mode(mode), durability == "full"
        # the real path, so that all processes use the same fair write lock, which is beside the file
        self._path = Path(os.path.realpath(text))
        seen_counts = _SeenCounts()
        runner = Runner(
            Transactions(
                self._path,
                namespace=namespace,
                clock=self._clock,
                full_sync=self._full_sync,
                patience=patience,
                mode=self._mode,
                on_open=seen_counts.begin,
            )
        )
        self._set_up(namespace, runner, seen_counts)
        self._closer = weakref.finalize(self, runner.close, 1.0)
        self._own_runner: Runner | None = runner

    def _set_up(self, namespace: str, runner: Runner | NamespaceRunner, seen_counts: _SeenCounts) -> None:
        self._runner, self._seen_counts = runner, seen_counts
        self._listeners: PerLoop[dict[str, LoopListener]] = PerLoop()
        self._result_waiters: PerLoop[ResultWaiter] = PerLoop()
        NamespaceViews.__init__(self, namespace)
        StoreFacade.__init__(self, verb_table(runner))
        self._sync = _SyncSqliteStore(runner, self._verbs)

    def _view(self, namespace: str) -> SqliteStore:
        view = SqliteStore.__new__(SqliteStore)
        view._clock, view._mode, view._path = self._clock, self._mode, self._path
        view._full_sync = self._full_sync
        view._own_runner = None
        assert self._own_runner is not None  # a view makes no views
        view._set_up(namespace, NamespaceRunner(self._own_runner, namespace), _SeenCounts())
        return view

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._path

    @property
    def sync(self) -> SyncStore:
        return self._sync

    def close(self) -> None:
        """Close the file; a later verb opens it again. Closing a view of a namespace does nothing."""
        if self._own_runner is not None:
            self._own_runner.close()

    # ── producing ──

    async def wait_for_end(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        return await (await self._loop_result_waiter()).wait_for_end(refs, timeout, self.get)

    async def stream_ends(
        self, refs: Sequence[Ref], *, timeout: int
    ) -> AsyncGenerator[dict[Ref, Job | None], None]:
        result_waiter = await self._loop_result_waiter()
        async with contextlib.aclosing(result_waiter.stream_ends(refs, timeout)) as ends:
            async for some in ends:
                yield some

    async def _loop_result_waiter(self) -> ResultWaiter:
        """Return the result waiter of the running event loop."""
        loop = asyncio.get_running_loop()
        result_waiter = self._result_waiters.get(loop)
        if result_waiter is None:
            if self._seen_counts.counts is None:  # the notifier exists only after the file is opened
                await self._runner.ask(_BASELINE, self._seen_counts)
            runner = self._runner  # not the store: a reference would keep it from being collected

            async def look(refs: Sequence[Ref], _: float) -> EndedJobs:
                return await runner.ask(_FIND_ENDED, refs)

            result_waiter = ResultWaiter(look, every=_SAFETY, listening=self._listener(ENDED).calling)
            result_waiter = self._result_waiters.put(loop, result_waiter)
        return result_waiter

    async def wait(
        self,
        queues: Sequence[str],
        *,
        timeout: int,
        offer: WorkerOffer | None = None,
        parked: Sequence[str] = (),
        on_due: OnDue | None = None,
    ) -> Wake:
        until, ends = self._clock.now() + timeout, time.monotonic() + timeout / 1000
        before = self._seen_counts.counts
        if before is None:
            before = await self._runner.ask(_BASELINE, self._seen_counts)
        with self._listener(WORK).listening() as waiter:
            while True:
                found = await self._runner.ask(_LOOK, queues, until, before, parked, on_due is None)
                wake, left = found.wake, ends - time.monotonic()
                if wake or left <= 0:
                    self._seen_counts.update(found.counts)
                    return wake
                if on_due is not None and found.due is not None:
                    on_due(found.due, found.now)
                await waiter.wait(min(left, _SAFETY))

    def _listener(self, name: str) -> LoopListener:
        loop = asyncio.get_running_loop()
        listeners = self._listeners.get(loop)
        if listeners is None:
            listeners = self._listeners.put(loop, {})
        listener = listeners.get(name)
        if listener is None:
            listener = listeners[name] = LoopListener(self._runner.notifiers[name])
        return listener

    # ── operating ──

    async def checkup(self) -> list[Finding]:
        settings = await self._runner.ask(_UNREADABLE_SETTINGS) if self._path.exists() else []
        return [_library(), self._privacy(), *self._file(), *settings]

    def _file(self) -> list[Finding]:
        """The size of the file, and when its commits reach the disk."""
        syncs = "each commit is synced to the disk" if self._full_sync else "commits are synced now and then"
        kept = f"{syncs} (durability={'full' if self._full_sync else 'normal'})"
        found = [Finding(Level.FINE, "syncs", kept)]
        if size := _size_of(f"{self._path}"):
            log = _size_of(f"{self._path}-wal")
            found.append(
                Finding(Level.FINE, "size", f"{size_text(size)}, and {size_text(log)} in the write-ahead log")
            )
        return found

    def _privacy(self) -> Finding:
        """Check whether other users can read the jobs or lock the file."""
        if not self._path.exists():
            return Finding(Level.FINE, "permissions", f"a new file will have the mode {self._mode:04o}")
        folder = self._path.with_name(self._path.name + "-penstock")
        found = list(open_to_others(self._path, folder, self._mode))
        if not found:
            return Finding(
                Level.FINE, "permissions", f"the files are not accessible beyond mode={self._mode:04o}"
            )
        return Finding(
            Level.WARNING,
            "permissions",
            "; ".join(found),
            f"chmod {self._mode:o} {self._path}* (and 700 for the folder), or give mode= in the URL",
        )


def _size_of(path: str) -> int:
    """The bytes of a file; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _library() -> Finding:
    version = sqlite3.sqlite_version
    if not vulnerable(sqlite3.sqlite_version_info):
        return Finding(Level.FINE, "SQLite", version)
    return Finding(
        Level.FINE,  # nothing has to be done: the fair write lock prevents it, and opening a file logs it
        "SQLite",
        f"{version}; it can lose committed writes when a checkpoint races a commit. Penstock prevents this "
        "among its own processes. Other programs should not write to the same file",
        "fixed in 3.51.3, 3.50.7 and 3.44.6",
    )


class _SyncSqliteStore(SyncFacade):
    """The sync verbs; each runs in the caller's thread."""

    def __init__(self, runner: Runner | NamespaceRunner, verbs: VerbTable) -> None:
        super().__init__(verbs)
        self._runner = runner

    def wait_for_end(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        ends = time.monotonic() + timeout / 1000
        jobs = self._runner.do(_ALL_ENDED, refs)
        if jobs is not None:
            return jobs
        with self._runner.notifiers[ENDED].listening() as waiter:
            while (jobs := self._runner.do(_ALL_ENDED, refs)) is None:
                left = ends - time.monotonic()
                if left <= 0:
                    return self.get(refs)
                waiter.wait(min(left, _SAFETY))
        return jobs

    def stream_ends(
        self, refs: Sequence[Ref], *, timeout: int
    ) -> Generator[dict[Ref, Job | None], None, None]:
        until = time.monotonic() + timeout / 1000
        open, took = list(dict.fromkeys(refs)), 0.0
        waiter: ThreadListener | None = None
        with contextlib.ExitStack() as listening:
            while open:
                if took > _SHORT:  # a burst of notifications must not cause a burst of queries
                    time.sleep(min(took, _REST))
                began = time.monotonic()
                found = self._runner.do(_FIND_ENDED, open)
                took = time.monotonic() - began
                left = until - time.monotonic()
                if found:
                    open = [ref for ref in open if ref not in found]
                    yield found
                elif left <= 0:
                    return
                elif waiter is None:  # after this, no notification is missed
                    waiter = listening.enter_context(self._runner.notifiers[ENDED].listening())
                else:
                    waiter.wait(min(left, _SAFETY))


class _SeenCounts:
    """The requests to stop and changes of settings that the waits of a store object have reported."""

    def __init__(self) -> None:
        self.counts: WakeCounts | None = None

    def begin(self, tx: TransactionContext) -> None:
        """Set the baseline when the file is first opened: earlier events are never reported."""
        if self.counts is None:
            self.counts = waiting.wake_counts(tx)

    def update(self, now: WakeCounts) -> None:
        """Store what a wait has reported; if several waits end at once, the highest counts stay."""
        self.counts = now if self.counts is None else self.counts.highest(now)


def _baseline(tx: TransactionContext, seen: _SeenCounts) -> WakeCounts:
    seen.begin(tx)  # of a view of a namespace: at its first wait
    assert seen.counts is not None
    return seen.counts


_BASELINE = Verb(_baseline, reads=True)
