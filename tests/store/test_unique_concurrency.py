"""Unique keys under concurrency: with many producers and consumers, one job holds a key at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.core.unique import QUEUED_PHASE, UniqueKey
from penstock.stores.contract import EnqueueStatus, Settlement, Share, Store
from tests.store.facts import LEASE, OpenStore, all_jobs, counts, new, token

KEYS, PRODUCERS, ROUNDS = 40, 8, 4


def test_producers_of_the_same_keys_make_one_job_of_each(store: Store, open_store: OpenStore) -> None:
    doors = [store, *(open_store() for _ in range(3))]
    holders: dict[int, set[str]] = {n: set() for n in range(KEYS)}
    statuses: Counter[EnqueueStatus] = Counter()
    together, lock = threading.Barrier(PRODUCERS), threading.Lock()

    def produce(number: int) -> None:
        together.wait()
        for turn in range(ROUNDS):
            keys = [(n + number * 7 + turn) % KEYS for n in range(KEYS)]
            for start in range(0, KEYS, 10):
                some = keys[start : start + 10]
                answers = doors[number % 4].sync.enqueue([new(unique=UniqueKey(f"k{n}")) for n in some])
                with lock:
                    for n, answer in zip(some, answers, strict=True):
                        holders[n].add(answer.id)
                        statuses[answer.status] += 1

    with ThreadPoolExecutor(PRODUCERS) as pool:
        list(pool.map(produce, range(PRODUCERS)))
    assert statuses == {EnqueueStatus.NEW: KEYS, EnqueueStatus.DUPLICATE: KEYS * (PRODUCERS * ROUNDS - 1)}
    assert {len(ids) for ids in holders.values()} == {1}
    assert asyncio.run(counts(store)) == {State.AVAILABLE: KEYS}


async def test_one_queued_and_any_that_run_while_workers_take_and_give_back(
    store: Store, open_store: OpenStore
) -> None:
    """Whoever enqueues is told of a job that is queued or was a moment ago, and no two are queued at once."""
    keys = [UniqueKey(f"k{n}", None, QUEUED_PHASE, 3) for n in range(5)]
    doors, left = [store, open_store()], 200
    again = Transition(State.RETRYABLE, delay=0)

    async def produce(door: Store) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await door.enqueue([new(unique=key) for key in keys])

    async def consume(door: Store, worker: str) -> None:
        while left > 0:
            share, to = [Share("default", 3, 3)], [again, Transition(State.COMPLETED)]
            found = await door.fetch(share, limit=3, lease=LEASE, worker=worker, token=token())
            await door.settle([Settlement(job.lease, to[n % 2]) for n, job in enumerate(found.jobs)])
            await door.promote(["default"], limit=10)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for n, door in enumerate(doors * 2):
            group.create_task(produce(door))
            group.create_task(consume(door, f"w{n}"))
    holders = [(await door.enqueue([new(unique=key)]))[0] for door in doors for key in keys]
    assert [one.status for one in holders[5:]] == [EnqueueStatus.REPLACED] * 5
    assert [one.id for one in holders[:5]] == [one.id for one in holders[5:]]
    there = {job.id: job for job in await all_jobs(store)}
    assert {there[one.id].state for one in holders} <= {State.AVAILABLE, State.RETRYABLE}
