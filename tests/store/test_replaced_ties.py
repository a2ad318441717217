"""Replaced arguments move a job to the lane, the turn and the group that they call for."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.batch import Group
from penstock.core.clock import ManualClock
from penstock.core.job import Job, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.limits import Rate
from penstock.core.partition import Lane, Turn
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

A, B = Lane("a"), Lane("b")
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
    assert (found.spec.lane, found.spec.turn) == (again.lane, again.turn)
    return found


# ── lanes ──


async def test_four_jobs_that_are_moved_into_one_lane_run_one_at_a_time(store: Store) -> None:
    await add(store, *(movable(f"j-{n}", lane=Lane(f"{n}")) for n in range(4)))
    states = [(await call_again(store, f"j-{n}", lane=B)).state for n in range(4)]
    assert states == [State.AVAILABLE] + [State.WAITING] * 3
    for n in range(4):
        (job,) = await take(store, 9)
        assert job.id == f"j-{n}"
        await end(store, job, GONE)
    assert await counts(store) == {}


@pytest.mark.parametrize("to", [B, None], ids=["another lane", "no lane"])
async def test_a_job_that_leaves_its_lane_lets_the_next_one_in(store: Store, to: Lane | None) -> None:
    await add(store, movable("one", lane=A), new("two", lane=A))
    assert (await call_again(store, "one", lane=to)).state is State.AVAILABLE
    assert await counts(store) == {State.AVAILABLE: 2}
    assert sorted(ids(await take(store, 9))) == ["one", "two"]


@pytest.mark.parametrize("to", [B, None], ids=["another lane", "no lane"])
async def test_a_job_that_waits_need_not_where_there_is_room(store: Store, to: Lane | None) -> None:
    await add(store, new("one", lane=A), movable("two", lane=A), new("three", lane=A))
    assert (await call_again(store, "two", lane=to)).state is State.AVAILABLE
    first = await take(store, 9)
    assert sorted(ids(first)) == ["one", "two"]
    await end(store, next(job for job in first if job.id == "one"), GONE)
    assert ids(await take(store, 9)) == ["three"]


async def test_it_joins_behind_those_that_wait_there(store: Store) -> None:
    await add(store, movable("one", lane=A, priority=5), new("b1", lane=B, priority=5))
    await add(store, new("b2", lane=B, priority=5))
    assert (await call_again(store, "one", lane=B)).state is State.WAITING
    order = []
    while jobs := await take(store, 9):
        (job,) = jobs
        order.append(job.id)
        await end(store, job, GONE)
    assert order == ["b1", "b2", "one"]


async def test_a_job_without_a_lane_gets_one(store: Store) -> None:
    await add(store, new("one", lane=A), movable("two"))
    assert (await call_again(store, "two", lane=A)).state is State.WAITING
    (one,) = await take(store, 9)
    await end(store, one, GONE)
    assert ids(await take(store, 9)) == ["two"]


async def test_one_that_is_due_later_comes_into_its_new_lane(store: Store, clock: ManualClock) -> None:
    await add(store, movable("later", lane=A, delay=MINUTE), new("a", lane=A), new("b", lane=B))
    assert (await call_again(store, "later", lane=B)).state is State.SCHEDULED
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    assert (await the(store, movable("later"))).state is State.WAITING
    running = await take(store, 9)
    assert sorted(ids(running)) == ["a", "b"]
    await end(store, next(job for job in running if job.id == "b"), GONE)
    assert ids(await take(store, 9)) == ["later"]


@pytest.mark.parametrize("way", [retryable(), PARKED, snoozed()], ids=lambda way: str(way.state))
async def test_an_ordered_lane_is_free_once_its_job_has_left_it(store: Store, way: Transition) -> None:
    ordered = Lane("a", ordered=True)
    await add(store, movable("one", lane=ordered), new("two", lane=ordered))
    await end(store, await take_one(store), way)
    assert await take(store, 9) == []
    found = await call_again(store, "one", lane=B)
    assert found.state is way.state
    assert ids(await take(store, 9)) == ["two"]


async def test_a_rate_counts_the_starts_of_its_own_lane_alone(store: Store, clock: ManualClock) -> None:
    slow = Lane("slow", most=9, rate=Rate(1, MINUTE))
    await add(store, movable("one", lane=slow), new("two", lane=slow))
    await call_again(store, "one", lane=A)
    assert sorted(ids(await take(store, 9))) == ["one", "two"]
    await add(store, new("three", lane=slow))
    assert await take(store, 9) == []
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    assert ids(await take(store, 9)) == ["three"]


async def test_with_a_new_time_it_leaves_at_once_and_joins_when_it_is_due(
    store: Store, clock: ManualClock
) -> None:
    await add(store, movable("one", lane=A), new("two", lane=A), new("b", lane=B))
    found = await call_again(store, "one", lane=B, replace=3, delay=MINUTE)
    assert found.state is State.SCHEDULED
    assert sorted(ids(await take(store, 9))) == ["b", "two"]
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    assert (await the(store, found)).state is State.WAITING


async def test_a_time_alone_moves_nothing(store: Store) -> None:
    await add(store, new("a", lane=A), movable("one", lane=A))
    again = new(unique=UniqueKey("one", None, replace=2), lane=B, turn=Turn("t"), delay=DAY)
    (answer,) = await store.enqueue([again])
    assert answer.status is EnqueueStatus.REPLACED
    found = await the(store, movable("one"))
    assert (found.state, found.spec.lane, found.spec.turn) == (State.SCHEDULED, A, None)


async def test_the_same_lane_keeps_its_place(store: Store) -> None:
    await add(store, movable("one", lane=A), movable("two", lane=A), new("three", lane=A))
    for id in ("two", "one"):
        await call_again(store, id, lane=A)
    order = []
    while jobs := await take(store, 9):
        order += ids(jobs)
        await end(store, jobs[0], GONE)
    assert order == ["one", "two", "three"]


# ── turns ──


async def test_it_takes_the_turn_of_its_new_tenant(store: Store) -> None:
    a, b = Turn("a"), Turn("b")
    await add(store, *(new(f"a{n}", turn=a) for n in range(4)), movable("moved", turn=a))
    await add(store, new("last", turn=a))
    await call_again(store, "moved", turn=b)
    assert ids(await take(store, 2)) == ["a0", "moved"]
    assert ids(await take(store, 9)) == ["a1", "a2", "a3", "last"]


async def test_with_its_first_turn_a_queue_becomes_fair(store: Store) -> None:
    await add(store, movable("one"), new("two"))
    await call_again(store, "one", turn=Turn("a"))
    await add(store, new("a", turn=Turn("a")), new("b", turn=Turn("b")))
    assert ids(await take(store, 9)) == ["two", "one", "b", "a"]


# ── groups ──


async def test_a_member_moves_to_the_group_of_its_new_key(store: Store) -> None:
    one, other = (Group(key, 3, DAY) for key in ("one", "other"))
    await add(store, movable("m", group=one, payload=b"1"), new("n", group=one, payload=b"1"))
    await add(store, new("o", group=other, payload=b"1"))
    assert (await call_again(store, "m", group=other)).state is State.GROUPED
    sizes = {info.key: info.size for info in await store.groups()}
    assert sizes == {"one": 1, "other": 2}
    await add(store, new("p", group=other, payload=b"1"))
    (batch,) = await take(store, 9)
    assert batch.members == ("o", "m", "p")
    assert batch.spec.payload == b"[[1,[2],1]]"


async def test_a_member_that_makes_its_new_group_full_starts_the_batch(store: Store) -> None:
    one, other = (Group(key, 2, DAY) for key in ("one", "other"))
    await add(store, movable("m", group=one, payload=b"1"), new("o", group=other, payload=b"1"))
    await call_again(store, "m", group=other)
    (batch,) = await take(store, 9)
    assert batch.members == ("o", "m")
    assert await store.groups() == []
