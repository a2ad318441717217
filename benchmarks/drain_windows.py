"""Pairs of windows within one drain: what it costs a worker that something else goes on beside it.

One worker process drains no-ops. A pair is a window in which the other thing goes on, and the mean of the
windows before and after it, in which the same process drains alone: a machine that becomes slower or faster
changes both. The queue is paused and filled before each pair. The CPU time per job is compared as well,
because other programs on the machine change it less than the rate.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import click

from benchmarks.compare import interval
from benchmarks.rig import Rig, Running
from penstock.core.job import State

__all__ = ["ALONE", "BESIDE", "DrainWindows"]

ALONE, BESIDE = "alone", "beside"
_DRAINED = "default"
#: The worker's rate is steady this long (s) after it has begun.
_SETTLING = 0.5
#: No-ops per second of a window by which the rate is estimated before the first pair.
_ESTIMATED_BY = 40_000
#: A pair gets this many times the no-ops that it is expected to need.
_MARGIN = 1.3


class _Empty(Exception):  # not shown to users
    """The queue was empty before the end of a window."""


class DrainWindows:
    """Measures `rates` (jobs/s) and `cpu` (µs per job) of pairs, alone and beside.

    `jobs`: the no-ops at the start of each pair; 0: as many as the worker's rate needs.
    """

    def __init__(self, rig: Rig, seconds: float, jobs: int = 0) -> None:
        self.rig = rig
        self.seconds = seconds
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self._given, self._needed = jobs, 0

    async def pairs(
        self, n: int, worker: Running, beside: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        """Measure n pairs; the other thing goes on within `beside()`. The queue is paused afterwards."""
        self._needed = self._needed or self._given or await self._estimate()
        while len(self.rates[BESIDE]) < n:
            await self._fill(self._needed)
            try:
                await self._pair(worker, beside)
            except _Empty:
                few = f"{self._needed:,} jobs were too few for the windows of a pair"
                if self._given:
                    raise click.ClickException(f"{few}: give more --jobs") from None
                print(f"{few}: again with twice as many", file=sys.stderr, flush=True)
                self._needed *= 2
        await self._settings(paused=True)

    def window_begins(self, where: str) -> None:
        """Called before a window, which is ALONE or BESIDE."""

    def window_ends(self, where: str) -> None:
        """Called after it."""

    def used(self, worker: Running) -> float:
        """CPU seconds of the worker and of Redis."""
        own = time.process_time() if worker.leader is None else worker.cpu()
        return own + (0.0 if self.rig.server is None else self.rig.server.cpu())

    def report(self, what: str) -> float:
        """Print medians and ratios; returns the lower end of the 95 % interval of the rate's ratio."""
        low = _compare("jobs/s", what, self.rates)
        _compare("µs of CPU per job, all processes", what, self.cpu)
        return low

    # ── a pair ──

    async def _estimate(self) -> int:
        """The number of no-ops that a pair needs, by the rate of the second half of some."""
        half = int(_ESTIMATED_BY * self.seconds / 2)
        await self._fill(2 * half)
        await self._settings(paused=False)
        await asyncio.to_thread(self.rig.wait, half)
        began = time.perf_counter()
        await asyncio.to_thread(self.rig.wait, 2 * half)
        longest = 2 * _SETTLING + 4 * self.seconds  # three windows, and up to one before the second
        return int(half / (time.perf_counter() - began) * longest * _MARGIN)

    async def _fill(self, n: int) -> None:
        """Pause the queue, and enqueue no-ops until it has n."""
        await self._settings(paused=True)
        await asyncio.to_thread(self.rig.fill, n - await self._available())

    async def _available(self) -> int:
        (queue,) = await self.rig.app.store.queues([_DRAINED])
        return queue.counts.get(State.AVAILABLE, 0)

    async def _pair(self, worker: Running, beside: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        ran = self.rig.counters.total()
        await self._settings(paused=False)
        await asyncio.to_thread(self.rig.wait, ran + 1)
        await asyncio.sleep(_SETTLING)
        before = await self._window(ALONE, worker)
        async with beside():
            between = await self._window(BESIDE, worker)
        after = await self._window(ALONE, worker)
        alone = [statistics.mean(both) for both in zip(before, after, strict=True)]
        for found, *values in zip((self.rates, self.cpu), alone, between, strict=True):
            for where, value in zip((ALONE, BESIDE), values, strict=True):
                found[where].append(value)
        print(f"{alone[0]:,.0f} jobs/s alone, {between[0]:,.0f} beside", file=sys.stderr, flush=True)

    async def _window(self, where: str, worker: Running) -> tuple[float, float]:
        """The rate of a window, and µs of CPU per job."""
        self.window_begins(where)
        counters = self.rig.counters
        done, cpu, began = counters.total(), self.used(worker), time.perf_counter()
        await asyncio.sleep(self.seconds)
        done, took = counters.total() - done, time.perf_counter() - began
        cpu = self.used(worker) - cpu
        if not await self._available():
            raise _Empty
        self.window_ends(where)
        return done / took, cpu / max(1, done) * 1e6

    async def _settings(self, *, paused: bool) -> None:
        await self.rig.app.store.settings(_DRAINED, paused=paused)


def _compare(figure: str, what: str, found: dict[str, list[float]]) -> float:
    """Print the medians and their ratio; returns the lower end of its 95 % interval."""
    low, ratio, high = interval([b / a for a, b in zip(found[ALONE], found[BESIDE], strict=True)])
    alone, beside = (statistics.median(found[where]) for where in (ALONE, BESIDE))
    print(
        f"{figure}: {alone:,.1f} alone, {beside:,.1f} beside {what}; median ratio {ratio:.3f}, "
        f"95 % interval {low:.3f} to {high:.3f}"
    )
    return low
