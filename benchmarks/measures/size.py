"""The space of a queued job."""

from __future__ import annotations

import gc
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator

from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Rig
from benchmarks.server import Server

__all__ = ["GROUP", "room"]

_TEXT = "x" * 100


def take(lab: Lab) -> Iterator[Sample]:
    with lab.rig() as rig:
        _fill(rig, 1)
        yield "bytes", room(rig, lambda: _fill(rig, lab.sizes.jobs)) / lab.sizes.jobs


def room(rig: Rig, act: Callable[[], object]) -> float:
    """The bytes by which the store grows through an act."""
    if rig.setup.store == "sqlite":
        before = _checkpointed(rig)
        act()
        return _checkpointed(rig) - before
    if rig.server is not None:
        return _of_server(rig, rig.server, act)
    return _of_memory(act)


def _of_server(rig: Rig, server: Server, act: Callable[[], object]) -> float:
    rig.app.close()
    before = server.memory()
    act()
    rig.app.close()
    return server.memory() - before


def _checkpointed(rig: Rig) -> int:
    """The size of the file after a checkpoint, when no process has it open."""
    rig.app.close()
    cx = sqlite3.connect(rig.file, isolation_level=None)
    cx.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    cx.close()
    return rig.file.stat().st_size


def _of_memory(act: Callable[[], object]) -> float:
    gc.collect()
    tracemalloc.start()
    try:
        act()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
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
