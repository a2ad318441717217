"""How soon a job starts on an idle worker, what that waits for, and what waiting costs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from benchmarks.machine import fdatasync_ms, percentile
from benchmarks.measures.figure import Figure, Group, Lab, Sample
from benchmarks.rig import Running

__all__ = ["GROUP"]


def take(lab: Lab) -> Iterator[Sample]:
    with lab.rig() as rig, rig.workers() as running:
        rig.warm()
        time.sleep(0.5)
        if lab.setup.on_disk:
            yield from _idle(running, lab.sizes.idle_seconds)
            synced = fdatasync_ms(rig.disk, lab.sizes.calls)
            yield "fdatasync_p50", percentile(synced, 50)
            yield "fdatasync_p99", percentile(synced, 99)
        stamp = rig.tasks.stamp
        for _ in range(lab.sizes.calls):
            # not at a steady pace, which could fall in step with whatever the worker does at one
            time.sleep(random.uniform(0.02, 0.06))
            stamp.enqueue(time.monotonic_ns())
        rig.wait(lab.sizes.calls, rig.counters.instants)
        took = [ns / 1e6 for ns in rig.counters.elapsed()]
        yield "start_p50", percentile(took, 50)
        yield "start_p99", percentile(took, 99)


def _idle(running: Running, seconds: float) -> Iterator[Sample]:
    cpu, started = running.cpu(), time.perf_counter()
    time.sleep(seconds)
    share = (running.cpu() - cpu) / (time.perf_counter() - started)
    yield "idle_cpu", share * 100
    yield "idle_pss", running.memory()[1]


GROUP = Group(
    "latency",
    "From the enqueue call to the function's start, idle worker (another process; memory: another thread)",
    (
        Figure("start_p50", "enqueue to start, p50", "ms", digits=2),
        Figure("start_p99", "enqueue to start, p99", "ms", digits=2),
        Figure("fdatasync_p50", "the disk's fdatasync of 4 KiB, p50", "ms", digits=2),
        Figure("fdatasync_p99", "the disk's fdatasync of 4 KiB, p99", "ms", digits=2),
        Figure("idle_cpu", "idle worker and its supervisor, of one core", "%", digits=2),
        Figure("idle_pss", "idle worker and its supervisor, PSS", "MB", digits=1),
    ),
    take,
)
