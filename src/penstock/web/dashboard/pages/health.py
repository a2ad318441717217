"""The health of the store: response times, the checks of the store and of the fleet, sizes of queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from penstock.core.installation import __version__
from penstock.stores.contract import Finding, Level, QueueSize
from penstock.web.dashboard.attention import fleet_checks, store_checks
from penstock.web.dashboard.view import Card, DashboardPage, View, card

_READS = 5
_MOST_SHOWN = 100
_ORDER = (Level.ERROR, Level.WARNING, Level.FINE)
#: The class of the dot of a finding.
_KINDS = {Level.ERROR: "bad", Level.WARNING: "warn", Level.FINE: "fine"}


@dataclass(frozen=True)
class SizeLine:
    """The space that a queue takes (bytes), and its jobs."""

    size: QueueSize
    jobs: int

    @property
    def each(self) -> float | None:
        """Bytes per job."""
        return self.size.bytes / self.jobs if self.jobs else None


async def show(view: View) -> dict[str, Any]:
    inspector, everything = view.inspector, view.sees()
    store = fleet = Card[Any](error="These checks are about all queues; your rights are on some.")
    if everything:
        store, fleet = await store_checks(view), await fleet_checks(view)
    times = await view.card("response times", lambda: inspector.response_times(reads=_READS), cost=_READS)
    sizes = await view.card("sizes", inspector.statistics.sizes)
    return {
        "url": view.shared.store.url if everything else "",
        "version": __version__,
        "times": times,
        "middle": median(times.value) if times.value else None,
        "slowest": max(times.value) if times.value else None,
        "reads": view.shared.reads.reads,
        "followers": view.shared.pulse.followers,
        "store": _sorted(store),
        "fleet": _sorted(fleet),
        "kinds": _KINDS,
        "sizes": Card(await _lines(view, sizes.value or []), sizes.error, sizes.absent),
        "most_shown": _MOST_SHOWN,
    }


def _sorted(found: Card[list[Finding]]) -> Card[list[Finding]]:
    return Card(sorted(found.value or [], key=lambda one: _ORDER.index(one.level)), found.error)


async def _lines(view: View, sizes: Sequence[QueueSize]) -> list[SizeLine]:
    """The sizes of the queues that the visitor may read, the largest first."""
    seen = [one for one in sizes if view.sees(one.queue)]
    if not seen:
        return []
    queues = (await card(view.queues())).value or []  # without them, the sizes are still shown
    jobs = {queue.name: sum(queue.counts.values()) for queue in queues}
    return [SizeLine(one, jobs.get(one.queue, 0)) for one in sorted(seen, key=lambda one: -one.bytes)]


PAGE = DashboardPage(
    name="health", path="/health", title="Store health", show=show, navigation="Health", key="h"
)
