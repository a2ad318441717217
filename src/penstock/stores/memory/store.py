"""The doors of the memory store: `MemoryStore` for event loops, `MemoryStore.sync` for threads.

Both run verbs (`verbs/`) on one `MemoryState`, each under its lock. Nothing survives the process, and nothing
leaves it: in a fork of the process every verb raises StoreError.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Sequence

from penstock.core import forks
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import StoreError
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import ASK_CANCELLED
from penstock.core.limits import LimitChange
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
from penstock.stores.memory.notifier import Countdown, LoopNotifier, ThreadNotifier
from penstock.stores.memory.state import MemoryState, named
from penstock.stores.memory.verbs import (
    fetching,
    leases,
    listing,
    operating,
    periodic,
    producing,
    promoting,
    pruning,
    settling,
    waiting,
    workers,
)
from penstock.stores.memory.waiters import Heard
from penstock.stores.rate_limiter import ExactGate, Gate

__all__ = ["MemoryStore"]


class MemoryStore:
    """Jobs in the memory of this process. Those of one name and namespace share one state, and the clock of
    the first of them; one without a name has a state of its own. `exact`: a rate gives no start ahead."""

    def __init__(
        self, name: str = "", *, namespace: str = "", clock: Clock | None = None, exact: bool = False
    ) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._memory = (
            named(name, namespace, self._clock)
            if name
            else MemoryState(self._clock, ExactGate if exact else Gate)
        )
        self._heard = self._memory.waiters.heard
        self._heard_lock = forks.lock()

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    @property
    def sync(self) -> SyncStore:
        return _SyncDoor(self)

    def close(self) -> None:
        """There is nothing to let go of."""

    @property
    def memory(self) -> MemoryState:
        """The data; refused to a fork, whose copy of it no worker would ever look at."""
        if self._memory.pid != os.getpid():
            raise StoreError(
                f"{self.url} lives in one process, and this is a fork of it: what is stored here is lost; "
                "use sqlite:///FILE to share jobs between processes"
            )
        return self._memory

    async def checkup(self) -> list[Finding]:
        return []

    # producing

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self.memory.run(producing.enqueue, jobs)

    async def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return self.memory.run(producing.get, refs)

    async def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        return self.memory.run(producing.cancel, refs, reason)

    async def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        memory, notifier, left = self.memory, LoopNotifier(), Countdown(timeout)
        while (watch := memory.run(waiting.watch_ends, refs, notifier, False)).open:
            try:
                if not await notifier.wait(left()):
                    break
            finally:
                memory.run(waiting.unwatch_ends, watch)
        return memory.run(producing.get, refs)

    async def ends(self, refs: Sequence[Ref], *, timeout: int) -> AsyncGenerator[dict[Ref, Job | None], None]:
        memory, notifier, left = self.memory, LoopNotifier(), Countdown(timeout)
        watch = memory.run(waiting.watch_ends, refs, notifier, True)
        try:
            while True:
                in_time = not watch.open or bool(watch.told) or await notifier.wait(left())
                if told := memory.run(waiting.told, watch):
                    yield told
                elif not watch.open or not in_time:
                    return
        finally:
            memory.run(waiting.unwatch_ends, watch)

    # consuming

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
        return self.memory.run(fetching.fetch, queues, limit, lease, worker, token, charge)

    async def extend(self, beats: Sequence[Beat]) -> list[Grip]:
        return self.memory.run(leases.extend, beats)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return self.memory.run(settling.settle, settlements)

    async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
        return self.memory.run(promoting.promote, queues, limit)

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
        return self.memory.run(leases.reclaim, queues, limit, lease, worker, token, of)

    async def wait(
        self,
        queues: Sequence[str],
        *,
        timeout: int,
        offer: Offer | None = None,
        parked: Sequence[str] = (),
    ) -> Wake:
        memory, notifier, left = self.memory, LoopNotifier(), Countdown(timeout)
        until, before = self._clock.now() + timeout, self._heard
        memory.run(waiting.watch, queues, notifier)
        try:
            while True:
                wake, heard = memory.run(waiting.look, queues, until, before, parked)
                if wake or not await notifier.wait(left()):
                    self._note(heard)
                    return wake
        finally:
            memory.run(waiting.unwatch, queues, notifier)

    def _note(self, heard: Heard) -> None:
        """What has been told is not told again; several waits may end at once, the latest news count."""
        with self._heard_lock:
            self._heard = Heard(*map(max, zip(self._heard, heard, strict=True)))

    # operating

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
        return self.memory.run(listing.list_jobs, queue, state, task, worker, after, limit)

    async def find(self, id: str) -> list[Job]:
        return self.memory.run(listing.find, id)

    async def queues(self) -> list[QueueInfo]:
        return self.memory.run(listing.queues)

    async def parked(self) -> list[Parked]:
        return self.memory.run(listing.parked)

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        return self.memory.run(listing.stats, days)

    async def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return self.memory.run(operating.settings, queue, paused, closed, limits)

    async def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        return self.memory.run(operating.retry, refs)

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return self.memory.run(operating.reschedule, refs, delay, run_at)

    async def delete(self, refs: Sequence[Ref]) -> list[State | None]:
        return self.memory.run(operating.delete, refs)

    async def purge(self, queue: str, states: Sequence[State], *, limit: int = 10_000) -> int:
        return self.memory.run(operating.purge, queue, states, limit)

    async def drop(self, queue: str) -> bool:
        return self.memory.run(operating.drop, queue)

    async def lane(self, ref: Ref) -> LaneInfo | None:
        return self.memory.run(listing.lane, ref)

    async def prune(
        self, *, limit: int = 1_000, keep_finished: int = 100_000, keep_dead: int = 100_000
    ) -> Pruned:
        return self.memory.run(pruning.prune, limit, keep_finished, keep_dead)

    async def announce(self, worker: WorkerInfo) -> None:
        self.memory.run(workers.announce, worker)

    async def retire(self, worker: str) -> None:
        self.memory.run(workers.retire, worker)

    async def workers(self) -> list[WorkerInfo]:
        return self.memory.run(workers.workers)

    async def entries(self, queues: Sequence[str] | None = None) -> Timetable:
        return self.memory.run(periodic.entries, queues)

    async def put_entries(self, entries: Sequence[NewEntry]) -> list[Entry]:
        return self.memory.run(periodic.put_entries, entries)

    async def pause_entries(self, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
        return self.memory.run(periodic.pause_entries, refs, paused)

    async def delete_entries(self, refs: Sequence[Ref]) -> list[bool]:
        return self.memory.run(periodic.delete_entries, refs)

    async def tick(self, ticks: Sequence[Tick]) -> list[Ticked]:
        return self.memory.run(periodic.tick, ticks)

    async def groups(self, queue: str | None = None, *, limit: int = 1_000) -> list[GroupInfo]:
        return self.memory.run(listing.groups, queue, limit)

    async def flush_group(self, queue: str, *, task: str, key: str = "") -> str | None:
        return self.memory.run(operating.flush_group, queue, task, key)


class _SyncDoor:
    """The producing verbs for callers without an event loop."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._store.memory.run(producing.enqueue, jobs)

    def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return self._store.memory.run(producing.get, refs)

    def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        return self._store.memory.run(producing.cancel, refs, reason)

    def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        memory, notifier, left = self._store.memory, ThreadNotifier(), Countdown(timeout)
        while (watch := memory.run(waiting.watch_ends, refs, notifier, False)).open:
            try:
                if not notifier.wait(left()):
                    break
            finally:
                memory.run(waiting.unwatch_ends, watch)
        return memory.run(producing.get, refs)

    def ends(self, refs: Sequence[Ref], *, timeout: int) -> Generator[dict[Ref, Job | None], None, None]:
        memory, notifier, left = self._store.memory, ThreadNotifier(), Countdown(timeout)
        watch = memory.run(waiting.watch_ends, refs, notifier, True)
        try:
            while True:
                in_time = not watch.open or bool(watch.told) or notifier.wait(left())
                if told := memory.run(waiting.told, watch):
                    yield told
                elif not watch.open or not in_time:
                    return
        finally:
            memory.run(waiting.unwatch_ends, watch)

    def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        return self._store.memory.run(operating.retry, refs)

    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return self._store.memory.run(operating.reschedule, refs, delay, run_at)

    def queues(self) -> list[QueueInfo]:
        return self._store.memory.run(listing.queues)

    def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return self._store.memory.run(operating.settings, queue, paused, closed, limits)
