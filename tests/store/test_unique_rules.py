"""Unique rules: in which states and for how long a key is held, and what happens on a conflict."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.changes import KeyChange, key_change, phase, replaced
from penstock.core.clock import ManualClock
from penstock.core.job import QUEUED, Job, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.unique import FINISHED_PHASE, QUEUED_PHASE, RUNNING_PHASE, UniqueKey
from penstock.stores.contract import Enqueued, EnqueueStatus, Settled, Settlement, Share, Store, Wake
from tests.cases import each
from tests.store.facts import (
    COMPLETED,
    DAY,
    DEAD,
    HOUR,
    KEEP,
    LEASE,
    MINUTE,
    PARKED,
    PUT_BACK,
    RELEASED,
    add,
    counts,
    end,
    error,
    gone,
    in_state,
    new,
    retryable,
    running,
    snoozed,
    take,
    take_one,
    the,
    token,
)
from tests.store.test_unique import held_by

Q, R, F = QUEUED_PHASE, RUNNING_PHASE, FINISHED_PHASE
EVERY_RULE = range(1, 8)


def rule(states: int = Q | R, period: int | None = None, replace: int = 0) -> UniqueKey:
    return UniqueKey("k", period, states, replace)


ARGUMENTS, RUN_AT, BOTH = (rule(replace=n) for n in (1, 2, 3))


# ── phases ──


@pytest.mark.parametrize("state", State)
async def test_a_key_is_held_in_the_phases_that_the_rule_names(store: Store, state: State) -> None:
    for states in EVERY_RULE:
        alone = store.in_namespace(f"rule-{states}")
        job = await in_state(alone, state, unique=rule(states))
        assert await held_by(alone) == (job.id if states & phase(state) else None), f"by the rule {states}"


@pytest.mark.parametrize("how", ["cancel", "expire", "delete", "purge", "dead", "removed"])
async def test_a_key_is_free_at_once_however_its_job_ends_unless_well(
    store: Store, clock: ManualClock, how: str
) -> None:
    for states in EVERY_RULE:
        await _is_free_at_once(store.in_namespace(f"rule-{states}"), clock, how, states)


async def _is_free_at_once(store: Store, clock: ManualClock, how: str, states: int) -> None:
    spec = new(unique=rule(states, HOUR), expires_in=MINUTE if how == "expire" else None)
    await add(store, spec)
    if how == "cancel":
        await store.cancel([spec.ref])
    elif how == "delete":
        await store.delete([spec.ref])
    elif how == "purge":
        await store.purge("default", [State.AVAILABLE])
    elif how == "expire":
        clock.advance(MINUTE)
        await store.prune()
    else:
        await end(store, await take_one(store), Transition(State.DEAD) if how == "removed" else DEAD)
    assert await held_by(store) is None


@each("back", [retryable(), snoozed(), RELEASED, PUT_BACK, PARKED])
async def test_one_queued_and_one_running(store: Store, back: Transition) -> None:
    first = await running(store, unique=rule(Q))
    second = new(unique=rule(Q), delay=DAY)
    await add(store, second)
    assert await held_by(store) == second.id
    await end(store, first, back)  # its key is taken: it goes on without
    assert await held_by(store) == second.id
    await store.cancel([first.ref])
    assert await held_by(store) == second.id
    await store.delete([second.ref])
    assert await held_by(store) is None


@each("back", [retryable(), snoozed(), RELEASED, PUT_BACK, PARKED])
async def test_a_job_that_returns_takes_its_key_again(store: Store, back: Transition) -> None:
    job = await running(store, unique=rule(Q))
    assert await held_by(store) is None
    await end(store, job, back)
    assert await held_by(store) == job.id


async def test_a_reclaimed_and_settled_job_takes_its_key_again(store: Store, clock: ManualClock) -> None:
    job = await running(store, unique=rule(Q))
    clock.advance(LEASE)
    found = await store.reclaim(["default"], limit=1, lease=LEASE, worker="w2", token=token())
    assert await held_by(store) is None
    await end(store, found.jobs[0], RELEASED)
    assert await held_by(store) == job.id


async def test_a_job_without_its_key_takes_none_in_the_same_phase(store: Store) -> None:
    first = await running(store, unique=rule(Q))
    second = new(unique=rule(Q), delay=DAY)
    await add(store, second)
    await end(store, first, retryable())
    await store.delete([second.ref])
    await store.reschedule([first.ref], delay=HOUR)
    await store.retry([first.ref])
    assert await held_by(store) is None
    again = await take_one(store)
    await end(store, again, retryable())
    assert await held_by(store) == first.id


async def test_a_fetch_of_many_frees_and_takes_in_its_order(store: Store) -> None:
    queued, runs = rule(Q), rule(R)
    first, second, third = (
        new(unique=queued),
        new(unique=UniqueKey("other")),
        new(unique=queued, delay=MINUTE),
    )
    await add(store, first)
    assert (await store.enqueue([new(unique=runs)]))[0].status is EnqueueStatus.DUPLICATE
    await store.cancel([first.ref])
    await add(store, new("r1", unique=runs), new("r2", unique=runs), second, third)
    assert await held_by(store) == third.id
    await take(store, 3)
    assert await held_by(store) == third.id  # who runs has found it taken
    await store.cancel([third.ref])
    await add(store, new("r3", unique=runs), new("r4", unique=runs))
    await take(store, 9)
    assert await held_by(store) == "r3"


async def test_a_running_job_hands_its_key_to_none_that_runs_already(store: Store) -> None:
    await add(store, new("a", unique=rule(R)), new("b", unique=rule(R)))
    a, _ = await take(store, 2)
    assert await held_by(store) == "a"
    await end(store, a)
    assert await held_by(store) is None
    await add(store, new("c", unique=rule(R)))


async def test_a_waiter_with_an_offer_frees_the_key_as_a_fetch_does(store: Store) -> None:
    spec = new(unique=rule(Q))
    await add(store, spec)
    assert await store.wait(["default"], timeout=0) is Wake.WORK
    share = Share("default", 1, 1)
    await store.fetch([share], limit=1, lease=LEASE, worker="w", token="t")
    again = await store.fetch([share], limit=1, lease=LEASE, worker="w", token="t")
    assert [job.id for job in again.jobs] == [spec.id]
    assert await held_by(store) is None


async def test_a_settlement_of_many_frees_the_keys_of_those_that_have_some(store: Store) -> None:
    plain = [new() for _ in range(3)]
    unique_jobs = [new(unique=UniqueKey(f"k{n}")) for n in range(3)]
    kept = [new(unique=UniqueKey(f"f{n}", HOUR, 7)) for n in range(3)]
    await add(store, *itertools.chain(*zip(plain, unique_jobs, kept, strict=True)))
    jobs = await take(store, 9)
    to = [Transition(State.COMPLETED, keep=KEEP if n % 2 else 0) for n in range(9)]
    settled = await store.settle([Settlement(job.lease, t) for job, t in zip(jobs, to, strict=True)])
    assert {one.value for one in settled} == {"applied"}
    assert await counts(store) == {State.COMPLETED: 4}
    for n in range(3):
        assert await held_by(store, UniqueKey(f"k{n}")) is None
        assert await held_by(store, UniqueKey(f"f{n}")) == kept[n].id


async def test_a_stale_lease_in_a_settlement_of_many_changes_no_key(store: Store) -> None:
    await add(store, new("a", unique=UniqueKey("ka")), new("b", unique=UniqueKey("kb")), new("c"))
    a, b, c = await take(store, 3)
    stale = replace(b.lease, token="another")
    settled = await store.settle(
        [Settlement(a.lease, COMPLETED), Settlement(stale, COMPLETED), Settlement(c.lease, COMPLETED)]
    )
    assert [one.value for one in settled] == ["applied", "stale", "applied"]
    assert await held_by(store, UniqueKey("ka")) is None
    assert await held_by(store, UniqueKey("kb")) == "b"


# ── finished, and periods ──


async def test_a_completed_job_holds_its_key_while_it_is_kept(store: Store, clock: ManualClock) -> None:
    job = await running(store, unique=rule(7))
    await end(store, job, Transition(State.COMPLETED, keep=MINUTE))
    assert await held_by(store) == job.id
    clock.advance(MINUTE)
    await store.prune()
    assert await gone(store, job)
    assert await held_by(store) is None


async def test_a_completed_job_that_is_not_kept_holds_no_key_without_a_period(store: Store) -> None:
    await end(store, await running(store, unique=rule(7)), Transition(State.COMPLETED))
    assert await held_by(store) is None


@each("states", [7, Q | F, R | F, F])
@each("keep", [0, MINUTE])
async def test_finished_with_a_period_holds_to_its_end_without_the_job(
    store: Store, clock: ManualClock, keep: int, states: int
) -> None:
    job = await running(store, unique=rule(states, HOUR))
    await end(store, job, Transition(State.COMPLETED, keep=keep))
    clock.advance(HOUR - 1)
    await store.prune()
    assert await gone(store, job)
    assert await store.enqueue([new(unique=rule(replace=3))]) == [Enqueued(EnqueueStatus.DUPLICATE, job.id)]
    clock.advance(1)
    assert await held_by(store) is None


async def test_a_key_is_pruned_beyond_the_newest_as_by_retention(store: Store) -> None:
    job = await running(store, unique=rule(7, HOUR))
    await end(store, job)
    await store.prune(keep_finished=0)
    assert await gone(store, job)
    assert await held_by(store) == job.id


@pytest.mark.parametrize("verb", ["delete", "purge"])
async def test_deleting_the_completed_job_frees_its_key(store: Store, verb: str) -> None:
    job = await in_state(store, State.COMPLETED, unique=rule(7, HOUR))
    if verb == "delete":
        await store.delete([job.ref])
    else:
        await store.purge("default", [State.COMPLETED])
    assert await held_by(store) is None


async def test_a_completed_job_that_runs_again_keeps_its_key(store: Store) -> None:
    job = await in_state(store, State.COMPLETED, unique=rule(7, HOUR))
    await store.retry([job.ref])
    assert await held_by(store) == job.id
    await end(store, await take_one(store), DEAD)
    assert await held_by(store) is None


async def test_prune_takes_keys_whose_period_is_over_in_bounded_steps(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *(new(unique=UniqueKey(f"k{n}", MINUTE)) for n in range(7)))
    await add(store, new("later", unique=UniqueKey("later", HOUR)), new("ever", unique=UniqueKey("ever")))
    await add(store, new(queue="other", unique=UniqueKey("k", MINUTE)))
    assert (await store.prune(limit=3)).unique_keys == 0
    clock.advance(MINUTE)
    assert [(await store.prune(limit=3)).unique_keys for _ in range(4)] == [3, 3, 2, 0]
    assert await held_by(store, UniqueKey("k1")) is None
    assert await held_by(store, UniqueKey("later")) == "later"
    assert await held_by(store, UniqueKey("ever")) == "ever"


async def test_many_keys_whose_period_is_over_are_pruned_at_once(store: Store, clock: ManualClock) -> None:
    await add(store, *(new(unique=UniqueKey(f"k{n}", MINUTE)) for n in range(2_500)))
    clock.advance(MINUTE)
    assert (await store.prune(limit=10_000)).unique_keys == 2_500
    assert (await store.prune(limit=10_000)).unique_keys == 0


async def test_a_key_that_is_taken_over_is_not_pruned_for_its_former_holder(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new("a", unique=rule(period=MINUTE)))
    clock.advance(MINUTE)
    await add(store, new("b", unique=rule()))
    assert (await store.prune()).unique_keys == 0
    assert await held_by(store) == "b"
    await store.delete([(await the(store, new("b"))).ref])
    await add(store, new("c", unique=rule(period=HOUR)))
    await store.cancel([new("a").ref])
    clock.advance(MINUTE)
    assert (await store.prune()).unique_keys == 0
    assert await held_by(store) == "c"


async def test_a_dropped_queue_has_no_keys(store: Store, clock: ManualClock) -> None:
    await end(store, await running(store, unique=rule(7, HOUR)), Transition(State.COMPLETED))
    assert await store.drop("default")
    assert await held_by(store) is None
    clock.advance(HOUR)
    assert (await store.prune()).unique_keys == 0


# ── replace ──


async def test_the_holder_gets_the_arguments_and_nothing_else(store: Store) -> None:
    first = new(
        payload=b"1",
        priority=3,
        delay=MINUTE,
        expires_in=HOUR,
        headers={"a": "b"},
        retention=7,
        deadline=2**41,
        unique=ARGUMENTS,
    )
    await add(store, first)
    before = await the(store, first)
    second = new(payload=b"2" * 5_000, priority=-3, headers={"c": "d"}, unique=ARGUMENTS)
    assert await store.enqueue([second]) == [Enqueued(EnqueueStatus.REPLACED, first.id)]
    assert await the(store, first) == replace(before, spec=replace(first, payload=second.payload))
    assert await gone(store, second)
    assert await counts(store) == {State.SCHEDULED: 1}
    assert (await store.stats())[0].enqueued == 1


@pytest.mark.parametrize("both", [False, True])
async def test_the_holder_gets_the_times_of_the_call(store: Store, clock: ManualClock, both: bool) -> None:
    unique = BOTH if both else RUN_AT
    first = new(payload=b"1", delay=MINUTE, expires_in=HOUR, headers={"a": "b" * 300}, unique=unique)
    await add(store, first)
    clock.advance(MINUTE - 1)
    now = clock.now()
    second = new(payload=b"2", delay=MINUTE, expires_at=now + DAY, deadline=now + HOUR, unique=unique)
    assert await store.enqueue([second]) == [Enqueued(EnqueueStatus.REPLACED, first.id)]
    found = await the(store, first)
    assert found.spec == replace(
        first, payload=b"2" if both else b"1", expires_in=None, expires_at=now + DAY, deadline=now + HOUR
    )
    assert (found.state, found.run_at, found.expires_at) == (State.SCHEDULED, now + MINUTE, now + DAY)
    assert found.enqueued_at == now - MINUTE + 1
    clock.advance(1)
    assert (await store.promote(["default"], limit=9)).moved == 0
    clock.advance(MINUTE)
    assert (await store.promote(["default"], limit=9)).moved == 1
    assert (await take_one(store)).spec.payload == (b"2" if both else b"1")


TIMES: list[dict[str, Any]] = [
    {},
    {"delay": 0},
    {"delay": MINUTE},
    {"run_at": 5},
    {"run_at": 2**41 + 1},
    {"expires_in": HOUR},
    {"delay": 70_000, "expires_in": HOUR, "expires_at": 2**41},
    {"deadline": 2**41, "delay": 200, "headers": {"x": "y"}},
    {"deadline": -5, "headers": {"é": "☃" * 100}},
]


@each("old", range(len(TIMES)))
async def test_all_pairs_of_times_are_replaced_as_the_rule_says(
    store: Store, clock: ManualClock, old: int
) -> None:
    for n, times in enumerate(TIMES):
        for unique in (ARGUMENTS, RUN_AT, BOTH):
            first = new(payload=b"1", unique=unique, queue=f"q{n}", **TIMES[old])
            await add(store, first)
            before = await the(store, first)
            second = new(payload=b"22", unique=unique, queue=f"q{n}", **times)
            assert await store.enqueue([second]) == [Enqueued(EnqueueStatus.REPLACED, first.id)]
            assert await the(store, first) == replaced(before, second, clock.now())
            await store.delete([first.ref])


#: Whoever stands among others stays there, unless the new time is yet to come.
IN_A_LINE = (State.PARKED, State.WAITING, State.COLLECTING)


@each("state", sorted(QUEUED))
@each("later", [False, True])
async def test_a_holder_of_every_queued_state_is_replaced(store: Store, state: State, later: bool) -> None:
    job = await in_state(store, state, unique=BOTH, payload=b"1")
    others = Counter(await counts(store)) - Counter({state: 1})  # those that make it wait
    facts = {"delay": HOUR if later else 0, "expires_in": DAY, "partition": job.spec.partition}
    second = new(payload=b"2", unique=BOTH, **facts)
    assert await store.enqueue([second]) == [Enqueued(EnqueueStatus.REPLACED, job.id)]
    found = await the(store, job)
    assert found.spec.payload == b"2"
    assert (found.attempt, found.errors) == (job.attempt, job.errors)
    assert found.expires_at == found.enqueued_at + DAY
    if later:
        assert (found.state, found.run_at) == (State.SCHEDULED, job.enqueued_at + HOUR)
    else:
        assert found.state is (state if state in IN_A_LINE else State.AVAILABLE)
    assert await counts(store) == others + Counter({found.state: 1})
    assert await held_by(store) == job.id


@pytest.mark.parametrize("state", [State.RUNNING, State.COMPLETED])
async def test_a_holder_that_is_not_queued_is_not_replaced(store: Store, state: State) -> None:
    unique = rule(7, replace=3)
    job = await in_state(store, state, unique=unique, payload=b"1")
    assert await store.enqueue([new(payload=b"2", unique=unique)]) == [
        Enqueued(EnqueueStatus.DUPLICATE, job.id)
    ]
    assert await the(store, job) == job


async def test_a_ready_job_keeps_its_place_when_it_is_replaced(store: Store) -> None:
    await add(store, new("a"), new("b", unique=BOTH, payload=b"1"), new("c"), new("d", delay=MINUTE))
    await store.enqueue([new(unique=BOTH, payload=b"2")])
    assert [(job.id, job.spec.payload) for job in await take(store, 9)] == [
        ("a", b"{}"),
        ("b", b"2"),
        ("c", b"{}"),
    ]


async def test_a_promoted_job_keeps_its_place_when_it_is_replaced(store: Store, clock: ManualClock) -> None:
    jobs = [new(id, unique=UniqueKey(id, replace=3), delay=MINUTE) for id in "abc"]
    await add(store, *jobs)
    clock.advance(MINUTE)
    await store.promote(["default"], limit=9)
    await store.enqueue([new(unique=jobs[1].unique, payload=b"2" * 300, expires_in=DAY)])
    assert [job.id for job in (await store.list_jobs(state=State.AVAILABLE)).jobs] == ["c", "b", "a"]
    await store.reschedule([jobs[0].ref], delay=HOUR)
    await store.cancel([jobs[2].ref])
    (job,) = await take(store, 9)
    assert (job.id, job.spec.payload, job.expires_at) == ("b", b"2" * 300, clock.now() + DAY)
    await end(store, job)
    assert await counts(store) == {State.SCHEDULED: 1, State.CANCELLED: 1, State.COMPLETED: 1}


async def test_a_job_made_ready_by_a_replacement_goes_to_the_tail(store: Store) -> None:
    await add(store, new("a", unique=RUN_AT, delay=MINUTE), new("b"))
    await store.enqueue([new(unique=RUN_AT)])
    assert [job.id for job in await take(store, 9)] == ["b", "a"]


async def test_a_replaced_job_wakes_who_waits_for_work(store: Store) -> None:
    await add(store, new("a", unique=RUN_AT, delay=HOUR))
    assert await store.wait(["default"], timeout=0) is Wake.NOTHING
    await store.enqueue([new(unique=RUN_AT)])
    assert await store.wait(["default"], timeout=0) is Wake.WORK


async def test_a_replaced_expiry_is_the_one_that_counts(store: Store, clock: ManualClock) -> None:
    await add(store, new("a", unique=RUN_AT, expires_in=MINUTE))
    await store.enqueue([new(unique=RUN_AT, expires_in=HOUR)])
    clock.advance(MINUTE)
    assert (await store.prune()).expired == 0
    await store.enqueue([new(unique=RUN_AT)])
    clock.advance(HOUR)
    assert (await store.prune()).expired == 0
    assert (await take_one(store)).id == "a"


async def test_the_holders_own_rule_stays(store: Store, clock: ManualClock) -> None:
    await add(store, new("a", unique=rule(Q, HOUR), delay=DAY))
    assert await store.enqueue([new(unique=rule(7, 5, replace=3), delay=DAY)]) == [
        Enqueued(EnqueueStatus.REPLACED, "a")
    ]
    clock.advance(HOUR - 1)
    assert await held_by(store) == "a"
    clock.advance(1)
    assert await held_by(store) is None


async def test_the_phase_of_the_period_is_not_prolonged_by_replacing(
    store: Store, clock: ManualClock
) -> None:
    unique = rule(Q, MINUTE, replace=2)
    await add(store, new("a", unique=unique, delay=HOUR))
    clock.advance(MINUTE - 1)
    assert await store.enqueue([new(unique=unique, delay=HOUR)]) == [Enqueued(EnqueueStatus.REPLACED, "a")]
    clock.advance(1)
    await add(store, new("b", unique=unique, delay=HOUR))


async def test_a_batch_replaces_in_its_order(store: Store) -> None:
    jobs = [new(payload=b"%d" % n, unique=ARGUMENTS) for n in range(5)]
    answers = await store.enqueue(jobs)
    assert [one.status for one in answers] == [EnqueueStatus.NEW] + [EnqueueStatus.REPLACED] * 4
    assert {one.id for one in answers} == {jobs[0].id}
    assert (await take_one(store)).spec.payload == b"4"


async def test_a_job_that_follows_replaces_too(store: Store) -> None:
    holder = new(unique=BOTH, payload=b"1", delay=MINUTE)
    far = new(unique=BOTH, payload=b"1", delay=MINUTE, queue="other")
    await add(store, holder, far)
    job = await running(store)
    then = (new(unique=BOTH, payload=b"2"), new(unique=BOTH, payload=b"2", queue="other"))
    await end(store, job, COMPLETED, then=then)
    for spec in (holder, far):
        found = await the(store, spec)
        assert (found.state, found.spec.payload) == (State.AVAILABLE, b"2")
    assert [await gone(store, one) for one in then] == [True, True]


async def test_a_closed_queue_replaces_nothing(store: Store) -> None:
    holder = new(unique=ARGUMENTS, payload=b"1")
    await add(store, holder)
    await store.settings("default", closed=True)
    assert (await store.enqueue([new(unique=ARGUMENTS, payload=b"2")]))[0].status is EnqueueStatus.CLOSED
    assert (await the(store, holder)).spec.payload == b"1"


async def test_a_replaced_job_with_errors_keeps_them(store: Store) -> None:
    job = await running(store, unique=BOTH)
    await end(store, job, Transition(State.RETRYABLE, delay=MINUTE, error=error()))
    await store.enqueue([new(unique=BOTH, payload=b"2", headers={"no": "no"})])
    found = await take_one(store)
    assert (found.id, found.attempt, len(found.errors), found.spec.headers) == (job.id, 2, 1, None)
    assert found.spec.payload == b"2"


# ── the rule itself ──


def test_a_key_is_taken_on_the_way_into_its_phases_and_freed_on_the_way_out() -> None:
    for states, before, after in itertools.product(EVERY_RULE, (None, *State), (None, *State)):
        hold = key_change(states, before, after)
        was, holds = bool(states & phase(before)), bool(states & phase(after))
        assert hold is (KeyChange.STAYS if was == holds else KeyChange.TAKEN if holds else KeyChange.FREED)


def test_what_does_not_replace() -> None:
    job = Job(NewJob("a", "t"), State.AVAILABLE)
    assert replaced(job, NewJob("b", "t"), 0) is None
    assert replaced(job, NewJob("b", "t", unique=rule()), 0) is None
    assert replaced(replace(job, state=State.RUNNING), NewJob("b", "t", unique=BOTH), 0) is None


async def test_what_follows_a_job_that_goes_back_into_its_queue_replaces_it(store: Store) -> None:
    jobs = [await running(store, unique=replace(ARGUMENTS, key=key)) for key in "ab"]
    settlements = [
        Settlement(job.lease, retryable(), then=(new(unique=job.spec.unique, payload=b"[2]"),))
        for job in jobs
    ]
    assert await store.settle(settlements) == [Settled.APPLIED] * 2
    for job in jobs:
        found = await the(store, job)
        assert (found.state, found.spec.payload) == (State.RETRYABLE, b"[2]")
    assert await counts(store) == {State.RETRYABLE: 2}
