"""search_jobs: one bounded step of a search, over several queues.

Each queue is passed by a script of its own, from the cursor on. The queue that stopped the previous step
comes first; the others are passed only as far as that one was, and all together in the same time, because a
server runs the calls of one request without a pause. Jobs beyond the first place at which a script stopped
are left to the next step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.core.job import Job
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
from penstock.stores.cursors import not_a_cursor, numbers_of
from penstock.stores.job_matcher import JobMatcher
from penstock.stores.redis.context import CallPlan, Context
from penstock.stores.redis.isolation import AWAY, each, isolated
from penstock.stores.redis.keys import EPOCH
from penstock.stores.redis.layout import NUMBER
from penstock.stores.redis.reading import shown
from penstock.stores.redis.verbs.known_queues import known
from penstock.stores.redis.wire.calls import Call

__all__ = ["search_jobs"]

#: Jobs that one request passes: a server takes up to 10 µs for each.
_STEP = SEARCH_STEP // 2
#: The least number of jobs to pass of each queue.
_LEAST = 10
#: How far the clock in a generation may be from the time of the enqueue (ms).
_DRIFT = 60_000


class _QueueKey(NamedTuple):
    """A place in the order: the time (0 in order of enqueue), and the generation and queue of the job."""

    time: int
    generation: int
    queue: str

    def text(self) -> str:
        """The place as a cursor."""
        return f"{self.time}:{self.generation}:{self.queue}"


class _Passed(NamedTuple):
    """What a script says of a queue; `stopped`: where it stopped early."""

    stopped: _QueueKey | None
    seen: int
    hits: list[tuple[_QueueKey, Job]]


class _SearchRequest:
    """The arguments of one step of a search."""

    def __init__(self, filter: JobFilter, order: JobOrder, *, descending: bool, limit: int) -> None:
        self.order = order
        self.descending = descending
        self.limit = min(max(1, limit), MOST_FOUND)
        self.matcher = JobMatcher(filter)
        range = _range_of(filter, order)
        self._start = range.until if descending else range.since
        self._stop = range.since if descending else range.until
        exact = JobFilter(filter.queues, filter.states, filter.task) == filter
        self._states = ",".join(str(NUMBER[state]) for state in filter.states or NUMBER)
        self._most = self.limit if exact else MOST_FOUND
        self._rest: list[bytes | str | int] = [
            self.matcher.needle,
            filter.task or "",
        ]

    def call(
        self, context: Context, queue: str, cursor: _QueueKey | None, stop: _QueueKey | None, share: int
    ) -> Call:
        """The call for one queue, from the cursor to the stop or the end of the range of times.

        `share`: the number of queues among which the step is divided.
        """
        start, generation = self._begin(queue, cursor)
        end = self._stop
        if stop is not None:
            number = stop.generation if self.order is JobOrder.ENQUEUED else stop.time
            end = number if self.descending else number + 1
        args: list[bytes | str | int] = [
            self.order.value,
            int(self.descending),
            "" if start is None else start,
            generation,
            "" if end is None else end,
            self._states,
            self._most,
            max(_LEAST, _STEP // share),
            SEARCH_BYTES // share,
        ]
        return context.call("search", [queue], [*args, *self._rest])

    def _begin(self, queue: str, cursor: _QueueKey | None) -> tuple[int | None, int]:
        """Where a queue begins: descending before this, else at this; equal places are in order of queue."""
        if cursor is None:
            return self._start, 0
        behind = queue < cursor.queue if self.descending else queue <= cursor.queue
        generation = cursor.generation + behind
        return (generation, 0) if self.order is JobOrder.ENQUEUED else (cursor.time, generation)

    def first(self, places: list[_QueueKey]) -> _QueueKey | None:
        """The place that comes first in the order."""
        return (max if self.descending else min)(places, default=None)

    def page(self, passed: list[_Passed], away: tuple[str, ...]) -> SearchPage:
        """The hits of all queues but these, up to the first place at which a script stopped."""
        stop = self.first([one.stopped for one in passed if one.stopped is not None])
        found = sorted(
            (hit for one in passed for hit in one.hits), key=lambda hit: hit[0], reverse=self.descending
        )
        hits = [
            SearchHit(job, place.text())
            for place, job in found
            if (stop is None or (place >= stop if self.descending else place <= stop))
            and self.matcher.matches(job)
        ]
        seen = sum(one.seen for one in passed)
        if len(hits) > self.limit:  # the next step passes those beyond the limit again
            seen = seen * self.limit // len(hits)
            hits = hits[: self.limit]
            return SearchPage(hits, hits[-1].after, seen, away)
        return SearchPage(hits, None if stop is None else stop.text(), seen, away)


@isolated
def search_jobs(
    context: Context,
    filter: JobFilter,
    order: JobOrder,
    descending: bool,
    after: str | None,
    limit: int,
) -> CallPlan[SearchPage]:
    cursor = None if after is None else _cursor(after)
    search = _SearchRequest(filter, order, descending=descending, limit=limit)
    names = filter.queues or (yield from known(context))
    if not names:
        return SearchPage([], None, 0)
    leader = cursor.queue if cursor is not None and cursor.queue in names else names[0]
    passed, away = yield from _passed(context, search, [leader], cursor, None)
    stop = passed[0].stopped if passed else None
    others = [name for name in names if name != leader]
    if others:
        more, also = yield from _passed(context, search, others, cursor, stop)
        passed, away = passed + more, away + also
    if not passed:
        raise context.unavailable(names)
    return search.page(passed, away)


def _passed(
    context: Context,
    search: _SearchRequest,
    queues: list[str],
    cursor: _QueueKey | None,
    stop: _QueueKey | None,
) -> CallPlan[tuple[list[_Passed], tuple[str, ...]]]:
    """Pass these queues. Those that are away are left out, and named; spoiled ones are left out."""
    calls = [(queue, search.call(context, queue, cursor, stop, len(queues))) for queue in queues]
    answers = yield from each(context, calls)
    found: list[_Passed] = []
    away: list[str] = []
    for queue, answer in zip(queues, answers, strict=True):
        if answer is not AWAY:
            found.append((yield from _read(context, search.order, queue, answer)))
        elif context.spoiled.why(queue) is None:
            away.append(queue)
    return found, tuple(away)


def _read(context: Context, order: JobOrder, queue: str, answer: list[Any]) -> CallPlan[_Passed]:
    early, number, generation, seen, *facts = answer

    def place(number: bytes, generation: bytes) -> _QueueKey:
        return _QueueKey(0 if order is JobOrder.ENQUEUED else int(number), int(generation), queue)

    rows = list(zip(facts[2::5], facts[3::5], facts[4::5], strict=True))
    jobs: list[Job] = yield from shown(context, queue, rows)
    places = map(place, facts[0::5], facts[1::5])
    stopped = place(number, generation) if early else None
    return _Passed(stopped, seen, list(zip(places, jobs, strict=True)))


def _range_of(filter: JobFilter, order: JobOrder) -> TimeRange:
    """The range of the numbers of this order. Generations follow the clock roughly; the matcher is exact."""
    if order is not JobOrder.ENQUEUED:
        return filter.due if order is JobOrder.DUE else filter.ended
    since, until = filter.enqueued.since, filter.enqueued.until
    return TimeRange(
        None if since is None else _generation(since - _DRIFT),
        None if until is None else _generation(until + _DRIFT),
    )


def _generation(instant: int) -> int:
    """The first generation of an instant."""
    return max(0, instant - EPOCH) << 12


def _cursor(after: str) -> _QueueKey:
    *numbers, queue = after.split(":", 2)
    if not queue:
        raise not_a_cursor(after)
    time, generation = numbers_of(":".join(numbers), 2)
    return _QueueKey(time, generation, queue)
