"""How late delayed jobs start, and that none starts early."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from benchmarks.machine import percentile
from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Rig

__all__ = ["GROUP"]

_LEAD = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def take(lab: Lab) -> Iterator[Sample]:
    with lab.rig() as rig, rig.workers():
        rig.warm()
        _schedule(rig, lab.sizes.delayed, lab.sizes.delayed_over)
        rig.wait(lab.sizes.delayed, rig.counters.instants)
        late = [ns / 1e6 for ns in rig.counters.elapsed()]
        yield "late_min", min(late)
        yield "late_p50", percentile(late, 50)
        yield "late_p99", percentile(late, 99)
        yield "late_max", max(late)


def _schedule(rig: Rig, n: int, over: float) -> None:
    first = int((time.time() + _LEAD) * 1000)
    calls = []
    for i in range(n):
        due = first + int(i * over * 1000 / n)
        run_at = _EPOCH + timedelta(milliseconds=due)
        calls.append(rig.tasks.late.using(run_at=run_at).job(due))
    rig.app.enqueue_many(calls)


GROUP = FigureGroup(
    "delay",
    "Delayed jobs on an idle worker: start minus due time (below zero would be early)",
    (
        Figure("late_min", "the earliest", "ms", digits=2),
        Figure("late_p50", "p50", "ms", digits=2),
        Figure("late_p99", "p99", "ms", digits=2),
        Figure("late_max", "the latest", "ms", digits=2),
    ),
    take,
    delayed=True,
)
