"""promote: makes due jobs available, the earliest first."""

from __future__ import annotations

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.stores.contract import Due, Store
from tests.cases import each
from tests.store.facts import (
    MINUTE,
    add,
    counts,
    end,
    ids,
    in_state,
    new,
    retryable,
    running,
    snoozed,
    some,
    take,
    the,
)


async def test_nothing_moves_before_its_time(store: Store, clock: ManualClock) -> None:
    spec = new(delay=10)
    await add(store, spec)
    clock.advance(9)
    assert await store.promote(["default"], limit=9) == Due(0, clock.now() + 1, clock.now())
    clock.advance(1)
    assert await store.promote(["default"], limit=9) == Due(1, None, clock.now())
    job = await the(store, spec)
    assert (job.state, job.run_at, job.attempt) == (State.AVAILABLE, clock.now(), 0)
    assert ids(await take(store)) == [spec.id]


async def test_retries_and_snoozes_come_back_when_they_are_due(store: Store, clock: ManualClock) -> None:
    failed, asleep = await running(store), await running(store)
    await end(store, failed, retryable(20))
    await end(store, asleep, snoozed(10))
    clock.advance(10)
    assert await store.promote(["default"], limit=9) == Due(1, clock.now() + 10, clock.now())
    assert (await the(store, asleep)).state is State.AVAILABLE
    clock.advance(10)
    assert await store.promote(["default"], limit=9) == Due(1, None, clock.now())
    again = await the(store, failed)
    assert (again.state, again.attempt, len(again.errors)) == (State.AVAILABLE, 1, 1)


async def test_the_limit_holds_and_the_earliest_go_first(store: Store, clock: ManualClock) -> None:
    await add(store, new("c", delay=30), new("a", delay=10), new("d", delay=40), new("b", delay=20))
    clock.advance(35)
    assert await store.promote(["default"], limit=2) == Due(2, clock.now() - 5, clock.now())
    assert ids(await take(store, 9)) == ["a", "b"]
    assert await store.promote(["default"], limit=2) == Due(1, clock.now() + 5, clock.now())
    assert await store.promote(["default"], limit=2) == Due(0, clock.now() + 5, clock.now())


async def test_no_limit_left_moves_nothing(store: Store, clock: ManualClock) -> None:
    await add(store, new(delay=1))
    clock.advance(2)
    assert await store.promote(["default"], limit=0) == Due(0, clock.now() - 1, clock.now())


async def test_the_limit_is_shared_by_all_queues_the_earliest_of_all_first(
    store: Store, clock: ManualClock
) -> None:
    await add(
        store,
        new("a2", queue="a", delay=20),
        new("b1", queue="b", delay=10),
        new("b3", queue="b", delay=30),
        new("a4", queue="a", delay=40),
    )
    clock.advance(50)
    assert (await store.promote(["a", "b"], limit=3)).moved == 3
    assert ids(await take(store, 9, "a")) == ["a2"]
    assert ids(await take(store, 9, "b")) == ["b1", "b3"]


async def test_only_the_named_queues_are_promoted(store: Store, clock: ManualClock) -> None:
    await add(store, new(queue="a", delay=5), new(queue="b", delay=1))
    clock.advance(9)
    assert await store.promote(["a"], limit=9) == Due(1, None, clock.now())
    assert await counts(store, "b") == {State.SCHEDULED: 1}
    assert await store.promote([], limit=9) == Due(0, None, clock.now())
    assert await store.promote(["nowhere"], limit=9) == Due(0, None, clock.now())
    assert [queue.name for queue in await store.queues()] == ["a", "b"]


async def test_paused_and_closed_queues_are_promoted_too(store: Store, clock: ManualClock) -> None:
    await add(store, new(delay=1))
    await store.settings("default", paused=True, closed=True)
    clock.advance(1)
    assert (await store.promote(["default"], limit=9)).moved == 1
    assert await counts(store) == {State.AVAILABLE: 1}


@each("state", sorted(set(State) - {State.SCHEDULED, State.RETRYABLE, State.SUSPENDED}))
async def test_only_jobs_that_wait_for_their_time_are_promoted(
    store: Store, clock: ManualClock, state: State
) -> None:
    job = await in_state(store, state)
    clock.advance(MINUTE)
    due = await store.promote(["default"], limit=9)
    partition = await store.partition(job.ref)
    assert due == Due(0, None if partition is None else partition.due, clock.now())
    assert await the(store, job) == job


async def test_many_are_promoted_in_their_order(store: Store, clock: ManualClock) -> None:
    jobs = some(2_100, delay=1)
    await add(store, *jobs)
    clock.advance(1)
    assert (await store.promote(["default"], limit=2_050)).moved == 2_050
    assert ids(await take(store, 3_000)) == ids(jobs[:2_050])
