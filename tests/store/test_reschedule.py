"""reschedule: gives queued jobs a new time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import Ref, State
from penstock.stores.contract import Store
from tests.cases import each
from tests.store.facts import (
    HOUR,
    MINUTE,
    add,
    end,
    ids,
    in_state,
    new,
    retryable,
    running,
    some,
    take,
    the,
)

MOVABLE = [State.SCHEDULED, State.AVAILABLE, State.RETRYABLE]


@pytest.mark.parametrize("state", MOVABLE)
async def test_a_time_to_come_schedules(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state)
    clock.advance(3)
    assert await store.reschedule([job.ref], delay=HOUR) == [state]
    moved = await the(store, job)
    assert moved == replace(job, state=State.SCHEDULED, run_at=clock.now() + HOUR)
    assert await take(store, 9) == []
    clock.advance(HOUR - 1)
    assert (await store.promote(["default"], limit=9)).moved == 0
    clock.advance(1)
    assert (await store.promote(["default"], limit=9)).moved == 1


@pytest.mark.parametrize("state", MOVABLE)
async def test_an_instant_wins_over_a_delay(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state)
    at = clock.now() + HOUR
    assert await store.reschedule([job.ref], delay=5, run_at=at) == [state]
    assert (await the(store, job)).run_at == at


@each("state", MOVABLE)
@each("ago", [0, MINUTE])
async def test_a_time_that_has_come_makes_available(
    store: Store, clock: ManualClock, state: State, ago: int
) -> None:
    job = await in_state(store, state)
    clock.advance(3)
    run_at = clock.now() - ago
    assert await store.reschedule([job.ref], run_at=run_at) == [state]
    assert await the(store, job) == replace(job, state=State.AVAILABLE, run_at=run_at)
    assert ids(await take(store)) == [job.id]


async def test_now_is_the_default(store: Store, clock: ManualClock) -> None:
    job = await in_state(store, State.SCHEDULED)
    await store.reschedule([job.ref])
    assert await the(store, job) == replace(job, state=State.AVAILABLE, run_at=clock.now())


async def test_it_goes_to_the_tail_also_if_it_was_available(store: Store) -> None:
    first, second = some(2)
    await add(store, first, new("late", delay=HOUR), second)
    await store.reschedule([Ref("default", "late"), first.ref])
    assert ids(await take(store, 9)) == [second.id, "late", first.id]


async def test_the_former_time_means_nothing_any_more(store: Store, clock: ManualClock) -> None:
    job = await in_state(store, State.SCHEDULED)
    await store.reschedule([job.ref], delay=HOUR)
    clock.advance(MINUTE)
    due = await store.promote(["default"], limit=9)
    assert (due.moved, due.next) == (0, clock.now() + HOUR - MINUTE)


@each("state", sorted(set(State) - {*MOVABLE, State.WAITING, State.COLLECTING}))
async def test_others_stay_as_they_are(store: Store, state: State) -> None:
    job = await in_state(store, state)
    assert await store.reschedule([job.ref], delay=HOUR) == [state]
    assert await store.reschedule([job.ref]) == [state]
    assert await the(store, job) == job


async def test_attempts_and_errors_stay(store: Store) -> None:
    job = await running(store)
    await end(store, job, retryable())
    await store.reschedule([job.ref])
    (again,) = await take(store)
    assert (again.attempt, len(again.errors)) == (2, 1)


async def test_an_expiry_stays_what_it_was(store: Store, clock: ManualClock) -> None:
    spec = new(expires_in=MINUTE)
    await add(store, spec)
    await store.reschedule([spec.ref], delay=HOUR)
    clock.advance(HOUR)
    assert (await store.promote(["default"], limit=9)).moved == 0
    assert (await the(store, spec)).state is State.CANCELLED


async def test_a_batch_answers_item_by_item(store: Store) -> None:
    late, busy = await in_state(store, State.SCHEDULED), await running(store)
    refs = [busy.ref, Ref("default", "nobody"), late.ref, Ref("nowhere", "x"), late.ref]
    assert await store.reschedule(refs) == [
        State.RUNNING,
        None,
        State.SCHEDULED,
        None,
        State.AVAILABLE,
    ]
    assert await store.reschedule([]) == []
    assert [queue.name for queue in await store.queues()] == ["default"]


async def test_many_are_moved_at_once(store: Store, clock: ManualClock) -> None:
    jobs = some(1_100)
    await add(store, *jobs)
    assert await store.reschedule([job.ref for job in jobs], delay=5) == [State.AVAILABLE] * 1_100
    assert await take(store, 9) == []
    clock.advance(5)
    await store.promote(["default"], limit=2_000)
    assert ids(await take(store, 2_000)) == ids(jobs)  # the same time: in order of enqueue
