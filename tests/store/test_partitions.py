"""Partitions: at most `most` jobs of a key run at once; the end of one admits the next."""

from __future__ import annotations

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.core.limits import Rate
from penstock.core.outcomes import QueuePosition
from penstock.core.relations import Partition
from penstock.stores.contract import PartitionInfo, Store, WorkerInfo
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    ENDINGS,
    HOUR,
    MINUTE,
    PARKED,
    PUT_BACK,
    RELEASED,
    SECOND,
    OpenStore,
    add,
    counts,
    end,
    ids,
    new,
    retryable,
    some,
    take,
    take_one,
    the,
)

ONE = Partition("k")
TWO = Partition("k", most=2)
GONE = Transition(State.COMPLETED)


async def test_only_as_many_as_may_run_at_once_are_available(store: Store) -> None:
    jobs = some(5, partition=TWO)
    await add(store, *jobs)
    assert await counts(store) == {State.AVAILABLE: 2, State.WAITING: 3}
    assert ids(await take(store, 9)) == ids(jobs[:2])
    assert await take(store, 9) == []


async def test_each_key_and_each_queue_has_a_partition_of_its_own(store: Store) -> None:
    await add(
        store,
        *some(2, partition=ONE),
        new(partition=Partition("other")),
        new(partition=ONE, queue="q2"),
        new(),
    )
    assert await counts(store) == {State.AVAILABLE: 3, State.WAITING: 1}
    assert await counts(store, "q2") == {State.AVAILABLE: 1}


@each("name", sorted(ENDINGS))
async def test_a_job_that_leaves_admits_the_next_one(store: Store, name: str) -> None:
    first, second = some(2, partition=ONE)
    await add(store, first, second)
    await end(store, await take_one(store), ENDINGS[name])
    stays = ENDINGS[name].state is State.AVAILABLE
    assert (await the(store, second)).state is (State.WAITING if stays else State.AVAILABLE)


@each("act", ["cancel", "delete", "purge", "reschedule"])
async def test_the_removal_of_a_job_admits_the_next_one(store: Store, act: str) -> None:
    first, second = some(2, partition=ONE)
    await add(store, first, second)
    if act == "purge":
        assert await store.purge("default", [State.AVAILABLE], limit=1) == 1
    elif act == "reschedule":
        await store.reschedule([first.ref], delay=HOUR)
    else:
        await getattr(store, act)([first.ref])
    assert (await the(store, second)).state is State.AVAILABLE


async def test_the_expiry_of_a_job_admits_the_next_one(store: Store, clock: ManualClock) -> None:
    await add(store, new(partition=ONE, expires_in=SECOND))
    second = new(partition=ONE)
    await add(store, second)
    clock.advance(SECOND)
    assert (await store.prune()).expired == 1
    assert (await the(store, second)).state is State.AVAILABLE


async def test_a_fetch_passes_what_has_expired_and_takes_the_next_of_the_partition(
    store: Store, clock: ManualClock
) -> None:
    old = some(3, partition=ONE, expires_in=SECOND)
    late = new(partition=ONE)
    other = new()
    await add(store, *old, late, other)
    clock.advance(SECOND)
    assert ids(await take(store, 9)) == [late.id, other.id]
    assert [(await the(store, job)).state for job in old] == [State.CANCELLED] * 3


async def test_the_order_over_keys_stays_that_of_enqueue(store: Store) -> None:
    a, b = Partition("a"), Partition("b")
    jobs = [new(partition=partition) for partition in (a, a, b, a, b)]
    await add(store, *jobs)
    seen = []
    for _ in range(5):
        job = await take_one(store)
        seen.append(job.id)
        await end(store, job, GONE)
    assert seen == ids(jobs)


async def test_the_higher_priority_waits_less(store: Store) -> None:
    first, low, high = new(partition=ONE), new(partition=ONE), new(partition=ONE, priority=5)
    await add(store, first, low, high)
    await end(store, await take_one(store))
    assert (await take_one(store)).id == high.id


