"""A figure and its format, a group of figures, and the input of a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from benchmarks.rig import Rig, Setup

__all__ = ["Figure", "FigureGroup", "Lab", "Sample", "Sizes"]

#: The name of a figure and its value in this repetition; a text becomes a note below the table.
Sample = tuple[str, float | str]


class Figure(msgspec.Struct, frozen=True):
    """One row of a table. `raw`: figures for comparison; the first existing one is used."""

    name: str
    title: str
    unit: str
    raw: tuple[str, ...] = ()
    digits: int = 0


class Sizes(msgspec.Struct, frozen=True):
    """The sizes of all measurements: large enough for meaningful figures, or (quick) just enough to run."""

    #: Duration of a measurement of single calls (s).
    seconds: float = 2.0
    #: Number of jobs of a bulk enqueue, and of a drain.
    jobs: int = 100_000
    #: Jobs per call of enqueue_many, and per commit of the raw statements.
    chunk: int = 10_000
    #: Jobs per script in the raw limits of Redis.
    batch: int = 100
    callers: int = 100
    #: Number of individually timed calls.
    calls: int = 300
    idle_seconds: float = 6.0
    #: Duration until a worker that has nothing to do is idle, and of attempts whose memory is measured (s).
    quiet_seconds: float = 1.0
    nap_seconds: float = 3.0
    #: Number of delayed jobs, and the time over which they are due (s).
    delayed: int = 300
    delayed_over: float = 3.0
    #: Number of delayed jobs that are due at one instant.
    scheduled: int = 1_000_000
    #: Number of jobs with 1 ms of CPU time.
    busy: int = 5_000
    #: Number of attempts that run at once, as coroutines and in threads, and of open connections.
    naps: int = 500
    nap_threads: int = 100
    connections: int = 50
    shallow: int = 10_000
    deep: int = 1_000_000
    deep_redis: int = 5_000_000
    #: The features to measure; empty: all.
    features: tuple[str, ...] = ()
    #: What to measure of flows; empty: all.
    flows: tuple[str, ...] = ()
    #: Number of jobs and of repetitions for the rate at a depth.
    window: int = 10_000
    rounds: int = 5


QUICK = Sizes(
    seconds=0.1,
    jobs=1_000,
    chunk=500,
    callers=20,
    calls=20,
    idle_seconds=0.5,
    quiet_seconds=0.1,
    nap_seconds=1.0,
    delayed=20,
    delayed_over=0.4,
    scheduled=1_000,
    busy=100,
    naps=20,
    nap_threads=5,
    connections=5,
    shallow=1_000,
    deep=5_000,
    deep_redis=5_000,
    window=1_000,
    rounds=1,
)


class Lab(msgspec.Struct, frozen=True):
    """The setup and the sizes of a measurement."""

    setup: Setup
    folder: Path
    sizes: Sizes
    concurrency: int | None = None

    def rig(self) -> Rig:
        """A fresh store."""
        return Rig(self.setup, self.folder, self.concurrency)


class FigureGroup(msgspec.Struct, frozen=True):
    """Figures that are measured together."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    take: Callable[[Lab], Iterator[Sample]]
    #: The stores to measure; empty: all.
    stores: tuple[str, ...] = ()
    #: Whether the group is also measured with a delayed connection.
    delayed: bool = False
    #: Suffixes of the figures' names and their heads, if each setup has several columns.
    columns: tuple[tuple[str, str], ...] = (("", ""),)

    def suits(self, setup: Setup) -> bool:
        return (not self.stores or setup.store in self.stores) and (self.delayed or setup.delay_ms is None)
