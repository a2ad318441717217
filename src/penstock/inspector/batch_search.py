"""Batches that have started, from a bounded search: each is a job with members."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.inspector.job_views import JobRow, job_row
from penstock.stores.contract import JobFilter, Store

__all__ = ["StartedBatchView", "StartedBatchesView", "started_batches"]

#: The ids of batches have this part, see `core/batch.py::batch_id`.
_MARK = ".batch"
#: Steps of one search.
_SEARCHES = 4


class StartedBatchView(msgspec.Struct, frozen=True):
    """The job of a batch, its batch key, and the number of its members."""

    job: JobRow
    key: str
    members: int


class StartedBatchesView(msgspec.Struct, frozen=True):
    """Batches that have started, newest first.

    `next`: the `after` with which the search continues. `seen`: the number of jobs that it has passed.
    """

    batches: list[StartedBatchView]
    next: str | None
    seen: int = 0


async def started_batches(
    store: Store, after: str | None, limit: int, queues: Sequence[str] = ()
) -> StartedBatchesView:
    """Up to `limit` batches that have started, of these queues or of all.

    Passes a bounded number of jobs, so it may find fewer.
    """
    filter = JobFilter(queues=tuple(queues), text=_MARK)
    found: list[StartedBatchView] = []
    seen = 0
    for _ in range(_SEARCHES):
        page = await store.search_jobs(filter, after=after, limit=limit - len(found))
        for job in page.jobs:
            if job.members:
                terms = job.spec.batch_terms
                key = "" if terms is None else terms.key
                found.append(StartedBatchView(job_row(job), key, len(job.members)))
        after, seen = page.next, seen + page.seen
        if after is None or len(found) >= limit:
            break
    return StartedBatchesView(found, after, seen)
