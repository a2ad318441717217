"""search: one bounded step of a search.

Of the ways to read jobs in order of enqueue, the cheapest is chosen: by the index of ids or of a worker's
jobs, by the indexes of the states if few jobs are in them, else a walk over a range of generations.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from heapq import merge

from penstock.stores.contract import (
    MOST_FOUND,
    SEARCH_BYTES,
    SEARCH_STEP,
    JobFilter,
    JobOrder,
    SearchHit,
    SearchPage,
    TimeRange,
)
from penstock.stores.cursors import cursor_of, numbers_of
from penstock.stores.job_matcher import JobMatcher, text_bytes
from penstock.stores.sql.rows import Row, numbers
from penstock.stores.sql.statements import CODE, SQL, QueueRow, StoredJobRow
from penstock.stores.sql.transaction_context import TransactionContext
from penstock.stores.sql.verbs.aside import show
from penstock.stores.sql.verbs.operating import gather, queue_rows, statement_of

_DOWN, _UP = SQL["search.down"], SQL["search.up"]
_PASSED = SQL["search.passed"]
_BEFORE, _BEHIND = SQL["search.before"], SQL["search.behind"]
_ONE = SQL["search.one"]
_WITH_ID = SQL["list.with_id"]
_HELD = SQL["list.held"]
_OF_PRIORITY, _BELOW_PRIORITY = SQL["search.of_priority"], SQL["search.below_priority"]
#: By order and direction (True: descending).
_TIMED = {
    (JobOrder.DUE, False): SQL["search.due_up"],
    (JobOrder.DUE, True): SQL["search.due_down"],
    (JobOrder.ENDED, False): SQL["search.ended_up"],
    (JobOrder.ENDED, True): SQL["search.ended_down"],
}

#: The place of a job in the order: the time (0 in order of enqueue), and its generation. In ready order: its
#: priority, place, due time and generation.
_Key = tuple[int, ...]
#: Jobs with their places in the order.
_Rows = Iterator[tuple[_Key, Row]]

#: Generations of one step of a walk: SQLite passes rows that do not match at 0.2 µs each.
_WALKED = 5_000
#: Up to this number of jobs in the states of the filter, their indexes are read and sorted.
_FEW = 10_000
#: Up to this number of them, their indexes are searched for the next job if a range had none.
_MANY = 200_000
_FIRST, _LAST = -(2**62), 2**62
#: Above all priorities.
_ABOVE = 2**31
_WIDTH = len(StoredJobRow._fields)
_SPEC, _SEQ, _DUE, _ENDED, _ERRORS, _REASON = (
    StoredJobRow._fields.index(name) for name in ("spec", "seq", "due", "ended_at", "errors", "reason")
)


def search(
    tx: TransactionContext,
    filter: JobFilter,
    order: JobOrder,
    descending: bool,
    after: str | None,
    limit: int,
) -> SearchPage:
    step = _SearchStep(tx, filter, descending, min(max(1, limit), MOST_FOUND))
    cursor = None if after is None else numbers_of(after, 4 if order is JobOrder.READY else 2)
    if order is JobOrder.READY:
        return step.by_readiness(cursor)
    if order is not JobOrder.ENQUEUED:
        return step.by_time(order, cursor)
    return step.by_enqueue(None if cursor is None else cursor[1])


class _SearchStep:
    """One step of a search."""

    def __init__(self, tx: TransactionContext, filter: JobFilter, descending: bool, limit: int) -> None:
        self._tx = tx
        self._filter = filter
        self._descending = descending
        self._limit = limit
        self._matcher = JobMatcher(filter)
        self._codes = [CODE[state] for state in filter.states]
        self._bytes = self._seen = 0
        self._hits: list[SearchHit] = []

    def by_enqueue(self, cursor: int | None) -> SearchPage:
        few = self._few()
        if few is None:
            return self._walk(cursor)
        seqs = sorted(few, reverse=self._descending)
        if cursor is not None:
            seqs = [seq for seq in seqs if (seq < cursor if self._descending else seq > cursor)]
        rows = (row for seq in seqs for row in self._tx.execute(_ONE, (seq,)))
        return self._page(self._take(((0, row[_SEQ]), row) for row in rows))

    def by_readiness(self, cursor: _Key | None) -> SearchPage:
        """Available jobs as a fetch takes them: by priority, then place."""
        queries: list[tuple[str, _Key]] = [(_BELOW_PRIORITY, (_ABOVE,))]
        if cursor is not None:
            queries = [(_OF_PRIORITY, cursor), (_BELOW_PRIORITY, cursor[:1])]
        rows = (
            row
            for queue in self._queues
            for query, place in queries
            for row in self._tx.execute(query, (queue.qid, *place, SEARCH_STEP))
        )
        return self._page(self._take(((*row[_WIDTH:], row[_DUE], row[_SEQ]), row[:_WIDTH]) for row in rows))

    def by_time(self, order: JobOrder, cursor: _Key | None) -> SearchPage:
        range = self._filter.due if order is JobOrder.DUE else self._filter.ended
        start = self._start(range, cursor)
        query, column = _TIMED[order, self._descending], _DUE if order is JobOrder.DUE else _ENDED
        codes: list[tuple[int, ...]] = [()] if order is JobOrder.DUE else [(code,) for code in self._codes]
        parts = [
            (((row[column], row[_SEQ]), row) for row in self._tx.execute(query, (queue.qid, *code, *start)))
            for queue in self._queues
            for code in codes
        ]
        places = merge(*parts, key=lambda one: one[0], reverse=self._descending)
        return self._page(self._take(self._within(range, places)))

    # ── which rows ──

    @cached_property
    def _queues(self) -> list[QueueRow]:
        return queue_rows(self._tx, self._filter.queues or None)

    def _few(self) -> list[int] | None:
        """The generations of all jobs that may match, if an index finds them cheaply; else None."""
        tx, filter = self._tx, self._filter
        if filter.id is not None:
            return [seq for (seq,) in tx.execute(_WITH_ID, (tx.namespace, filter.id))]
        if filter.worker is not None:
            return [seq for (seq,) in tx.execute(_HELD, (filter.worker, tx.namespace))]
        if not filter.states and not filter.queues:
            return None
        if self._matching > _FEW:
            return None
        return [seq for row, code in self._wanted if _count(row, code) for seq in gather(tx, row.qid, code)]

    @property
    def _wanted(self) -> list[tuple[QueueRow, int | None]]:
        """The queues and states of the filter; None: any state."""
        codes: list[int | None] = [*self._codes] or [None]
        return [(row, code) for row in self._queues for code in codes]

    @property
    def _matching(self) -> int:
        """The number of jobs in the queues and states of the filter."""
        return sum(_count(row, code) for row, code in self._wanted)

    def _walk(self, cursor: int | None) -> SearchPage:
        """Walk over a range of generations, which begins at the next one that exists."""
        execute, down = self._tx.execute, self._descending
        beyond = (_LAST if down else _FIRST) if cursor is None else cursor
        (first,) = execute(_BEFORE if down else _BEHIND, (beyond,)).fetchone()
        if first is None or not self._queues:
            return SearchPage([], None, 0)
        last = first - _WALKED + 1 if down else first + _WALKED - 1
        span = (min(first, last), max(first, last))
        which = (
            numbers(row.qid for row in self._queues),
            numbers(self._codes) if self._codes else None,
        )
        filter = self._filter
        since, until = filter.enqueued.since, filter.enqueued.until
        times = (_FIRST if since is None else since, _LAST if until is None else until)
        rows = execute(_DOWN if down else _UP, (*span, *which, filter.task, *times))
        stopped = self._take(((0, row[_SEQ]), row) for row in rows)
        at = last if stopped is None else stopped[1]
        (seen,) = execute(_PASSED, (min(first, at), max(first, at), *which)).fetchone()
        if stopped is None and execute(_BEFORE if down else _BEHIND, (at,)).fetchone() == (None,):
            return SearchPage(self._hits, None, seen)
        if not seen and self._matching <= _MANY:
            following = self._next_one(at)
            if following is None:
                return SearchPage([], None, 0)
            at = following + 1 if down else following - 1
        return SearchPage(self._hits, cursor_of((0, at)), seen)

    def _next_one(self, at: int) -> int | None:
        """The next job after a generation that is in a queue and a state of the filter, by their indexes."""
        best = max if self._descending else min
        found = [
            self._tx.execute(_next(code, descending=self._descending), (row.qid, code, at)).fetchone()[0]
            for row, code in self._wanted
            if _count(row, code)
        ]
        return best((seq for seq in found if seq is not None), default=None)

    def _start(self, range: TimeRange, cursor: _Key | None) -> _Key:
        if self._descending:
            edge = (_LAST if range.until is None else range.until, _FIRST)
            return edge if cursor is None else min(edge, cursor)
        edge = (_FIRST if range.since is None else range.since, _FIRST)
        return edge if cursor is None else max(edge, cursor)

    def _within(self, range: TimeRange, places: _Rows) -> _Rows:
        """The rows up to the end of the range."""
        for place, row in places:
            if not range.has(place[0]):
                return
            yield place, row

    # ── what matches ──

    def _take(self, places: _Rows) -> _Key | None:
        """Note the jobs that match; return the place at which the step is over, None after the last row."""
        needle, escapes = self._matcher.needle, self._matcher.escapes
        for place, row in places:
            self._seen += 1
            self._bytes += len(row[_SPEC]) + len(row[_ERRORS] or b"")
            if not needle or _has(needle, row) or (escapes and b"\\" in row[_SPEC]):
                job = show(self._tx, row)
                if self._matcher.matches(job):
                    self._hits.append(SearchHit(job, cursor_of(place)))
            if len(self._hits) == self._limit or self._seen == SEARCH_STEP or self._bytes >= SEARCH_BYTES:
                return place
        return None

    def _page(self, stopped: _Key | None) -> SearchPage:
        return SearchPage(self._hits, None if stopped is None else cursor_of(stopped), self._seen)


def _has(needle: bytes, row: Row) -> bool:
    """Whether the stored bytes of a job contain the needle; its id is part of the spec."""
    errors, reason = row[_ERRORS], row[_REASON]
    return (
        needle in row[_SPEC].lower()
        or (errors is not None and needle in errors.lower())
        or (reason is not None and needle in text_bytes(reason))
    )


@cache
def _next(code: int | None, *, descending: bool) -> str:
    """The statement for the next job of a queue, in a state or any, by an index.  ?1 qid  ?2 state  ?3 seq"""
    which, than = ("max", "<") if descending else ("min", ">")
    return f"SELECT {which}(seq) FROM ({statement_of(code)}) WHERE seq {than} ?3"  # noqa: S608 (no input)


def _count(row: QueueRow, code: int | None) -> int:
    return sum(row.counts) if code is None else row.counts[code]
