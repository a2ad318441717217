"""The space of a queued job, and of ended jobs that are kept with their history."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.ended import end_all
from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Rig
from benchmarks.server import Server
from penstock.core.ids import mint
from penstock.core.job import AttemptError, NewJob
from penstock.core.lifecycle import decide
from penstock.core.outcomes import Outcome, Raised, Returned
from penstock.stores.contract import Store

__all__ = ["GROUP", "room"]

_TEXT = "x" * 100
_DAY = 86_400_000
_BATCH = 2_000
#: A failed attempt with a traceback of 1 000 bytes.
_FAILED = Raised(AttemptError(1, 0, "ValueError", "no luck", "x" * 1_000), final=True)


def take(lab: Lab) -> Iterator[Sample]:
    with lab.rig() as rig:
        _fill(rig, 1)
        yield "bytes", room(rig, lambda: _fill(rig, lab.sizes.jobs)) / lab.sizes.jobs
    for name, outcome in (("completed", Returned()), ("dead", _FAILED)):
        with lab.rig() as rig:
            asyncio.run(_ended(rig.app.store, 1, outcome))
            act = partial(asyncio.run, _ended(rig.app.store, lab.sizes.jobs, outcome))
            yield name, room(rig, act) / lab.sizes.jobs


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


async def _ended(store: Store, jobs: int, outcome: Outcome) -> None:
    """Store jobs that have ended so, and are kept for a day."""
    payload = f'[["{_TEXT}"],{{}}]'.encode()
    for n in range(0, jobs, _BATCH):
        many = [NewJob(mint(), "blob", payload, retention=_DAY) for _ in range(min(_BATCH, jobs - n))]
        await store.enqueue(many)
        await end_all(store, ["default"], lambda _, job: decide(job, outcome, job.run_at))


GROUP = FigureGroup(
    "size",
    "Room for one job with a 100-byte argument "
    "(file after a checkpoint; Redis: used_memory; memory: what Python allots)",
    (
        Figure("bytes", "bytes per job", "B"),
        Figure("completed", "a completed job without a result, while it is kept", "B"),
        Figure("dead", "a dead job with one error and a traceback of 1 000 bytes", "B"),
    ),
    take,
)
