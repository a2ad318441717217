"""Counts what a worker process does: attempts by task and outcome, their times, lost leases, store calls.

Attempts are counted by batches of settled jobs: the usual batch, of completed jobs of one task, is counted by
functions of C, because a plain job takes only some microseconds.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter

import msgspec

from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Settled, Settlement
from penstock.web.exposition import CALL_BOUNDS
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.metrics_page import MetricsPage

__all__ = [
    "TIME_BOUNDS",
    "Times",
    "WorkerFigures",
    "WorkerMetrics",
    "merge_figures",
    "read_figures",
]

#: The largest value (s) of each bucket, of durations and waits of jobs.
TIME_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0),
)
_WAIT_BOUNDS = tuple(1_000 * bound for bound in TIME_BOUNDS)  # in ms
#: Tasks with figures of their own, at most; the rest is counted as OTHER.
_MOST_TASKS = 200
OTHER = "other"
#: Interval (s) at which the supervisor's copy is brought up to date.
_WRITE_EVERY = 1.0

_took = attrgetter("took")
_plan = attrgetter("plan")
_move = attrgetter("transition")
_OUTCOMES = {
    State.COMPLETED: "completed",
    State.RETRYABLE: "retried",
    State.DEAD: "dead",
    State.CANCELLED: "cancelled",
    State.SCHEDULED: "snoozed",
    State.AVAILABLE: "released",
    State.PARKED: "parked",
}


class Times(msgspec.Struct):
    """A histogram: numbers by bucket, the last one without an upper bound, and the sum."""

    buckets: list[int]
    total: float = 0.0

    def count(self, bounds: Sequence[float], seconds: Sequence[float]) -> None:
        """Count values, all in one step if the least and the greatest fall in the same bucket."""
        self.total += max(0, sum(seconds))
        least = bisect_left(bounds, min(seconds))
        if least == bisect_left(bounds, max(seconds)):
            self.buckets[least] += len(seconds)
            return
        for place, number in Counter(map(bisect_left, repeat(bounds), seconds)).items():
            self.buckets[place] += number

    def add(self, other: Times) -> None:
        self.buckets = [one + more for one, more in zip(self.buckets, other.buckets, strict=True)]
        self.total += other.total


def _times(bounds: Sequence[float]) -> Times:
    return Times([0] * (len(bounds) + 1))


class TaskFigures(msgspec.Struct):
    """The attempts of one task: numbers by outcome, run times, and the time from due to leased (ms)."""

    outcomes: dict[str, int] = {}
    durations: Times = msgspec.field(default_factory=lambda: _times(TIME_BOUNDS))
    waits: Times = msgspec.field(default_factory=lambda: _times(TIME_BOUNDS))

    def add(self, other: TaskFigures) -> None:
        for outcome, number in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + number
        self.durations.add(other.durations)
        self.waits.add(other.waits)


class WorkerFigures(msgspec.Struct):
    """What worker processes did since their start."""

    tasks: dict[str, TaskFigures] = {}
    calls: dict[str, Times] = {}
    failed_calls: dict[str, int] = {}
    leases_lost: int = 0
    reclaimed: int = 0

    def of(self, task: str) -> TaskFigures:
        """The figures of a task, or of all tasks beyond the first ones."""
        found = self.tasks.get(task)
        if found is None:
            if len(self.tasks) >= _MOST_TASKS:
                task = OTHER
            found = self.tasks.setdefault(task, TaskFigures())
        return found


def merge_figures(into: WorkerFigures, more: WorkerFigures) -> None:
    """Add the figures of another process."""
    for task, figures in more.tasks.items():
        into.of(task).add(figures)
    for verb, times in more.calls.items():
        into.calls.setdefault(verb, _times(CALL_BOUNDS)).add(times)
    for verb, number in more.failed_calls.items():
        into.failed_calls[verb] = into.failed_calls.get(verb, 0) + number
    into.leases_lost += more.leases_lost
    into.reclaimed += more.reclaimed


def read_figures(page: MetricsPage) -> WorkerFigures:
    """The figures that a process has written to its page."""
    content = page.read()
    return msgspec.msgpack.decode(content, type=WorkerFigures) if content else WorkerFigures()


class WorkerMetrics:
    """Counts for one worker process, and copies the figures to its page once a second."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page
        self.figures = WorkerFigures()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Copy the figures to the page from now on."""
        self._page.write(msgspec.msgpack.encode(self.figures))
        self._timer = asyncio.get_running_loop().call_later(_WRITE_EVERY, self.start)

    def stop(self) -> None:
        """Copy the figures a last time."""
        if self._timer is not None:
            self._timer.cancel()
        self._page.write(msgspec.msgpack.encode(self.figures))

    # ── what happened ────────────────────────────────────────────────────────────────────────────

    def settled(
        self, batch: Sequence[LeasedJob], settlements: Sequence[Settlement], answers: Sequence[Settled | None]
    ) -> None:
        """Count outcomes that the store has answered."""
        n = len(batch)
        plans = list(map(_plan, batch))
        moves = list(map(_move, settlements))
        alike = answers.count(Settled.APPLIED) == n and plans.count(plans[0]) == n
        if alike and moves[0].state is State.COMPLETED and moves.count(moves[0]) == n:
            self._count(plans[0].name, "completed", batch)
            return
        by_kind: dict[tuple[str, str], list[LeasedJob]] = {}
        for leased, settlement, answer in zip(batch, settlements, answers, strict=True):
            if answer is Settled.APPLIED:
                kind = leased.plan.name, _outcome(settlement.transition)
                by_kind.setdefault(kind, []).append(leased)
            elif answer is not Settled.UNKNOWN and leased.started:
                self.lease_lost()
        for (task, outcome), some in by_kind.items():
            self._count(task, outcome, some)

    def lease_lost(self) -> None:
        """Count an attempt whose lease another worker has got."""
        self.figures.leases_lost += 1

    def reclaimed(self) -> None:
        """Count a job whose worker was lost, and which was taken back here."""
        self.figures.reclaimed += 1

    def called(self, verb: str, seconds: float, failed: bool) -> None:
        """Count a call of the store. May be called from any thread."""
        times = self.figures.calls.get(verb)
        if times is None:
            times = self.figures.calls.setdefault(verb, _times(CALL_BOUNDS))
        times.buckets[bisect_left(CALL_BOUNDS, seconds)] += 1
        times.total += seconds
        if failed:
            self.figures.failed_calls[verb] = self.figures.failed_calls.get(verb, 0) + 1

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _count(self, task: str, outcome: str, batch: Sequence[LeasedJob]) -> None:
        figures = self.figures.of(task)
        figures.outcomes[outcome] = figures.outcomes.get(outcome, 0) + len(batch)
        if outcome in ("released", "parked"):  # most of them were not started
            batch = [leased for leased in batch if leased.started]
        if batch:
            figures.durations.count(TIME_BOUNDS, list(map(_took, batch)))
            figures.waits.count(_WAIT_BOUNDS, [leased.now - leased.job.run_at for leased in batch])


def _outcome(move: Transition) -> str:
    if move.throttle or move.throttle_partition:
        return "throttled"
    return _OUTCOMES.get(move.state, OTHER)
