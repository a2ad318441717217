"""The keys that remain on a server when all jobs have finished."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample

__all__ = ["GROUP"]


def take(lab: Lab) -> Iterator[Sample]:
    with lab.rig() as rig:
        assert rig.server is not None
        with rig.workers():
            rig.warm()
            rig.settled()
        rig.app.close()
        before = rig.server.memory()
        with rig.workers():
            rig.fill(lab.sizes.jobs)
            rig.wait(lab.sizes.jobs)
            rig.settled()
        rig.app.close()
        yield "grown", rig.server.memory() - before
        left = rig.server.keys()
        yield "keys", len(left)
        yield "names", "left: " + ", ".join(map(str, left))


GROUP = FigureGroup(
    "leftovers",
    "What 100 000 jobs leave in Redis when all have finished and the worker has stopped",
    (
        Figure("keys", "keys, all of them, whatever they are", ""),
        Figure("grown", "memory, more than after the first 100 jobs", "B"),
    ),
    take,
    stores=("redis",),
)
