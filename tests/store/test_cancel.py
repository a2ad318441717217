"""cancel: ends queued jobs at once, and requests cancellation of running ones."""

from __future__ import annotations

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import FINISHED_KEPT, QUEUED, TERMINAL, Ref, State
from penstock.core.lifecycle import ASK_CANCELLED, LOST_BY
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Store, WorkerInfo
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    CANCELLED,
    COMPLETED,
    DAY,
    ENDINGS,
    HOUR,
    LEASE,
    RELEASED,
    add,
    counts,
    end,
    gone,
    in_state,
    new,
    retryable,
    running,
    take,
    take_one,
    the,
    token,
)


@each("state", sorted(QUEUED))
async def test_a_queued_job_is_cancelled_at_once(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state)
    clock.advance(5)
    assert await store.cancel([job.ref]) == [State.CANCELLED]
    ended = await the(store, job)
    assert (ended.state, ended.reason, ended.ended_at) == (State.CANCELLED, ASK_CANCELLED, clock.now())
    assert (ended.attempt, ended.errors, ended.run_at) == (job.attempt, job.errors, job.run_at)
    assert not ended.cancel_asked
    assert await counts(store) == {State.CANCELLED: 1}
    clock.advance(DAY)
    assert (await store.promote(["default"], limit=9)).moved == 0
    assert await take(store, 9) == []


async def test_a_reason_of_ones_own_is_kept(store: Store) -> None:
    job = await in_state(store, State.SCHEDULED)
    await store.cancel([job.ref], reason="paid – order 17")
    assert (await the(store, job)).reason == "paid – order 17"


async def test_a_running_job_is_asked_and_goes_on(store: Store) -> None:
    job = await running(store)
    assert await store.cancel([job.ref], reason="paid") == [State.RUNNING]
    asked = await the(store, job)
    assert asked.cancel_asked
    assert (asked.state, asked.token, asked.reason) == (State.RUNNING, job.token, None)
    assert await store.extend([HeartbeatRequest(job.lease, LEASE)]) == [LeaseStatus.CANCEL_ASKED]


async def test_asking_twice_is_asking_once(store: Store) -> None:
    job = await running(store)
    assert await store.cancel([job.ref, job.ref]) == [State.RUNNING, State.RUNNING]
    assert (await the(store, job)).cancel_asked


async def test_an_asked_job_may_still_complete(store: Store) -> None:
    job = await running(store)
    await store.cancel([job.ref])
    await end(store, job, COMPLETED, result=b"1")
    ended = await the(store, job)
    assert (ended.state, ended.result) == (State.COMPLETED, b"1")


async def test_an_asked_job_that_goes_back_is_still_asked_when_it_is_fetched_again(store: Store) -> None:
    job = await running(store)
    await store.cancel([job.ref])
    await end(store, job, RELEASED)
    assert (await the(store, job)).state is State.AVAILABLE
    again = await take_one(store)
    assert again.cancel_asked
    assert await store.extend([HeartbeatRequest(again.lease, LEASE)]) == [LeaseStatus.CANCEL_ASKED]


async def test_an_asked_job_that_waits_for_its_retry_is_cancelled_at_once(store: Store) -> None:
    job = await running(store)
    await store.cancel([job.ref])
    await end(store, job, retryable())
    assert await store.cancel([job.ref]) == [State.CANCELLED]


async def test_a_retry_by_an_operator_forgets_that_anybody_asked(store: Store) -> None:
    job = await running(store)
    await store.cancel([job.ref])
    await end(store, job, AGAIN)
    await store.retry([job.ref])
    assert not (await the(store, job)).cancel_asked


@pytest.mark.parametrize("reason", ["by the user – now", ""])
async def test_the_reason_of_a_request_to_stop_is_that_of_the_job_which_stops(
    store: Store, reason: str
) -> None:
    job = await running(store)
    await store.cancel([job.ref], reason=reason)
    await store.cancel([job.ref], reason="too late to say")
    await end(store, job, CANCELLED)
    assert (await the(store, job)).reason == reason


async def test_a_request_without_a_reason_leaves_it_to_who_settles(store: Store) -> None:
    job = await running(store)
    await store.cancel([job.ref])
    await end(store, job, CANCELLED)
    assert (await the(store, job)).reason == CANCELLED.reason


