"""The memory store alone: sharing by name, one process, several event loops, and no growth."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import threading
import uuid
from collections.abc import Callable

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import Transition
from penstock.errors import StoreError
from penstock.stores.contract import Settlement, Share, Wake
from penstock.stores.memory import MemoryStore

SOON = 5.0


def name() -> str:
    return uuid.uuid4().hex


def new(id: str, **facts: object) -> NewJob:
    return NewJob(id, "t", **facts)  # type: ignore[arg-type]


# ── shelves ──


def test_a_wait_that_was_left_behind_may_be_collected_while_a_verb_is_at_work() -> None:
    """The garbage collector runs where it likes: it must not wait for the state that its own thread holds."""
    store, ended = MemoryStore(), threading.Event()
    store.sync.enqueue([new("a")])
    ends = store.sync.stream_ends([new("a").ref, new("gone").ref], timeout=60_000)
    assert next(ends) == {new("gone").ref: None}
    cycle: list[object] = [ends]
    cycle.append(cycle)
    del ends, cycle

    def verb() -> None:
        store.memory.run(lambda _: gc.collect())
        ended.set()

    threading.Thread(target=verb, daemon=True).start()
    assert ended.wait(SOON)
    assert not store.memory.waiters.end_watches


def test_stores_of_one_name_share_their_jobs() -> None:
    shared = name()
    MemoryStore(shared).sync.enqueue([new("a")])
    assert MemoryStore(shared).sync.get([new("a").ref]) != [None]
    assert MemoryStore(shared, namespace="other").sync.get([new("a").ref]) == [None]
    assert MemoryStore(name()).sync.get([new("a").ref]) == [None]


def test_a_store_without_a_name_is_private() -> None:
    one, two = MemoryStore(), MemoryStore()
    one.sync.enqueue([new("a")])
    assert two.sync.get([new("a").ref]) == [None]


def test_jobs_outlive_the_store_object_of_their_name() -> None:
    shared = name()
    store = MemoryStore(shared)
    store.sync.enqueue([new("a")])
    store.close()
    store.close()
    del store
    assert MemoryStore(shared).sync.get([new("a").ref]) != [None]


def test_the_clock_is_that_of_the_first_of_a_name() -> None:
    shared, clock = name(), ManualClock(now=5_000)
    MemoryStore(shared, clock=clock)
    other = MemoryStore(shared)
    other.sync.enqueue([new("a")])
    (job,) = other.sync.get([new("a").ref])
    assert job is not None
    assert job.enqueued_at == 5_000


def test_the_url_says_its_name() -> None:
    assert MemoryStore().url == "memory://"
    assert MemoryStore("jobs", namespace="x").url == "memory://jobs"


# ── processes ──


def in_a_fork(act: Callable[[], None]) -> int:
    """How a fork that does this ends: 0 if it does it without an error."""
    process = multiprocessing.get_context("fork").Process(target=act)
    process.start()
    process.join(SOON)
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_cannot_use_the_stores_of_its_parent() -> None:
    shared = name()
    private, named = MemoryStore(), MemoryStore(shared)

    def refused() -> None:
        for store in (private, named):
            with pytest.raises(StoreError, match="one process"):
                store.sync.enqueue([new("a")])
            with pytest.raises(StoreError, match="sqlite:///"):
                asyncio.run(store.fetch([], limit=1, lease=1, worker="w", token="t"))

    def own() -> None:
        for store in (MemoryStore(), MemoryStore(shared)):
            store.sync.enqueue([new("a")])
            assert store.sync.get([new("a").ref]) != [None]

    assert in_a_fork(refused) == 0
    assert in_a_fork(own) == 0
    assert private.sync.get([new("a").ref]) == named.sync.get([new("a").ref]) == [None]


# ── loops ──


def test_a_waiter_of_a_closed_loop_disturbs_no_other_waiter() -> None:
    store = MemoryStore()
    loop = asyncio.new_event_loop()
    waiter = loop.create_task(store.wait(["default"], timeout=60_000))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    store.sync.enqueue([new("a")])
    assert asyncio.run(store.wait(["default"], timeout=60_000)) == Wake.WORK
    waiter.get_coro().close()  # type: ignore[union-attr]
    waiter._log_destroy_pending = False  # type: ignore[attr-defined]  # it can never run again


def test_a_waiter_in_a_thread_is_woken_from_a_loop_and_the_other_way_round() -> None:
    store = MemoryStore()
    store.sync.enqueue([new("a"), new("b", delay=60_000)])
    ready, found = threading.Event(), []

    def wait() -> None:
        ready.set()
        found.extend(store.sync.wait_for_end([new("a").ref, new("b").ref], timeout=60_000))

    thread = threading.Thread(target=wait)
    thread.start()
    assert ready.wait(SOON)

    async def end_both() -> None:
        share = [Share("default", 1, 1)]
        (job,) = (await store.fetch(share, limit=1, lease=1_000, worker="w", token="t")).jobs
        await store.settle([Settlement(job.lease, Transition(State.COMPLETED, keep=1_000))])
        await store.cancel([new("b").ref])

    asyncio.run(end_both())
    thread.join(SOON)
    assert [job.state for job in found] == [State.COMPLETED, State.CANCELLED]


# ── nothing grows (I6) ──


def lengths(store: MemoryStore) -> dict[str, int]:
    """How much everything in the memory holds, ghosts included."""
    memory = store.memory
    kept = vars(memory) | vars(memory.waiters)
    found = {what: len(value) for what, value in kept.items() if hasattr(value, "__len__")}
    orders = {"over": memory.over, "expiring": memory.expiring}
    for queue in memory.queues.values():
        orders |= {"ready": queue.ready, "oldest": queue.oldest, "due": queue.due, "leases": queue.leases}
        found |= {"holders": len(queue.holders), "parked": len(queue.parked), "rows of q": len(queue.rows)}
    return found | {what: len(order._heap) for what, order in orders.items()}


async def test_a_memory_through_which_many_jobs_went_is_as_small_as_before() -> None:
    store = MemoryStore(clock=ManualClock())
    share = [Share("default", 100, 100)]
    for turn in range(60):
        jobs = [new(f"{turn}-{n}", expires_in=60_000, delay=n % 2, headers={"n": str(n)}) for n in range(100)]
        await store.enqueue(jobs)
        fetched = await store.fetch(share, limit=100, lease=1_000, worker=f"w{turn}", token=f"t{turn}")
        done = Transition(State.COMPLETED)
        await store.settle([Settlement(job.lease, done) for job in fetched.jobs])
        await store.cancel([job.ref for job in jobs])
        await store.delete([job.ref for job in jobs])
        await store.wait([f"q{turn}"], timeout=0)
        await store.wait_for_end([jobs[0].ref], timeout=0)
    assert store.memory.generation == 6_000
    for what, held in lengths(store).items():
        assert held <= 200, what
    assert len(store.memory.rows) == 0


async def test_reading_and_asking_makes_nothing() -> None:
    store = MemoryStore()
    before = lengths(store)
    ghosts = [new(f"x{n}", queue=f"q{n}").ref for n in range(50)]
    await store.get(ghosts)
    await store.cancel(ghosts)
    await store.retry(ghosts)
    await store.reschedule(ghosts)
    await store.delete(ghosts)
    await store.wait_for_end(ghosts, timeout=0)
    for ref in ghosts:
        await store.promote([ref.queue], limit=1)
        await store.purge(ref.queue, list(State))
        await store.drop(ref.queue)
        await store.fetch([Share(ref.queue, 1, 1)], limit=1, lease=1, worker="w", token="t")
        await store.reclaim([ref.queue], limit=1, lease=1, worker="w", token="t")
        await store.retire(ref.id)
    assert lengths(store) == before
