"""Synchronous verbs: the same results without an event loop, in the caller's own thread."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from penstock.core.clock import ManualClock
from penstock.core.job import Ref, State
from penstock.core.lifecycle import ASK_CANCELLED
from penstock.core.unique import UniqueKey
from penstock.stores.contract import Enqueued, EnqueueStatus, JobFilter, QueueInfo, Store
from tests.store.facts import (
    COMPLETED,
    MINUTE,
    add,
    counts,
    end,
    in_state,
    new,
    running,
    some,
    take,
    the,
)


def test_without_any_event_loop(store: Store, clock: ManualClock) -> None:
    door = store.sync
    spec, late = new(), new(delay=MINUTE)
    assert door.enqueue([spec, late, spec]) == [
        Enqueued(EnqueueStatus.NEW, spec.id),
        Enqueued(EnqueueStatus.NEW, late.id),
        Enqueued(EnqueueStatus.EXISTS, spec.id),
    ]
    job, _, nobody = door.get([spec.ref, late.ref, Ref("default", "nobody")])
    assert nobody is None
    assert job is not None
    assert (job.spec, job.state) == (spec, State.AVAILABLE)
    assert door.queues() == [
        QueueInfo("default", {State.AVAILABLE: 1, State.SCHEDULED: 1}, oldest_available=clock.now())
    ]
    assert door.reschedule([late.ref], delay=5) == [State.SCHEDULED]
    assert door.reschedule([late.ref], run_at=clock.now() + 7) == [State.SCHEDULED]
    (moved,) = door.get([late.ref])
    assert moved is not None
    assert moved.run_at == clock.now() + 7
    assert door.cancel([spec.ref]) == [State.CANCELLED]
    assert door.cancel([late.ref], reason="paid") == [State.CANCELLED]
    found = door.wait_for_end([spec.ref, late.ref], timeout=MINUTE)
    assert [one and one.reason for one in found] == [ASK_CANCELLED, "paid"]
    assert door.retry([spec.ref, late.ref]) == [State.CANCELLED, State.CANCELLED]
    assert door.queues()[0].counts == {State.AVAILABLE: 2}
    assert (door.enqueue([]), door.get([]), door.cancel([]), door.retry([])) == ([], [], [], [])


def test_queues_are_asked_for_by_name(store: Store) -> None:
    store.sync.enqueue([new(queue="a"), new(queue="b")])
    assert [info.name for info in store.sync.queues(["b", "nothing"])] == ["b"]
    assert [info.name for info in store.sync.queues()] == ["a", "b"]


async def test_sync_and_async_calls_see_the_same_jobs(store: Store) -> None:
    a, b = some(2)
    store.sync.enqueue([a])
    await add(store, b)
    assert store.sync.get([a.ref, b.ref]) == await store.get([a.ref, b.ref])
    assert [job.id for job in await take(store, 2)] == [a.id, b.id]
    assert store.sync.queues() == await store.queues()


async def test_a_job_is_found_in_any_queue(store: Store) -> None:
    here, there = new(id="same", queue="a"), new(id="same", queue="b")
    await add(store, here, there, new(id="other", queue="c"))
    found = store.sync.search(JobFilter(id="same"), descending=False).jobs
    assert [job.spec for job in found] == [here, there]
    assert found == await store.find("same")
    assert store.sync.search(JobFilter(id="nobody")).jobs == []


async def test_a_closed_queue_and_a_unique_key_count_here_too(store: Store) -> None:
    await store.settings("closed", closed=True)
    first, second = new(unique=UniqueKey("k")), new(unique=UniqueKey("k"))
    refused = new(queue="closed")
    assert store.sync.enqueue([first, second, refused]) == [
        Enqueued(EnqueueStatus.NEW, first.id),
        Enqueued(EnqueueStatus.DUPLICATE, first.id),
        Enqueued(EnqueueStatus.CLOSED, refused.id),
    ]


async def test_a_running_job_is_asked_to_stop(store: Store) -> None:
    job = await running(store)
    assert store.sync.cancel([job.ref]) == [State.RUNNING]
    assert (await the(store, job)).cancel_asked
    assert store.sync.retry([job.ref]) == [State.RUNNING]
    assert store.sync.reschedule([job.ref]) == [State.RUNNING]


async def test_wait_for_end_gives_up_when_its_time_is_up(store: Store) -> None:
    job = await running(store)
    began = time.monotonic()
    assert await asyncio.to_thread(store.sync.wait_for_end, [job.ref], timeout=30) == [job]
    assert time.monotonic() - began >= 0.025
    assert store.sync.wait_for_end([job.ref], timeout=0) == [job]


async def test_wait_for_end_returns_at_once_for_what_has_ended(store: Store) -> None:
    job = await in_state(store, State.DEAD)
    assert store.sync.wait_for_end([job.ref, Ref("default", "nobody")], timeout=MINUTE) == [job, None]


def test_the_store_may_be_opened_synchronously_and_used_by_two_loops(store: Store) -> None:
    jobs = some(3)
    store.sync.enqueue(jobs)
    for n in range(2):
        taken = asyncio.run(take(store))
        assert taken[0].id == jobs[n].id
        asyncio.run(end(store, taken[0], COMPLETED))
    assert asyncio.run(counts(store)) == {State.COMPLETED: 2, State.AVAILABLE: 1}


def test_many_threads_use_one_sync_store(store: Store) -> None:
    per_thread, threads = 40, 8
    start = threading.Barrier(threads)

    def produce(n: int) -> list[Enqueued]:
        start.wait()
        return [answer for i in range(per_thread) for answer in store.sync.enqueue([new(f"{n}-{i}")])]

    with ThreadPoolExecutor(threads) as pool:
        answers = [answer for found in pool.map(produce, range(threads)) for answer in found]
    assert {answer.status for answer in answers} == {EnqueueStatus.NEW}
    assert store.sync.queues()[0].counts == {State.AVAILABLE: per_thread * threads}


def test_threads_that_want_the_same_id_or_key_agree_on_one(store: Store) -> None:
    threads = 8
    start = threading.Barrier(threads)

    def produce(n: int) -> tuple[Enqueued, Enqueued]:
        start.wait()
        same_id, same_key = store.sync.enqueue([new("same"), new(f"k{n}", unique=UniqueKey("k"))])
        return same_id, same_key

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(produce, range(threads)))
    assert sorted(a.status for a, _ in answers) == [EnqueueStatus.EXISTS] * (threads - 1) + [
        EnqueueStatus.NEW
    ]
    winners = [b.id for _, b in answers if b.status is EnqueueStatus.NEW]
    assert len(winners) == 1
    assert {b.id for _, b in answers} == set(winners)
