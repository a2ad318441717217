"""The rate of a long queue compared with a short one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Rig

__all__ = ["GROUP"]


def take(lab: Lab) -> Iterator[Sample]:
    sizes = lab.sizes
    rates = {}
    deep = sizes.deep_redis if lab.setup.store == "redis" else sizes.deep
    for name, depth in (("shallow", sizes.shallow), ("deep", deep)):
        with lab.rig() as rig, rig.workers():
            rig.warm(1_000)
            rounds = [_first(rig, depth, sizes.window) for _ in range(sizes.rounds)]
        rates[name] = statistics.median(rounds)
        yield name, rates[name]
    yield "ratio", rates["deep"] / rates["shallow"] * 100


def _first(rig: Rig, depth: int, window: int) -> float:
    """The rate of the first `window` jobs out of a queue of this depth, from a standing start."""
    rig.pause()
    _quiet(rig)
    rig.fill(depth - rig.queued())
    time.sleep(0.2)
    rig.counters.reset()
    rig.pause(False)
    rig.wait(window)
    return rig.counters.rate_of_first(window)


def _quiet(rig: Rig) -> None:
    """Wait until no job has run for a while."""
    seen = -1
    while (now := rig.counters.total()) != seen:
        seen = now
        time.sleep(0.2)


GROUP = FigureGroup(
    "depth",
    "Drain of the first 10 000 no-ops at a depth, one process, five times (jobs/s; --deep)",
    (
        Figure("shallow", "10 000 queued", "/s"),
        Figure("deep", "1 000 000 queued, on Redis 5 000 000", "/s"),
        Figure("ratio", "deep, of shallow", "%"),
    ),
    take,
)
