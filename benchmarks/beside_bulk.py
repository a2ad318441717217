"""The rate of a worker that drains a queue beside a bulk retry: `python -m benchmarks.beside_bulk`.

The store has 100 000 dead jobs, and one worker process drains no-ops: alone, and while it also runs a bulk
retry of the dead jobs (see `drain_windows`). Retried jobs become available in a queue that the worker does
not serve, so that they take nothing from its slots. In the meantime a producer in another process enqueues
jobs one by one. At the end one more bulk act retries the dead jobs that are left, as fast as it may, while
nothing else runs.

Redis times its scripts by the wall clock. Beside a drain, more processes than cores want to run, so the
time of a script includes the time for which Redis waited for a core; the drain's own scripts of the same
windows are shown beside it. The limit is compared with the scripts of the last bulk act.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import click

from benchmarks.drain_windows import BESIDE, DrainWindows
from benchmarks.ended import dead as died
from benchmarks.ended import end_all
from benchmarks.lock_waits import LockWaits
from benchmarks.machine import describe, percentile
from benchmarks.rig import Rig, Setup, new_runner
from penstock.core.ids import mint
from penstock.core.job import NewJob, State
from penstock.inspector import BulkAct, BulkActs, BulkState, JobAct
from penstock.inspector.bulk_acts import MOST_PACE, PACE
from penstock.stores.contract import JobFilter, Store
from penstock.stores.redis.script_loader import SCRIPTS

_DEAD, _PROBE = "dead", "probe"
_KINDS = 1_000
#: The scripts that a bulk retry calls, and a drain does not.
_OF_BULK = ("search", "retry", "change_documents")
_BATCH = 2_000
#: Limits: the fall of the rate, the longest command of Redis and the longest wait for the write lock (ms).
_MOST_FALL, _MOST_HELD, _MOST_WAIT = 0.05, 5.0, 100.0
#: Where scripts are counted that ran after the last pair.
REST = "without a drain"


@click.command()
@click.option(
    "--store", type=click.Choice(["sqlite", "redis", "memory"]), default="sqlite", show_default=True
)
@click.option("--pairs", default=12, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="Length of each window.")
@click.option("--dead", default=100_000, show_default=True, help="Number of dead jobs.")
@click.option(
    "--jobs", default=0, help="Queued no-ops at the start of each pair (default: as the rate needs)."
)
@click.option("--dir", "folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def main(store: str, pairs: int, seconds: float, dead: int, jobs: int, folder: Path | None) -> None:
    """Run the benchmark. Exit code 1: a limit was not kept, or a dead job was not retried."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the worker ends with the measurement
    print(describe())
    waits = LockWaits()
    setup = Setup(store, "full" if store == "sqlite" else "")
    with Rig(setup, folder or Path(tempfile.gettempdir())) as rig, new_runner() as runner:
        faults = runner.run(_Run(rig, waits, seconds, dead, jobs).measure(pairs))
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "within all limits")
    sys.exit(1 if faults else 0)


