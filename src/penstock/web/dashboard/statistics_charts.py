"""The charts of the stored statistics: attempts, failures, waits and run times of a queue, a task or all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.inspector import PeriodStatsView
from penstock.stores.contract import Resolution
from penstock.web.access_tokens import Right
from penstock.web.dashboard.charts import Chart, area_chart, bar_chart, filled
from penstock.web.dashboard.formats import compact, span
from penstock.web.dashboard.shared_reads import FRESH_STATISTICS
from penstock.web.dashboard.view import View

__all__ = ["RANGES", "StatsRange", "range_asked", "statistics_charts"]


@dataclass(frozen=True)
class StatsRange:
    """A choice of the last hours or days: how it is written, and the periods that it has."""

    name: str
    says: str
    by: Resolution
    count: int

    @property
    def length(self) -> int:
        """Its length (ms)."""
        return self.by.length * self.count


RANGES = (
    StatsRange("1h", "1 hour", Resolution.MINUTE, 60),
    StatsRange("2h", "2 hours", Resolution.MINUTE, 120),
    StatsRange("24h", "24 hours", Resolution.HOUR, 24),
    StatsRange("4d", "4 days", Resolution.HOUR, 96),
    StatsRange("90d", "90 days", Resolution.DAY, 90),
)


def range_asked(view: View) -> StatsRange:
    """The range that the query of the page names; else one hour."""
    asked = view.asked("range")
    return next((one for one in RANGES if one.name == asked), RANGES[0])


async def statistics_charts(
    view: View,
    chosen: StatsRange,
    *,
    queue: str | None = None,
    task: str | None = None,
    enqueued: Mapping[int, float] | None = None,
) -> list[tuple[str, Chart]]:
    """Charts of attempts, waits and run times, by title. `enqueued`: jobs, by the start of a period (ms)."""
    if queue is None and not view.visitor.may(Right.READ):
        return []  # the sums would be about queues that the visitor may not see
    periods = await view.read(
        ("periods", chosen.name, queue, task),
        lambda: view.inspector.statistics.periods(
            chosen.by, queue=queue, task=task, span=chosen.length, enqueued=False
        ),
        fresh=FRESH_STATISTICS,
    )
    values = filled(periods, chosen.by, chosen.count, view.now)
    return [
        (
            "Attempts",
            bar_chart(
                values,
                (("ok", "ok", _succeeded), ("failed", "failed", _failed)),
                by=chosen.by,
                shown=compact,
                line=("enqueued", "first", [enqueued.get(at) for at, _ in values]) if enqueued else None,
            ),
        ),
        (
            "Wait",
            area_chart(
                values,
                (("p50", "first", lambda one: one.wait.p50), ("p95", "second", lambda one: one.wait.p95)),
                by=chosen.by,
                shown=span,
            ),
        ),
        (
            "Run time",
            area_chart(
                values,
                (("p50", "first", lambda one: one.run.p50), ("p95", "second", lambda one: one.run.p95)),
                by=chosen.by,
                shown=span,
            ),
        ),
    ]


def _succeeded(period: PeriodStatsView) -> float:
    return max(0, period.processed - period.failed)


def _failed(period: PeriodStatsView) -> float:
    return period.failed