async def test_a_delayed_job_joins_when_it_is_due(store: Store, clock: ManualClock) -> None:
    late, first = new(partition=ONE, delay=MINUTE), new(partition=ONE)
    await add(store, late, first)
    assert (await the(store, late)).state is State.SCHEDULED
    clock.advance(MINUTE)
    assert (await store.promote(["default"], limit=9)).moved == 1
    assert (await the(store, late)).state is State.WAITING
    await end(store, await take_one(store))
    assert (await take_one(store)).id == late.id


async def test_a_retried_job_that_finds_no_room_waits(store: Store, clock: ManualClock) -> None:
    first, second = some(2, partition=ONE)
    await add(store, first, second)
    await end(store, await take_one(store), retryable(SECOND))
    clock.advance(SECOND)
    await store.promote(["default"], limit=9)
    assert (await the(store, first)).state is State.WAITING
    await end(store, await take_one(store))
    assert (await take_one(store)).id == first.id


@pytest.mark.parametrize("transition", [RELEASED, PUT_BACK, AGAIN])
async def test_a_job_that_goes_back_keeps_its_room(store: Store, transition: Transition) -> None:
    first, second = some(2, partition=ONE)
    await add(store, first, second)
    await end(store, await take_one(store), transition)
    assert ids(await take(store, 9)) == [first.id]


async def test_a_parked_job_that_finds_no_room_waits(store: Store) -> None:
    first, second = some(2, partition=ONE)
    await add(store, first, second)
    await end(store, await take_one(store), PARKED)
    await take_one(store)
    await store.announce(WorkerInfo("w2", "host", 1, 0, (), ("t",), 1))
    assert await take(store, 9, worker="w2") == []
    assert (await the(store, first)).state is State.WAITING


async def test_a_parked_job_that_finds_room_starts(store: Store) -> None:
    first, second = some(2, partition=ONE)
    await add(store, first)
    await end(store, await take_one(store), PARKED)
    await store.announce(WorkerInfo("w2", "host", 1, 0, (), ("t",), 1))
    assert (await take_one(store, worker="w2")).id == first.id
    await add(store, second)
    assert (await the(store, second)).state is State.WAITING


@pytest.mark.parametrize("act", ["cancel", "delete"])
async def test_a_waiting_job_can_be_taken_away(store: Store, act: str) -> None:
    first, second, third = some(3, partition=ONE)
    await add(store, first, second, third)
    await getattr(store, act)([second.ref])
    await end(store, await take_one(store))
    assert (await take_one(store)).id == third.id


async def test_a_rescheduled_waiting_job_joins_its_partition_again(store: Store, clock: ManualClock) -> None:
    first, second, third = some(3, partition=ONE)
    await add(store, first, second, third)
    assert await store.reschedule([second.ref], delay=SECOND) == [State.WAITING]
    assert (await the(store, second)).state is State.SCHEDULED
    clock.advance(SECOND)
    await store.promote(["default"], limit=9)
    for expected in (first, third, second):
        job = await take_one(store)
        assert job.id == expected.id
        await end(store, job)


async def test_a_waiting_job_that_is_retried_goes_to_the_tail_of_its_partition(store: Store) -> None:
    first, second, third = some(3, partition=ONE)
    await add(store, first, second, third)
    assert await store.retry([second.ref]) == [State.WAITING]
    await end(store, await take_one(store))
    assert (await take_one(store)).id == third.id


async def test_the_first_in_line_is_looked_at_by_its_own_terms(store: Store) -> None:
    running, single, wide = new(partition=TWO), new(partition=ONE), new(partition=TWO)
    await add(store, running, single, wide)
    assert await counts(store) == {State.AVAILABLE: 1, State.WAITING: 2}
    await store.delete([single.ref])
    assert (await the(store, wide)).state is State.AVAILABLE


async def test_an_operator_sees_whom_a_job_waits_for(store: Store) -> None:
    jobs = some(4, partition=ONE)
    await add(store, *jobs, new())
    await take_one(store)
    info = await store.partition(jobs[2].ref)
    assert info is not None
    assert (info.key, ids(info.admitted), info.waiting, info.before) == ("k", [jobs[0].id], 3, 1)
    assert info.admitted[0].state is State.RUNNING
    first = await store.partition(jobs[0].ref)
    assert first is not None
    assert first.before is None
    assert await store.partition(new().ref) is None


