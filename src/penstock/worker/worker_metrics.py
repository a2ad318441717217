"""Counts what a worker process does: attempts by task and outcome, their times, lost leases, store calls.

The attempts come from `worker_stats.py`, in batches of sorted times.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.core.stats import OTHER, sketch_of
from penstock.web.exposition import CALL_BOUNDS
from penstock.worker.metrics_page import MetricsPage

#: The largest value (s) of each bucket, of durations and waits of jobs.
TIME_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0),
)
_WAIT_BOUNDS = tuple(1_000 * bound for bound in TIME_BOUNDS)  # in ms
#: Tasks with figures of their own, at most; the rest is counted as OTHER.
_MOST_TASKS = 200
#: Interval (s) at which the supervisor's copy is brought up to date.
_WRITE_EVERY = 1.0


class Times(msgspec.Struct):
    """A histogram: numbers by bucket, the last one without an upper bound, and the sum."""

    buckets: list[int]
    total: float = 0.0

    def count(self, bounds: Sequence[float], values: Sequence[float]) -> None:
        """Count sorted values."""
        self.total += max(0, sum(values))
        counted = sketch_of(values, bounds)
        for place, number in zip(counted[0::2], counted[1::2], strict=True):
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
        #: Called before the figures are copied.
        self.refresh: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Copy the figures to the page from now on."""
        self.refresh()
        self._page.write(msgspec.msgpack.encode(self.figures))
        self._timer = asyncio.get_running_loop().call_later(_WRITE_EVERY, self.start)

    def stop(self) -> None:
        """Copy the figures a last time."""
        if self._timer is not None:
            self._timer.cancel()
        self.refresh()
        self._page.write(msgspec.msgpack.encode(self.figures))

    # ── what happened ────────────────────────────────────────────────────────────────────────────

    def count(
        self, task: str, outcomes: Mapping[str, int], runs: Sequence[float], waits: Sequence[int]
    ) -> None:
        """Count attempts of a task: numbers by outcome, and sorted times (s) and waits (ms)."""
        figures = self.figures.of(task)
        for outcome, number in outcomes.items():
            figures.outcomes[outcome] = figures.outcomes.get(outcome, 0) + number
        figures.durations.count(TIME_BOUNDS, runs)
        figures.waits.count(_WAIT_BOUNDS, waits)

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
