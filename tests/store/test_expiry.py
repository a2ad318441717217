"""Expiry: a job that was not started in time is cancelled by the first verb that meets it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import FINISHED_KEPT, State
from penstock.core.lifecycle import EXPIRED, kept
from penstock.stores.contract import Due, Share, Store, Wake, WorkerInfo
from tests.store.facts import (
    AGAIN,
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    PARKED,
    add,
    counts,
    end,
    gone,
    ids,
    new,
    retryable,
    running,
    snoozed,
    some,
    take,
    take_one,
    the,
    token,
)


async def test_a_job_starts_before_its_expiry_and_not_from_then_on(store: Store, clock: ManualClock) -> None:
    in_time, late = new(expires_in=10), new(expires_in=10)
    await add(store, in_time, late)
    clock.advance(9)
    assert (await take_one(store)).id == in_time.id
    clock.advance(1)
    assert await take(store) == []
    before = await the(store, late)
    assert before.state is State.CANCELLED


async def test_an_expired_job_that_fetch_meets_is_cancelled(store: Store, clock: ManualClock) -> None:
    spec = new(expires_in=10)
    await add(store, spec)
    before = await the(store, spec)
    clock.advance(15)
    assert await take(store) == []
    assert await the(store, spec) == replace(
        before, state=State.CANCELLED, ended_at=clock.now(), reason=EXPIRED
    )
    assert await counts(store) == {State.CANCELLED: 1}
    (stats,) = await store.stats()
    assert (stats.processed, stats.failed) == (0, 0)


async def test_expired_jobs_do_not_count_for_limit_quota_or_cap(store: Store, clock: ManualClock) -> None:
    await add(store, *some(3, expires_in=1), new("a"), *some(3, expires_in=1), new("b"), new("c"))
    clock.advance(1)
    share = [Share("default", 1, 2)]
    fetched = await store.fetch(share, limit=2, lease=LEASE, worker="w1", token=token())
    assert ids(fetched.jobs) == ["a", "b"]
    assert await counts(store) == {State.CANCELLED: 6, State.RUNNING: 2, State.AVAILABLE: 1}


async def test_expired_jobs_behind_the_last_one_that_is_leased_are_not_met(
    store: Store, clock: ManualClock
) -> None:
    late = new(expires_in=1)
    await add(store, new("a"), late)
    clock.advance(1)
    assert ids(await take(store, 1)) == ["a"]
    assert (await the(store, late)).state is State.AVAILABLE


async def test_a_fetch_for_nothing_meets_nothing(store: Store, clock: ManualClock) -> None:
    late = new(expires_in=1)
    await add(store, late)
    clock.advance(1)
    assert await take(store, 0) == []
    await store.settings("default", paused=True)
    assert await take(store, 9) == []
    assert (await the(store, late)).state is State.AVAILABLE


async def test_any_number_of_expired_jobs_hides_no_good_one(store: Store, clock: ManualClock) -> None:
    await add(store, *some(5_000, expires_in=1), new("good"))
    clock.advance(1)
    found: list[str] = []
    while not found:  # a store may do it in steps, as long as it says that there is more
        assert await store.wait(["default"], timeout=0) is Wake.WORK
        before = await counts(store)
        found = ids(await take(store, 1))
        assert await counts(store) != before
    assert found == ["good"]
    assert await counts(store) == {State.CANCELLED: 5_000, State.RUNNING: 1}


async def test_a_parked_job_expires_too(store: Store, clock: ManualClock) -> None:
    job = await running(store, expires_in=MINUTE)
    await end(store, job, PARKED)
    await store.announce(WorkerInfo("w1", "host", 1, 0, (), ("t",), 1))
    await add(store, new("next"))
    clock.advance(MINUTE)
    assert ids(await take(store, 1)) == ["next"]
    assert (await the(store, job)).reason == EXPIRED


async def test_an_expired_job_is_not_promoted_but_cancelled(store: Store, clock: ManualClock) -> None:
    late, good = new(delay=5, expires_in=10), new(delay=9)
    await add(store, late, good)
    clock.advance(10)
    assert await store.promote(["default"], limit=9) == Due(1, None, clock.now())
    assert ((await the(store, late)).state, (await the(store, late)).reason) == (State.CANCELLED, EXPIRED)
    assert (await the(store, good)).state is State.AVAILABLE


async def test_an_expired_job_counts_for_the_limit_of_a_promotion(store: Store, clock: ManualClock) -> None:
    await add(store, *some(2, delay=5, expires_in=6), *some(2, delay=9))
    clock.advance(10)
    assert await store.promote(["default"], limit=3) == Due(1, clock.now() - 1, clock.now())
    assert await counts(store) == {State.CANCELLED: 2, State.AVAILABLE: 1, State.SCHEDULED: 1}


async def test_an_expired_job_that_is_not_due_yet_waits_for_prune(store: Store, clock: ManualClock) -> None:
    spec = new(delay=DAY, expires_in=HOUR)
    await add(store, spec)
    clock.advance(HOUR)
    assert (await store.promote(["default"], limit=9)).moved == 0
    assert (await the(store, spec)).state is State.SCHEDULED
    assert (await store.prune()).expired == 1


@pytest.mark.parametrize("ending", [retryable(MINUTE), snoozed(MINUTE)], ids=lambda t: t.state)
async def test_a_job_expires_between_its_attempts_too(store: Store, clock: ManualClock, ending) -> None:
    job = await running(store, expires_in=MINUTE)
    await end(store, job, ending)
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    ended = await the(store, job)
    assert (ended.state, ended.reason) == (State.CANCELLED, EXPIRED)
    assert ended.errors == ((ending.error,) if ending.error else ())


async def test_a_job_that_has_started_in_time_may_take_its_time(store: Store, clock: ManualClock) -> None:
    job = await running(store, expires_in=MINUTE)
    clock.advance(HOUR)
    await end(store, job, AGAIN)
    assert await take(store) == []  # but its next attempt is too late
    assert (await the(store, job)).reason == EXPIRED


@pytest.mark.parametrize("retention", [0, DAY])
async def test_an_expired_job_is_kept_as_a_cancelled_one(
    store: Store, clock: ManualClock, retention: int
) -> None:
    spec = new(expires_in=1, retention=retention)
    await add(store, spec)
    clock.advance(1)
    await take(store)
    keep = kept(spec, State.CANCELLED)
    assert keep == max(FINISHED_KEPT, retention)
    clock.advance(keep - 1)
    assert (await store.prune()).finished == 0
    clock.advance(1)
    assert (await store.prune()).finished == 1
    assert await gone(store, spec)


async def test_a_job_that_is_expired_from_the_start_is_stored_and_never_runs(
    store: Store, clock: ManualClock
) -> None:
    spec = new(expires_at=clock.now() - 1)
    await add(store, spec)
    assert await take(store) == []
    assert (await the(store, spec)).reason == EXPIRED


async def test_a_wall_clock_that_is_set_moves_the_expiry(store: Store, clock: ManualClock) -> None:
    spec = new(expires_in=MINUTE)
    await add(store, spec)
    clock.set_wall(clock.now() - HOUR)
    clock.advance(MINUTE)
    assert ids(await take(store)) == [spec.id]