async def test_a_hold_admits_nobody_else_before_its_end(store: Store, clock: ManualClock) -> None:
    first, second, other = new(partition=ONE), new(partition=ONE), new(partition=Partition("other"))
    await add(store, first, second, other)
    held = Transition(State.SCHEDULED, delay=MINUTE, charge=False, throttle_partition=MINUTE)
    await end(store, await take_one(store), held)
    assert ids(await take(store, 9)) == [other.id]
    due = await store.promote(["default"], limit=9)
    assert (due.moved, due.next) == (0, clock.now() + MINUTE)
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    assert ids(await take(store, 9)) == [second.id]


@each("partition", [ONE, TWO, Partition("k", ordered=True), Partition("k", most=3, rate=Rate(1, 10, 9))])
async def test_a_job_that_returns_to_its_throttled_partition_is_first_when_the_throttle_ends(
    store: Store, clock: ManualClock, partition: Partition
) -> None:
    jobs, other = some(5, partition=partition), new(partition=Partition("other"))
    await add(store, *jobs, other)
    first = await take_one(store)
    assert first.id == jobs[0].id
    held = Transition(
        State.AVAILABLE, place=QueuePosition.HEAD, charge=False, reason="429", throttle_partition=MINUTE
    )
    await end(store, first, held)
    seen = await the(store, jobs[0])
    assert (seen.state, seen.attempt, seen.reason) == (State.WAITING, 0, "429")
    info = await store.partition(first.ref)
    assert info is not None
    assert (info.before, info.due) == (0, clock.now() + MINUTE if partition.most == 1 else info.due)
    for job in await take(store, 9):  # those that were let in before, and the other key
        await end(store, job, GONE)
    clock.advance(MINUTE - 1)
    assert (await store.promote(["default"], limit=9)).next == clock.now() + 1
    assert await take(store, 9) == []
    clock.advance(1)
    await store.promote(["default"], limit=9)
    again = await take_one(store)
    assert (again.id, again.attempt) == (jobs[0].id, 1)
    assert (await counts(store))[State.RUNNING] == 1


async def test_a_hold_of_a_partition_outlives_the_others_that_end_in_it(
    store: Store, clock: ManualClock
) -> None:
    jobs = some(4, partition=TWO)
    await add(store, *jobs)
    one, two = await take(store, 2)
    await end(
        store,
        one,
        Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False, throttle_partition=MINUTE),
    )
    await end(
        store,
        two,
        Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False, throttle_partition=SECOND),
    )
    assert await counts(store) == {State.WAITING: 4}
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    assert ids(await take(store, 9)) == [two.id, one.id]


async def test_waiting_jobs_are_listed_and_purged(store: Store) -> None:
    jobs = some(4, partition=ONE)
    await add(store, *jobs)
    page = await store.list_jobs(queue="default", state=State.WAITING)
    assert ids(page.jobs) == ids(jobs[:0:-1])
    assert await store.purge("default", [State.WAITING]) == 3
    assert await counts(store) == {State.AVAILABLE: 1}


async def test_a_queue_that_is_dropped_forgets_its_partitions(store: Store) -> None:
    job = new(partition=ONE)
    await add(store, job)
    await end(store, await take_one(store), Transition(State.COMPLETED, throttle_partition=HOUR))
    assert await store.drop("default")
    await add(store, job)
    assert ids(await take(store, 9)) == [job.id]


async def test_every_store_object_sees_the_partition(open_store: OpenStore) -> None:
    one, other = open_store(), open_store()
    first, second = some(2, partition=ONE)
    await add(one, first)
    await add(other, second)
    await end(other, await take_one(other))
    assert (await take_one(one)).id == second.id


async def test_a_job_that_leaves_its_place_at_the_head_keeps_its_room(store: Store) -> None:
    jobs = some(3, partition=TWO)
    await add(store, *jobs)
    for job in await take(store, 2):
        await end(store, job, Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False))
    assert (await the(store, jobs[2])).state is State.WAITING
    info = await store.partition(jobs[2].ref)
    assert info == PartitionInfo("k", [await the(store, jobs[0]), await the(store, jobs[1])], 1, 0)
