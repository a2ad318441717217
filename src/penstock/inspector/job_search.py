"""Search for jobs step by step: what each step found, and how far the search is."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from penstock.inspector.job_views import JobRow, job_row
from penstock.stores.contract import JobFilter, JobOrder, Store, check_search

__all__ = ["JobSearch", "SearchProgress", "jobs_to_pass", "search"]


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

    jobs: list[JobRow]
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
        page = await store.search_jobs(
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
        jobs = [job_row(hit.job) for hit in hits]
        yield SearchProgress(jobs, after, min(seen, total), total, tuple(sorted(away)))
        if after is None:
            return


async def _more(store: Store, search: JobSearch, after: str) -> str | None:
    """The same cursor, or None if one more step shows that nothing else matches."""
    page = await store.search_jobs(
        search.filter, order=search.order, descending=search.descending, after=after, limit=1
    )
    return after if page.hits or page.next is not None else None


async def jobs_to_pass(store: Store, filter: JobFilter) -> int:
    """The number of jobs in the queues and states of the filter."""
    queues = await store.queues(filter.queues or None)
    counts = [(state, n) for queue in queues for state, n in queue.counts.items()]
    return sum(n for state, n in counts if not filter.states or state in filter.states)
