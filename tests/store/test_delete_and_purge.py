"""delete and purge: remove jobs, never running ones."""

from __future__ import annotations

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Ref, State
from penstock.stores.contract import Store
from tests.store.facts import (
    COMPLETED,
    DAY,
    add,
    all_jobs,
    counts,
    end,
    gone,
    ids,
    in_state,
    new,
    one_of_each,
    running,
    some,
    take,
    the,
)


@pytest.mark.parametrize("state", sorted(set(State) - {State.RUNNING}))
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


# ── purge ──


@pytest.mark.parametrize("state", sorted(set(State) - {State.RUNNING}))
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
