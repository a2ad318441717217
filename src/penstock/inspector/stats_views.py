"""Statistics as operators see them: attempts, percentiles of their times, depths, and groups of errors."""

from __future__ import annotations

import msgspec

from penstock.core.formats import instant
from penstock.core.queue_depth import QueueDepth
from penstock.core.sketch import Sketch, quantile
from penstock.core.task_stats import TaskStats
from penstock.stores.contract import ErrorGroup

__all__ = [
    "ErrorGroupView",
    "PeriodDepthView",
    "PeriodStatsView",
    "QueueDepthView",
    "TaskStatsView",
    "TimesView",
    "error_group_view",
    "period_depth_view",
    "period_stats_view",
    "queue_depth_view",
    "task_stats_view",
]


class TimesView(msgspec.Struct, frozen=True):
    """Seconds: the mean, and percentiles that are wrong by at most 5 %. None: nothing was measured."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class TaskStatsView(msgspec.Struct, frozen=True):
    """The attempts of one task in one queue. `wait`: from due to leased; `run`: of the function."""

    queue: str
    task: str
    started: int
    processed: int
    failed: int
    retried: int
    dead: int
    wait: TimesView
    run: TimesView


class PeriodStatsView(msgspec.Struct, frozen=True):
    """The attempts of all chosen tasks in the minute, hour or day that begins at `at`.

    `enqueued`: jobs enqueued in the chosen queues, from samples once a minute. None: unknown, as of one task.
    """

    at: str
    enqueued: int | None
    started: int
    processed: int
    failed: int
    retried: int
    dead: int
    wait: TimesView
    run: TimesView


class QueueDepthView(msgspec.Struct, frozen=True):
    """The unfinished jobs of one queue, from samples once a minute.

    `available`, `running`, `later` (all other unfinished jobs): means. `peak`: the most available jobs.
    `enqueued`: jobs enqueued since the first sample; None: unknown.
    """

    queue: str
    samples: int
    available: float
    running: float
    later: float
    peak: int
    enqueued: int | None


class PeriodDepthView(msgspec.Struct, frozen=True):
    """The unfinished jobs of all chosen queues in the minute, hour or day that begins at `at`, as means.

    `peak`: the most available jobs of one queue. `enqueued`: jobs enqueued from the first sample of a period
    to that of the next one, or until now; None: unknown.
    """

    at: str
    samples: int
    available: float
    running: float
    later: float
    peak: int
    enqueued: int | None


class ErrorGroupView(msgspec.Struct, frozen=True):
    """Errors of one task with one class and message, without the numbers, ids and quoted text of the message.

    `job`: the latest job that had one; it may be gone.
    """

    queue: str
    task: str
    kind: str
    message: str
    count: int
    first_at: str
    last_at: str
    job: str


def task_stats_view(queue: str, task: str, stats: TaskStats) -> TaskStatsView:
    """The statistics of a task."""
    return TaskStatsView(queue, task, *_numbers(stats), *_times_of(stats))


def period_stats_view(at: int, stats: TaskStats, enqueued: int | None) -> PeriodStatsView:
    """The statistics of a period."""
    return PeriodStatsView(instant(at), enqueued, *_numbers(stats), *_times_of(stats))


def queue_depth_view(queue: str, depth: QueueDepth) -> QueueDepthView:
    """The depth of a queue."""
    return QueueDepthView(queue, depth.samples, *_means(depth), depth.peak, depth.enqueued)


def period_depth_view(at: int, depth: QueueDepth) -> PeriodDepthView:
    """The depth in a period."""
    return PeriodDepthView(instant(at), depth.samples, *_means(depth), depth.peak, depth.enqueued)


def error_group_view(group: ErrorGroup) -> ErrorGroupView:
    """A group of errors, with instants as text."""
    return ErrorGroupView(
        group.queue,
        group.task,
        group.kind,
        group.message,
        group.count,
        instant(group.first),
        instant(group.last),
        group.job,
    )


def _means(depth: QueueDepth) -> tuple[float, float, float]:
    samples = max(1, depth.samples)
    return depth.available / samples, depth.running / samples, depth.later / samples


def _numbers(stats: TaskStats) -> tuple[int, int, int, int, int]:
    return stats.started, stats.processed, stats.failed, stats.retried, stats.dead


def _times_of(stats: TaskStats) -> tuple[TimesView, TimesView]:
    return _times(stats.waits, stats.waited), _times(stats.runs, stats.ran)


def _times(sketch: Sketch, total: int) -> TimesView:
    measured = sum(sketch[1::2])
    mean = total / 1e6 / measured if measured else None
    return TimesView(mean, *(quantile(sketch, share) for share in (0.5, 0.95, 0.99)))
