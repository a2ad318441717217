"""How many jobs per second one process enqueues: one by one, from many callers, and in bulk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from typing import Any

from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Rig, new_runner
from benchmarks.server import Server
from penstock.core.job import NewJob

__all__ = ["GROUP"]


def take(lab: Lab) -> Iterator[Sample]:
    sizes = lab.sizes
    with lab.rig() as rig:
        yield "one_sync", _one_by_one(rig, sizes.seconds)
    with lab.rig() as rig:
        one = _run(_one_by_one_async(rig, sizes.seconds))
        yield "one_async", one
    with lab.rig() as rig:
        many = _run(_concurrent(rig, sizes.seconds, sizes.callers))
        yield "concurrent", many
        yield "concurrent_of_one", many / one
    with lab.rig() as rig:
        yield "bulk", _bulk(rig, sizes.jobs, sizes.chunk)
    with lab.rig() as rig:
        yield "verb_enqueue", _verb(rig, sizes.jobs, sizes.chunk)
        rig.app.close()
        if lab.setup.store == "sqlite":
            yield from _raw_sqlite(lab, rig)
        elif rig.server is not None:
            yield from _raw_redis(lab, rig, rig.server)


def _one_by_one(rig: Rig, seconds: float) -> float:
    enqueue = rig.tasks.noop.enqueue
    enqueue()
    started, n = time.perf_counter(), 0
    while (spent := time.perf_counter() - started) < seconds:
        enqueue()
        n += 1
    return n / spent


async def _one_by_one_async(rig: Rig, seconds: float) -> float:
    aenqueue = rig.tasks.noop.aenqueue
    await aenqueue()
    started, n = time.perf_counter(), 0
    while (spent := time.perf_counter() - started) < seconds:
        await aenqueue()
        n += 1
    return n / spent


async def _concurrent(rig: Rig, seconds: float, callers: int) -> float:
    aenqueue = rig.tasks.noop.aenqueue
    await aenqueue()
    started, n = time.perf_counter(), 0

    async def call() -> None:
        nonlocal n
        while time.perf_counter() - started < seconds:
            await aenqueue()
            n += 1

    await asyncio.gather(*(call() for _ in range(callers)))
    return n / (time.perf_counter() - started)


def _bulk(rig: Rig, jobs: int, chunk: int) -> float:
    """The rate of enqueue_many, including the creation of the calls."""
    app, job = rig.app, rig.tasks.noop.job
    rig.fill(1)
    started = time.perf_counter()
    for _ in range(jobs // chunk):
        app.enqueue_many([job() for _ in range(chunk)])
    return jobs / (time.perf_counter() - started)


def _verb(rig: Rig, jobs: int, chunk: int) -> float:
    """The rate of the store's verb, with prepared jobs."""
    calls = [rig.tasks.noop.job() for _ in range(jobs)]
    ready = [call.new() for call in calls]
    parts: list[list[NewJob]] = [ready[i : i + chunk] for i in range(0, jobs, chunk)]
    sync = rig.app.store.sync
    sync.queues()  # opens the store
    started = time.perf_counter()
    for part in parts:
        sync.enqueue(part)
    return jobs / (time.perf_counter() - started)


def _raw_redis(lab: Lab, rig: Rig, server: Server) -> Iterator[Sample]:
    from benchmarks.measures.raw_redis import RawQueue, stored_records

    jobs, queue = stored_records(server), RawQueue(server)
    calls = (rig.tasks.noop.job().new() for _ in range(lab.sizes.jobs))
    yield "raw_one", queue.repeat(rig.app.store, calls, lab.sizes.seconds)
    yield "raw_one_push", queue.push(jobs, lab.sizes.seconds)
    yield "raw_one_script", queue.put(jobs, lab.sizes.seconds)
    yield "raw_insert", queue.put_many(jobs, batch=lab.sizes.batch, chunk=lab.sizes.chunk)
    yield "raw_insert_push", queue.push_many(jobs, lab.sizes.batch)
    ready = [call.new() for call in (rig.tasks.noop.job() for _ in range(lab.sizes.jobs))]
    yield "raw_insert_same", queue.repeat_many(rig.app.store, ready, lab.sizes.chunk)
    queue.close()


def _raw_sqlite(lab: Lab, rig: Rig) -> Iterator[Sample]:
    from benchmarks.measures.raw import RawTable, stored_rows

    rows = stored_rows(rig.file)
    many = RawTable(rig.disk / "many.db", lab.setup.durability)
    yield "raw_insert", many.insert(rows, batch=lab.sizes.chunk)
    many.close()
    one = RawTable(rig.disk / "one.db", lab.setup.durability)
    yield "raw_one", one.insert(rows, batch=1, seconds=lab.sizes.seconds)
    one.close()


def _run(rate: Coroutine[Any, Any, float]) -> float:
    with new_runner() as runner:
        return runner.run(rate)


GROUP = FigureGroup(
    "enqueue",
    "Enqueue, one process, no worker (jobs/s)",
    (
        Figure("one_sync", "one by one, `enqueue`", "/s", ("raw_one",)),
        Figure("one_async", "one by one, `await aenqueue`", "/s", ("raw_one",)),
        Figure("concurrent", "100 concurrent callers of `aenqueue`", "/s", ("raw_insert", "verb_enqueue")),
        Figure("concurrent_of_one", "the same, of one caller of `aenqueue`", "×", digits=1),
        Figure("bulk", "`enqueue_many`, 10 000 a call", "/s", ("raw_insert", "verb_enqueue")),
        Figure("verb_enqueue", "the store's verb alone, 10 000 a call", "/s", ("raw_insert",)),
        Figure("raw_one", "raw: one insert a commit; Redis: a redis-py call with the bytes of ours", "/s"),
        Figure(
            "raw_one_script", "raw, Redis: a redis-py call of a script, HSET and RPUSH of what is kept", "/s"
        ),
        Figure("raw_one_push", "raw, Redis: a redis-py call of RPUSH of what is kept", "/s"),
        Figure(
            "raw_insert", "raw: 10 000 inserts a commit; Redis: 100 a script, 100 scripts a pipeline", "/s"
        ),
        Figure("raw_insert_push", "raw, Redis: an RPUSH a job of what is kept, 100 a pipeline", "/s"),
        Figure("raw_insert_same", "raw, Redis: pipelines of redis-py with the bytes of ours", "/s"),
    ),
    take,
    delayed=True,
)
