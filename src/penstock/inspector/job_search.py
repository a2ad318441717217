"""A search for jobs, step by step, and the bounded one for batches that have started."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from penstock.core.job import Job
from penstock.inspector.job_views import row_of
from penstock.stores.contract import JobFilter, JobOrder, Store, check_search


class JobSearch(msgspec.Struct, frozen=True):
    """What to search for, and in which order; see `JobFilter` and `JobOrder`."""

    filter: JobFilter = JobFilter()
    order: JobOrder = JobOrder.ENQUEUED
    descending: bool = True


class SearchProgress(msgspec.Struct, frozen=True):
    """One step of a search.

    - `jobs`: the jobs that this step found.
    - `next`: the cursor at which another search continues; None: the search is complete.
    - `seen`, `total`: about how many jobs the search has passed so far, and how many there are to pass.
    - `away`: queues that this step or an earlier one left out: their part of the store does not answer.
    """

    jobs: list[Job]
    next: str | None
    seen: int
    total: int
    away: tuple[str, ...] = ()


async def search(
    store: Store, search: JobSearch, *, after: str | None = None, limit: int | None = None
) -> AsyncGenerator[SearchProgress, None]:
    """Yield the steps of a search, at most `limit` jobs in all. Each step takes the store some milliseconds.

    If the limit is reached, `next` of the last step is None exactly if that job was the last one within reach
    of one more step.
    """
    total = await jobs_to_pass(store, check_search(search.filter, search.order))
    seen, left = 0, limit
    away: set[str] = set()
    while left is None or left > 0:
        most = 500 if left is None else left + 1
        page = await store.search(
            search.filter, order=search.order, descending=search.descending, after=after, limit=most
        )
        seen += page.seen
        away.update(page.away)
        hits, after = page.hits, page.next
        if left is not None:
            if len(hits) > left:
                hits = hits[:left]
                after = hits[-1].after
            left -= len(hits)
            if not left and after is not None and after == page.next:
                after = await _more(store, search, after)
        jobs = [row_of(hit.job) for hit in hits]
        yield SearchProgress(jobs, after, min(seen, total), total, tuple(sorted(away)))
        if after is None:
            return


async def _more(store: Store, search: JobSearch, after: str) -> str | None:
    """The same cursor, or None if one more step shows that nothing else matches."""
    page = await store.search(
        search.filter, order=search.order, descending=search.descending, after=after, limit=1
    )
    return after if page.hits or page.next is not None else None


async def jobs_to_pass(store: Store, filter: JobFilter) -> int:
    """The number of jobs in the queues and states of the filter."""
    queues = await store.queues(filter.queues or None)
    counts = [(state, n) for queue in queues for state, n in queue.counts.items()]
    return sum(n for state, n in counts if not filter.states or state in filter.states)


#: Steps of `search_a_little`.
_SEARCHES = 4


async def search_a_little(
    store: Store,
    filter: JobFilter,
    *,
    limit: int,
    after: str | None = None,
    keep: Callable[[Job], object] = lambda _: True,
) -> SearchProgress:
    """Up to `limit` jobs that match and that `keep` accepts, newest first, in one step of a few reads.

    It passes a bounded number of jobs, so it may find fewer: only `next` is None tells the end. `total` is 0.
    """
    found: list[Job] = []
    seen = 0
    for _ in range(_SEARCHES):
        page = await store.search(filter, after=after, limit=limit - len(found))
        found += [row_of(job) for job in page.jobs if keep(job)]
        after, seen = page.next, seen + page.seen
        if after is None or len(found) >= limit:
            break
    return SearchProgress(found, after, seen, 0)


#: The ids of batches have this part, see `core/relations.py::batch_id`.
_MARK = ".batch"


class StartedBatchesView(msgspec.Struct, frozen=True):
    """The jobs of batches that have started, newest first.

    `next`: the `after` with which the search continues. `seen`: the number of jobs that it has passed.
    """

    batches: list[Job]
    next: str | None
    seen: int = 0


async def started_batches(
    store: Store, after: str | None, limit: int, queues: Sequence[str] = ()
) -> StartedBatchesView:
    """Up to `limit` batches that have started, of these queues or of all; as `search_a_little`."""
    filter = JobFilter(queues=tuple(queues), text=_MARK)
    found = await search_a_little(store, filter, limit=limit, after=after, keep=lambda job: job.members)
    return StartedBatchesView(found.jobs, found.next, found.seen)
