"""search: one step of a search, over the jobs in order of enqueue or over the indexes of other orders."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import nlargest, nsmallest

from penstock.core.job import TERMINAL
from penstock.stores.contract import MOST_FOUND, SEARCH_STEP, JobFilter, JobOrder, SearchHit, SearchPage
from penstock.stores.cursors import cursor_of, numbers_of
from penstock.stores.job_matcher import JobMatcher
from tests.oracle.rows import Row
from tests.oracle.state import MemoryState

__all__ = ["search"]

#: The time (0 in order of enqueue) and the generation; in ready order the rank, place and generation.
_Key = tuple[int, ...]
#: Jobs with their places in the order.
_Rows = Iterator[tuple[_Key, Row]]


def search(
    memory: MemoryState, filter: JobFilter, order: JobOrder, descending: bool, after: str | None, limit: int
) -> SearchPage:
    limit = min(max(1, limit), MOST_FOUND)
    cursor = None if after is None else numbers_of(after, 3 if order is JobOrder.READY else 2)
    matcher = JobMatcher(filter)
    if order is JobOrder.READY:
        places = _by_readiness(memory, filter.queues[0], cursor)
    elif order is not JobOrder.ENQUEUED:
        places = _by_time(memory, filter, order, cursor, descending)
    elif filter.id is not None:
        places = _with_id(memory, filter.id, cursor, descending)
    else:
        places = _by_enqueue(memory, cursor, descending)
    hits: list[SearchHit] = []
    seen = 0
    for seen, (place, row) in enumerate(places, 1):
        if matcher.matches(row.job):
            hits.append(SearchHit(row.job, cursor_of(place)))
        if len(hits) == limit or seen == SEARCH_STEP:
            return SearchPage(hits, cursor_of(place), seen)
    return SearchPage(hits, None, seen)


def _by_enqueue(memory: MemoryState, cursor: _Key | None, descending: bool) -> _Rows:
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


def _with_id(memory: MemoryState, id: str, cursor: _Key | None, descending: bool) -> _Rows:
    rows = [queue.rows[id] for queue in memory.known(None) if id in queue.rows]
    for row in sorted(rows, key=lambda row: row.generation, reverse=descending):
        place = 0, row.generation
        if cursor is None or (place < cursor if descending else place > cursor):
            yield place, row


def _by_readiness(memory: MemoryState, name: str, cursor: _Key | None) -> _Rows:
    queue = memory.queues.get(name)
    after = None if cursor is None else (cursor[:2], cursor[2])
    for place, generation in [] if queue is None else queue.ready.after(after, SEARCH_STEP):
        yield (*place, generation), memory.rows[generation]


def _by_time(
    memory: MemoryState, filter: JobFilter, order: JobOrder, cursor: _Key | None, descending: bool
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
