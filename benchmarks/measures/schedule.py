"""Many delayed jobs that are all due at one instant."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Rig
from benchmarks.server import Server

__all__ = ["GROUP"]

#: The jobs are due this long after the last enqueue (s), because a worker has to start in between.
_LEAD = 5.0


def take(lab: Lab) -> Iterator[Sample]:
    jobs = lab.sizes.scheduled
    with lab.rig() as rig:
        pace = _schedule(lab, rig, max(1, jobs // 50), time.time() + 3600)
    due = time.time() + jobs / pace * 1.3 + _LEAD
    with lab.rig() as rig:
        assert rig.server is not None
        before = rig.server.memory()
        yield "enqueue", _schedule(lab, rig, jobs, due)
        yield "bytes", (_memory(rig, rig.server) - before) / jobs
        if (lead := due - time.time()) < 1.0:
            raise RuntimeError(f"they took longer than expected: {lead:.1f} s were left to start a worker")
        with rig.workers():
            time.sleep(lead)
            rig.wait(jobs)
            drained = rig.counters.rate()
    yield "drain", drained
    with lab.rig() as rig:
        rig.fill(jobs)
        with rig.workers():
            rig.wait(jobs)
            plain = rig.counters.rate()
    yield "plain", plain
    yield "ratio", drained / plain * 100


def _schedule(lab: Lab, rig: Rig, jobs: int, due: float) -> float:
    """Enqueue the jobs in bulk. Returns jobs per second, including the creation of the calls."""
    delayed = rig.tasks.noop.using(run_at=datetime.fromtimestamp(due, UTC))
    started = time.perf_counter()
    for start in range(0, jobs, lab.sizes.chunk):
        rig.app.enqueue_many([delayed.job() for _ in range(min(lab.sizes.chunk, jobs - start))])
    return jobs / (time.perf_counter() - started)


def _memory(rig: Rig, server: Server) -> int:
    rig.app.close()
    return server.memory()


GROUP = FigureGroup(
    "schedule",
    "1 000 000 no-ops due at one instant, one process (--scheduled)",
    (
        Figure("enqueue", "`enqueue_many`, 10 000 a call", "/s"),
        Figure("bytes", "memory per job", "B"),
        Figure("drain", "drain once due, first execution to last", "/s"),
        Figure("plain", "drain of as many without a delay", "/s"),
        Figure("ratio", "delayed, of plain", "%"),
    ),
    take,
    stores=("redis",),
)
