"""The space of a queued job."""

from __future__ import annotations

import gc
import sqlite3
import tracemalloc
from collections.abc import Iterator

from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Rig
from benchmarks.server import Server

__all__ = ["GROUP"]

_TEXT = "x" * 100


def take(lab: Lab) -> Iterator[Sample]:
    with lab.rig() as rig:
        if lab.setup.store == "sqlite":
            yield "bytes", _of_file(rig, lab.sizes.jobs)
        elif rig.server is not None:
            yield "bytes", _of_server(rig, rig.server, lab.sizes.jobs)
        else:
            yield "bytes", _of_memory(rig, lab.sizes.jobs)


def _of_file(rig: Rig, jobs: int) -> float:
    _fill(rig, 1)
    before = _checkpointed(rig)
    _fill(rig, jobs)
    return (_checkpointed(rig) - before) / jobs


def _of_server(rig: Rig, server: Server, jobs: int) -> float:
    _fill(rig, 1)
    rig.app.close()
    before = server.memory()
    _fill(rig, jobs)
    rig.app.close()
    return (server.memory() - before) / jobs


def _checkpointed(rig: Rig) -> int:
    """The size of the file after a checkpoint, when no process has it open."""
    rig.app.close()
    cx = sqlite3.connect(rig.file, isolation_level=None)
    cx.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    cx.close()
    return rig.file.stat().st_size


def _of_memory(rig: Rig, jobs: int) -> float:
    _fill(rig, 1)
    gc.collect()
    tracemalloc.start()
    try:
        _fill(rig, jobs)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / jobs
    finally:
        tracemalloc.stop()


def _fill(rig: Rig, jobs: int) -> None:
    job = rig.tasks.blob.job
    for start in range(0, jobs, 10_000):
        rig.app.enqueue_many([job(_TEXT) for _ in range(min(10_000, jobs - start))])


GROUP = FigureGroup(
    "size",
    "Room for one queued job with a 100-byte argument "
    "(file after a checkpoint; Redis: used_memory; memory: what Python allots)",
    (Figure("bytes", "bytes per job", "B"),),
    take,
)
