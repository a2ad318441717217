"""Everything that a live view shows, in a bounded number of reads."""

from __future__ import annotations

import msgspec

from penstock.core.job import Job, State
from penstock.core.task_stats import TaskStats, sum_of
from penstock.inspector.job_views import JobRow, job_row
from penstock.inspector.queue_views import (
    ParkedView,
    QueueStatsView,
    QueueView,
    parked_view,
    queue_views,
    stats_view,
)
from penstock.inspector.stats_views import ErrorGroupView, TimesView, error_group_view, task_stats_view
from penstock.inspector.worker_views import RunningView, WorkerView, running_view, worker_view
from penstock.stores.contract import JobFilter, JobOrder, Resolution, Store

__all__ = ["HeldView", "Overview", "read_overview"]

#: The attempts of this last time (ms) make the percentiles of the waits.
_RECENT = 5 * 60_000


class HeldView(msgspec.Struct, frozen=True):
    """A running job and the id of the worker that holds it."""

    worker: str
    job: RunningView


class Overview(msgspec.Struct, frozen=True):
    """A store at one time.

    - `now`: the store's clock, in ms.
    - `waits`: the waits of the attempts of the last five minutes, by queue.
    - `running`: the newest jobs; `more_running`: there are more. `dead`: those that died last.
    """

    now: int
    queues: list[QueueView]
    stats: dict[str, QueueStatsView]
    waits: dict[str, TimesView]
    workers: list[WorkerView]
    running: list[HeldView]
    more_running: bool
    dead: list[JobRow]
    errors: list[ErrorGroupView]
    parked: list[ParkedView]


async def read_overview(store: Store, *, limit: int = 200) -> Overview:
    """Read it: nine reads, of at most `limit` jobs or groups each."""
    now = (await store.entries([])).now
    infos, workers = await store.queues(), await store.workers()
    held = await store.list_jobs(state=State.RUNNING, limit=limit)
    # by the time of their end, for which stores have an index: 100 000 dead ones need not be sorted
    dead = await store.search_jobs(JobFilter(states=(State.DEAD,)), order=JobOrder.ENDED, limit=limit)
    errors = await store.read_errors(queue=None, task=None)
    by_worker: dict[str, list[Job]] = {}
    for job in held.jobs:
        by_worker.setdefault(job.worker or "", []).append(job)
    more = held.next is not None
    return Overview(
        now=now,
        queues=queue_views(infos, workers),
        stats={one.name: stats_view(one) for one in await store.stats(days=1)},
        waits=await _waits(store),
        workers=[worker_view(w, by_worker.get(w.id, []), more=more, now=now) for w in workers],
        running=[HeldView(job.worker or "", running_view(job, now)) for job in held.jobs],
        more_running=more,
        dead=[job_row(job) for job in dead.jobs],
        errors=[error_group_view(group) for group in errors[:limit]],
        parked=[parked_view(one, workers) for one in await store.parked()],
    )


async def _waits(store: Store) -> dict[str, TimesView]:
    page = await store.read_stats(Resolution.MINUTE, span=_RECENT, queue=None, task=None)
    found: dict[str, list[TaskStats]] = {}
    for row in page.rows:
        found.setdefault(row.queue, []).append(row.stats)
    return {queue: task_stats_view(queue, "", sum_of(stats)).wait for queue, stats in found.items()}
