"""Ordered partitions: one job at a time, in the order of joining; a started job stays first until its end."""

from __future__ import annotations

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.core.relations import Partition
from penstock.stores.contract import Store, WorkerInfo
from tests.store.facts import (
    LEASE,
    MINUTE,
    PARKED,
    RELEASED,
    SECOND,
    add,
    end,
    ids,
    new,
    retryable,
    snoozed,
    some,
    take,
    take_one,
    the,
    token,
)

PARTITION = Partition("k", ordered=True)


async def drained(store: Store) -> list[str]:
    """The ids of all that can be run, one after the other."""
    seen = []
    while jobs := await take(store, 9):
        assert len(jobs) == 1
        seen.append(jobs[0].id)
        await end(store, jobs[0])
    return seen


async def test_jobs_run_one_at_a_time_in_the_order_of_enqueue(store: Store) -> None:
    jobs = some(6, partition=PARTITION)
    await add(store, *jobs)
    assert await drained(store) == ids(jobs)


async def test_priority_does_not_change_the_order(store: Store) -> None:
    jobs = [new(partition=PARTITION, priority=priority) for priority in (0, -5, 9, 3)]
    await add(store, *jobs)
    assert await drained(store) == ids(jobs)


@pytest.mark.parametrize("way", [retryable(SECOND), snoozed(SECOND)])
async def test_one_that_comes_back_later_blocks_its_key(
    store: Store, clock: ManualClock, way: Transition
) -> None:
    jobs = some(3, partition=PARTITION)
    await add(store, *jobs)
    await end(store, await take_one(store), way)
    assert await take(store, 9) == []
    clock.advance(SECOND)
    await store.promote(["default"], limit=9)
    assert await drained(store) == ids(jobs)


async def test_a_parked_one_blocks_its_key(store: Store) -> None:
    jobs = some(2, partition=PARTITION)
    await add(store, *jobs)
    await end(store, await take_one(store), PARKED)
    assert await take(store, 9) == []
    await store.announce(WorkerInfo("w1", "host", 1, 0, (), ("t",), 1))
    assert await drained(store) == ids(jobs)


async def test_a_released_one_and_a_reclaimed_one_are_first_again(store: Store, clock: ManualClock) -> None:
    jobs = some(3, partition=PARTITION)
    await add(store, *jobs)
    await end(store, await take_one(store), RELEASED)
    assert (await take_one(store)).id == jobs[0].id
    clock.advance(LEASE)
    found = await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())
    assert ids(found.jobs) == [jobs[0].id]
    await end(store, found.jobs[0], RELEASED)
    assert await drained(store) == ids(jobs)


@pytest.mark.parametrize("act", ["cancel", "delete"])
async def test_one_that_is_taken_away_blocks_no_longer(store: Store, act: str) -> None:
    jobs = some(3, partition=PARTITION)
    await add(store, *jobs)
    await end(store, await take_one(store), retryable(MINUTE))
    await getattr(store, act)([jobs[0].ref])
    assert await drained(store) == ids(jobs[1:])


async def test_an_operators_retry_of_the_first_does_not_cost_it_its_place(store: Store) -> None:
    jobs = some(3, partition=PARTITION)
    await add(store, *jobs)
    await end(store, await take_one(store), retryable(MINUTE))
    await store.retry([jobs[0].ref])
    assert await drained(store) == ids(jobs)


async def test_a_dead_one_that_is_retried_joins_at_the_tail(store: Store) -> None:
    jobs = some(3, partition=PARTITION)
    await add(store, *jobs)
    await end(store, await take_one(store), Transition(State.DEAD, keep=MINUTE))
    assert await store.retry([jobs[0].ref]) == [State.DEAD]
    assert (await the(store, jobs[0])).state is State.WAITING
    assert await drained(store) == [jobs[1].id, jobs[2].id, jobs[0].id]


async def test_delayed_ones_join_in_the_order_in_which_they_are_due(store: Store, clock: ManualClock) -> None:
    late, early, now = (new(partition=PARTITION, delay=delay) for delay in (2 * SECOND, SECOND, 0))
    await add(store, late, early, now)
    clock.advance(2 * SECOND)
    await store.promote(["default"], limit=9)
    assert await drained(store) == [now.id, early.id, late.id]


async def test_other_keys_go_on(store: Store) -> None:
    blocked = some(2, partition=PARTITION)
    other = new(partition=Partition("other", ordered=True))
    await add(store, *blocked, other)
    await end(store, await take_one(store), retryable(MINUTE))
    assert await drained(store) == [other.id]
