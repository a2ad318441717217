"""Queries of an operator for statistics, depths and groups of errors."""

from __future__ import annotations

from penstock.core.queue_depth import QueueDepth, depth_of_all, depth_over_time
from penstock.core.task_stats import TaskStats, sum_of
from penstock.inspector.stats_views import (
    ErrorGroupView,
    PeriodDepthView,
    PeriodStatsView,
    QueueDepthView,
    TaskStatsView,
    error_group_view,
    period_depth_view,
    period_stats_view,
    queue_depth_view,
    task_stats_view,
)
from penstock.stores.contract import QueueSize, Resolution, Store

__all__ = ["StatsInspector"]

_TWO_HOURS = 2 * 3_600_000


class StatsInspector:
    """The operator's methods for statistics. `span` is in ms, up to now."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def tasks(
        self, *, queue: str | None = None, task: str | None = None, span: int = _TWO_HOURS
    ) -> list[TaskStatsView]:
        """The statistics of each task of each queue over this span, by queue and task."""
        page = await self._store.read_stats(resolution_for(span), span=span, queue=queue, task=task)
        found: dict[tuple[str, str], list[TaskStats]] = {}
        for row in page.rows:
            found.setdefault((row.queue, row.task), []).append(row.stats)
        return [task_stats_view(*names, sum_of(stats)) for names, stats in sorted(found.items())]

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
        by = by or resolution_for(span)
        page = await self._store.read_stats(by, span=span, queue=queue, task=task)
        depths = await self._depths(by, queue, span) if enqueued and task is None else {}
        found: dict[int, list[TaskStats]] = {at: [] for at, depth in depths.items() if depth.enqueued}
        for row in page.rows:
            found.setdefault(row.at, []).append(row.stats)
        return [
            period_stats_view(at, sum_of(stats), depths[at].enqueued if at in depths else None)
            for at, stats in sorted(found.items(), reverse=True)
        ]

    async def depths(self, *, queue: str | None = None, span: int = _TWO_HOURS) -> list[QueueDepthView]:
        """The unfinished jobs of each queue over this span, by queue. A queue without samples is left out."""
        page = await self._store.read_depths(resolution_for(span), span=span, queue=queue)
        found: dict[str, list[QueueDepth]] = {}
        for row in page.rows:
            found.setdefault(row.queue, []).append(row.depth)
        return [queue_depth_view(name, depth_over_time(depths)) for name, depths in sorted(found.items())]

    async def depth_periods(
        self, by: Resolution | None = None, *, queue: str | None = None, span: int = _TWO_HOURS
    ) -> list[PeriodDepthView]:
        """The unfinished jobs of one queue, or of all together, by minute, hour or day, the latest first.

        A period without samples is left out. Without `by`, the shortest periods that cover the span.
        """
        depths = await self._depths(by or resolution_for(span), queue, span)
        return [period_depth_view(at, depth) for at, depth in sorted(depths.items(), reverse=True)]

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
        """Groups of errors, the latest error first."""
        groups = await self._store.read_errors(queue=queue, task=task)
        return [error_group_view(group) for group in groups[:limit]]

    async def sizes(self) -> list[QueueSize]:
        """An estimate of the space that each queue takes, by name."""
        return await self._store.queue_sizes()


def resolution_for(span: int) -> Resolution:
    """The shortest periods that are kept for this span (ms)."""
    for one in Resolution:
        if span <= one.length * one.kept:
            return one
    return Resolution.DAY
