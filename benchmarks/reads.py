"""Every read of an operator in a store with a million jobs; a part of `benchmarks.search`."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from statistics import median, quantiles
from typing import Any

from penstock.core.clock import ManualClock
from penstock.core.ids import mint
from penstock.core.job import State
from penstock.core.stats import MS_BOUNDS, TaskStats, sketch_of
from penstock.inspector import Inspector
from penstock.inspector.audit import AuditLog
from penstock.stores.connect import connect
from penstock.stores.contract import (
    ErrorCount,
    JobFilter,
    Share,
    StatsReport,
    Store,
    TaskCount,
    WorkerInfo,
)

__all__ = ["fill_audit", "fill_statistics", "lease_some", "measure_reads"]

_REPS = 40
_WORKERS, _RUNNING = 20, 400
_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000


async def fill_audit(store: Store, entries: int) -> None:
    """Acts on single jobs, as an operator's."""
    log = AuditLog(store)
    for n in range(entries):
        await log.write("cli:ann@box", "jobs.retry", f"mail/{n:032x}")


async def fill_statistics(url: str, queues: Sequence[str], tasks: int, kinds: int, *, every: int = 1) -> None:
    """Statistics of these tasks in each queue for every n-th period that is kept, and errors."""
    dice = random.Random(1)
    now, clock = time.time_ns() // 1_000_000, ManualClock(0)
    ages = [n * _DAY for n in range(89, 4, -1)] + [n * _HOUR for n in range(95, 2, -1)]
    ages += [n * _MINUTE for n in range(119, -1, -1)]
    store = connect(url, clock=clock)
    try:
        for number, age in enumerate(ages[::every]):
            clock.set_wall(now - age)
            times = sketch_of(sorted(dice.lognormvariate(3, 1) for _ in range(300)), MS_BOUNDS)
            stats = TaskStats(300, 300, 3, 2, 1, 300_000, 300_000, times, times)
            counts = [TaskCount(f"tasks.t{n}", stats) for n in range(tasks)]
            await store.add_stats([StatsReport(queue, "w0", number + 1, counts) for queue in queues])
        for n in range(kinds):
            error = ErrorCount(f"g{n}", f"tasks.t{n % tasks}", f"Error{n % 50}", f"no answer {n}", 100, "j")
            report = StatsReport(queues[n % len(queues)], "w0", len(ages) + n + 1, (), [error])
            await store.add_stats([report])
    finally:
        store.close()


async def lease_some(store: Store, queues: Sequence[str]) -> None:
    """Give jobs to each of the workers that `announce` names."""
    for n in range(_WORKERS):
        shares = [Share(queue, quota=4, cap=4) for queue in queues]
        each = _RUNNING // _WORKERS
        await store.fetch(shares, limit=each, lease=_DAY, worker=f"w{n}", token=mint())


async def announce(store: Store, queues: Sequence[str]) -> None:
    """Announce workers, as they do themselves each few seconds."""
    tasks = tuple(f"tasks.t{n}" for n in range(20))
    for n in range(_WORKERS):
        await store.announce(WorkerInfo(f"w{n}", f"box{n % 4}", n, 0, tuple(queues), tasks, 20, running=20))


async def measure_reads(store: Store, queues: Sequence[str]) -> None:
    """Print the times of each read."""
    await announce(store, queues)
    inspector = Inspector(store)
    addresses = {state: await _some(store, state) for state in (State.AVAILABLE, State.DEAD, State.RUNNING)}
    statistics, any_of = inspector.statistics, random.choice

    async def dry_run() -> None:
        async with aclosing(inspector.bulk.dry_run(JobFilter(states=(State.DEAD,)))) as steps:
            await anext(steps)

    async def audit() -> None:
        async with aclosing(AuditLog(store).newest_first()) as entries:
            for _ in range(50):
                await anext(entries)

    reads: dict[str, Callable[[], Awaitable[Any]]] = {
        "overview (top, dashboard)": inspector.overview,
        "queues": inspector.queues,
        "a queue": lambda: inspector.queue("mail"),
        "workers, 20 of each one's jobs": inspector.workers,
        "workers": lambda: inspector.workers(jobs=0),
        "totals and days": lambda: inspector.stats(days=90),
        "parked jobs": inspector.parked,
        "batches": inspector.batches,
        "periodic entries": inspector.entries,
        "flows": inspector.flows.flows,
        "doctor's checks": inspector.checkup,
        "a job by its address": lambda: inspector.job(any_of(addresses[State.DEAD])),
        "a job by its id": lambda: inspector.job(any_of(addresses[State.DEAD]).partition("/")[2]),
        "why: an available job": lambda: inspector.why(any_of(addresses[State.AVAILABLE])),
        "why: a dead job": lambda: inspector.why(any_of(addresses[State.DEAD])),
        "why: a running job": lambda: inspector.why(any_of(addresses[State.RUNNING])),
        "statistics of tasks, 2 h": statistics.tasks,
        "statistics of tasks, 90 days": lambda: statistics.tasks(span=90 * _DAY),
        "statistics of a task, 4 days": lambda: statistics.periods(task="tasks.t3", span=4 * _DAY),
        "groups of errors": statistics.errors,
        "groups of errors of a queue": lambda: statistics.errors(queue="mail"),
        "sizes of queues": statistics.sizes,
        "bulk acts": inspector.bulk.all,
        "dry run, first count": dry_run,
        "audit log": audit,
    }
    for name, read in reads.items():
        times = [await _timed(read) for _ in range(_REPS)]
        p95 = quantiles(times, n=20)[-1]
        print(
            f"{name:30} p50 {median(times):6.1f} ms, p95 {p95:6.1f} ms, longest {max(times):6.1f} ms",
            flush=True,
        )


async def _timed(read: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await read()
    return (time.perf_counter() - began) * 1000


async def _some(store: Store, state: State) -> list[str]:
    """Addresses of jobs in this state, from all over the store."""
    found, after = [], None
    for _ in range(20):
        page = await store.search(JobFilter(states=(state,)), after=after, limit=50)
        found += [f"{job.queue}/{job.id}" for job in page.jobs]
        after = page.next
        if after is None:
            break
    return found
