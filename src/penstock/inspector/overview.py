"""Everything that a live view shows, in a bounded number of reads."""

from __future__ import annotations

import msgspec
from msgspec.structs import asdict

from penstock.core.job import Job, State
from penstock.core.stats import TaskStats, sum_of
from penstock.inspector.job_views import row_of
from penstock.inspector.queue_views import (
    ParkedView,
    QueueView,
    parked_view,
    queue_views,
)
from penstock.inspector.statistics import ErrorGroupView, TimesView, kept, wait_times
from penstock.inspector.worker_views import WorkerView, worker_view
from penstock.stores.contract import (
    Capability,
    JobFilter,
    JobOrder,
    QueueStats,
    Resolution,
    SearchPage,
    Store,
)

#: The attempts of this last time (ms) make the percentiles of the waits.
_RECENT = 5 * 60_000


class Overview(msgspec.Struct, frozen=True):
    """A store at one time.

    - `now`: the store's clock, in ms.
    - `waits`: the waits of the attempts of the last five minutes, by queue.
    - `running`: the newest jobs; `more_running`: there are more. `dead`: those that died last.
    """

    now: int
    queues: list[QueueView]
    stats: dict[str, QueueStats]
    waits: dict[str, TimesView]
    workers: list[WorkerView]
    running: list[Job]
    more_running: bool
    dead: list[Job]
    errors: list[ErrorGroupView]
    parked: list[ParkedView]


async def read_overview(store: Store, *, limit: int = 200) -> Overview:
    """Read it: nine reads, of at most `limit` jobs or groups each. What the store does not keep is empty."""
    now = await store.now()
    infos, workers = await store.queues(), await kept(store.workers())
    held, dead = SearchPage([], None, 0), list[Job]()
    if store.can(Capability.SEARCH):
        held = await store.list_jobs(state=State.RUNNING, limit=limit)
        # by the time of their end, for which stores have an index: 100 000 dead ones need not be sorted
        ended = await store.search(JobFilter(states=(State.DEAD,)), order=JobOrder.ENDED, limit=limit)
        dead = [row_of(job) for job in ended.jobs]
    errors = await kept(store.read_errors(queue=None, task=None))
    by_worker: dict[str, list[Job]] = {}
    running = [row_of(job) for job in held.jobs]
    for job in running:
        by_worker.setdefault(job.worker or "", []).append(job)
    more = held.next is not None
    return Overview(
        now=now,
        queues=queue_views(infos, workers if store.can(Capability.WORKERS) else None),
        stats={one.name: one for one in await kept(store.stats(days=1))},
        waits=await _waits(store) if store.can(Capability.MEASURE) else {},
        workers=[worker_view(w, by_worker.get(w.id, []), more=more, now=now) for w in workers],
        running=running,
        more_running=more,
        dead=dead,
        errors=[ErrorGroupView(**asdict(group)) for group in errors[:limit]],
        parked=[parked_view(one, workers) for one in await kept(store.parked())],
    )


async def _waits(store: Store) -> dict[str, TimesView]:
    page = await store.read_stats(Resolution.MINUTE, span=_RECENT, queue=None, task=None)
    found: dict[str, list[TaskStats]] = {}
    for row in page.rows:
        found.setdefault(row.queue, []).append(row.stats)
    return {queue: wait_times(sum_of(stats)) for queue, stats in found.items()}
