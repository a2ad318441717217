"""wait_for_end: waits until all jobs have ended or are removed, without busy polling."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import TERMINAL, Ref, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Store
from tests.cases import each
from tests.store.facts import (
    CANCELLED,
    COMPLETED,
    DAY,
    DEAD,
    MINUTE,
    RELEASED,
    SOON,
    OpenStore,
    add,
    asleep,
    end,
    in_state,
    new,
    retryable,
    running,
    take,
    take_one,
)


@each("state", sorted(TERMINAL))
async def test_what_has_ended_comes_back_at_once(store: Store, state: State) -> None:
    job = await in_state(store, state)
    assert await asyncio.wait_for(store.wait_for_end([job.ref], timeout=MINUTE), SOON) == [job]


async def test_a_missing_job_is_returned_at_once(store: Store) -> None:
    refs = [Ref("default", "nobody"), Ref("nowhere", "x")]
    assert await asyncio.wait_for(store.wait_for_end(refs, timeout=MINUTE), SOON) == [None, None]
    assert await asyncio.wait_for(store.wait_for_end([], timeout=MINUTE), SOON) == []


@pytest.mark.parametrize("timeout", [0, 30])
async def test_the_time_is_up_and_they_come_back_as_they_are(store: Store, timeout: int) -> None:
    job = await running(store)
    began = time.monotonic()
    assert await asyncio.wait_for(store.wait_for_end([job.ref], timeout=timeout), SOON) == [job]
    assert time.monotonic() - began >= timeout / 1000 - 0.005


@pytest.mark.parametrize("ending", [COMPLETED, CANCELLED, DEAD], ids=lambda t: t.state)
async def test_a_settlement_wakes_the_wait(store: Store, ending: Transition) -> None:
    job = await running(store)
    wait = asyncio.create_task(store.wait_for_end([job.ref], timeout=MINUTE))
    await asleep(wait)
    await end(store, job, ending)
    (ended,) = await asyncio.wait_for(wait, SOON)
    assert ended is not None
    assert ended.state is ending.state


async def test_a_job_of_which_nothing_is_kept_wakes_the_wait_as_gone(store: Store) -> None:
    job = await running(store)
    wait = asyncio.create_task(store.wait_for_end([job.ref], timeout=MINUTE))
    await asleep(wait)
    await end(store, job, Transition(State.COMPLETED))
    assert await asyncio.wait_for(wait, SOON) == [None]


async def _cancel(store: Store, clock: ManualClock, ref: Ref) -> None:
    await store.cancel([ref])


async def _delete(store: Store, clock: ManualClock, ref: Ref) -> None:
    await store.delete([ref])


async def _purge(store: Store, clock: ManualClock, ref: Ref) -> None:
    await store.purge(ref.queue, list(State))


async def _expire_in_fetch(store: Store, clock: ManualClock, ref: Ref) -> None:
    clock.advance(MINUTE)
    assert await take(store) == []


async def _expire_in_prune(store: Store, clock: ManualClock, ref: Ref) -> None:
    clock.advance(MINUTE)
    await store.prune()


@pytest.mark.parametrize("way", [_cancel, _delete, _purge, _expire_in_fetch, _expire_in_prune])
async def test_every_end_of_a_queued_job_wakes_the_wait(
    store: Store, clock: ManualClock, way: Callable[[Store, ManualClock, Ref], Awaitable[None]]
) -> None:
    spec = new(expires_in=MINUTE)
    await add(store, spec)
    wait = asyncio.create_task(store.wait_for_end([spec.ref], timeout=MINUTE))
    await asleep(wait)
    await way(store, clock, spec.ref)
    (ended,) = await asyncio.wait_for(wait, SOON)
    assert ended is None or ended.state is State.CANCELLED


async def test_an_expiry_met_by_promotion_wakes_the_wait(store: Store, clock: ManualClock) -> None:
    spec = new(delay=MINUTE, expires_in=MINUTE)
    await add(store, spec)
    wait = asyncio.create_task(store.wait_for_end([spec.ref], timeout=MINUTE))
    await asleep(wait)
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    (ended,) = await asyncio.wait_for(wait, SOON)
    assert ended is not None
    assert ended.state is State.CANCELLED


async def test_an_attempt_that_is_not_the_last_does_not_end_the_wait(
    store: Store, clock: ManualClock
) -> None:
    job = await running(store)
    wait = asyncio.create_task(store.wait_for_end([job.ref], timeout=MINUTE))
    await end(store, job, retryable())
    clock.advance(DAY)
    await store.promote(["default"], limit=1)
    await end(store, await take_one(store), RELEASED)
    last = await take_one(store)
    await asleep(wait)
    await end(store, last)
    (ended,) = await asyncio.wait_for(wait, SOON)
    assert ended is not None
    assert (ended.state, ended.attempt) == (State.COMPLETED, 2)


async def test_a_wait_for_several_ends_with_the_last(store: Store) -> None:
    jobs = [await running(store) for _ in range(3)]
    done = await in_state(store, State.DEAD)
    refs = [done.ref, *(job.ref for job in jobs), Ref("default", "nobody"), jobs[0].ref]
    wait = asyncio.create_task(store.wait_for_end(refs, timeout=MINUTE))
    for job in reversed(jobs):
        await asleep(wait)
        await end(store, job)
    found = await asyncio.wait_for(wait, SOON)
    assert [job and job.state for job in found] == [
        State.DEAD,
        *[State.COMPLETED] * 3,
        None,
        State.COMPLETED,
    ]


async def test_one_end_wakes_all_who_wait_for_it(store: Store) -> None:
    job = await running(store)
    waits = [asyncio.create_task(store.wait_for_end([job.ref], timeout=MINUTE)) for _ in range(20)]
    await asleep(waits[-1])
    await end(store, job, result=b"42")
    found = await asyncio.wait_for(asyncio.gather(*waits), SOON)
    assert [one and one.result for (one,) in found] == [b"42"] * 20


async def test_a_wait_that_was_given_up_leaves_nothing_behind(store: Store) -> None:
    job = await running(store)
    wait = asyncio.create_task(store.wait_for_end([job.ref], timeout=MINUTE))
    await asleep(wait)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    await end(store, job)
    assert await asyncio.wait_for(store.wait_for_end([job.ref], timeout=MINUTE), SOON) == await store.get(
        [job.ref]
    )


async def test_another_store_object_over_the_same_data_is_woken(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()
    job = await running(here)
    wait = asyncio.create_task(there.wait_for_end([job.ref], timeout=MINUTE))
    await asleep(wait)
    await end(here, job, result=b"1")
    (ended,) = await asyncio.wait_for(wait, SOON)
    assert ended is not None
    assert ended.result == b"1"


async def test_a_thread_may_end_what_a_loop_waits_for(store: Store) -> None:
    spec = new(delay=MINUTE)
    await add(store, spec)
    wait = asyncio.create_task(store.wait_for_end([spec.ref], timeout=MINUTE))
    await asleep(wait)
    canceller = threading.Thread(target=lambda: store.sync.cancel([spec.ref]))
    canceller.start()
    (ended,) = await asyncio.wait_for(wait, SOON)
    canceller.join()
    assert ended is not None
    assert ended.state is State.CANCELLED


async def test_a_loop_may_end_what_a_thread_waits_for(store: Store) -> None:
    job = await running(store)
    wait = asyncio.create_task(asyncio.to_thread(store.sync.wait_for_end, [job.ref], timeout=MINUTE))
    await asleep(wait)
    await end(store, job, result=b"7")
    (ended,) = await asyncio.wait_for(wait, SOON)
    assert ended is not None
    assert ended.result == b"7"


def test_two_event_loops_may_wait_for_the_same_job(store: Store) -> None:
    job = asyncio.run(running(store))
    waiting = threading.Barrier(3)
    found: list[object] = []

    async def wait() -> None:
        task = asyncio.create_task(store.wait_for_end([job.ref], timeout=MINUTE))
        await asleep(task)
        await asyncio.to_thread(waiting.wait, SOON)
        found.append(await asyncio.wait_for(task, SOON))

    threads = [threading.Thread(target=lambda: asyncio.run(wait())) for _ in range(2)]
    for thread in threads:
        thread.start()
    waiting.wait(SOON)
    asyncio.run(end(store, job))
    for thread in threads:
        thread.join(SOON)
    assert found == [store.sync.get([job.ref])] * 2
