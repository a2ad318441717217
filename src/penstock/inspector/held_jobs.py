"""Read the jobs that each of many workers holds, in a few pages of all running jobs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.job import Job, State
from penstock.stores.contract import Store, WorkerInfo

__all__ = ["held_jobs"]

#: Jobs of one page, and the most running jobs that are read to be divided among workers.
_PAGE, _MOST = 500, 5_000


async def held_jobs(store: Store, workers: Sequence[WorkerInfo], limit: int) -> dict[str, list[Job]]:
    """The jobs that each worker holds, newest first: at least `limit` of them, or all.

    On Redis, to list the jobs of one worker takes as long as those of all. So one pass serves all workers;
    those that it leaves without enough jobs are asked for alone.
    """
    found: dict[str, list[Job]] = {worker.id: [] for worker in workers}
    after: str | None = None
    for _ in range(_MOST // _PAGE if len(workers) > 1 else 0):
        page = await store.list_jobs(state=State.RUNNING, after=after, limit=_PAGE)
        for job in page.jobs:
            if job.worker in found:
                found[job.worker].append(job)
        after = page.next
        if after is None:
            return found
        if all(len(jobs) >= limit for jobs in found.values()):
            return found
    for id in [id for id, jobs in found.items() if len(jobs) < limit]:
        found[id] = (await store.list_jobs(state=State.RUNNING, worker=id, limit=limit)).jobs
    return found
