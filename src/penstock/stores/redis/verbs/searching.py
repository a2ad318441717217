"""search: one bounded step of a search, over several queues.

Each queue is passed by a script of its own, from the cursor on. The queue that stopped the previous step
comes first; the others are passed only as far as that one was, some in each request, because a server runs
the calls of one request without a pause. Then the queue that stopped first is passed further, as long as that
takes the step on. Jobs beyond the first place at which a script stopped are left to the next step.

Jobs are looked up by an id in each queue, without a script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.core.job import Job, Ref
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
from penstock.stores.redis.isolation import MISSING, call_each, run_for_queue, skips_corrupt_queues
from penstock.stores.redis.layout import EPOCH, NUMBER
from penstock.stores.redis.reading import shown
from penstock.stores.redis.script_arguments import chunks
from penstock.stores.redis.verbs.known_queues import known
from penstock.stores.redis.verbs.producing import get
from penstock.stores.redis.wire.calls import Call

#: Jobs that one request passes: a server takes up to 10 µs for each.
_STEP = SEARCH_STEP // 2
#: The least number of jobs to pass of each queue, and the most queues of one request.
_LEAST, _QUEUES = 10, 25
#: How often a queue is passed further, and the number of jobs each time.
_FURTHER, _FURTHER_JOBS = 10, 50
#: Matches a stored id in a cursor.
_IS_HEX = re.compile(r"(?:[0-9a-f]{2})+").fullmatch
#: How far the clock in a generation may be from the time of the enqueue (ms).
_DRIFT = 60_000


class _QueueKey(NamedTuple):
    """A place in the order: the time (0 in order of enqueue), and the generation and queue of the job.

    In ready order, which is of one queue: the negative priority, the place, and the stored id in hexadecimal.
    """

    time: int
    generation: int
    queue: str

    def text(self) -> str:
        """The place as a cursor."""
        return f"{self.time}:{self.generation}:{self.queue}"


class _Passed(NamedTuple):
    """What a script says of a queue; `stopped`: where it stopped early."""

    queue: str
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
            int(self.matcher.escapes),
            filter.worker or "",
        ]

    def call(
        self, context: Context, queue: str, cursor: _QueueKey | None, stop: _QueueKey | None, share: int
    ) -> Call:
        """The call for one queue, from the cursor to the stop or the end of the range of times.

        `share`: the number of queues among which the step is divided.
        """
        start, generation, member = self._begin(queue, cursor)
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
        return context.call("search", [queue], [*args, *self._rest, member])

    def _begin(self, queue: str, cursor: _QueueKey | None) -> tuple[int | None, int, bytes]:
        """Where a queue begins: descending before this, else at this; equal places are in order of queue.

        In ready order, behind this place and stored id.
        """
        if cursor is None:
            return self._start, 0, b""
        if self.order is JobOrder.READY:
            return cursor.time, cursor.generation, bytes.fromhex(cursor.queue)
        behind = queue < cursor.queue if self.descending else queue <= cursor.queue
        generation = cursor.generation + behind
        return (generation, 0, b"") if self.order is JobOrder.ENQUEUED else (cursor.time, generation, b"")

    def first(self, places: list[_QueueKey]) -> _QueueKey | None:
        """The place that comes first in the order."""
        return (max if self.descending else min)(places, default=None)

    def reaches(self, passed: list[_Passed], stop: _QueueKey) -> bool:
        """Whether as many jobs that may match lie up to this place as the step is to find."""
        return sum(self._within(place, stop) for one in passed for place, _ in one.hits) >= self.limit

    def is_behind(self, place: _QueueKey, cursor: _QueueKey) -> bool:
        """Whether a job at this place is still to be passed."""
        return place < cursor if self.descending else place > cursor

    def _within(self, place: _QueueKey, stop: _QueueKey | None) -> bool:
        """Whether this step passes the place, if the next one begins behind `stop`."""
        return stop is None or (place >= stop if self.descending else place <= stop)

    def page(self, passed: list[_Passed], away: tuple[str, ...]) -> SearchPage:
        """The hits of all queues but these, up to the first place at which a script stopped."""
        stop = self.first([one.stopped for one in passed if one.stopped is not None])
        found = sorted(
            (hit for one in passed for hit in one.hits), key=lambda hit: hit[0], reverse=self.descending
        )
        hits = [
            (place, job) for place, job in found if self._within(place, stop) and self.matcher.matches(job)
        ]
        if len(hits) > self.limit:
            hits = hits[: self.limit]
            stop = hits[-1][0]
        seen = sum(self._seen(one, stop) for one in passed)
        page = [SearchHit(job, place.text()) for place, job in hits]
        return SearchPage(page, None if stop is None else stop.text(), seen, away)

    def _seen(self, one: _Passed, stop: _QueueKey | None) -> int:
        """About how many jobs of a queue are passed: those behind `stop` are passed again."""
        if not one.hits:
            return one.seen
        before = sum(self._within(place, stop) for place, _ in one.hits)
        return round(one.seen * before / len(one.hits))


@skips_corrupt_queues
def search(
    context: Context,
    filter: JobFilter,
    order: JobOrder,
    descending: bool,
    after: str | None,
    limit: int,
) -> CallPlan[SearchPage]:
    cursor = None if after is None else _cursor(after, order)
    request = _SearchRequest(filter, order, descending=descending, limit=limit)
    names = filter.queues or (yield from known(context))
    if not names:
        return SearchPage([], None, 0)
    if filter.id is not None:
        return (yield from _with_id(context, request, filter.id, names, cursor))
    leader = cursor.queue if cursor is not None and cursor.queue in names else names[0]
    passed, away = yield from _passed(context, request, [leader], cursor, None)
    stop = passed[0].stopped if passed else None
    for some in chunks([name for name in names if name != leader], _QUEUES):
        more, also = yield from _passed(context, request, some, cursor, stop)
        passed, away = passed + more, away + also
    if not passed:
        raise context.unavailable(names)
    if len(passed) > 1:
        passed, also = yield from _further(context, request, passed, stop)
        away = tuple(sorted({*away, *also}))
    return request.page(passed, away)


def _with_id(
    context: Context, search: _SearchRequest, id: str, names: Sequence[str], cursor: _QueueKey | None
) -> CallPlan[SearchPage]:
    """Look the id up in each queue."""
    found: list[Job | None] = []
    lost: list[str] = []
    if context.queue_by_queue:
        for name in names:
            answer = yield from run_for_queue(context, name, get(context, [Ref(name, id)]))
            if answer is MISSING:
                lost.append(name)
            else:
                found += answer
    else:
        found = yield from get(context, [Ref(name, id) for name in names])
    jobs = [job for job in found if job is not None]
    if lost and not jobs:  # the job may be in a queue that is away
        raise context.unavailable(names)
    hits = [(_QueueKey(0, job.generation, job.queue), job) for job in jobs]
    hits = [hit for hit in hits if cursor is None or search.is_behind(hit[0], cursor)]
    away = tuple(name for name in lost if context.corrupt.why(name) is None)
    return search.page([_Passed("", None, len(hits), hits)], away)


def _further(
    context: Context, search: _SearchRequest, passed: list[_Passed], end: _QueueKey | None
) -> CallPlan[tuple[list[_Passed], tuple[str, ...]]]:
    """Pass the queue that stopped first further, and then the one that does so now, some times.

    Without this, a step of hundreds of queues whose jobs came one queue after another would pass ten jobs of
    each for the next few of one. `end`: how far the others were passed at most.
    """
    stop = search.first([one.stopped for one in passed if one.stopped is not None])
    for _ in range(_FURTHER):
        if stop in (None, end) or search.reaches(passed, stop):
            break
        more, away = yield from _passed(context, search, [stop.queue], stop, None, _STEP // _FURTHER_JOBS)
        if away:
            return passed, away
        passed = [one._replace(stopped=None) if one.queue == stop.queue else one for one in passed] + more
        stop = search.first([one.stopped for one in passed if one.stopped is not None])
    return passed, ()


def _passed(
    context: Context,
    search: _SearchRequest,
    queues: Sequence[str],
    cursor: _QueueKey | None,
    stop: _QueueKey | None,
    share: int | None = None,
) -> CallPlan[tuple[list[_Passed], tuple[str, ...]]]:
    """Pass these queues. Those that are away are left out, and named; spoiled ones are left out."""
    share = share or len(queues)
    calls = [(queue, search.call(context, queue, cursor, stop, share)) for queue in queues]
    answers = yield from call_each(context, calls)
    found: list[_Passed] = []
    away: list[str] = []
    for queue, answer in zip(queues, answers, strict=True):
        if answer is not MISSING:
            found.append((yield from _read(context, search.order, queue, answer)))
        elif context.corrupt.why(queue) is None:
            away.append(queue)
    return found, tuple(away)


def _read(context: Context, order: JobOrder, queue: str, answer: list[Any]) -> CallPlan[_Passed]:
    early, number, generation, last, seen, *facts = answer

    def place(number: bytes, generation: bytes, id: bytes) -> _QueueKey:
        time = 0 if order is JobOrder.ENQUEUED else int(number)
        return _QueueKey(time, int(generation), id.hex() if order is JobOrder.READY else queue)

    rows = list(zip(facts[2::5], facts[3::5], facts[4::5], strict=True))
    jobs: list[Job] = yield from shown(context, queue, rows)
    places = map(place, facts[0::5], facts[1::5], facts[2::5])
    stopped = place(number, generation, last) if early else None
    return _Passed(queue, stopped, seen, list(zip(places, jobs, strict=True)))


def _range_of(filter: JobFilter, order: JobOrder) -> TimeRange:
    """The range of the numbers of this order. Generations follow the clock roughly; the matcher is exact."""
    if order is JobOrder.READY:
        return TimeRange()
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


def _cursor(after: str, order: JobOrder) -> _QueueKey:
    *numbers, queue = after.split(":", 2)
    if not queue or (order is JobOrder.READY and not _IS_HEX(queue)):
        raise not_a_cursor(after)
    time, generation = numbers_of(":".join(numbers), 2)
    return _QueueKey(time, generation, queue)