@each("way", ["released", "put back", "again at once", "parked"])
async def test_the_reason_of_a_request_goes_with_the_job_until_it_stops(store: Store, way: str) -> None:
    await store.announce(WorkerInfo("w1", "host", 1, 0, (), ("t",), 1))
    job = await running(store)
    await store.cancel([job.ref], reason="by the user")
    await end(store, job, ENDINGS[way])
    waits = await the(store, job)
    assert (waits.cancel_asked, waits.reason) == (True, "by the user"), "an operator can see why it will stop"
    again = await take_one(store)
    assert (again.cancel_asked, again.reason) == (True, None)
    await end(store, again, CANCELLED)
    assert (await the(store, job)).reason == "by the user"


async def test_the_reason_of_a_request_outlives_the_worker_that_was_asked(
    store: Store, clock: ManualClock
) -> None:
    job = await running(store)
    await store.cancel([job.ref], reason="by the user")
    clock.advance(LEASE + 1)
    (found,) = (await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())).jobs
    assert (found.reason or "").startswith(LOST_BY)
    await end(store, found, AGAIN)
    await end(store, await take_one(store), CANCELLED)
    assert (await the(store, job)).reason == "by the user"


@pytest.mark.parametrize("way", ["completed", "dead"])
async def test_what_ends_in_another_way_has_the_reason_of_that(store: Store, way: str) -> None:
    job = await running(store)
    await store.cancel([job.ref], reason="by the user")
    await end(store, job, ENDINGS[way])
    assert (await the(store, job)).reason == ENDINGS[way].reason


async def test_a_retry_by_an_operator_forgets_the_reason_too(store: Store) -> None:
    job = await running(store)
    await store.cancel([job.ref], reason="by the user")
    await end(store, job, CANCELLED)
    await store.retry([job.ref])
    again = await take_one(store)
    await store.cancel([job.ref])
    await end(store, again, CANCELLED)
    assert (await the(store, job)).reason == CANCELLED.reason


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_an_ended_job_stays_as_it_is(store: Store, state: State) -> None:
    job = await in_state(store, state)
    assert await store.cancel([job.ref], reason="late") == [state]
    assert await the(store, job) == job


async def test_a_missing_job_cannot_be_cancelled(store: Store) -> None:
    assert await store.cancel([Ref("default", "nobody"), Ref("nowhere", "x")]) == [None, None]
    assert await store.cancel([]) == []
    assert await store.queues() == []


async def test_a_batch_answers_item_by_item(store: Store) -> None:
    done = await in_state(store, State.COMPLETED)
    busy = await running(store)
    late = await in_state(store, State.SCHEDULED)
    asked = [late.ref, busy.ref, Ref("default", "nobody"), done.ref, late.ref]
    assert await store.cancel(asked) == [
        State.CANCELLED,
        State.RUNNING,
        None,
        State.COMPLETED,
        State.CANCELLED,
    ]


@pytest.mark.parametrize("retention", [0, HOUR])
async def test_a_cancelled_job_is_kept_for_its_retention_and_ten_minutes_at_least(
    store: Store, clock: ManualClock, retention: int
) -> None:
    spec = new(retention=retention)
    await add(store, spec)
    await store.cancel([spec.ref])
    clock.advance(max(FINISHED_KEPT, retention) - 1)
    assert (await store.prune()).finished == 0
    clock.advance(1)
    assert (await store.prune()).finished == 1
    assert await gone(store, spec)


async def test_cancelling_counts_nothing_as_processed(store: Store) -> None:
    await store.cancel([(await in_state(store, State.SCHEDULED)).ref])
    (stats,) = await store.stats()
    assert (stats.enqueued, stats.processed, stats.failed, stats.days) == (1, 0, 0, [])


async def test_many_are_cancelled_at_once(store: Store) -> None:
    jobs = [new() for _ in range(1_200)]
    await add(store, *jobs)
    assert await store.cancel([job.ref for job in jobs]) == [State.CANCELLED] * 1_200
    assert await counts(store) == {State.CANCELLED: 1_200}
