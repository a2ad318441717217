"""Concurrency of threads, tasks and store objects: no job is leased twice, and counts stay exact."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from penstock.core.job import Job, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Settled, Settlement, Share, Store, Wake
from tests.store.facts import (
    COMPLETED,
    LEASE,
    MINUTE,
    OpenStore,
    add,
    all_jobs,
    counts,
    new,
    running,
    some,
    take,
    token,
)

REMOVED = Transition(State.COMPLETED)


async def work_off(store: Store, worker: str, total: int, done: Counter[str], *, batch: int = 7) -> None:
    """Fetch and settle until all are done, asleep while there is nothing."""
    while done.total() < total:
        jobs = await take(store, batch, worker=worker)
        if not jobs:
            await store.wait(["default"], timeout=20)
            continue
        answers = await store.settle([Settlement(job.lease, REMOVED) for job in jobs])
        assert answers == [Settled.APPLIED] * len(jobs)
        done.update(job.id for job in jobs)


async def test_tasks_that_fetch_at_once_get_each_job_once(store: Store) -> None:
    jobs = some(300)
    await add(store, *jobs)
    fetched = await asyncio.gather(*(take(store, 13, worker=f"w{n}") for n in range(30)))
    ids = [job.id for jobs in fetched for job in jobs]
    assert len(ids) == len(set(ids)) == 300
    assert await counts(store) == {State.RUNNING: 300}


async def test_producers_and_consumers_in_one_loop(store: Store) -> None:
    total, done = 400, Counter[str]()

    async def produce() -> None:
        for _ in range(20):
            await add(store, *some(5))

    async with asyncio.TaskGroup() as group:
        for n in range(4):
            group.create_task(work_off(store, f"w{n}", total, done))
        for _ in range(4):
            group.create_task(produce())
    assert set(done.values()) == {1}
    assert done.total() == total
    assert await counts(store) == {}
    (stats,) = await store.stats()
    assert (stats.enqueued, stats.processed) == (total, total)


def test_producers_and_consumers_in_threads_each_with_a_loop_or_none(
    store: Store, open_store: OpenStore
) -> None:
    """Four consumers' loops in threads, two of them with a store object of their own; four sync producers."""
    total, done, lock = 400, Counter[str](), threading.Lock()
    doors = [store, store, open_store(), open_store()]

    class Shared(Counter[str]):
        def update(self, *found: object) -> None:  # type: ignore[override]
            with lock:
                done.update(*found)  # type: ignore[arg-type]

        def total(self) -> int:
            with lock:
                return done.total()

    def consume(n: int) -> None:
        asyncio.run(work_off(doors[n], f"w{n}", total, Shared()))

    def produce(n: int) -> None:
        for i in range(20):
            doors[n].sync.enqueue([new(f"{n}-{i}-{k}") for k in range(5)])

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(consume, n) for n in range(4)] + [pool.submit(produce, n) for n in range(4)]
        for future in running:
            future.result(timeout=60)
    assert set(done.values()) == {1}
    assert done.total() == total
    assert store.sync.queues()[0].counts == {}


async def test_of_many_who_settle_one_lease_one_applies(store: Store, open_store: OpenStore) -> None:
    job = await running(store)
    doors = [store, open_store(), open_store()]
    answers = await asyncio.gather(
        *(doors[n % 3].settle([Settlement(job.lease, COMPLETED)]) for n in range(12))
    )
    assert sorted(answer for (answer,) in answers) == [Settled.APPLIED] + [Settled.STALE] * 11


async def test_of_many_who_reclaim_one_job_one_gets_it(store: Store, open_store: OpenStore) -> None:
    await running(store)
    doors = [store, open_store(), open_store()]
    found = await asyncio.gather(
        *(
            doors[n % 3].reclaim(["default"], limit=9, lease=LEASE, worker=f"r{n}", token=token(), of=["w1"])
            for n in range(12)
        )
    )
    assert Counter(len(one.jobs) for one in found) == {1: 1, 0: 11}


async def test_cancel_against_fetch_each_job_is_one_or_the_other(store: Store) -> None:
    jobs = some(100)
    await add(store, *jobs)
    results = await asyncio.gather(
        *(take(store, 5, worker="w1") for _ in range(10)),
        *(store.cancel([job.ref for job in jobs[n::10]]) for n in range(10)),
    )
    fetched: list[Job] = [job for found in results[:10] for job in found if isinstance(job, Job)]
    now = {job.id: job for job in await all_jobs(store)}
    asked = {id for id, job in now.items() if job.state is State.RUNNING}
    assert {job.id for job in fetched} == asked
    assert all(now[id].cancel_asked for id in asked)
    assert sum(job.state is State.CANCELLED for job in now.values()) == 100 - len(asked)


async def test_the_same_token_at_the_same_time_leases_once(store: Store) -> None:
    await add(store, *some(10))
    share = [Share("default", 4, 4)]
    found = await asyncio.gather(
        *(store.fetch(share, limit=4, lease=LEASE, worker="w1", token="t") for _ in range(5))
    )
    assert len({frozenset(job.id for job in one.jobs) for one in found}) == 1
    assert await counts(store) == {State.AVAILABLE: 6, State.RUNNING: 4}


async def test_every_waiter_gets_its_job_in_the_end(store: Store) -> None:
    """Jobs come one by one, waiters take one each: no wake-up is lost."""
    waiters, got = 6, []

    async def sleep_and_take(n: int) -> None:
        while True:
            assert await store.wait(["default"], timeout=MINUTE) & Wake.WORK
            if jobs := await take(store, 1, worker=f"w{n}"):
                got.append(jobs[0].id)
                return

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for n in range(waiters):
            group.create_task(sleep_and_take(n))
        for _ in range(waiters):
            await asyncio.sleep(0)
            await add(store, new())
    assert len(set(got)) == waiters


async def test_a_verb_that_was_given_up_is_done_wholly_or_not_at_all(store: Store) -> None:
    for _ in range(10):
        jobs = some(50)
        task = asyncio.create_task(store.enqueue(jobs))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.enqueue([])  # what was begun has come to its end by the next answer or stands behind it
        found = await store.get([job.ref for job in jobs])
        assert found.count(None) in (0, 50)
    jobs_now = await all_jobs(store)
    assert (await counts(store)).get(State.AVAILABLE, 0) == len(jobs_now)
