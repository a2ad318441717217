"""wait: sleeps until a queue may have work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.stores.contract import Settlement, Store, Wake
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    COMPLETED,
    HOUR,
    LEASE,
    MINUTE,
    PARKED,
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
    snoozed,
    some,
    take,
)


async def look(store: Store, *queues: str, timeout: int = 0) -> Wake:
    """What a wait says that has no time to sleep."""
    return await asyncio.wait_for(store.wait(list(queues or ["default"]), timeout=timeout), SOON)


def sleeping(store: Store, *queues: str, timeout: int = MINUTE) -> asyncio.Task[Wake]:
    return asyncio.create_task(store.wait(list(queues or ["default"]), timeout=timeout))


async def sleeps_through(store: Store, *queues: str) -> bool:
    """Whether there is nothing, now and for the next few milliseconds."""
    return (
        await look(store, *queues) is Wake.NOTHING and await look(store, *queues, timeout=20) is Wake.NOTHING
    )


# ── work ──


async def test_what_is_available_is_work_at_once(store: Store) -> None:
    await add(store, new())
    assert await look(store, timeout=MINUTE) == Wake.WORK
    assert await look(store, timeout=0) == Wake.WORK


async def test_nothing_comes_back_when_the_time_is_up(store: Store) -> None:
    began = time.monotonic()
    assert await look(store, timeout=40) is Wake.NOTHING
    assert time.monotonic() - began >= 0.035


DUE_LATER = (State.SCHEDULED, State.RETRYABLE, State.SUSPENDED)


@each("state", sorted(set(State) - {State.AVAILABLE, *DUE_LATER}))
async def test_no_other_state_is_work(store: Store, clock: ManualClock, state: State) -> None:
    await in_state(store, state)
    clock.advance(HOUR)  # not even a lease that ran out: the reclaimer has its own time
    assert await sleeps_through(store)


async def test_what_is_due_before_the_timeouts_end_is_work_at_once(store: Store) -> None:
    await add(store, new(delay=MINUTE))
    assert await look(store, timeout=MINUTE + 1) == Wake.WORK
    assert await look(store, timeout=0) is Wake.NOTHING
    assert await look(store, timeout=20) is Wake.NOTHING


async def test_a_wait_until_the_next_due_job_is_not_woken_before(store: Store, clock: ManualClock) -> None:
    await add(store, new(delay=30))
    assert await look(store, timeout=30) is Wake.NOTHING


@each("late", [0, 1, HOUR])
async def test_what_is_due_and_not_promoted_yet_is_work(store: Store, clock: ManualClock, late: int) -> None:
    await add(store, new(delay=MINUTE))
    clock.advance(MINUTE + late)
    assert await look(store) == Wake.WORK


async def test_retries_and_snoozes_that_are_due_are_work(store: Store, clock: ManualClock) -> None:
    for queue, ending in (
        ("a", retryable(MINUTE)),
        ("b", snoozed(MINUTE)),
    ):  # no wait hears of another's enqueue
        await end(store, await running(store, queue=queue), ending)
        assert await look(store, queue, timeout=20) is Wake.NOTHING
        assert await look(store, queue, timeout=MINUTE + 1) == Wake.WORK


async def test_only_the_named_queues_are_work(store: Store) -> None:
    await add(store, new(queue="a"), new(queue="b", delay=1))
    assert await sleeps_through(store, "c")
    assert await look(store, "c", "a") == Wake.WORK
    assert await look(store, "b", timeout=MINUTE) == Wake.WORK
    assert [queue.name for queue in await store.queues()] == ["a", "b"]


async def test_with_no_queues_no_work_is_waited_for(store: Store) -> None:
    await add(store, new())
    assert await asyncio.wait_for(store.wait([], timeout=20), SOON) is Wake.NOTHING


async def test_a_paused_queue_is_no_work_but_its_jobs_are_promoted(store: Store, clock: ManualClock) -> None:
    await add(store, new())
    await store.settings("default", paused=True)
    await look(store)  # hears of the settings
    assert await sleeps_through(store)
    await add(store, new(delay=5))
    clock.advance(5)
    assert await look(store) == Wake.WORK
    await store.promote(["default"], limit=1)
    assert await sleeps_through(store)


async def test_a_closed_queue_is_work(store: Store) -> None:
    await add(store, new())
    await store.settings("default", closed=True)
    await look(store)
    assert await look(store) == Wake.WORK


# ── being woken ──


async def test_an_enqueue_wakes_the_waiter(store: Store) -> None:
    wait = sleeping(store, "other", "default")
    await asleep(wait)
    await add(store, new())
    assert await asyncio.wait_for(wait, SOON) == Wake.WORK


async def test_a_bulk_enqueue_wakes_the_waiter(store: Store) -> None:
    wait = sleeping(store)
    await asleep(wait)
    await add(store, *some(2_000))
    assert await asyncio.wait_for(wait, SOON) == Wake.WORK


async def test_a_job_due_before_the_waiters_end_wakes_it(store: Store) -> None:
    wait = sleeping(store, timeout=MINUTE)
    await asleep(wait)
    await add(store, new(delay=MINUTE - 1_000))
    assert await asyncio.wait_for(wait, SOON) == Wake.WORK


async def test_a_job_due_after_the_waiters_end_does_not(store: Store) -> None:
    wait = sleeping(store, timeout=300)
    await asleep(wait)
    await add(store, new(delay=MINUTE))
    assert await asyncio.wait_for(wait, SOON) is Wake.NOTHING


async def test_work_elsewhere_does_not_wake_the_waiter(store: Store) -> None:
    wait = sleeping(store, timeout=200)
    await asleep(wait)
    await add(store, new(queue="other"))
    assert await asyncio.wait_for(wait, SOON) is Wake.NOTHING


WAKERS: dict[str, Callable[[Store], Awaitable[object]]] = {}


def waker(way: Callable[[Store], Awaitable[object]]) -> Callable[[Store], Awaitable[object]]:
    WAKERS[way.__name__.replace("_", " ")] = way
    return way


@waker
async def a_release(store: Store) -> object:
    (job,) = (await store.list_jobs(task="busy")).jobs
    return await store.settle([Settlement(job.lease, RELEASED)])


@waker
async def another_attempt_at_once(store: Store) -> object:
    (job,) = (await store.list_jobs(task="busy")).jobs
    return await store.settle([Settlement(job.lease, AGAIN)])


@waker
async def a_retry_that_is_due_soon(store: Store) -> object:
    (job,) = (await store.list_jobs(task="busy")).jobs
    return await store.settle([Settlement(job.lease, retryable(1_000))])


@waker
async def a_job_that_follows(store: Store) -> object:
    (job,) = (await store.list_jobs(task="busy")).jobs
    return await store.settle([Settlement(job.lease, COMPLETED, then=(new(),))])


@waker
async def an_operators_retry(store: Store) -> object:
    (job,) = (await store.list_jobs(task="done")).jobs
    return await store.retry([job.ref])


@waker
async def a_new_time_now(store: Store) -> object:
    (job,) = (await store.list_jobs(task="late")).jobs
    return await store.reschedule([job.ref])


@waker
async def a_new_time_soon(store: Store) -> object:
    (job,) = (await store.list_jobs(task="late")).jobs
    return await store.reschedule([job.ref], delay=1_000)


@each("way", sorted(WAKERS))
async def test_every_way_to_become_ready_wakes_the_waiter(store: Store, way: str) -> None:
    await running(store, task="busy")
    await in_state(store, State.DEAD, task="done")
    await add(store, new(task="late", delay=HOUR))
    wait = sleeping(store)
    await asleep(wait)
    await WAKERS[way](store)
    assert await asyncio.wait_for(wait, SOON) == Wake.WORK


async def test_a_promotion_wakes_the_waiter(store: Store, clock: ManualClock) -> None:
    await add(store, new(delay=HOUR))
    wait = sleeping(store)
    await asleep(wait)
    clock.advance(HOUR)
    await store.promote(["default"], limit=1)
    assert await asyncio.wait_for(wait, SOON) == Wake.WORK


async def test_the_end_of_a_pause_wakes_the_waiter(store: Store) -> None:
    await add(store, new())
    await store.settings("default", paused=True)
    await look(store)
    wait = sleeping(store)
    await asleep(wait)
    await store.settings("default", paused=False)
    assert await asyncio.wait_for(wait, SOON) == Wake.WORK | Wake.SETTINGS


async def test_a_parked_job_does_not_wake_the_waiter(store: Store) -> None:
    job = await running(store)
    wait = sleeping(store, timeout=200)
    await asleep(wait)
    await end(store, job, PARKED)
    assert await asyncio.wait_for(wait, SOON) is Wake.NOTHING


async def test_a_woken_waiter_without_work_sleeps_again(store: Store) -> None:
    wait = sleeping(store)
    await asleep(wait)
    await add(store, new())
    first = await asyncio.wait_for(wait, SOON)
    await take(store, 9)
    assert first == Wake.WORK
    assert await sleeps_through(store)


async def test_several_waiters_are_woken(store: Store) -> None:
    waits = [sleeping(store) for _ in range(5)]
    for wait in waits:
        await asleep(wait)
    await add(store, *some(5))
    assert await asyncio.wait_for(asyncio.gather(*waits), SOON) == [Wake.WORK] * 5


async def test_another_store_object_over_the_same_data_is_woken(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()
    wait = sleeping(there)
    await asleep(wait)
    await add(here, new())
    assert await asyncio.wait_for(wait, SOON) == Wake.WORK


async def test_a_thread_wakes_a_waiter_in_a_loop(store: Store) -> None:
    wait = sleeping(store)
    await asleep(wait)
    thread = threading.Thread(target=lambda: store.sync.enqueue([new()]))
    thread.start()
    assert await asyncio.wait_for(wait, SOON) == Wake.WORK
    thread.join()


async def test_a_waiter_that_was_given_up_takes_nothing_with_it(store: Store) -> None:
    job = await running(store)
    wait = sleeping(store)
    await asleep(wait)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    await store.cancel([job.ref])
    await add(store, new())
    assert await look(store) == Wake.WORK | Wake.CANCEL


# ── requests to stop ──


async def test_a_cancellation_wakes_a_waiter_of_any_queues(store: Store) -> None:
    job = await running(store)
    for queues in ([], ["other"], ["default"]):
        wait = asyncio.create_task(store.wait(queues, timeout=MINUTE))
        await asleep(wait)
        await store.cancel([job.ref])
        assert await asyncio.wait_for(wait, SOON) == Wake.CANCEL
        await end(store, job, RELEASED)
        await store.retry([job.ref])
        (job,) = await take(store)


async def test_a_cancellation_between_two_waits_is_reported_once(store: Store) -> None:
    job = await running(store)
    await look(store)
    await store.cancel([job.ref])
    assert await look(store) == Wake.CANCEL
    assert await sleeps_through(store)
    await store.cancel([job.ref])  # asking twice is asking once
    assert await sleeps_through(store)


@each("state", sorted(set(State) - {State.RUNNING}))
async def test_only_running_jobs_are_asked_to_stop(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state)
    await look(store)
    await store.cancel([job.ref])
    assert await sleeps_through(store)


async def test_each_store_object_is_notified(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()
    job = await running(here)
    await look(here)
    await look(there)
    await here.cancel([job.ref])
    assert await look(here) == Wake.CANCEL
    assert await look(there) == Wake.CANCEL
    assert await sleeps_through(here)
    assert await sleeps_through(there)


async def test_several_concurrent_waits_are_all_notified(store: Store) -> None:
    job = await running(store)
    waits = [
        sleeping(store, "default"),
        sleeping(store, "other"),
        asyncio.create_task(store.wait([], timeout=MINUTE)),
    ]
    for wait in waits:
        await asleep(wait)
    await store.cancel([job.ref])
    assert await asyncio.wait_for(asyncio.gather(*waits), SOON) == [Wake.CANCEL] * 3
    assert await sleeps_through(store)


async def test_a_wait_that_returned_for_work_reported_everything(store: Store) -> None:
    job = await running(store)
    await look(store)
    await add(store, new())
    await store.cancel([job.ref])
    await store.settings("default", closed=True)
    assert await look(store) == Wake.WORK | Wake.CANCEL | Wake.SETTINGS
    assert await look(store) == Wake.WORK


# ── settings ──


async def test_changed_settings_of_any_queue_wake_the_waiter(store: Store) -> None:
    changes = [{"paused": True}, {"closed": True}, {"paused": False}, {"closed": False}]
    for change in changes:
        wait = asyncio.create_task(store.wait([], timeout=MINUTE))
        await asleep(wait)
        await store.settings("another", **change)
        assert await asyncio.wait_for(wait, SOON) == Wake.SETTINGS


async def test_settings_that_change_nothing_are_no_news(store: Store) -> None:
    await store.settings("default", paused=True)
    await look(store)
    await store.settings("default", paused=True)
    await store.settings("default")
    await store.settings("new", paused=False, closed=False)
    assert await sleeps_through(store)


async def test_a_dropped_queue_is_news_if_it_was_paused_or_closed(store: Store) -> None:
    await store.settings("plain", paused=False)
    await store.settings("paused", paused=True)
    await look(store)
    await store.drop("plain")
    assert await sleeps_through(store)
    await store.drop("paused")
    assert await look(store) == Wake.SETTINGS
    assert await sleeps_through(store)


async def test_waiting_takes_nothing(store: Store) -> None:
    await add(store, new())
    for _ in range(3):
        assert await look(store) == Wake.WORK
    assert len(await take(store, lease=LEASE)) == 1
