"""delete and purge: remove jobs, never running ones."""

from __future__ import annotations

import asyncio

from penstock.core.clock import ManualClock
from penstock.core.job import Ref, State
from penstock.core.limits import LimitChange
from penstock.core.relations import Partition
from penstock.core.unique import FINISHED_PHASE, RUNNING_PHASE, UniqueKey
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Settled, Settlement, Share, Store
from tests.cases import each
from tests.store.facts import (
    COMPLETED,
    DAY,
    LEASE,
    SOON,
    add,
    all_jobs,
    asleep,
    counts,
    end,
    gone,
    ids,
    in_state,
    member,
    new,
    one_of_each,
    running,
    some,
    take,
    take_one,
    the,
)


@each("state", sorted(set(State) - {State.RUNNING}))
async def test_a_deleted_job_is_gone(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state)
    assert await store.delete([job.ref]) == [state]
    assert await gone(store, job)
    assert await all_jobs(store) == []
    assert await counts(store) == {}
    clock.advance(DAY)
    assert (await store.promote(["default"], limit=9)).moved == 0
    assert await take(store, 9) == []
    assert (await store.prune()).finished == 0


async def test_a_running_job_is_not_deleted(store: Store) -> None:
    job = await running(store)
    assert await store.delete([job.ref]) == [State.RUNNING]
    assert await the(store, job) == job
    await end(store, job, COMPLETED)
    assert await store.delete([job.ref]) == [State.COMPLETED]


async def test_a_batch_answers_item_by_item(store: Store) -> None:
    late, busy = await in_state(store, State.SCHEDULED), await running(store)
    kept = await in_state(store, State.SCHEDULED)
    refs = [late.ref, Ref("default", "nobody"), busy.ref, Ref("nowhere", "x"), late.ref]
    assert await store.delete(refs) == [State.SCHEDULED, None, State.RUNNING, None, None]
    assert await store.delete([]) == []
    assert ids(await all_jobs(store)) == [kept.id, busy.id]
    assert [queue.name for queue in await store.queues()] == ["default"]


async def test_many_are_deleted_at_once(store: Store) -> None:
    jobs = some(1_100)
    await add(store, *jobs)
    assert await store.delete([job.ref for job in jobs[1:]]) == [State.AVAILABLE] * 1_099
    assert ids(await all_jobs(store)) == [jobs[0].id]


# ── running jobs, too ──


@each("state", State)
async def test_a_job_in_any_state_is_deleted_if_running_jobs_are_included(store: Store, state: State) -> None:
    job = await in_state(store, state)
    assert await store.delete([job.ref], running=True) == [state]
    assert await gone(store, job)
    assert await counts(store) == {}
    assert await store.delete([job.ref], running=True) == [None]


async def test_the_lease_of_a_deleted_job_is_lost(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    await store.delete([job.ref], running=True)
    assert await store.extend([HeartbeatRequest(job.lease, LEASE)]) == [LeaseStatus.LOST]
    assert await store.settle([Settlement(job.lease, COMPLETED)]) == [Settled.GONE]
    clock.advance(DAY)
    assert (await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token="r")).jobs == []
    await add(store, new(job.id))
    assert await store.settle([Settlement(job.lease, COMPLETED)]) == [Settled.STALE]
    assert (await take_one(store)).id == job.id


async def test_a_fetch_that_is_repeated_does_not_return_a_deleted_job(store: Store) -> None:
    first, second = some(2)
    await add(store, first, second)
    share = [Share("default", quota=2, cap=2)]
    assert len((await store.fetch(share, limit=2, lease=LEASE, worker="w", token="same")).jobs) == 2
    await store.delete([first.ref], running=True)
    assert ids((await store.fetch(share, limit=2, lease=LEASE, worker="w", token="same")).jobs) == [second.id]


async def test_a_deleted_attempt_counts_as_processed(store: Store) -> None:
    busy, idle = await running(store), await in_state(store, State.AVAILABLE)
    await store.delete([busy.ref, idle.ref], running=True)
    (stats,) = await store.stats()
    assert (stats.enqueued, stats.processed, stats.failed) == (2, 1, 0)
    assert [(day.processed, day.failed) for day in stats.days] == [(1, 0)]


