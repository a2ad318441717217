"""Names of queues and namespaces may have 255 characters, of every kind that is allowed."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock
from penstock.core.ids import check_namespace, check_queue
from penstock.core.job import State
from penstock.core.limits import LimitChange
from penstock.core.relations import BatchTerms, Partition
from penstock.core.unique import UniqueKey
from penstock.stores.contract import Store, Wake, WorkerOffer
from tests.store.facts import (
    COMPLETED,
    DEAD,
    LEASE,
    SECOND,
    SOON,
    OpenStore,
    add,
    all_jobs,
    asleep,
    counts,
    end,
    ids,
    new,
    next_jobs,
    some,
    take,
    take_one,
    the,
    token,
)

LONG = check_queue(("Queue_09.:@+=~-" * 17)[:255])
NAMES = [LONG, check_queue("_" * 255), "-", "0", "...", "~@:=+", "a" * 129]


@pytest.fixture(params=["", check_namespace("N" * 254 + "_")], ids=["no namespace", "long namespace"])
def store(open_store: OpenStore, request: pytest.FixtureRequest) -> Store:
    return open_store(namespace=request.param)


@pytest.mark.parametrize("queue", NAMES, ids=lambda name: name[:9])
async def test_a_job_goes_through_a_queue_of_any_name(store: Store, clock: ManualClock, queue: str) -> None:
    long_id = "i" * 128
    job, later, unique = new(long_id, queue=queue), new(queue=queue, delay=SECOND), UniqueKey("k")
    await add(store, job, later, new("u", queue=queue, unique=unique))
    waiter = asyncio.create_task(store.wait_for_end([job.ref], timeout=60_000))
    await asleep(waiter)
    await end(store, await take_one(store, queue))
    assert (await asyncio.wait_for(waiter, SOON)) == [await the(store, job)]
    (other,) = await take(store, 9, queue)
    await end(store, other, DEAD)
    clock.advance(SECOND)
    assert (await store.promote([queue], limit=9)).moved == 1
    assert ids((await next_jobs(store, queue)).jobs) == [later.id]
    assert [info.name for info in await store.queues()] == [queue]
    assert await counts(store, queue) == {State.AVAILABLE: 1, State.COMPLETED: 1, State.DEAD: 1}
    assert len(await all_jobs(store, queue=queue)) == 3
    assert [one.queue for one in await store.find(long_id)] == [queue]
    assert [one.name for one in await store.stats()] == [queue]


async def test_a_lost_job_of_a_long_queue_is_reclaimed(store: Store, clock: ManualClock) -> None:
    await add(store, new(queue=LONG))
    job = await take_one(store, LONG)
    clock.advance(LEASE)
    found = await store.reclaim([LONG], limit=9, lease=LEASE, worker="w2", token=token())
    assert ids(found.jobs) == [job.id]
    await end(store, found.jobs[0], COMPLETED)


async def test_partitions_batches_and_limits_of_a_long_queue(store: Store) -> None:
    await store.settings(LONG, limits=LimitChange.of(max_running=1))
    partition = Partition("p" * 200)
    await add(store, *some(2, queue=LONG, partition=partition))
    await add(store, new(queue=LONG, batch_terms=BatchTerms("b", 1)))
    for _ in range(3):
        (job,) = await take(store, 9, LONG)
        await end(store, job)
    assert State.COLLECTING not in await counts(store, LONG)
    assert await store.purge(LONG, list(State)) > 0
    assert await store.drop(LONG)
    assert await store.queues() == []


async def test_a_worker_that_waits_in_a_long_queue_is_woken(store: Store) -> None:
    offer = WorkerOffer("w1", token(), LEASE)
    wait = asyncio.create_task(store.wait([LONG, "other"], timeout=60_000, offer=offer))
    await asleep(wait)
    await add(store, new(queue=LONG))
    assert Wake.WORK in await asyncio.wait_for(wait, SOON)
