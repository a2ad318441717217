"""search_jobs: one step of a search, over the jobs in order of enqueue or over the indexes of a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import nlargest, nsmallest

from penstock.core.job import TERMINAL
from penstock.stores.contract import MOST_FOUND, SEARCH_STEP, JobFilter, JobOrder, SearchHit, SearchPage
from penstock.stores.job_matcher import JobMatcher
from penstock.stores.memory.rows import Row
from penstock.stores.memory.state import MemoryState
from penstock.stores.search_cursors import SearchKey, search_cursor, search_key

__all__ = ["search_jobs"]

#: Jobs with their places in the order.
_Rows = Iterator[tuple[SearchKey, Row]]


def search_jobs(
    memory: MemoryState, filter: JobFilter, order: JobOrder, descending: bool, after: str | None, limit: int
) -> SearchPage:
    limit = min(max(1, limit), MOST_FOUND)
    cursor = None if after is None else search_key(after)
    matcher = JobMatcher(filter)
    places = (
        _by_enqueue(memory, cursor, descending)
        if order is JobOrder.ENQUEUED
        else _by_time(memory, filter, order, cursor, descending)
    )
    hits: list[SearchHit] = []
    seen = 0
    for seen, (place, row) in enumerate(places, 1):
        if matcher.matches(row.job):
            hits.append(SearchHit(row.job, search_cursor(place)))
        if len(hits) == limit or seen == SEARCH_STEP:
            return SearchPage(hits, search_cursor(place), seen)
    return SearchPage(hits, None, seen)


def _by_enqueue(memory: MemoryState, cursor: SearchKey | None, descending: bool) -> _Rows:
    listing = memory.listing
    if descending:
        start = len(listing) if cursor is None else bisect_left(listing, cursor[1])
        numbers = range(start - 1, -1, -1)
    else:
        start = 0 if cursor is None else bisect_right(listing, cursor[1])
        numbers = range(start, len(listing))
    for n in numbers:
        row = memory.rows.get(listing[n])
        if row is not None:
            yield (0, listing[n]), row


def _by_time(
    memory: MemoryState, filter: JobFilter, order: JobOrder, cursor: SearchKey | None, descending: bool
) -> _Rows:
    """The entries of the indexes are in no order, so each step looks at all of them."""
    queues = memory.known(filter.queues or None)
    if order is JobOrder.DUE:
        indexes = [queue.due for queue in queues]
    else:
        indexes = [queue.ended[state] for queue in queues for state in filter.states if state in TERMINAL]
    entries = (entry for index in indexes for entry in index.entries())
    if cursor is not None:
        entries = (entry for entry in entries if (entry < cursor if descending else entry > cursor))
    first = nlargest if descending else nsmallest
    for place in first(SEARCH_STEP + 1, entries):
        yield place, memory.rows[place[1]]
