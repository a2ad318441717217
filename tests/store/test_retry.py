"""retry: an operator makes an ended job available again, as a new job."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import TERMINAL, Progress, Ref, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import HeartbeatRequest, Store
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    COMPLETED,
    DAY,
    DEAD,
    HOUR,
    LEASE,
    MINUTE,
    OpenStore,
    add,
    counts,
    end,
    error,
    gone,
    ids,
    in_state,
    member,
    new,
    retryable,
    running,
    some,
    take,
    take_one,
    the,
)


@each("state", sorted(set(State) - {State.RUNNING, State.WAITING, State.COLLECTING}))
async def test_a_job_is_available_now_as_new(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state)
    clock.advance(7)
    assert await store.retry([job.ref]) == [state]
    assert await the(store, job) == replace(
        job,
        state=State.AVAILABLE,
        attempt=0,
        lost=0,
        run_at=clock.now(),
        ended_at=None,
        cancel_asked=False,
        result=None,
        reason=None,
    )
    assert await counts(store) == {State.AVAILABLE: 1}
    assert (await take_one(store)).attempt == 1


async def test_a_running_job_stays_as_it_is(store: Store) -> None:
    job = await running(store)
    await store.cancel([job.ref])
    asked = await the(store, job)
    assert await store.retry([job.ref]) == [State.RUNNING]
    assert await the(store, job) == asked


async def test_attempts_and_losses_are_reset_and_errors_are_kept(store: Store) -> None:
    await add(store, new(max_attempts=2))
    for n in (1, 2):
        job = await take_one(store)
        state = State.AVAILABLE if n == 1 else State.DEAD
        await store.extend([HeartbeatRequest(job.lease, LEASE, progress=Progress(n), checkpoint=b"c")])
        transition = Transition(state, keep=DAY, lost=True, error=error(n), reason="gone")
        await end(store, job, transition, result=b"r")
    dead = await the(store, job)
    assert (dead.attempt, dead.lost, dead.result, dead.reason) == (2, 2, b"r", "gone")
    await store.retry([job.ref])
    back = await the(store, job)
    assert (back.attempt, back.lost, back.result, back.reason, back.ended_at) == (0, 0, None, None, None)
    assert (back.errors, back.checkpoint) == ((error(1), error(2)), b"c")


async def test_it_goes_to_the_tail(store: Store) -> None:
    first, second, third = some(3)
    await add(store, first, second, third)
    await store.retry([first.ref])
    assert ids(await take(store, 9)) == [second.id, third.id, first.id]


async def test_several_go_to_the_tail_in_the_order_given(store: Store) -> None:
    jobs = [await in_state(store, State.DEAD) for _ in range(3)]
    await store.retry([jobs[2].ref, jobs[0].ref, jobs[1].ref])
    assert ids(await take(store, 9)) == [jobs[2].id, jobs[0].id, jobs[1].id]


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_its_retention_begins_anew_with_its_next_end(
    store: Store, clock: ManualClock, state: State
) -> None:
    job = await in_state(store, state)
    await store.retry([job.ref])
    clock.advance(100 * DAY)
    await store.prune(keep_finished=0, keep_dead=0)
    assert (await the(store, job)).state is State.AVAILABLE
    await end(store, await take_one(store), replace(COMPLETED, keep=MINUTE))
    clock.advance(MINUTE - 1)
    assert (await store.prune()).finished == 0
    clock.advance(1)
    assert (await store.prune()).finished == 1
    assert await gone(store, job)


async def test_it_waits_for_its_time_no_longer(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    await end(store, job, retryable())
    await store.retry([job.ref])
    assert ids(await take(store)) == [job.id]
    clock.advance(DAY)
    assert (await store.promote(["default"], limit=9)).moved == 0


async def test_an_expiry_that_has_passed_is_taken_off(store: Store, clock: ManualClock) -> None:
    passed, to_come = new(expires_in=MINUTE), new(expires_in=DAY)
    await add(store, passed, to_come)
    clock.advance(MINUTE)
    assert ids(await take(store, 1)) == [to_come.id]
    expired = await the(store, passed)
    assert expired.state is State.CANCELLED
    await store.cancel([to_come.ref])
    await end(store, await the(store, to_come))
    assert await store.retry([passed.ref, to_come.ref]) == [State.CANCELLED, State.COMPLETED]
    assert (await the(store, passed)).expires_at is None
    assert (await the(store, to_come)).expires_at == to_come.expires_in + expired.enqueued_at  # type: ignore[operator]
    assert ids(await take(store, 9)) == [passed.id, to_come.id]


async def test_a_missing_job_cannot_be_retried(store: Store) -> None:
    assert await store.retry([Ref("default", "nobody"), Ref("nowhere", "x")]) == [None, None]
    assert await store.retry([]) == []
    assert await store.queues() == []


async def test_a_batch_answers_item_by_item(store: Store) -> None:
    dead, busy = await in_state(store, State.DEAD), await running(store)
    refs = [busy.ref, dead.ref, Ref("default", "nobody"), dead.ref]
    assert await store.retry(refs) == [State.RUNNING, State.DEAD, None, State.AVAILABLE]


async def test_a_closed_or_paused_queue_takes_it_back(store: Store) -> None:
    job = await in_state(store, State.DEAD)
    await store.settings("default", paused=True, closed=True)
    assert await store.retry([job.ref]) == [State.DEAD]
    assert await counts(store) == {State.AVAILABLE: 1}


async def test_it_can_be_done_again_and_again(store: Store) -> None:
    await add(store, new(max_attempts=1))
    for _ in range(4):
        job = await take_one(store)
        assert job.attempt == 1
        await end(store, job, DEAD)
        await store.retry([job.ref])
    (stats,) = await store.stats()
    assert (stats.enqueued, stats.processed, stats.failed) == (1, 4, 4)


async def test_a_thousand_come_back_at_once(store: Store, open_store: OpenStore) -> None:
    jobs = some(1_100)
    await add(store, *jobs)
    for job in await take(store, 1_100):
        assert job.attempt == 1
    held = (await store.reclaim([], limit=1_100, lease=LEASE, worker="w2", token="t", of=["w1"])).jobs
    assert len(held) == 1_100
    await end(store, held[0], AGAIN)
    assert await store.retry([job.ref for job in held]) == [State.AVAILABLE] + [State.RUNNING] * 1_099


# ── attempts that are left, and a new expiry ──


@each("left, fetched_as", [(1, 5), (2, 4), (5, 1), (9, 1), (0, 5), (None, 1)])
async def test_it_has_as_many_attempts_left_as_asked_for(
    store: Store, left: int | None, fetched_as: int
) -> None:
    job = await in_state(store, State.DEAD, max_attempts=5)
    assert await store.retry([job.ref], attempts=left) == [State.DEAD]
    assert (await the(store, job)).attempt == fetched_as - 1
    assert (await take_one(store)).attempt == fetched_as


@pytest.mark.parametrize("state", [State.SCHEDULED, State.AVAILABLE, State.RETRYABLE])
async def test_a_queued_job_has_as_many_attempts_left_as_asked_for(store: Store, state: State) -> None:
    job = await in_state(store, state, max_attempts=3)
    await store.retry([job.ref], attempts=1)
    assert (await take_one(store)).attempt == 3


async def test_each_job_counts_by_its_own_most_attempts(store: Store) -> None:
    jobs = [await in_state(store, State.DEAD, max_attempts=n) for n in (1, 3, 25)]
    await store.retry([job.ref for job in jobs], attempts=1)
    assert [job.attempt for job in await take(store, 9)] == [1, 3, 25]


async def test_a_new_expiry_counts_from_the_retry(store: Store, clock: ManualClock) -> None:
    job = await in_state(store, State.DEAD, expires_in=DAY)
    clock.advance(HOUR)
    await store.retry([job.ref], expires_in=MINUTE)
    assert (await the(store, job)).expires_at == clock.now() + MINUTE
    clock.advance(MINUTE)
    assert (await store.prune()).expired == 1
    assert (await the(store, job)).state is State.CANCELLED


async def test_an_expiry_can_be_taken_off(store: Store, clock: ManualClock) -> None:
    dead, queued = await in_state(store, State.DEAD, expires_in=DAY), new(expires_in=DAY)
    await add(store, queued)
    await store.retry([dead.ref, queued.ref], expires_in=None)
    assert [(await the(store, job)).expires_at for job in (dead, queued)] == [None, None]
    clock.advance(2 * DAY)
    assert (await store.prune()).expired == 0
    assert ids(await take(store, 9)) == [dead.id, queued.id]


async def test_the_batch_of_a_member_has_as_many_attempts_left(store: Store) -> None:
    await add(store, member(size=1, max_attempts=4))
    batch = await take_one(store)
    await end(store, batch, DEAD)
    await store.retry([Ref("default", batch.members[0])], attempts=1)
    again = await take_one(store)
    assert (again.id, again.attempt) == (batch.id, 4)
