"""The charts of the overview and of a queue: attempts, enqueued and ready jobs, waits and run times."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.inspector import PeriodDepthView
from penstock.stores.contract import Resolution
from penstock.web.access_tokens import Right
from penstock.web.dashboard.charts import Chart, area_chart, filled
from penstock.web.dashboard.formats import compact
from penstock.web.dashboard.shared_reads import FRESH_STATISTICS
from penstock.web.dashboard.statistics_charts import StatsRange, statistics_charts
from penstock.web.dashboard.view import View

__all__ = ["activity_charts"]

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
    if queue is None and not view.visitor.may(Right.READ):
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
