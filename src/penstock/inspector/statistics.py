"""Statistics for operators: attempts, percentiles of their times, depths, and groups of errors."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import msgspec
from msgspec.structs import asdict

from penstock.core.errors import Unsupported
from penstock.core.stats import QueueDepth, Sketch, TaskStats, depth_of_all, depth_over_time, quantile, sum_of
from penstock.stores.contract import ErrorGroup, QueueSize, Resolution, Store

T = TypeVar("T")


async def kept(read: Awaitable[list[T]]) -> list[T]:
    """What was read; nothing of a store that does not keep that."""
    try:
        return await read
    except Unsupported:
        return []


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

    at: int
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

    at: int
    samples: int
    available: float
    running: float
    later: float
    peak: int
    enqueued: int | None


class ErrorGroupView(ErrorGroup, frozen=True, kw_only=True):
    """Errors of one task with one class and message, without the numbers, ids and quoted text of the message.

    `job`: the latest job that had one; it may be gone. `renamed`: its jobs have several task names.
    """

    renamed: bool = False


def wait_times(stats: TaskStats) -> TimesView:
    """The times from due to leased."""
    return _times(stats.waits, stats.waited)


def _of_attempts(stats: TaskStats) -> tuple[int, int, int, int, int, TimesView, TimesView]:
    """The fields of a view from `started` on."""
    numbers = (stats.started, stats.processed, stats.failed, stats.retried, stats.dead)
    return *numbers, wait_times(stats), _times(stats.runs, stats.ran)


def _of_depth(depth: QueueDepth) -> tuple[int, float, float, float, int, int | None]:
    """The fields of a view from `samples` on."""
    n = max(1, depth.samples)
    means = (depth.available / n, depth.running / n, depth.later / n)
    return depth.samples, *means, depth.peak, depth.enqueued


def _times(sketch: Sketch, total: int) -> TimesView:
    measured = sum(sketch[1::2])
    mean = total / 1e6 / measured if measured else None
    return TimesView(mean, *(quantile(sketch, share) for share in (0.5, 0.95, 0.99)))


_TWO_HOURS = 2 * 3_600_000


class StatsInspector:
    """The operator's methods for statistics. `span` is in ms, up to now."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def tasks(
        self, *, queue: str | None = None, task: str | None = None, span: int = _TWO_HOURS
    ) -> list[TaskStatsView]:
        """The statistics of each task of each queue over this span, by queue and task.

        A renamed task is counted under its oldest name; any of its names finds it, while a worker knows them.
        """
        task = await self._identity(task)
        page = await self._store.read_stats(resolution_for(span), span=span, queue=queue, task=task)
        found: dict[tuple[str, str], list[TaskStats]] = {}
        for row in page.rows:
            found.setdefault((row.queue, row.task), []).append(row.stats)
        return [
            TaskStatsView(queue, name, *_of_attempts(sum_of(stats)))
            for (queue, name), stats in sorted(found.items())
        ]

    async def periods(
        self,
        by: Resolution | None = None,
        *,
        queue: str | None = None,
        task: str | None = None,
        span: int = _TWO_HOURS,
        enqueued: bool = True,
    ) -> list[PeriodStatsView]:
        """The statistics of all these tasks together by minute, hour or day, the latest period first.

        A period without attempts and enqueued jobs is left out. Without `by`, the shortest periods that cover
        the span. Enqueued jobs are counted by queue: with `task`, they are unknown. `enqueued=False` saves
        reading them.
        """
        by, task = by or resolution_for(span), await self._identity(task)
        page = await self._store.read_stats(by, span=span, queue=queue, task=task)
        depths = await self._depths(by, queue, span) if enqueued and task is None else {}
        found: dict[int, list[TaskStats]] = {at: [] for at, depth in depths.items() if depth.enqueued}
        for row in page.rows:
            found.setdefault(row.at, []).append(row.stats)
        return [
            PeriodStatsView(at, depths[at].enqueued if at in depths else None, *_of_attempts(sum_of(stats)))
            for at, stats in sorted(found.items(), reverse=True)
        ]

    async def depths(self, *, queue: str | None = None, span: int = _TWO_HOURS) -> list[QueueDepthView]:
        """The unfinished jobs of each queue over this span, by queue. A queue without samples is left out."""
        page = await self._store.read_depths(resolution_for(span), span=span, queue=queue)
        found: dict[str, list[QueueDepth]] = {}
        for row in page.rows:
            found.setdefault(row.queue, []).append(row.depth)
        return [
            QueueDepthView(name, *_of_depth(depth_over_time(depths)))
            for name, depths in sorted(found.items())
        ]

    async def depth_periods(
        self, by: Resolution | None = None, *, queue: str | None = None, span: int = _TWO_HOURS
    ) -> list[PeriodDepthView]:
        """The unfinished jobs of one queue, or of all together, by minute, hour or day, the latest first.

        A period without samples is left out. Without `by`, the shortest periods that cover the span.
        """
        depths = await self._depths(by or resolution_for(span), queue, span)
        return [PeriodDepthView(at, *_of_depth(depth)) for at, depth in sorted(depths.items(), reverse=True)]

    async def _depths(self, by: Resolution, queue: str | None, span: int) -> dict[int, QueueDepth]:
        """The depth of these queues together, by period."""
        page = await self._store.read_depths(by, span=span, queue=queue)
        found: dict[int, list[QueueDepth]] = {}
        for row in page.rows:
            found.setdefault(row.at, []).append(row.depth)
        return {at: depth_of_all(depths) for at, depths in found.items()}

    async def errors(
        self, *, queue: str | None = None, task: str | None = None, limit: int = 50
    ) -> list[ErrorGroupView]:
        """Groups of errors, the latest error first. Those of a renamed task are as in `tasks`."""
        renamed = await self.identities()
        task = None if task is None else renamed.get(task, task)
        groups = await self._store.read_errors(queue=queue, task=task)
        several = {*renamed.values()}
        return [ErrorGroupView(**asdict(group), renamed=group.task in several) for group in groups[:limit]]

    async def identities(self) -> dict[str, str]:
        """The oldest names of the renamed tasks that live workers know, by their other names."""
        workers = await kept(self._store.workers())
        return {name: oldest for worker in workers for name, oldest in worker.identities.items()}

    async def _identity(self, task: str | None) -> str | None:
        """The name under which the attempts of this task are counted."""
        return None if task is None else (await self.identities()).get(task, task)

    async def sizes(self) -> list[QueueSize]:
        """An estimate of the space that each queue takes, by name."""
        return await self._store.queue_sizes()


def resolution_for(span: int) -> Resolution:
    """The shortest periods that are kept for this span (ms)."""
    for one in Resolution:
        if span <= one.length * one.kept:
            return one
    return Resolution.DAY
