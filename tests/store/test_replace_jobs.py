"""replace_jobs: a new job in the place of another one, in one step."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import ConfigError
from penstock.core.job import Ref, State
from penstock.core.limits import LimitChange
from penstock.core.relations import Partition
from penstock.core.unique import ALL_PHASES, UniqueKey
from penstock.stores.contract import (
    DayCount,
    Enqueued,
    EnqueueStatus,
    Replacement,
    Settled,
    Settlement,
    Share,
    Store,
    Wake,
)
from tests.cases import each
from tests.store.facts import (
    COMPLETED,
    HOUR,
    add,
    asleep,
    counts,
    gone,
    in_state,
    new,
    running,
    some,
    take,
    take_one,
    the,
)


async def replaced(store: Store, old: Ref, **facts: object) -> Enqueued:
    (answer,) = await store.replace_jobs([Replacement(old, new(queue=old.queue, **facts))])
    return answer


@each("state", sorted(set(State) - {State.WAITING, State.COLLECTING}))
async def test_a_job_in_any_state_is_replaced(store: Store, state: State) -> None:
    old = await in_state(store, state)
    answer = await replaced(store, old.ref, payload=b"2")
    assert answer.status is EnqueueStatus.NEW
    assert await gone(store, old)
    assert (await the(store, Ref("default", answer.id))).spec.payload == b"2"
    assert await counts(store) == {State.AVAILABLE: 1}
    assert (await take_one(store)).id == answer.id


async def test_a_job_that_does_not_exist_is_replaced_too(store: Store) -> None:
    answer = await replaced(store, Ref("other", "nobody"), delay=HOUR)
    assert answer.status is EnqueueStatus.NEW
    assert await counts(store, "other") == {State.SCHEDULED: 1}


async def test_the_lease_of_a_replaced_job_is_lost_and_counts_as_processed(store: Store) -> None:
    job = await running(store)
    await replaced(store, job.ref)
    assert await store.settle([Settlement(job.lease, COMPLETED)]) == [Settled.GONE]
    (stats,) = await store.stats()
    assert (stats.enqueued, stats.processed, stats.failed) == (2, 1, 0)
    assert [(day.processed, day.failed) for day in stats.days if isinstance(day, DayCount)] == [(1, 0)]


@pytest.mark.parametrize("state", [State.AVAILABLE, State.RUNNING, State.DEAD])
async def test_a_new_job_that_is_refused_leaves_the_other(store: Store, state: State) -> None:
    old = await in_state(store, state)
    other = new()
    await add(store, other)
    same = Replacement(old.ref, new(other.id))
    assert await store.replace_jobs([same]) == [Enqueued(EnqueueStatus.EXISTS, other.id)]
    assert await store.replace_jobs([Replacement(old.ref, new(old.id))]) == [
        Enqueued(EnqueueStatus.EXISTS, old.id)
    ]
    await store.settings("default", limits=LimitChange.of(max_size=1))
    assert (await replaced(store, old.ref)).status is EnqueueStatus.FULL
    await store.settings("default", closed=True)
    assert (await replaced(store, old.ref)).status is EnqueueStatus.CLOSED
    assert await the(store, old) == old
    assert sum((await counts(store)).values()) == 2


async def test_a_unique_key_that_is_held_leaves_the_other(store: Store) -> None:
    key = UniqueKey("k", HOUR, ALL_PHASES)
    first, old = new(unique=key), new()
    await add(store, first, old)
    answer = await replaced(store, old.ref, unique=key)
    assert answer == Enqueued(EnqueueStatus.DUPLICATE, first.id)
    assert not await gone(store, old)


async def test_each_replacement_is_answered(store: Store) -> None:
    jobs = some(3)
    await add(store, *jobs, new(queue="b"))
    news = some(3)
    pairs = [Replacement(job.ref, one) for job, one in zip(jobs, news, strict=True)]
    assert await store.replace_jobs(pairs) == [Enqueued(EnqueueStatus.NEW, one.id) for one in news]
    assert await store.replace_jobs([]) == []
    assert [job.id for job in await take(store, 9)] == [one.id for one in news]
    assert await counts(store, "b") == {State.AVAILABLE: 1}


async def test_jobs_of_different_queues_do_not_replace_each_other(store: Store) -> None:
    job = new()
    await add(store, job)
    with pytest.raises(ConfigError, match="cannot replace"):
        await store.replace_jobs([Replacement(job.ref, new(queue="other"))])
    assert not await gone(store, job)


async def test_a_replaced_job_makes_room_for_the_next(store: Store) -> None:
    await store.settings("default", limits=LimitChange.of(max_running=1))
    first = await running(store)
    await add(store, new("next", priority=1))
    assert await take(store, 1) == []
    await replaced(store, first.ref)
    assert (await take_one(store)).id == "next"
    one, two = [new(queue="p", partition=Partition("k", 1)) for _ in range(2)]
    await add(store, one, two)
    await replaced(store, one.ref)
    assert {job.id for job in await take(store, 9, "p")} >= {two.id}


async def test_a_waiter_is_woken_for_the_new_job(store: Store) -> None:
    old = new(delay=HOUR)
    await add(store, old)
    wait = asyncio.create_task(store.wait(["default"], timeout=20_000, on_due=lambda due, now: None))
    await asleep(wait)
    await replaced(store, old.ref)
    assert Wake.WORK in await wait


async def test_a_wait_for_the_end_of_a_replaced_job_returns(store: Store) -> None:
    old = new(delay=HOUR)
    await add(store, old)
    wait = asyncio.create_task(store.wait_for_end([old.ref], timeout=20_000))
    await asleep(wait)
    await replaced(store, old.ref)
    assert await wait == [None]


# ── unique keys of removed jobs ──


@each("state", [State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.COMPLETED])
async def test_a_key_with_a_period_stays_held_if_it_is_to_be_kept(
    store: Store, clock: ManualClock, state: State
) -> None:
    key = UniqueKey("k", HOUR, ALL_PHASES)
    retention = {"retention": HOUR} if state is State.COMPLETED else {}
    job = await in_state(store, state, unique=key, **retention)
    await store.delete([job.ref], running=True, keep_keys=True)
    assert await gone(store, job)
    again = new(unique=key)
    assert await store.enqueue([again]) == [Enqueued(EnqueueStatus.DUPLICATE, job.id)]
    clock.advance(HOUR + 1)
    assert (await store.enqueue([again]))[0].status is EnqueueStatus.NEW


async def test_a_key_without_a_period_is_freed(store: Store) -> None:
    job, again = new(unique=UniqueKey("k")), new(unique=UniqueKey("k"))
    await add(store, job)
    await store.delete([job.ref], keep_keys=True)
    assert (await store.enqueue([again]))[0].status is EnqueueStatus.NEW


async def test_a_dead_job_holds_no_key_that_could_be_kept(store: Store) -> None:
    key = UniqueKey("k", HOUR, ALL_PHASES)
    job = await in_state(store, State.DEAD, unique=key)
    other = new(unique=key)
    await add(store, other)
    await store.delete([job.ref], keep_keys=True)
    assert await store.enqueue([new(unique=key)]) == [Enqueued(EnqueueStatus.DUPLICATE, other.id)]


async def test_the_key_of_a_replaced_job_stays_held(store: Store) -> None:
    key = UniqueKey("k", HOUR, ALL_PHASES)
    job = new(unique=key)
    await add(store, job)
    await replaced(store, job.ref)
    assert await store.enqueue([new(unique=key)]) == [Enqueued(EnqueueStatus.DUPLICATE, job.id)]
    found = await store.fetch([Share("default", 9, 9)], limit=9, lease=HOUR, worker="w", token="t")
    assert len(found.jobs) == 1