class _Run(DrainWindows):
    def __init__(self, rig: Rig, waits: LockWaits, seconds: float, dead: int, jobs: int) -> None:
        super().__init__(rig, seconds, jobs)
        self._store: Store = rig.app.store
        self._acts = BulkActs(self._store)
        self._waits = waits
        self._dead = dead
        self._calls: dict[str, list[float]] = defaultdict(list)
        self._waited: dict[str, list[float]] = defaultdict(list)
        self._commands: dict[str, list[float]] = defaultdict(list)
        self._drains: dict[str, list[float]] = defaultdict(list)
        self._retried: list[int] = []
        self._now = ""
        self._over = threading.Event()

    async def measure(self, pairs: int) -> list[str]:
        await self._fill_dead()
        producer = threading.Thread(target=self._produce)
        with self.rig.workers() as worker:
            producer.start()
            try:
                await self.pairs(pairs, worker, self._bulk_retry)
            finally:
                self._over.set()
                producer.join()
            took = await self._retry_the_rest()
        return self._report(took) + await self._check()

    @asynccontextmanager
    async def _bulk_retry(self) -> AsyncGenerator[None]:
        bulk = await self._begin()
        try:
            yield
        finally:
            retried = await self._end(bulk)
        self._retried.append(retried)

    def window_begins(self, where: str) -> None:
        self._reset_slow_log()
        self._waits.waits.clear()
        self._now = where

    def window_ends(self, where: str) -> None:
        self._now = ""
        self._waited[where] += self._waits.waits
        self._read_slow_log(where)

    async def _begin(self, pace: int = PACE) -> BulkAct:
        """Start a bulk retry; returns some time after the worker's first step, within a step or a pause."""
        filter = JobFilter(queues=(_DEAD,), states=(State.DEAD,))
        bulk = await self._acts.start(JobAct.RETRY, filter, by="benchmark", pace=pace)
        while not (await self._get(bulk)).changed:
            await asyncio.sleep(0.02)
        await asyncio.sleep(random.uniform(0, self.seconds))
        return await self._get(bulk)

    async def _end(self, bulk: BulkAct) -> int:
        """Abort the bulk retry; returns the number of jobs that it has retried since `bulk`."""
        now = await self._get(bulk)
        if now.state is not BulkState.RUNNING:
            raise click.ClickException("the bulk act ended within a window: give more --dead")
        await self._acts.abort(bulk.id, by="benchmark")
        return now.done - bulk.done

    async def _retry_the_rest(self) -> float:
        self._reset_slow_log()
        began, bulk = time.perf_counter(), await self._begin(MOST_PACE)
        while (bulk := await self._get(bulk)).state is BulkState.RUNNING:
            await asyncio.sleep(0.1)
        self._read_slow_log(REST)
        return bulk.done / (time.perf_counter() - began)

    async def _get(self, bulk: BulkAct) -> BulkAct:
        found = await self._acts.get(bulk.id)
        assert found is not None
        return found

    async def _fill_dead(self) -> None:
        for n in range(0, self._dead, _BATCH):
            await self._store.enqueue([self._job(_DEAD, k) for k in range(n, min(n + _BATCH, self._dead))])
        await end_all(self._store, [_DEAD], lambda n, _: died(n % _KINDS))

    def _job(self, queue: str, n: int) -> NewJob:
        return NewJob(mint(), "noop", f'[[],{{"note":"{n:07d}{"x" * 80}"}}]'.encode(), queue)

    # ── what else is measured ──

    def _produce(self) -> None:
        """Enqueue one job after the other, at random intervals, and time each call."""
        dice, n = random.Random(1), 0
        while not self._over.wait(dice.uniform(0.02, 0.06)):
            where, began, n = self._now, time.perf_counter(), n + 1
            self._store.sync.enqueue([self._job(_PROBE, n)])
            if where and where == self._now:
                self._calls[where].append((time.perf_counter() - began) * 1000)

    def _reset_slow_log(self) -> None:
        if self.rig.server is not None:
            with self.rig.server.client() as client:
                client.config_set("slowlog-log-slower-than", 500)
                client.config_set("slowlog-max-len", 100_000)
                client.slowlog_reset()

    def _read_slow_log(self, where: str) -> None:
        """Add the scripts that took half a millisecond or more since the reset (ms)."""
        if self.rig.server is None:
            return
        with self.rig.server.client() as client:
            entries: list[dict[str, Any]] = client.slowlog_get(100_000)
        scripts = tuple(f"EVALSHA {SCRIPTS[name].sha}".encode() for name in _OF_BULK)
        for entry in entries:
            if entry["command"].startswith(b"EVALSHA"):
                found = self._commands if entry["command"].startswith(scripts) else self._drains
                found[where].append(entry["duration"] / 1000)

    # ── the report ──

    def _report(self, took: float) -> list[str]:
        print(f"{self.rig.setup.name}, {len(self.rates[BESIDE])} pairs")
        low = self.report("a bulk retry")
        pace = statistics.mean(self._retried) / self.seconds
        print(f"bulk retry: {pace:,.0f} jobs/s beside the drain, {took:,.0f} jobs/s at most when alone")
        faults = [f"the rate falls by up to {1 - low:.1%}"] if 1 - low > _MOST_FALL else []
        _say("an enqueue by another process", self._calls)
        if self.rig.server is not None:
            _say("scripts of the bulk retry in Redis, of 0.5 ms and more", self._commands)
            _say("scripts of the drain in Redis, of 0.5 ms and more", self._drains)
            faults += _over("a script of the bulk retry took", self._commands[REST], _MOST_HELD)
        else:
            _say("waits of the other process for the write lock", self._waited)
            faults += _over("a writer waited", self._waited[BESIDE], _MOST_WAIT)
        return faults

    async def _check(self) -> list[str]:
        (queue,) = await self._store.queues([_DEAD])
        retried, left = queue.counts.get(State.AVAILABLE, 0), queue.counts.get(State.DEAD, 0)
        print(f"{retried:,} of {self._dead:,} dead jobs were retried")
        return [f"{left:,} jobs are still dead"] if left or retried != self._dead else []


def _say(what: str, found: dict[str, list[float]]) -> None:
    parts = []
    for where, values in found.items():
        with suppress(ValueError):
            parts.append(
                f"{where} {len(values):,}, p50 {percentile(values, 50):.2f} ms, "
                f"p99 {percentile(values, 99):.2f} ms, longest {max(values):.1f} ms"
            )
    print(f"{what}: {'; '.join(parts) or 'none'}")


def _over(what: str, found: list[float], most: float) -> list[str]:
    longest = max(found, default=0.0)
    return [f"{what} {longest:.1f} ms"] if longest > most else []


if __name__ == "__main__":
    main()
