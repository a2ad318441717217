"""Workers, and the jobs that each of them holds."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import asdict

from penstock.core.job import Job, State
from penstock.inspector.job_views import row_of
from penstock.stores.contract import JobFilter, Store, WorkerInfo

#: Jobs of one step, and the most running jobs that are read to be divided among workers.
_STEP, _MOST = 500, 5_000
#: Seconds after its last heartbeat from which a worker may be gone: it sends one every few seconds.
MAY_BE_GONE = 30.0


def knows(worker: WorkerInfo, queue: str, task: str) -> bool:
    """Whether the worker can run a job of this task in this queue, if it serves the queue."""
    return task in worker.tasks or queue in worker.handled


class WorkerView(WorkerInfo, frozen=True, kw_only=True):
    """A worker process and the jobs it holds, at the store's time `now`.

    `more`: it holds more than `jobs` lists; `running`, their number, is then from the worker's last report.
    """

    jobs: list[Job]
    more: bool
    now: int

    @property
    def silent(self) -> float:
        """Seconds since its last heartbeat."""
        return max(0, self.now - self.seen_at) / 1000

    @property
    def ahead(self) -> float | None:
        """Seconds that its clock is ahead of the store's; None if unknown."""
        return (self.clock - self.seen_at) / 1000 if self.clock else None


def worker_view(info: WorkerInfo, jobs: list[Job], *, more: bool, now: int) -> WorkerView:
    """A worker and the jobs that it holds, at the store's time `now`."""
    # the worker's own number is some seconds old
    running = max(info.running, len(jobs)) if more else len(jobs)
    return WorkerView(**{**asdict(info), "running": running}, jobs=jobs, more=more, now=now)


async def with_jobs(store: Store, infos: Sequence[WorkerInfo], jobs: int, now: int) -> list[WorkerView]:
    """These workers, each with up to `jobs` of the jobs that it holds."""
    if jobs == 0 or not infos:
        return [worker_view(info, [], more=info.running > 0, now=now) for info in infos]
    held = await _held_jobs(store, infos, jobs + 1)
    return [
        worker_view(info, held[info.id][:jobs], more=len(held[info.id]) > jobs, now=now) for info in infos
    ]


async def _held_jobs(store: Store, workers: Sequence[WorkerInfo], limit: int) -> dict[str, list[Job]]:
    """The jobs that each worker holds, newest first: at least `limit` of them, or all.

    On Redis, to list the jobs of one worker takes as long as those of all. So one pass serves all workers;
    those that it leaves without enough jobs are asked for alone.
    """
    found: dict[str, list[Job]] = {worker.id: [] for worker in workers}
    running, after = JobFilter(states=(State.RUNNING,)), None
    left = _MOST if len(workers) > 1 else 0
    while left > 0:
        page = await store.search(running, after=after, limit=_STEP)
        left -= max(1, page.seen)
        for job in page.jobs:
            if job.worker in found:
                found[job.worker].append(row_of(job))
        after = page.next
        if after is None:
            return found
        if all(len(jobs) >= limit for jobs in found.values()):
            return found
    for id in [id for id, jobs in found.items() if len(jobs) < limit]:
        page = await store.list_jobs(state=State.RUNNING, worker=id, limit=limit)
        found[id] = [row_of(job) for job in page.jobs]
    return found
