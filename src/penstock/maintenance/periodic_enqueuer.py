"""Enqueues the jobs of periodic entries, shortly before each instant; any number of workers do so at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from penstock.app.periodic import AHEAD, reckon, wait_ms
from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.core.job import NewJob, Ref
from penstock.core.schedule import Entry, NewEntry, Overlap
from penstock.encryption import why_not_here
from penstock.maintenance.service import Service
from penstock.stores.contract import SetAside, Store, Tick, TickStatus

__all__ = ["PeriodicEnqueuer"]

#: Nobody tells a worker that is busy of new entries: it looks for itself (s).
_LOOK = 30.0
#: By another server's clock it was time already: ask again after this (s).
_EARLY = 0.05
#: An entry that cannot be reckoned here is looked at again after this (s).
_TROUBLE = 5.0


class PeriodicEnqueuer(Service):
    """Sleeps until the next instant of the entries of these queues. `wake` tells it that they have changed.

    The store's clock says what is due, and its watermarks say what has been done: nobody leads, and whoever
    comes second changes nothing. `mine` are the entries that this worker's code has registered. They are put
    first of all; of those that other code has registered it leaves its hands. `rewrite` is what the app's
    middleware does to a new job, and `on_enqueued` hears of each.
    """

    name = "periodic enqueuer"

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        mine: Mapping[Ref, NewEntry],
        *,
        rewrite: Callable[[NewJob], NewJob] = lambda new: new,
        on_enqueued: Callable[[NewJob], None] = lambda _: None,
        look: float = _LOOK,
    ) -> None:
        super().__init__()
        self._store = store
        self._queues = tuple(queues)
        self._mine = {ref: entry for ref, entry in mine.items() if ref.queue in self._queues}
        self._rewrite = rewrite
        self._on_enqueued = on_enqueued
        self._look = look
        self._unput = dict(self._mine)  # those of which the store does not know yet
        self._unreadable: set[Ref] = set()  # entries of which was said so

    async def tick(self) -> float:
        if self._unput:
            await self._put()
        table = await self._store.entries(self._queues)
        self._tell_unreadable(table.entries)
        entries = [entry for entry in table.entries if not entry.spec.by_code or entry.ref in self._mine]
        due: list[tuple[Entry, Tick]] = []
        waits = [self._look]
        for entry in entries:
            try:
                tick = self._reckoned(entry, table.now)
                wait = self._wait(entry, table.now) if tick is None else None
            except PenstockError as error:  # a time zone that this machine does not know, and the like
                self.complaint.about(f"the periodic entry {entry.spec.name!r} is left out", error)
                waits.append(_TROUBLE)
                continue
            if tick is not None:
                due.append((entry, tick))
            elif wait is not None:
                waits.append(wait)
        if due:
            waits += await self._ticked(due, table.now)
        return min(waits)

    async def _put(self) -> None:
        """All at once; where a part of the store is away, queue by queue, and what is left the next time."""
        try:
            await self._store.put_entries(list(self._unput.values()))
            self._unput.clear()
            return
        except StoreUnavailable:
            queues = {ref.queue for ref in self._unput}
            if len(queues) == 1 and len(self._queues) == 1:
                raise
        for queue in sorted(queues):
            entries = {ref: entry for ref, entry in self._unput.items() if ref.queue == queue}
            try:
                await self._store.put_entries(list(entries.values()))
            except StoreUnavailable as error:
                self.complaint.about(f"the periodic entries of queue {queue!r} wait", error)
            else:
                for ref in entries:
                    del self._unput[ref]

    def _tell_unreadable(self, entries: Sequence[Entry]) -> None:
        """Once of each, as long as it is so."""
        found = {entry.ref: entry.unreadable for entry in entries if entry.unreadable is not None}
        for ref in found.keys() - self._unreadable:
            self.on_set_aside([SetAside("periodic entry", ref.queue, ref.id, found[ref])])
        self._unreadable = set(found)

    async def _ticked(self, due: Sequence[tuple[Entry, Tick]], now: int) -> list[float]:
        """Apply them; how long each entry can wait then."""
        waits: list[float] = []
        answers = await self._store.tick([tick for _, tick in due])
        for (entry, tick), answer in zip(due, answers, strict=True):
            if answer.moved is TickStatus.EARLY:
                waits.append(_EARLY)
            elif answer.moved is TickStatus.UNKNOWN:
                waits.append(_TROUBLE)
            elif answer.moved is TickStatus.STALE:
                waits.append(0.0)  # somebody was quicker: see how it stands now
            elif answer.moved is TickStatus.APPLIED:
                for job in tick.jobs:
                    if job.id in answer.enqueued:
                        self._on_enqueued(job)
                moved = replace(entry, watermark=tick.to)
                wait = self._wait(moved, now) if reckon(moved, now) is None else 0.0
                waits += [] if wait is None else [wait]
        return waits

    def _reckoned(self, entry: Entry, now: int) -> Tick | None:
        tick = reckon(entry, now)
        if tick is None:
            return None
        why = why_not_here(entry.spec.job.payload)
        if why is not None:  # who can read its arguments will enqueue its jobs
            raise PenstockError(f"what its jobs carry cannot be read here: {why}")
        return replace(tick, jobs=tuple(self._rewritten(job) for job in tick.jobs))

    def _rewritten(self, job: NewJob) -> NewJob:
        """As the middleware wants it; what makes it the job of its instant stays."""
        try:
            return replace(self._rewrite(job), id=job.id, queue=job.queue, run_at=job.run_at, delay=0)
        except PenstockError:
            raise
        except Exception as error:  # boundary: user code
            raise PenstockError(f"its middleware around enqueues failed: {error!r}") from error

    def _wait(self, entry: Entry, now: int) -> float | None:
        """In seconds. Not all workers come at once where there is time."""
        ms = wait_ms(entry, now)
        if ms is None:
            return None
        spread = random.uniform(0, AHEAD / 2) if entry.spec.overlap is Overlap.ALLOW else 0  # noqa: S311 (jitter, no secret)
        return (ms + spread) / 1_000
