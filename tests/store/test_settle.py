"""settle: applies each transition whose lease still holds, and counts it."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import MAX_ERRORS, TERMINAL, Progress, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.outcomes import QueuePosition
from penstock.core.unique import UniqueKey
from penstock.stores.contract import HeartbeatRequest, Settled, Settlement, Store
from tests.cases import case, each
from tests.store.facts import (
    AGAIN,
    CANCELLED,
    COMPLETED,
    DEAD,
    ENDINGS,
    HOUR,
    KEEP,
    LEASE,
    MINUTE,
    PARKED,
    PUT_BACK,
    RELEASED,
    add,
    all_jobs,
    counts,
    end,
    error,
    gone,
    ids,
    in_state,
    new,
    retryable,
    running,
    snoozed,
    some,
    take,
    take_one,
    the,
)

# ── the facts after each transition ──


async def test_completed(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(40)
    await end(store, job, COMPLETED, result=b'{"a": 1}')
    assert await the(store, job) == replace(
        job,
        state=State.COMPLETED,
        ended_at=clock.now(),
        token=None,
        worker=None,
        result=b'{"a": 1}',
    )
    assert await counts(store) == {State.COMPLETED: 1}


async def test_cancelled(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(40)
    await end(store, job, CANCELLED)
    assert await the(store, job) == replace(
        job, state=State.CANCELLED, ended_at=clock.now(), token=None, worker=None, reason="not wanted"
    )


async def test_dead(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(40)
    await end(store, job, DEAD)
    assert await the(store, job) == replace(
        job,
        state=State.DEAD,
        ended_at=clock.now(),
        token=None,
        worker=None,
        errors=(DEAD.error,),
        reason="ValueError: no luck",
    )


async def test_dead_without_a_charge(store: Store) -> None:
    """As a job ends whose deadline had passed before it could start."""
    job = await running(store)
    await end(store, job, replace(DEAD, charge=False))
    dead = await the(store, job)
    assert (dead.state, dead.attempt, dead.reason) == (State.DEAD, 0, "ValueError: no luck")
    assert await counts(store) == {State.DEAD: 1}


async def test_retryable(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(40)
    await end(store, job, retryable(MINUTE))
    assert await the(store, job) == replace(
        job,
        state=State.RETRYABLE,
        run_at=clock.now() + MINUTE,
        token=None,
        worker=None,
        errors=(AGAIN.error,),
    )
    assert await take(store) == []


async def test_again_at_once(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(40)
    await end(store, job, AGAIN)
    assert await the(store, job) == replace(
        job, state=State.AVAILABLE, run_at=clock.now(), token=None, worker=None, errors=(AGAIN.error,)
    )
    assert (await take_one(store)).attempt == 2


@pytest.mark.parametrize("state", [State.RETRYABLE, State.AVAILABLE])
async def test_what_is_no_failure_costs_nothing_and_says_why(
    store: Store, clock: ManualClock, state: State
) -> None:
    job = await running(store)
    clock.advance(40)
    delay = MINUTE if state is State.RETRYABLE else 0
    await end(store, job, Transition(state, delay=delay, charge=False, reason="no failure: Busy"))
    after = await the(store, job)
    assert (after.state, after.attempt, after.errors) == (state, job.attempt - 1, job.errors)
    assert (after.run_at, after.reason) == (clock.now() + delay, "no failure: Busy")
    (stats,) = await store.stats()
    assert (stats.processed, stats.failed) == (0, 0)
    clock.advance(delay)
    await store.promote(["default"], limit=10)
    assert (await take_one(store)).attempt == job.attempt


async def test_snoozed(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(40)
    await end(store, job, snoozed(MINUTE))
    assert await the(store, job) == replace(
        job, state=State.SCHEDULED, attempt=0, run_at=clock.now() + MINUTE, token=None, worker=None
    )


async def test_snoozed_for_no_time_waits_for_promotion(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    await end(store, job, snoozed(0))
    assert (await the(store, job)).state is State.SCHEDULED
    due = await store.promote(["default"], limit=1)
    assert (due.moved, due.next) == (1, None)
    assert (await take_one(store)).attempt == 1


async def test_released(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(40)
    await end(store, job, RELEASED)
    assert await the(store, job) == replace(
        job, state=State.AVAILABLE, attempt=0, run_at=clock.now(), token=None, worker=None
    )


async def test_put_back(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(40)
    await end(store, job, PUT_BACK)  # to its own place: since when it is due does not change
    assert await the(store, job) == replace(job, state=State.AVAILABLE, attempt=0, token=None, worker=None)


@each("place", list(QueuePosition))
async def test_parked(store: Store, clock: ManualClock, place: QueuePosition) -> None:
    job = await running(store)
    clock.advance(40)
    await end(store, job, replace(PARKED, place=place))
    assert await the(store, job) == replace(
        job, state=State.PARKED, attempt=0, token=None, worker=None, reason="nobody knows it"
    )


async def test_what_the_attempt_did_not_say_stays(store: Store) -> None:
    for n, ending in enumerate(sorted(ENDINGS)):
        with case(ending):
            await _stays(store, ending, f"q{n}")


async def _stays(store: Store, ending: str, queue: str) -> None:
    job = await running(store, queue=queue, retention=KEEP)
    await store.extend(
        [HeartbeatRequest(job.lease, LEASE, started=True, progress=Progress(1), checkpoint=b"p1")]
    )
    await store.cancel([job.ref])
    transition = replace(ENDINGS[ending], keep=KEEP)
    await end(store, job, transition)
    after = await the(store, job)
    assert (after.progress, after.checkpoint, after.cancel_asked) == (Progress(1), b"p1", True)
    assert (after.started, after.token, after.worker) == (False, None, None)
    assert (after.spec, after.generation, after.enqueued_at) == (job.spec, job.generation, job.enqueued_at)
    assert (after.fetched_at, after.lost) == (job.fetched_at, 0)


# ── the parts of a transition ──


async def test_charge_decides_whether_the_attempt_counts(store: Store) -> None:
    for n, (ending, charge) in enumerate(product(sorted(ENDINGS), [True, False])):
        with case(ending, charge):
            job = await running(store, queue=f"q{n}")
            await end(store, job, replace(ENDINGS[ending], charge=charge, keep=KEEP))
            assert (await the(store, job)).attempt == (1 if charge else 0)


async def test_a_lost_lease_is_counted(store: Store) -> None:
    for n, ending in enumerate(sorted(ENDINGS)):
        with case(ending):
            job = await running(store, queue=f"q{n}")
            await end(store, job, replace(ENDINGS[ending], lost=True, keep=KEEP))
            assert (await the(store, job)).lost == 1


async def test_losses_add_up(store: Store) -> None:
    await add(store, new())
    for n in range(1, 4):
        job = await take_one(store)
        await end(store, job, replace(AGAIN, lost=True))
        assert (await the(store, job)).lost == n


@each("state", sorted(TERMINAL))
async def test_what_is_not_to_be_kept_is_removed_in_the_same_step(store: Store, state: State) -> None:
    job = await running(store)
    await end(store, job, Transition(state, keep=0), result=b"1")
    assert await gone(store, job)
    assert await counts(store) == {}
    assert await all_jobs(store) == []


async def test_keep_means_nothing_to_a_job_that_goes_on(store: Store) -> None:
    job = await running(store)
    await end(store, job, replace(AGAIN, keep=0))
    assert not await gone(store, job)


async def test_only_a_job_that_ends_has_a_result(store: Store) -> None:
    job = await running(store)
    await end(store, job, AGAIN, result=b"half")
    assert (await the(store, job)).result is None
    again = await take_one(store)
    await end(store, again, DEAD, result=b"last words")
    assert (await the(store, job)).result == b"last words"


async def test_only_the_newest_errors_stay(store: Store) -> None:
    await add(store, new())
    for n in range(1, MAX_ERRORS + 4):
        job = await take_one(store)
        assert job.attempt == n
        await end(store, job, Transition(State.AVAILABLE, error=error(n, f"error – {n}")))
    last = await the(store, job)
    assert [e.attempt for e in last.errors] == list(range(4, MAX_ERRORS + 4))
    assert last.errors[-1] == error(MAX_ERRORS + 3, f"error – {MAX_ERRORS + 3}")


# ── whose lease holds ──


async def test_a_second_settlement_is_stale(store: Store) -> None:
    job = await running(store)
    await end(store, job)
    before = await the(store, job)
    assert await store.settle([Settlement(job.lease, DEAD)]) == [Settled.STALE]
    assert await the(store, job) == before


async def test_a_second_settlement_of_what_was_removed_is_gone(store: Store) -> None:
    job = await running(store)
    await end(store, job, Transition(State.COMPLETED))
    assert await store.settle([Settlement(job.lease, AGAIN)]) == [Settled.GONE]
    assert await gone(store, job)


async def test_a_batch_answers_item_by_item_and_sees_its_earlier_items(store: Store) -> None:
    await add(store, *some(3))
    a, b, c = await take(store, 3)
    nobody = replace(a.lease, id="nobody")
    assert await store.settle(
        [
            Settlement(b.lease, Transition(State.COMPLETED)),
            Settlement(nobody, COMPLETED),
            Settlement(a.lease, DEAD),
            Settlement(a.lease, COMPLETED),
            Settlement(b.lease, COMPLETED),
            Settlement(replace(c.lease, token="not this one"), COMPLETED),
            Settlement(replace(c.lease, queue="nowhere"), COMPLETED),
        ]
    ) == [
        Settled.APPLIED,
        Settled.GONE,
        Settled.APPLIED,
        Settled.STALE,
        Settled.GONE,
        Settled.STALE,
        Settled.GONE,
    ]
    assert await counts(store) == {State.DEAD: 1, State.RUNNING: 1}
    assert await store.settle([]) == []


async def test_a_holder_keeps_its_lease_until_somebody_reclaims_it(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(24 * HOUR)
    await end(store, job)
    assert (await the(store, job)).state is State.COMPLETED


async def test_a_bare_ref_settles_the_running_attempt_only(store: Store) -> None:
    job = await running(store)
    bare = Settlement(job.ref, AGAIN)
    assert await store.settle([bare]) == [Settled.APPLIED]
    before = await the(store, job)
    assert before.state is State.AVAILABLE
    assert await store.settle([bare, Settlement(Ref("default", "nobody"), AGAIN)]) == [
        Settled.STALE,
        Settled.GONE,
    ]
    assert await the(store, job) == before


async def test_running_is_no_end_of_an_attempt(store: Store) -> None:
    good, bad = await running(store), await running(store)
    with pytest.raises(ValueError, match="running"):
        await store.settle(
            [Settlement(good.lease, COMPLETED), Settlement(bad.lease, Transition(State.RUNNING))]
        )
    assert await store.get([good.ref, bad.ref]) == [good, bad]


async def test_a_queue_that_is_paused_or_closed_does_not_mind(store: Store) -> None:
    a, b = await running(store), await running(store)
    await store.settings("default", paused=True, closed=True)
    await end(store, a, COMPLETED)
    await end(store, b, RELEASED)
    assert await counts(store) == {State.COMPLETED: 1, State.AVAILABLE: 1}


async def test_a_thousand_are_settled_at_once(store: Store) -> None:
    await add(store, *some(2_100))
    jobs = await take(store, 2_100)
    half = Transition(State.COMPLETED)
    answers = await store.settle(
        [Settlement(job.lease, half if n % 2 else DEAD, b"r") for n, job in enumerate(jobs)]
    )
    assert answers == [Settled.APPLIED] * 2_100
    assert await counts(store) == {State.DEAD: 1_050}


# ── jobs that follow ──


async def test_jobs_that_follow_are_enqueued_in_the_same_step(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    next_one, later = new(), new(delay=MINUTE, queue="other")
    await end(store, job, COMPLETED, then=(next_one, later))
    assert (await the(store, next_one)).state is State.AVAILABLE
    assert (await the(store, next_one)).enqueued_at == clock.now()
    assert (await the(store, later)).state is State.SCHEDULED
    assert await counts(store, "other") == {State.SCHEDULED: 1}
    assert {s.name: s.enqueued for s in await store.stats()} == {"default": 2, "other": 1}


async def test_jobs_may_follow_any_end(store: Store) -> None:
    for n, ending in enumerate(sorted(ENDINGS)):
        with case(ending):
            job = await running(store, queue=f"q{n}")
            following = new(queue=f"q{n}")
            await end(store, job, ENDINGS[ending], then=(following,))
            assert (await the(store, following)).state is State.AVAILABLE


async def test_no_jobs_follow_a_settlement_that_does_not_apply(store: Store) -> None:
    job = await running(store)
    stale, lost = new(), new()
    assert await store.settle(
        [
            Settlement(replace(job.lease, token="not this one"), COMPLETED, then=(stale,)),
            Settlement(replace(job.lease, id="nobody"), COMPLETED, then=(lost,)),
        ]
    ) == [Settled.STALE, Settled.GONE]
    assert await store.get([stale.ref, lost.ref]) == [None, None]
    assert await counts(store) == {State.RUNNING: 1}


async def test_a_closed_queue_takes_what_follows_a_job_that_was_accepted(store: Store) -> None:
    job = await running(store)
    await store.settings("default", closed=True)
    following = new()
    await end(store, job, COMPLETED, then=(following,))
    assert (await the(store, following)).state is State.AVAILABLE


async def test_what_follows_and_is_there_already_is_left_out(store: Store) -> None:
    unique = UniqueKey("k")
    there, holder = new(), new(unique=unique, delay=HOUR)
    await add(store, there, holder)
    job = await take_one(store)
    more = new()
    await end(store, job, DEAD, then=(new(there.id, task="other"), new(unique=unique), more))
    assert (await the(store, there)).task == "t"
    assert ids(await all_jobs(store)) == [more.id, holder.id, there.id]


async def test_a_job_may_be_followed_by_one_of_its_own_id_or_key(store: Store) -> None:
    spec = new(unique=UniqueKey("k"))
    await add(store, spec)
    first = await take_one(store)
    await end(store, first, Transition(State.COMPLETED), then=(spec,))
    second = await take_one(store)
    assert second.id == first.id
    assert second.generation > first.generation
    other = new(unique=UniqueKey("k"))
    await end(store, second, COMPLETED, then=(other,))
    assert (await the(store, other)).state is State.AVAILABLE


async def test_jobs_that_follow_come_in_their_order_after_what_was_there(store: Store) -> None:
    await add(store, *some(3))
    a, b, c = await take(store, 3)
    waiting = new("waiting")
    await add(store, waiting)
    await store.settle(
        [
            Settlement(b.lease, COMPLETED, then=(new("b1"), new("b2"))),
            Settlement(c.lease, AGAIN, then=(new("c1"),)),
            Settlement(a.lease, COMPLETED, then=(new("a1"),)),
        ]
    )
    assert ids(await take(store, 9)) == ["waiting", "b1", "b2", c.id, "c1", "a1"]


async def test_a_settled_job_stays_where_it_is(store: Store) -> None:
    first = await in_state(store, State.COMPLETED)
    second = await in_state(store, State.SCHEDULED)
    assert ids(await all_jobs(store)) == [second.id, first.id]
