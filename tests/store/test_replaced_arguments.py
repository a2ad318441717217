"""Replaced arguments move a job to their partition, tenant and batch."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Job, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.limits import Rate
from penstock.core.relations import BatchTerms, Partition, Tenant
from penstock.core.unique import UniqueKey
from penstock.stores.contract import EnqueueStatus, Store
from tests.store.facts import (
    DAY,
    MINUTE,
    PARKED,
    add,
    counts,
    end,
    ids,
    new,
    retryable,
    snoozed,
    take,
    take_one,
    the,
)

A, B = Partition("a"), Partition("b")
GONE = Transition(State.COMPLETED)


def movable(id: str, *, replace: int = 1, **facts: Any) -> NewJob:
    return new(id, unique=UniqueKey(id, None, replace=replace), **facts)


async def call_again(store: Store, id: str, **facts: Any) -> Job:
    """Its unique call with other arguments: the job as it is then."""
    replace = facts.pop("replace", 1)
    again = new(unique=UniqueKey(id, None, replace=replace), payload=b"[2]", **facts)
    (answer,) = await store.enqueue([again])
    assert (answer.status, answer.id) == (EnqueueStatus.REPLACED, id)
    (found,) = await store.find(id)
    assert found.spec.payload == b"[2]"
    assert (found.spec.partition, found.spec.tenant) == (again.partition, again.tenant)
    return found


# ── partitions ──


async def test_four_jobs_that_are_moved_into_one_partition_run_one_at_a_time(store: Store) -> None:
    await add(store, *(movable(f"j-{n}", partition=Partition(f"{n}")) for n in range(4)))
    states = [(await call_again(store, f"j-{n}", partition=B)).state for n in range(4)]
    assert states == [State.AVAILABLE] + [State.WAITING] * 3
    for n in range(4):
        (job,) = await take(store, 9)
        assert job.id == f"j-{n}"
        await end(store, job, GONE)
    assert await counts(store) == {}


@pytest.mark.parametrize("to", [B, None], ids=["another partition", "no partition"])
async def test_a_job_that_leaves_its_partition_lets_the_next_one_in(
    store: Store, to: Partition | None
) -> None:
    await add(store, movable("one", partition=A), new("two", partition=A))
    assert (await call_again(store, "one", partition=to)).state is State.AVAILABLE
    assert await counts(store) == {State.AVAILABLE: 2}
    assert sorted(ids(await take(store, 9))) == ["one", "two"]


@pytest.mark.parametrize("to", [B, None], ids=["another partition", "no partition"])
async def test_a_job_that_waits_need_not_where_there_is_room(store: Store, to: Partition | None) -> None:
    await add(store, new("one", partition=A), movable("two", partition=A), new("three", partition=A))
    assert (await call_again(store, "two", partition=to)).state is State.AVAILABLE
    first = await take(store, 9)
    assert sorted(ids(first)) == ["one", "two"]
    await end(store, next(job for job in first if job.id == "one"), GONE)
    assert ids(await take(store, 9)) == ["three"]


async def test_it_joins_behind_those_that_wait_there(store: Store) -> None:
    await add(store, movable("one", partition=A, priority=5), new("b1", partition=B, priority=5))
    await add(store, new("b2", partition=B, priority=5))
    assert (await call_again(store, "one", partition=B)).state is State.WAITING
    order = []
    while jobs := await take(store, 9):
        (job,) = jobs
        order.append(job.id)
        await end(store, job, GONE)
    assert order == ["b1", "b2", "one"]


async def test_a_job_without_a_partition_gets_one(store: Store) -> None:
    await add(store, new("one", partition=A), movable("two"))
    assert (await call_again(store, "two", partition=A)).state is State.WAITING
    (one,) = await take(store, 9)
    await end(store, one, GONE)
    assert ids(await take(store, 9)) == ["two"]


async def test_one_that_is_due_later_comes_into_its_new_partition(store: Store, clock: ManualClock) -> None:
    await add(
        store, movable("later", partition=A, delay=MINUTE), new("a", partition=A), new("b", partition=B)
    )
    assert (await call_again(store, "later", partition=B)).state is State.SCHEDULED
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    assert (await the(store, movable("later"))).state is State.WAITING
    running = await take(store, 9)
    assert sorted(ids(running)) == ["a", "b"]
    await end(store, next(job for job in running if job.id == "b"), GONE)
    assert ids(await take(store, 9)) == ["later"]


@pytest.mark.parametrize("way", [retryable(), PARKED, snoozed()], ids=lambda way: str(way.state))
async def test_an_ordered_partition_is_free_once_its_job_has_left_it(store: Store, way: Transition) -> None:
    ordered = Partition("a", ordered=True)
    await add(store, movable("one", partition=ordered), new("two", partition=ordered))
    await end(store, await take_one(store), way)
    assert await take(store, 9) == []
    found = await call_again(store, "one", partition=B)
    assert found.state is way.state
    assert ids(await take(store, 9)) == ["two"]


async def test_a_rate_counts_the_starts_of_its_own_partition_alone(store: Store, clock: ManualClock) -> None:
    slow = Partition("slow", most=9, rate=Rate(1, MINUTE))
    await add(store, movable("one", partition=slow), new("two", partition=slow))
    await call_again(store, "one", partition=A)
    assert sorted(ids(await take(store, 9))) == ["one", "two"]
    await add(store, new("three", partition=slow))
    assert await take(store, 9) == []
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    assert ids(await take(store, 9)) == ["three"]


async def test_with_a_new_time_it_leaves_at_once_and_joins_when_it_is_due(
    store: Store, clock: ManualClock
) -> None:
    await add(store, movable("one", partition=A), new("two", partition=A), new("b", partition=B))
    found = await call_again(store, "one", partition=B, replace=3, delay=MINUTE)
    assert found.state is State.SCHEDULED
    assert sorted(ids(await take(store, 9))) == ["b", "two"]
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    assert (await the(store, found)).state is State.WAITING


async def test_a_time_alone_moves_nothing(store: Store) -> None:
    await add(store, new("a", partition=A), movable("one", partition=A))
    again = new(unique=UniqueKey("one", None, replace=2), partition=B, tenant=Tenant("t"), delay=DAY)
    (answer,) = await store.enqueue([again])
    assert answer.status is EnqueueStatus.REPLACED
    found = await the(store, movable("one"))
    assert (found.state, found.spec.partition, found.spec.tenant) == (State.SCHEDULED, A, None)


async def test_the_same_partition_keeps_its_place(store: Store) -> None:
    await add(store, movable("one", partition=A), movable("two", partition=A), new("three", partition=A))
    for id in ("two", "one"):
        await call_again(store, id, partition=A)
    order = []
    while jobs := await take(store, 9):
        order += ids(jobs)
        await end(store, jobs[0], GONE)
    assert order == ["one", "two", "three"]


# ── fair share ──


async def test_it_takes_the_turn_of_its_new_tenant(store: Store) -> None:
    a, b = Tenant("a"), Tenant("b")
    await add(store, *(new(f"a{n}", tenant=a) for n in range(4)), movable("moved", tenant=a))
    await add(store, new("last", tenant=a))
    await call_again(store, "moved", tenant=b)
    assert ids(await take(store, 2)) == ["a0", "moved"]
    assert ids(await take(store, 9)) == ["a1", "a2", "a3", "last"]


async def test_with_its_first_turn_a_queue_becomes_fair(store: Store) -> None:
    await add(store, movable("one"), new("two"))
    await call_again(store, "one", tenant=Tenant("a"))
    await add(store, new("a", tenant=Tenant("a")), new("b", tenant=Tenant("b")))
    assert ids(await take(store, 9)) == ["two", "one", "b", "a"]


# ── batches ──


async def test_a_member_moves_to_the_batch_of_its_new_key(store: Store) -> None:
    one, other = (BatchTerms(key, 3, DAY) for key in ("one", "other"))
    await add(store, movable("m", batch_terms=one, payload=b"1"), new("n", batch_terms=one, payload=b"1"))
    await add(store, new("o", batch_terms=other, payload=b"1"))
    assert (await call_again(store, "m", batch_terms=other)).state is State.COLLECTING
    sizes = {info.key: info.size for info in await store.batches()}
    assert sizes == {"one": 1, "other": 2}
    await add(store, new("p", batch_terms=other, payload=b"1"))
    (batch,) = await take(store, 9)
    assert batch.members == ("o", "m", "p")
    assert batch.spec.payload == b"[[1,[2],1]]"


async def test_a_member_that_makes_its_new_batch_full_starts_the_batch(store: Store) -> None:
    one, other = (BatchTerms(key, 2, DAY) for key in ("one", "other"))
    await add(store, movable("m", batch_terms=one, payload=b"1"), new("o", batch_terms=other, payload=b"1"))
    await call_again(store, "m", batch_terms=other)
    (batch,) = await take(store, 9)
    assert batch.members == ("o", "m")
    assert await store.batches() == []
