"""The charts of the stored statistics: attempts, enqueued and ready jobs, waits and run times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.inspector import PeriodDepthView, PeriodStatsView
from penstock.stores.contract import Resolution
from penstock.web.dashboard.charts import Chart, area_chart, bar_chart, filled
from penstock.web.dashboard.formats import compact, span
from penstock.web.dashboard.shared_reads import FRESH_STATISTICS
from penstock.web.dashboard.view import View

# ── statistics ───────────────────────────────────────────────────────────────────────────────────


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
    if queue is None and not view.sees():
        return []  # the sums would be about queues that the visitor may not see
    periods = await view.read(
        ("periods", chosen.name, queue, task),
        lambda: view.inspector.statistics.periods(
            chosen.by, queue=queue, task=task, span=chosen.length, enqueued=False
        ),
        fresh=FRESH_STATISTICS,
        cost=1 if task is None else 2,
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


# ── activity ─────────────────────────────────────────────────────────────────────────────────────

_MINUTE = Resolution.MINUTE.length


async def activity_charts(
    view: View, chosen: StatsRange, *, queue: str | None = None
) -> list[tuple[str, Chart]]:
    """Charts of a queue, or of all that the visitor may see, by title."""
    stored = filled(await _stored(view, chosen, queue), chosen.by, chosen.count, view.now)
    enqueued = {at: one.enqueued for at, one in stored if one is not None and one.enqueued is not None}
    attempts = await statistics_charts(view, chosen, queue=queue, enqueued=enqueued)
    return [*attempts, ("Ready jobs", _ready(stored, view, chosen, queue))]


def _ready(
    periods: list[tuple[int, PeriodDepthView | None]], view: View, chosen: StatsRange, queue: str | None
) -> Chart:
    """The ready jobs by minute; over longer periods their mean, and of one queue the peak."""
    if chosen.by is Resolution.MINUTE:
        stored = {at: None if one is None else one.available for at, one in periods}
        values = list(_with_seen(stored, view, queue).items())
        return area_chart(values, (("ready", "first", float),), by=chosen.by, shown=compact)
    lines = [("mean", "first", _mean), ("peak", "second", _peak)]
    return area_chart(periods, lines[: 1 if queue is None else 2], by=chosen.by, shown=compact)


async def _stored(view: View, chosen: StatsRange, queue: str | None) -> list[PeriodDepthView]:
    if queue is None and not view.sees():
        return []  # the sums would be about queues that the visitor may not see
    return await view.read(
        ("depths", chosen.name, queue),
        lambda: view.inspector.statistics.depth_periods(chosen.by, queue=queue, span=chosen.length),
        fresh=FRESH_STATISTICS,
    )


def _with_seen(stored: dict[int, float | None], view: View, queue: str | None) -> dict[int, float | None]:
    """The stored samples, with what this dashboard has seen in the newest minute and in those without one."""
    gaps = {at for at, ready in stored.items() if ready is None} | {max(stored)}
    return stored | {at: ready for at, ready in _seen(view, queue) if at in gaps}


def _seen(view: View, queue: str | None) -> Iterator[tuple[int, float]]:
    """The minutes and ready jobs that this dashboard remembers, oldest first."""
    for depth in view.shared.pulse.depths:
        of = [n for name, n in depth.ready.items() if (view.sees(name) if queue is None else name == queue)]
        yield depth.at // _MINUTE * _MINUTE, float(sum(of))


def _mean(period: PeriodDepthView) -> float:
    return period.available


def _peak(period: PeriodDepthView) -> float:
    return period.peak
