"""The gain of a second worker process."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample

__all__ = ["GROUP"]

_US = 1_000


def take(lab: Lab) -> Iterator[Sample]:
    rates = {}
    for processes in (1, 2):
        with lab.rig() as rig:
            job = rig.tasks.busy.job
            rig.app.enqueue_many([job(_US) for _ in range(lab.sizes.busy)])
            with rig.workers(processes):
                rig.wait(lab.sizes.busy)
                rates[processes] = rig.counters.rate()
        yield f"busy_{processes}", rates[processes]
    yield "ratio", rates[2] / rates[1]


GROUP = FigureGroup(
    "processes",
    "Drain of async tasks that use 1 ms of the processor (jobs/s)",
    (
        Figure("busy_1", "1 process", "/s"),
        Figure("busy_2", "2 processes", "/s"),
        Figure("ratio", "two, of one", "×", digits=2),
    ),
    take,
    stores=("sqlite", "redis"),
)
