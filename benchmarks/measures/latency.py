"""How soon a job starts on an idle worker, and the cost of the idle worker."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from benchmarks.bare import IN, OUT
from benchmarks.machine import fdatasync_ms, percentile
from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Running
from benchmarks.server import Server

__all__ = ["GROUP"]

_WARM = 10


def take(lab: Lab) -> Iterator[Sample]:
    with lab.rig() as rig, rig.workers() as running:
        rig.warm()
        time.sleep(0.5)
        if lab.setup.shared:
            yield from _idle(running, lab.sizes.idle_seconds)
        if rig.server is not None:
            yield "idle_commands", rig.server.commands(lab.sizes.idle_seconds) / lab.sizes.idle_seconds
            yield from _raw(lab, rig.server)
        if lab.setup.store == "sqlite":
            synced = fdatasync_ms(rig.disk, lab.sizes.calls)
            yield "fdatasync_p50", percentile(synced, 50)
            yield "fdatasync_p99", percentile(synced, 99)
        stamp = rig.tasks.stamp
        for _ in range(lab.sizes.calls):
            # a random pace, because a steady one could synchronize with the worker's own intervals
            time.sleep(random.uniform(0.02, 0.06))
            stamp.enqueue(time.monotonic_ns())
        rig.wait(lab.sizes.calls, rig.counters.instants)
        took = [ns / 1e6 for ns in rig.counters.elapsed()]
        yield "start_p50", percentile(took, 50)
        yield "start_p99", percentile(took, 99)


def _raw(lab: Lab, server: Server) -> Iterator[Sample]:
    """From a push in this process to the return of a blocking pop in another, and back again."""
    with server.bare_consumer(), server.client() as client:
        pings, there, around = [], [], []
        for n in range(_WARM + lab.sizes.calls):
            if n > _WARM:
                time.sleep(random.uniform(0.02, 0.06))
            started = time.monotonic_ns()
            client.ping()
            pings.append((time.monotonic_ns() - started) / 1e6)
            started = time.monotonic_ns()
            client.rpush(IN, b"")
            answer = client.blpop([OUT], timeout=30)
            around.append((time.monotonic_ns() - started) / 1e6)
            there.append((int(answer[1]) - started) / 1e6)
    yield "raw_ping_p50", percentile(pings[_WARM:], 50)
    yield "raw_start_p50", percentile(there[_WARM:], 50)
    yield "raw_start_p99", percentile(there[_WARM:], 99)
    yield "raw_around_p50", percentile(around[_WARM:], 50)


def _idle(running: Running, seconds: float) -> Iterator[Sample]:
    cpu, started = running.cpu(), time.perf_counter()
    time.sleep(seconds)
    share = (running.cpu() - cpu) / (time.perf_counter() - started)
    yield "idle_cpu", share * 100
    yield "idle_pss", running.memory()[1]


GROUP = FigureGroup(
    "latency",
    "From the enqueue call to the function's start, idle worker (another process; memory: another thread)",
    (
        Figure("start_p50", "enqueue to start, p50", "ms", digits=2),
        Figure("start_p99", "enqueue to start, p99", "ms", digits=2),
        Figure("fdatasync_p50", "the disk's fdatasync of 4 KiB, p50", "ms", digits=2),
        Figure("fdatasync_p99", "the disk's fdatasync of 4 KiB, p99", "ms", digits=2),
        Figure("raw_start_p50", "raw, Redis: a push to the end of a blocking pop, p50", "ms", digits=2),
        Figure("raw_start_p99", "raw, Redis: a push to the end of a blocking pop, p99", "ms", digits=2),
        Figure("raw_around_p50", "raw, Redis: the same and its answer back, p50", "ms", digits=2),
        Figure("raw_ping_p50", "raw, Redis: PING, p50", "ms", digits=2),
        Figure("idle_commands", "commands that an idle worker sends to Redis", "/s", digits=2),
        Figure("idle_cpu", "idle worker and its supervisor, of one core", "%", digits=2),
        Figure("idle_pss", "idle worker and its supervisor, PSS", "MB", digits=1),
    ),
    take,
    delayed=True,
)
