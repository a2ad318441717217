"""The time to enqueue a job and get its result."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.machine import percentile
from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Rig, new_runner

__all__ = ["GROUP"]

_WARM = 10


def take(lab: Lab) -> Iterator[Sample]:
    with lab.rig() as rig, rig.workers():
        rig.warm()
        took = _sync(rig, lab.sizes.calls)
        yield "sync_p50", percentile(took, 50)
        yield "sync_p99", percentile(took, 99)
        with new_runner() as runner:
            took = runner.run(_async(rig, lab.sizes.calls))
        yield "async_p50", percentile(took, 50)
        yield "async_p99", percentile(took, 99)


def _sync(rig: Rig, calls: int) -> list[float]:
    took = []
    for i in range(_WARM + calls):
        started = time.perf_counter()
        answer = rig.tasks.echo.enqueue(i).result(timeout=30)
        took.append((time.perf_counter() - started) * 1000)
        assert answer == i
    return took[_WARM:]


async def _async(rig: Rig, calls: int) -> list[float]:
    took = []
    for i in range(_WARM + calls):
        started = time.perf_counter()
        handle = await rig.tasks.echo.aenqueue(i)
        answer = await handle.aresult(timeout=30)
        took.append((time.perf_counter() - started) * 1000)
        assert answer == i
    return took[_WARM:]


GROUP = FigureGroup(
    "result",
    "From the enqueue call to the result in hand, one after the other",
    (
        Figure("sync_p50", "`enqueue(…).result()`, p50", "ms", digits=2),
        Figure("sync_p99", "`enqueue(…).result()`, p99", "ms", digits=2),
        Figure("async_p50", "`await (await aenqueue(…)).aresult()`, p50", "ms", digits=2),
        Figure("async_p99", "`await (await aenqueue(…)).aresult()`, p99", "ms", digits=2),
    ),
    take,
    delayed=True,
)
