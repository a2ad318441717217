"""Sleeping workers are woken in time, even if other sleepers die or are cancelled."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Settlement, Wake
from tests.store.facts import HOUR, MINUTE, OpenStore, add, asleep, new, take_one

#: Seconds; less than it takes until a waiter looks for himself, should nobody wake him.
AT_ONCE = 3.0


async def woken(waiter: asyncio.Task[Wake]) -> Wake:
    async with asyncio.timeout(AT_ONCE):
        return await waiter


async def cancelled(waiter: asyncio.Task[Wake]) -> None:
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_a_job_that_is_due_soon_wakes_who_still_waits(open_store: OpenStore) -> None:
    one, other, producer = open_store(), open_store(), open_store()
    gone = asyncio.create_task(one.wait(["default"], timeout=50_000))
    await asleep(gone)
    waiter = asyncio.create_task(other.wait(["default"], timeout=60_000))
    await asleep(waiter)
    await cancelled(gone)
    await add(producer, new(delay=30_000))
    assert await woken(waiter) == Wake.WORK


async def test_a_job_wakes_who_still_waits(open_store: OpenStore) -> None:
    one, other, producer = open_store(), open_store(), open_store()
    gone = asyncio.create_task(one.wait(["default"], timeout=50_000))
    await asleep(gone)
    waiter = asyncio.create_task(other.wait(["default"], timeout=60_000))
    await asleep(waiter)
    await cancelled(gone)
    await add(producer, new())
    assert await woken(waiter) == Wake.WORK


async def test_a_promotion_wakes_who_sleeps_though_the_clock_has_leapt_ahead(
    open_store: OpenStore, clock: ManualClock
) -> None:
    one, other = open_store(), open_store()
    await add(one, new(delay=HOUR))
    waiter = asyncio.create_task(other.wait(["default"], timeout=MINUTE))
    await asleep(waiter)
    clock.advance(HOUR)  # by this clock the minute is over
    assert (await one.promote(["default"], limit=1)).moved == 1
    assert await woken(waiter) == Wake.WORK


async def test_of_those_whose_time_may_be_over_one_who_sleeps_is_woken(
    open_store: OpenStore, clock: ManualClock
) -> None:
    one, other, producer = open_store(), open_store(), open_store()
    gone = asyncio.create_task(one.wait(["default"], timeout=50_000))
    await asleep(gone)
    waiter = asyncio.create_task(other.wait(["default"], timeout=60_000))
    await asleep(waiter)
    await cancelled(gone)
    clock.advance(HOUR)
    await add(producer, new())
    assert await woken(waiter) == Wake.WORK


@pytest.mark.parametrize("moment", range(8))
async def test_a_cancelled_wait_passes_its_wake_up_on(open_store: OpenStore, moment: int) -> None:
    one, other, producer = open_store(), open_store(), open_store()
    gone = asyncio.create_task(one.wait(["default"], timeout=50_000))
    await asleep(gone)
    waiter = asyncio.create_task(other.wait(["default"], timeout=60_000))
    await asleep(waiter)
    producing = asyncio.create_task(producer.enqueue([new()]))
    for _ in range(moment):
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, producing, return_exceptions=True)
    assert await woken(waiter) == Wake.WORK


async def test_a_waiter_of_a_dropped_queue_is_woken_by_its_next_job(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    await add(other, new())
    job = await take_one(other)
    await other.settle([Settlement(job.lease, Transition(State.COMPLETED))])
    waiter = asyncio.create_task(store.wait(["default"], timeout=MINUTE))
    await asleep(waiter)
    assert await other.drop("default")
    await add(other, new())
    assert await woken(waiter) == Wake.WORK


async def test_a_job_with_many_waits_is_still_reported(open_store: OpenStore) -> None:
    store, worker = open_store(), open_store()
    job = new()
    await add(store, job)
    ref = job.ref
    for _ in range(300):
        assert await asyncio.to_thread(store.sync.wait_for_end, [ref], timeout=0) == await store.get([ref])
    waiter = asyncio.create_task(store.wait_for_end([ref], timeout=60_000))
    await asyncio.sleep(0.1)
    assert not waiter.done()
    await worker.cancel([ref])
    async with asyncio.timeout(AT_ONCE):
        (found,) = await waiter
    assert found is not None
    assert found.state is State.CANCELLED


async def test_a_queue_that_was_dropped_is_listed_again(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    await add(store, new(queue="next"), new(queue="first"))
    job = await take_one(store, "next")
    await store.settle([Settlement(job.lease, Transition(State.COMPLETED))])
    assert await other.drop("next")
    job = await take_one(store, "first")
    await store.settle([Settlement(job.lease, Transition(State.COMPLETED), then=(new(queue="next"),))])
    assert [queue.name for queue in await other.queues()] == ["first", "next"]
