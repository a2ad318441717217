"""A figure and how it is shown; a group of them; what a measurement is given to take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from benchmarks.rig import Rig, Setup

__all__ = ["BatchTerms", "Figure", "Lab", "Sample", "Sizes"]

#: The name of a figure, and what came out this time; a text is a note below the table.
Sample = tuple[str, float | str]


class Figure(msgspec.Struct, frozen=True):
    """One row of a table. `raw`: the figures that it may be compared with; the first that there is counts."""

    name: str
    title: str
    unit: str
    raw: tuple[str, ...] = ()
    digits: int = 0


class Sizes(msgspec.Struct, frozen=True):
    """How much of everything. Large enough to mean something, or (quick) just enough to see that it works."""

    #: A rate of single calls is taken over so long (s).
    seconds: float = 2.0
    #: How many jobs a bulk enqueue, and how many a drain is measured over.
    jobs: int = 100_000
    #: One call of enqueue_many, and one commit of the raw statements.
    chunk: int = 10_000
    #: Of Redis' raw limits: jobs a script.
    batch: int = 100
    callers: int = 100
    #: Single calls of which each is timed.
    calls: int = 300
    idle_seconds: float = 6.0
    #: Delayed jobs, and the time over which they are due (s).
    delayed: int = 300
    delayed_over: float = 3.0
    #: Delayed jobs that are due at one instant.
    scheduled: int = 1_000_000
    #: Jobs of 1 ms of the processor's time.
    busy: int = 5_000
    shallow: int = 10_000
    deep: int = 1_000_000
    deep_redis: int = 5_000_000
    #: The rate at a depth is taken over so many jobs, so many times.
    window: int = 10_000
    rounds: int = 5


QUICK = Sizes(
    seconds=0.1,
    jobs=1_000,
    chunk=500,
    callers=20,
    calls=20,
    idle_seconds=0.5,
    delayed=20,
    delayed_over=0.4,
    scheduled=1_000,
    busy=100,
    shallow=1_000,
    deep=5_000,
    deep_redis=5_000,
    window=1_000,
    rounds=1,
)


class Lab(msgspec.Struct, frozen=True):
    """Where and how much to measure."""

    setup: Setup
    folder: Path
    sizes: Sizes
    concurrency: int | None = None

    def rig(self) -> Rig:
        """A fresh store."""
        return Rig(self.setup, self.folder, self.concurrency)


class BatchTerms(msgspec.Struct, frozen=True):
    """Figures that are taken together."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    take: Callable[[Lab], Iterator[Sample]]
    #: The stores that it is for; none: all.
    stores: tuple[str, ...] = ()
    #: Whether it says something where the wire is slow.
    delayed: bool = False

    def suits(self, setup: Setup) -> bool:
        return (not self.stores or setup.store in self.stores) and (self.delayed or setup.delay_ms is None)
