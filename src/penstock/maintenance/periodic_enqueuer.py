"""Enqueues the jobs of periodic entries shortly before they are due; any number of workers may run it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from penstock.app.periodic import AHEAD, next_tick, wait_ms
from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.core.job import NewJob, Ref
from penstock.core.schedule import Entry, NewEntry, Overlap
from penstock.encryption import why_not_here
from penstock.maintenance.service import Service
from penstock.stores.contract import Capability, SetAside, Store, Tick, TickStatus

#: Interval (s) at which entries are checked even without a notification: a busy worker gets none.
_LOOK = 30.0
#: Pause (s) before a tick is repeated that the store's server found too early by its clock.
_EARLY = 0.05
#: Pause (s) before an entry is checked again that cannot be computed here.
_TROUBLE = 5.0


class PeriodicEnqueuer(Service):
    """Sleeps until the next instant of the entries of these queues; `wake` makes it check for changes.

    The store's clock decides what is due, and its watermarks record what is done. No worker leads: the second
    worker's tick changes nothing. `own_entries` are the entries registered by this worker's code; they are
    stored first. Entries registered by other code are left to the workers that have that code. `rewrite` is
    the app's enqueue middleware, and `on_enqueued` is called for each job enqueued here.
    """

    name = "periodic enqueuer"
    needs = Capability.SCHEDULE

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        own_entries: Mapping[Ref, NewEntry],
        *,
        rewrite: Callable[[NewJob], NewJob] = lambda new: new,
        on_enqueued: Callable[[NewJob], None] = lambda _: None,
        look: float = _LOOK,
    ) -> None:
        super().__init__()
        self._store = store
        self._queues = tuple(queues)
        self._own_entries = {ref: entry for ref, entry in own_entries.items() if ref.queue in self._queues}
        self._rewrite = rewrite
        self._on_enqueued = on_enqueued
        self._look = look
        self._unstored = dict(self._own_entries)  # entries not stored yet
        self._unreadable: set[Ref] = set()  # entries reported as unreadable

    async def tick(self) -> float:
        if self._unstored:
            await self._put()
        table = await self._store.entries(self._queues)
        self._report_unreadable(table.entries)
        entries = [
            entry for entry in table.entries if not entry.spec.by_code or entry.ref in self._own_entries
        ]
        due: list[tuple[Entry, Tick]] = []
        waits = [self._look]
        for entry in entries:
            try:
                tick = self._tick_of(entry, table.now)
                wait = self._wait(entry, table.now) if tick is None else None
            except Exception as error:  # noqa: BLE001  # boundary: one entry, of an unknown time zone say, keeps none from its jobs
                self.problem_log.report(f"the periodic entry {entry.spec.name!r} is skipped", error)
                waits.append(_TROUBLE)
                continue
            if tick is not None:
                due.append((entry, tick))
            elif wait is not None:
                waits.append(wait)
        if due:
            waits += await self._apply(due, table.now)
        return min(waits)

    async def _put(self) -> None:
        """Store the code's entries. If a part of the store is unreachable, store them queue by queue and keep
        the others for the next tick."""
        try:
            await self._store.put_entries(list(self._unstored.values()))
            self._unstored.clear()
            return
        except StoreUnavailable:
            queues = {ref.queue for ref in self._unstored}
            if len(queues) == 1 and len(self._queues) == 1:
                raise
        for queue in sorted(queues):
            entries = {ref: entry for ref, entry in self._unstored.items() if ref.queue == queue}
            try:
                await self._store.put_entries(list(entries.values()))
            except StoreUnavailable as error:
                self.problem_log.report(f"the periodic entries of queue {queue!r} are not stored yet", error)
            else:
                for ref in entries:
                    del self._unstored[ref]

    def _report_unreadable(self, entries: Sequence[Entry]) -> None:
        """Report each unreadable entry once, until it is readable again."""
        found = {entry.ref: entry.unreadable for entry in entries if entry.unreadable is not None}
        for ref in found.keys() - self._unreadable:
            self.on_set_aside([SetAside("periodic entry", ref.queue, ref.id, found[ref])])
        self._unreadable = set(found)

    async def _apply(self, due: Sequence[tuple[Entry, Tick]], now: int) -> list[float]:
        """Apply ticks; returns the seconds that each entry can wait after that."""
        waits: list[float] = []
        answers = await self._store.tick([tick for _, tick in due])
        for (entry, tick), answer in zip(due, answers, strict=True):
            if answer.status is TickStatus.EARLY:
                waits.append(_EARLY)
            elif answer.status is TickStatus.UNKNOWN:
                waits.append(_TROUBLE)
            elif answer.status is TickStatus.STALE:
                waits.append(0.0)  # another worker was first: read the entry again
            elif answer.status is TickStatus.APPLIED:
                for job in tick.jobs:
                    if job.id in answer.enqueued:
                        self._on_enqueued(job)
                moved = replace(entry, watermark=tick.to)
                wait = self._wait(moved, now) if next_tick(moved, now) is None else 0.0
                waits += [] if wait is None else [wait]
        return waits

    def _tick_of(self, entry: Entry, now: int) -> Tick | None:
        tick = next_tick(entry, now)
        if tick is None:
            return None
        why = why_not_here(entry.spec.job.payload)
        if why is not None:  # a worker that can read its arguments enqueues its jobs
            raise PenstockError(f"the contents of its jobs cannot be read here: {why}")
        return replace(tick, jobs=tuple(self._rewritten(job) for job in tick.jobs))

    def _rewritten(self, job: NewJob) -> NewJob:
        """Apply the enqueue middleware; id, queue and time of the job stay."""
        try:
            return replace(self._rewrite(job), id=job.id, queue=job.queue, run_at=job.run_at, delay=0)
        except PenstockError:
            raise
        except Exception as error:  # boundary: user code
            raise PenstockError(f"its middleware around enqueues failed: {error!r}") from error

    def _wait(self, entry: Entry, now: int) -> float | None:
        """Seconds to wait, with jitter so that not all workers act at the same moment."""
        ms = wait_ms(entry, now)
        if ms is None:
            return None
        spread = random.uniform(0, AHEAD / 2) if entry.spec.overlap is Overlap.ALLOW else 0  # noqa: S311 (jitter, no secret)
        return (ms + spread) / 1_000