async def test_running_and_other_jobs_are_deleted_together_one_of_them_named_twice(store: Store) -> None:
    one, idle, other = await running(store), await in_state(store, State.SCHEDULED), await running(store)
    refs = [one.ref, idle.ref, other.ref, one.ref]
    assert await store.delete(refs, running=True) == [State.RUNNING, State.SCHEDULED, State.RUNNING, None]
    (stats,) = await store.stats()
    assert (stats.processed, await counts(store)) == (2, {})


async def test_a_deleted_running_job_makes_room_for_others(store: Store) -> None:
    await store.settings("default", limits=LimitChange.of(max_running=1))
    await add(store, *some(2))
    first = await take_one(store)
    assert await take(store, 9) == []
    await store.delete([first.ref], running=True)
    assert len(await take(store, 9)) == 1


async def test_a_deleted_running_job_leaves_its_partition(store: Store) -> None:
    partition = Partition("device-7")
    await add(store, new("first", partition=partition), new("second", partition=partition))
    first = await take_one(store)
    assert (await the(store, Ref("default", "second"))).state is State.WAITING
    await store.delete([first.ref], running=True)
    assert (await take_one(store)).id == "second"


async def test_a_deleted_running_job_frees_its_unique_key(store: Store) -> None:
    unique = UniqueKey("order-7", period=DAY, phases=RUNNING_PHASE | FINISHED_PHASE)
    job = await running(store, unique=unique)
    await store.delete([job.ref], running=True)
    await add(store, new(unique=unique))


async def test_a_deleted_running_batch_takes_its_members_with_it(store: Store) -> None:
    await add(store, *(member(size=2) for _ in range(2)))
    batch = await take_one(store)
    (one, _) = batch.members
    assert await store.delete([Ref("default", one)], running=True) == [State.COLLECTING]
    assert await store.delete([batch.ref], running=True) == [State.RUNNING]
    assert await all_jobs(store) == []
    assert await counts(store) == {}


async def test_a_wait_for_a_deleted_running_job_ends(store: Store) -> None:
    job = await running(store)
    waiter = asyncio.create_task(store.wait_for_end([job.ref], timeout=60_000))
    await asleep(waiter)
    await store.delete([job.ref], running=True)
    assert await asyncio.wait_for(waiter, SOON) == [None]


# ── purge ──


@each("state", sorted(set(State) - {State.RUNNING}))
async def test_purge_removes_the_jobs_of_a_state(store: Store, state: State) -> None:
    await one_of_each(store, "q")
    assert await store.purge("q", [state]) == 1
    assert await counts(store, "q") == {each: 1 for each in State if each is not state}
    assert await store.purge("q", [state]) == 0


async def test_purge_never_removes_running_jobs(store: Store) -> None:
    await one_of_each(store, "q")
    assert await store.purge("q", [State.RUNNING]) == 0
    assert await store.purge("q", list(State)) == len(State) - 1
    assert await counts(store, "q") == {State.RUNNING: 1}


async def test_purge_removes_the_oldest_up_to_its_limit(store: Store) -> None:
    dead = [await in_state(store, State.DEAD) for _ in range(2)]
    waiting = some(3)
    await add(store, *waiting)
    assert await store.purge("default", [State.AVAILABLE, State.DEAD], limit=3) == 3
    assert ids(await all_jobs(store)) == [waiting[2].id, waiting[1].id]
    assert [await gone(store, job) for job in dead] == [True, True]
    assert await store.purge("default", [State.AVAILABLE], limit=0) == 0
    assert await store.purge("default", [State.AVAILABLE]) == 2


async def test_purge_looks_at_one_queue_only(store: Store) -> None:
    await add(store, new(queue="a"), new(queue="b"))
    assert await store.purge("a", [State.AVAILABLE]) == 1
    assert await store.purge("nowhere", [State.AVAILABLE]) == 0
    assert await store.purge("b", []) == 0
    assert [queue.name for queue in await store.queues()] == ["a", "b"]
    assert await counts(store, "b") == {State.AVAILABLE: 1}


async def test_purge_by_default_takes_ten_thousand(store: Store) -> None:
    await add(store, *some(10_001))
    assert await store.purge("default", [State.AVAILABLE]) == 10_000
    assert await store.purge("default", [State.AVAILABLE]) == 1
