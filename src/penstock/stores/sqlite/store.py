"""The store in one SQLite file: durable, for several processes of one host, and nothing to install.

`SqliteStore` is the door for event loops, `SqliteStore.sync` the one for threads. Both hand verbs
(`verbs/`) to the one `Runner` of the process, which owns the connection and the transactions.
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
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import ASK_CANCELLED
from penstock.core.limits import LimitChange
from penstock.core.per_loop import PerLoop
from penstock.core.schedule import Entry, NewEntry
from penstock.stores.contract import (
    Beat,
    Due,
    Enqueued,
    Fetched,
    Finding,
    Grip,
    GroupInfo,
    LaneInfo,
    Level,
    Offer,
    Page,
    Parked,
    Pruned,
    QueueInfo,
    QueueStats,
    Settled,
    Settlement,
    Share,
    SyncStore,
    Tick,
    Ticked,
    Timetable,
    Wake,
    WorkerInfo,
)
from penstock.stores.result_waiter import Ended, Endings
from penstock.stores.sqlite.calls import Verb
from penstock.stores.sqlite.fair_write_lock import vulnerable
from penstock.stores.sqlite.modes import open_to_others, read_mode
from penstock.stores.sqlite.notifier import ENDED, WORK, LoopListener, ThreadListener
from penstock.stores.sqlite.runner import Runner
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.transactions import Transactions
from penstock.stores.sqlite.verbs import batches, consuming, listing, operating, periodic, producing, settling

__all__ = ["SqliteStore"]

_ENQUEUE = Verb(producing.enqueue)
_GET = Verb(producing.get, reads=True)
_CANCEL = Verb(producing.cancel)
_ALL_ENDED = Verb(producing.all_ended, reads=True)
_ENDED_ONES = Verb(producing.ended_ones, reads=True)
_FETCH = Verb(consuming.fetch, probe=consuming.probe_fetch, syncs=False)
_EXTEND = Verb(consuming.extend, syncs=consuming.must_last)
_SETTLE = Verb(settling.settle)
_PROMOTE = Verb(consuming.promote, probe=consuming.probe_promote, syncs=False)
_RECLAIM = Verb(consuming.reclaim, probe=consuming.probe_reclaim, syncs=False)
_LOOK = Verb(consuming.look, reads=True)
_LIST = Verb(listing.list_jobs, reads=True)
_FIND = Verb(listing.find, reads=True)
_LANE = Verb(listing.lane, reads=True)
_QUEUES = Verb(listing.queues, reads=True)
_UNREADABLE_SETTINGS = Verb(listing.unreadable_settings, reads=True)
_PARKED = Verb(listing.parked, reads=True)
_STATS = Verb(listing.stats, reads=True)
_WORKERS = Verb(listing.workers, reads=True)
_SETTINGS = Verb(operating.settings)
_RETRY = Verb(operating.retry)
_RESCHEDULE = Verb(operating.reschedule)
_DELETE = Verb(operating.delete)
_PURGE = Verb(operating.purge)
_DROP = Verb(operating.drop)
_PRUNE = Verb(operating.prune, probe=operating.probe_prune)
_ANNOUNCE = Verb(operating.announce, syncs=False)
_RETIRE = Verb(operating.retire, syncs=False)
_ENTRIES = Verb(periodic.entries, reads=True)
_PUT_ENTRIES = Verb(periodic.put_entries, probe=periodic.probe_put_entries)
_PAUSE_ENTRIES = Verb(periodic.pause_entries)
_DELETE_ENTRIES = Verb(periodic.delete_entries)
_TICK = Verb(periodic.tick)
_GROUPS = Verb(batches.groups, reads=True)
_FLUSH_GROUP = Verb(batches.flush_group)

#: Whoever waits looks for himself this often, whatever he heard (seconds).
_SAFETY = 1.0
#: A thread that waits for many jobs rests after a look that was not short as long as that took, at most ...
_SHORT, _REST = 0.001, 0.1

_DURABILITIES = ("full", "normal")


class SqliteStore:
    """Jobs in a SQLite file, which comes to be if it is not there; its directory does not.

    `durability="full"`: an acknowledged job survives a power cut. `"normal"`: it survives the crash of any
    process, but a power cut can take the last moments. `patience` (ms): how long to wait for other writers
    before StoreBusy. `mode`: of a new file, 0600 (private) or 0660 (for its group too) and the like; one that
    is there keeps its own.
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
            raise ConfigError(f"{text!r} is no path of a file; for jobs in memory use memory://")
        self._clock = clock or SystemClock()
        self._mode = read_mode(mode)
        self._news = _News()
        # one name for one file, whatever way leads to it: the fair write lock stands beside it
        self._path = Path(os.path.realpath(text))
        self._runner = Runner(
            Transactions(
                self._path,
                namespace=namespace,
                clock=self._clock,
                full_sync=durability == "full",
                patience=patience,
                mode=self._mode,
                on_open=self._news.begin,
            )
        )
        self._listeners: PerLoop[dict[str, LoopListener]] = PerLoop()
        self._endings: PerLoop[Endings] = PerLoop()
        self._sync = _SyncDoor(self._runner)
        self._closer = weakref.finalize(self, self._runner.close, 1.0)

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def sync(self) -> SyncStore:
        return self._sync

    def close(self) -> None:
        """Let go of the file; a later verb opens it again."""
        self._runner.close()

    # ── producing ──

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await self._runner.ask(_ENQUEUE, jobs)

    async def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return await self._runner.ask(_GET, refs)

    async def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        return await self._runner.ask(_CANCEL, refs, reason)

    async def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        return await (await self._here_ends()).ended(refs, timeout, self.get)

    async def ends(self, refs: Sequence[Ref], *, timeout: int) -> AsyncGenerator[dict[Ref, Job | None], None]:
        endings = await self._here_ends()
        async with contextlib.aclosing(endings.ends(refs, timeout)) as ends:
            async for some in ends:
                yield some

    async def _here_ends(self) -> Endings:
        """Who waits in this loop for the ends of jobs."""
        loop = asyncio.get_running_loop()
        endings = self._endings.get(loop)
        if endings is None:
            if self._news.heard is None:  # before it is opened there is no notifier to listen to
                await self._runner.ask(_BASELINE, self._news)
            runner = self._runner  # not the store: it shall go when its last user does

            async def look(refs: Sequence[Ref], _: float) -> Ended:
                return await runner.ask(_ENDED_ONES, refs)

            endings = Endings(look, every=_SAFETY, listening=self._listener(ENDED).calling)
            endings = self._endings.put(loop, endings)
        return endings

    # ── consuming ──

    async def fetch(
        self,
        queues: Sequence[Share],
        *,
        limit: int,
        lease: int,
        worker: str,
        token: str,
        charge: bool = True,
    ) -> Fetched:
        return await self._runner.ask(_FETCH, queues, limit, lease, worker, token, charge)

    async def extend(self, beats: Sequence[Beat]) -> list[Grip]:
        return await self._runner.ask(_EXTEND, beats)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return await self._runner.ask(_SETTLE, settlements)

    async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
        return await self._runner.ask(_PROMOTE, queues, limit)

    async def reclaim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: int,
        worker: str,
        token: str,
        of: Sequence[str] | None = None,
    ) -> Fetched:
        return await self._runner.ask(_RECLAIM, queues, limit, lease, worker, token, of)

    async def wait(
        self,
        queues: Sequence[str],
        *,
        timeout: int,
        offer: Offer | None = None,
        parked: Sequence[str] = (),
    ) -> Wake:
        until, ends = self._clock.now() + timeout, time.monotonic() + timeout / 1000
        before = self._news.heard
        if before is None:
            before = await self._runner.ask(_BASELINE, self._news)
        with self._listener(WORK).listening() as waiter:
            while True:
                wake, heard = await self._runner.ask(_LOOK, queues, until, before, parked)
                left = ends - time.monotonic()
                if wake or left <= 0:
                    self._news.told(heard)
                    return wake
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
        return [_library(), self._privacy(), *settings]

    def _privacy(self) -> Finding:
        """Who else may read what jobs carry, or lock the file."""
        if not self._path.exists():
            return Finding(Level.FINE, "permissions", f"a new file will have the mode {self._mode:04o}")
        folder = self._path.with_name(self._path.name + "-penstock")
        found = list(open_to_others(self._path, folder, self._mode))
        if not found:
            return Finding(Level.FINE, "permissions", f"nobody may do more than mode={self._mode:04o} says")
        return Finding(
            Level.WARNING,
            "permissions",
            "; ".join(found),
            f"chmod {self._mode:o} {self._path}* (and 700 for the folder), or give mode= in the URL",
        )

    async def list_jobs(
        self,
        *,
        queue: str | None = None,
        state: State | None = None,
        task: str | None = None,
        worker: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page:
        return await self._runner.ask(_LIST, queue, state, task, worker, after, limit)

    async def find(self, id: str) -> list[Job]:
        return await self._runner.ask(_FIND, id)

    async def queues(self) -> list[QueueInfo]:
        return await self._runner.ask(_QUEUES)

    async def parked(self) -> list[Parked]:
        return await self._runner.ask(_PARKED)

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        return await self._runner.ask(_STATS, days)

    async def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return await self._runner.ask(_SETTINGS, queue, paused, closed, limits)

    async def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        return await self._runner.ask(_RETRY, refs)

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return await self._runner.ask(_RESCHEDULE, refs, delay, run_at)

    async def delete(self, refs: Sequence[Ref]) -> list[State | None]:
        return await self._runner.ask(_DELETE, refs)

    async def purge(self, queue: str, states: Sequence[State], *, limit: int = 10_000) -> int:
        return await self._runner.ask(_PURGE, queue, states, limit)

    async def drop(self, queue: str) -> bool:
        return await self._runner.ask(_DROP, queue)

    async def lane(self, ref: Ref) -> LaneInfo | None:
        return await self._runner.ask(_LANE, ref)

    async def prune(
        self, *, limit: int = 1_000, keep_finished: int = 100_000, keep_dead: int = 100_000
    ) -> Pruned:
        return await self._runner.ask(_PRUNE, limit, keep_finished, keep_dead)

    async def announce(self, worker: WorkerInfo) -> None:
        await self._runner.ask(_ANNOUNCE, worker)

    async def retire(self, worker: str) -> None:
        await self._runner.ask(_RETIRE, worker)

    async def workers(self) -> list[WorkerInfo]:
        return await self._runner.ask(_WORKERS)

    async def entries(self, queues: Sequence[str] | None = None) -> Timetable:
        return await self._runner.ask(_ENTRIES, queues)

    async def put_entries(self, entries: Sequence[NewEntry]) -> list[Entry]:
        return await self._runner.ask(_PUT_ENTRIES, entries)

    async def pause_entries(self, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
        return await self._runner.ask(_PAUSE_ENTRIES, refs, paused)

    async def delete_entries(self, refs: Sequence[Ref]) -> list[bool]:
        return await self._runner.ask(_DELETE_ENTRIES, refs)

    async def tick(self, ticks: Sequence[Tick]) -> list[Ticked]:
        return await self._runner.ask(_TICK, ticks)

    async def groups(self, queue: str | None = None, *, limit: int = 1_000) -> list[GroupInfo]:
        return await self._runner.ask(_GROUPS, queue, limit)

    async def flush_group(self, queue: str, *, task: str, key: str = "") -> str | None:
        return await self._runner.ask(_FLUSH_GROUP, queue, task, key)


def _library() -> Finding:
    version = sqlite3.sqlite_version
    if not vulnerable(sqlite3.sqlite_version_info):
        return Finding(Level.FINE, "SQLite", version)
    return Finding(
        Level.FINE,  # nothing has to be done: we keep it out, and the start says it too
        "SQLite",
        f"{version}; it can lose committed writes when a checkpoint races a commit, which Penstock keeps out "
        "among its own processes. Other programs should not write to the same file",
        "fixed in 3.51.3, 3.50.7 and 3.44.6",
    )


class _SyncDoor:
    """The producing verbs for callers without an event loop, each in the caller's own thread."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._runner.do(_ENQUEUE, jobs)

    def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return self._runner.do(_GET, refs)

    def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        return self._runner.do(_CANCEL, refs, reason)

    def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
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

    def ends(self, refs: Sequence[Ref], *, timeout: int) -> Generator[dict[Ref, Job | None], None, None]:
        until = time.monotonic() + timeout / 1000
        open, took = list(dict.fromkeys(refs)), 0.0
        waiter: ThreadListener | None = None
        with contextlib.ExitStack() as listening:
            while open:
                if took > _SHORT:  # a burst of notifications must not cause a burst of queries
                    time.sleep(min(took, _REST))
                began = time.monotonic()
                found = self._runner.do(_ENDED_ONES, open)
                took = time.monotonic() - began
                left = until - time.monotonic()
                if found:
                    open = [ref for ref in open if ref not in found]
                    yield found
                elif left <= 0:
                    return
                elif waiter is None:  # from here on no notification is missed
                    waiter = listening.enter_context(self._runner.notifiers[ENDED].listening())
                else:
                    waiter.wait(min(left, _SAFETY))

    def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        return self._runner.do(_RETRY, refs)

    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return self._runner.do(_RESCHEDULE, refs, delay, run_at)

    def queues(self) -> list[QueueInfo]:
        return self._runner.do(_QUEUES)

    def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return self._runner.do(_SETTINGS, queue, paused, closed, limits)


class _News:
    """What the waits of a store object have told of requests to stop and changes of settings."""

    def __init__(self) -> None:
        self.heard: consuming.Heard | None = None

    def begin(self, tx: TransactionContext) -> None:
        """At the first opening: what happened before is not told."""
        if self.heard is None:
            self.heard = consuming.heard(tx)

    def told(self, now: consuming.Heard) -> None:
        """Several waits may end at once: the latest news count."""
        before = self.heard or now
        self.heard = consuming.Heard(*map(max, zip(before, now, strict=True)))


def _baseline(_: TransactionContext, news: _News) -> consuming.Heard:
    assert news.heard is not None
    return news.heard


_BASELINE = Verb(_baseline, reads=True)
