"""prune: removes old jobs and rows in bounded steps."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import DEAD_KEPT, FINISHED_KEPT, QUEUED, Job, State
from penstock.core.lifecycle import EXPIRED, Transition
from penstock.stores.contract import MOST_PRUNED, Pruned, Store, WorkerInfo
from tests.cases import each
from tests.store.facts import (
    DAY,
    HOUR,
    MINUTE,
    PARKED,
    add,
    all_jobs,
    counts,
    end,
    gone,
    ids,
    in_state,
    new,
    retryable,
    running,
    some,
    take_one,
    the,
)

NOTHING = Pruned(0, 0, 0)
ENDS = [State.COMPLETED, State.CANCELLED, State.DEAD]


async def ended(
    store: Store, state: State = State.COMPLETED, *, keep: int = HOUR, queue: str = "default"
) -> Job:
    job = await running(store, queue=queue)
    await end(store, job, Transition(state, keep=keep))
    return job


async def test_an_empty_store_has_nothing_to_prune(store: Store) -> None:
    assert await store.prune() == NOTHING


@pytest.mark.parametrize("state", ENDS)
async def test_an_ended_job_stays_until_its_retention_is_over(
    store: Store, clock: ManualClock, state: State
) -> None:
    job = await ended(store, state, keep=HOUR)
    clock.advance(HOUR - 1)
    assert await store.prune() == NOTHING
    clock.advance(1)
    assert await store.prune() == Pruned(1, 0, 0)
    assert await gone(store, job)
    assert await counts(store) == {}
    assert await store.prune() == NOTHING


async def test_retention_counts_from_the_end(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(DAY)
    await end(store, job, Transition(State.COMPLETED, keep=MINUTE))
    clock.advance(MINUTE - 1)
    assert await store.prune() == NOTHING


@each("state", sorted(QUEUED | {State.RUNNING}))
async def test_what_has_not_ended_stays(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state, retention=1)
    clock.advance(200 * DAY)
    assert await store.prune(keep_finished=0, keep_dead=0) == NOTHING
    assert await the(store, job) == job


@pytest.mark.parametrize("state", ENDS)
async def test_the_newest_of_each_queue_and_state_stay(
    store: Store, clock: ManualClock, state: State
) -> None:
    jobs = []
    for _ in range(4):
        jobs.append(await ended(store, state, keep=DAY))
        clock.advance(1)
    other = await ended(store, state, keep=DAY, queue="other")
    keep = {"keep_dead": 2} if state is State.DEAD else {"keep_finished": 2}
    assert await store.prune(**keep) == Pruned(2, 0, 0)
    assert ids(await all_jobs(store)) == [other.id, jobs[3].id, jobs[2].id]
    assert await store.prune(**keep) == NOTHING


async def test_the_newest_are_those_that_ended_last(store: Store, clock: ManualClock) -> None:
    first, second, third = [await running(store) for _ in range(3)]
    for job in (second, third, first):
        await end(store, job, Transition(State.COMPLETED, keep=DAY))
        clock.advance(1)
    await store.prune(keep_finished=1)
    assert ids(await all_jobs(store)) == [first.id]


async def test_each_state_is_bounded_for_itself(store: Store) -> None:
    for state in ENDS * 2:
        await ended(store, state, keep=DAY)
    assert await store.prune(keep_finished=1, keep_dead=2) == Pruned(2, 0, 0)
    assert await counts(store) == {State.COMPLETED: 1, State.CANCELLED: 1, State.DEAD: 2}
    assert await store.prune(keep_finished=0, keep_dead=1) == Pruned(3, 0, 0)
    assert await counts(store) == {State.DEAD: 1}


async def test_jobs_that_ended_together_go_in_order_of_enqueue(store: Store) -> None:
    jobs = [await ended(store, keep=DAY) for _ in range(3)]
    await store.prune(keep_finished=1)
    assert ids(await all_jobs(store)) == [jobs[2].id]


# ── expired jobs ──


@each("state", sorted(QUEUED))
async def test_an_expired_job_is_cancelled_wherever_it_waits(
    store: Store, clock: ManualClock, state: State
) -> None:
    job = await in_state(store, state, expires_in=HOUR)
    if state is State.SCHEDULED:
        await store.reschedule([job.ref], delay=DAY)
    clock.advance(HOUR - 1)
    assert await store.prune() == NOTHING
    clock.advance(1)
    before = await the(store, job)
    assert await store.prune() == Pruned(0, 1, 0)
    assert await the(store, job) == replace(
        before, state=State.CANCELLED, ended_at=clock.now(), reason=EXPIRED
    )
    assert await store.prune() == NOTHING


@pytest.mark.parametrize("state", ENDS)
async def test_an_ended_job_does_not_expire(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state, expires_in=1)
    clock.advance(1)
    assert await store.prune() == NOTHING
    assert await the(store, job) == job


async def test_a_running_job_does_not_expire_but_its_next_attempt_may(
    store: Store, clock: ManualClock
) -> None:
    job = await running(store, expires_in=MINUTE)
    clock.advance(MINUTE)
    assert await store.prune() == NOTHING
    await end(store, job, retryable(DAY))
    assert await store.prune() == Pruned(0, 1, 0)
    assert (await the(store, job)).reason == EXPIRED


async def test_an_expired_job_is_kept_as_a_cancelled_one(store: Store, clock: ManualClock) -> None:
    job = await in_state(store, State.AVAILABLE, expires_in=1)
    clock.advance(1)
    await store.prune()
    clock.advance(FINISHED_KEPT - 1)
    assert await store.prune() == NOTHING
    clock.advance(1)
    assert await store.prune() == Pruned(1, 0, 0)
    assert await gone(store, job)


# ── silent workers ──


def worker(id: str) -> WorkerInfo:
    return WorkerInfo(id, "host", 1, 0, (), (), 1)


async def test_a_worker_that_is_silent_for_more_than_a_minute_goes(store: Store, clock: ManualClock) -> None:
    await store.announce(worker("w1"))
    clock.advance(MINUTE)
    await store.announce(worker("w2"))
    assert await store.prune() == NOTHING
    clock.advance(1)
    assert await store.prune() == Pruned(0, 0, 1)
    assert [w.id for w in await store.workers()] == ["w2"]


async def test_a_silent_worker_keeps_its_leases_but_not_its_word(store: Store, clock: ManualClock) -> None:
    job = await running(store, task="known")
    await end(store, job, PARKED)
    held = await running(store)
    await store.announce(replace(worker("w1"), tasks=("known",)))
    clock.advance(MINUTE + 1)
    assert (await store.prune()).workers == 1
    assert await the(store, held) == held
    await add(store, new("next"))
    assert (await take_one(store)).id == "next"  # nobody has announced the parked job's task


# ── bounds ──


async def test_the_limit_bounds_all_together_and_ended_jobs_go_first(
    store: Store, clock: ManualClock
) -> None:
    await store.announce(worker("w1"))
    for keep in (3, 2, 1):
        await ended(store, keep=keep)
    overflow = [await ended(store, keep=DAY) for _ in range(2)]
    waiting = some(2, expires_in=5)
    await add(store, *waiting)
    clock.advance(MINUTE + 1)

    async def left() -> tuple[int, int, int]:
        shown = await counts(store)
        return (
            shown.get(State.COMPLETED, 0),
            shown.get(State.AVAILABLE, 0),
            shown.get(State.CANCELLED, 0),
        )

    assert await store.prune(limit=0, keep_finished=1) == NOTHING
    assert await store.prune(limit=2, keep_finished=1) == Pruned(2, 0, 0)
    assert await left() == (3, 2, 0)
    assert await store.prune(limit=3, keep_finished=1) == Pruned(2, 1, 0)
    assert await left() == (1, 1, 1)
    assert await gone(store, overflow[0])
    assert not await gone(store, overflow[1])
    assert await store.prune(limit=9, keep_finished=1) == Pruned(0, 1, 1)
    assert await store.prune(limit=9, keep_finished=1) == Pruned(1, 0, 0)  # the older of the cancelled


async def test_queues_are_cut_to_their_newest_by_name_and_state_by_state(store: Store) -> None:
    made = {
        (queue, state): await ended(store, state, keep=DAY, queue=queue)
        for queue in ("b", "a")
        for state in reversed(ENDS)
    }
    order = [made[queue, state] for queue in ("a", "b") for state in ENDS]
    for n in range(len(order)):
        assert [await gone(store, job) for job in order] == [True] * n + [False] * (len(order) - n)
        assert await store.prune(limit=1, keep_finished=0, keep_dead=0) == Pruned(1, 0, 0)


async def test_the_longest_over_go_first(store: Store, clock: ManualClock) -> None:
    for keep in (30, 10, 20):
        await ended(store, keep=keep)
    jobs = await all_jobs(store)
    clock.advance(HOUR)
    await store.prune(limit=1)
    assert ids(await all_jobs(store)) == [jobs[0].id, jobs[2].id]
    await store.prune(limit=1)
    assert ids(await all_jobs(store)) == [jobs[2].id]


async def test_the_earliest_expiry_goes_first(store: Store, clock: ManualClock) -> None:
    await add(store, new("c", expires_in=30), new("a", expires_in=10, queue="q"), new("b", expires_in=20))
    clock.advance(HOUR)
    await store.prune(limit=2)
    assert sorted(ids(await all_jobs(store, state=State.CANCELLED))) == ["a", "b"]


async def test_by_default_dead_jobs_stay_ninety_days(store: Store, clock: ManualClock) -> None:
    await ended(store, State.DEAD, keep=DEAD_KEPT)
    clock.advance(90 * DAY - 1)
    assert await store.prune() == NOTHING
    clock.advance(1)
    assert await store.prune() == Pruned(1, 0, 0)


async def test_by_default_a_thousand_go_at_a_time(store: Store, clock: ManualClock) -> None:
    await add(store, *some(1_001, expires_in=1))
    clock.advance(1)
    assert await store.prune() == Pruned(0, 1_000, 0)
    assert await store.prune() == Pruned(0, 1, 0)


async def test_many_queues_are_pruned_in_steps_that_continue_behind_each_other(
    store: Store, clock: ManualClock
) -> None:
    queues = [f"q-{n:04}" for n in range(MOST_PRUNED + 20)]
    await store.enqueue([new(queue=queue, expires_in=MINUTE) for queue in queues])
    clock.advance(MINUTE)
    first = await store.prune(limit=10_000)
    assert first.next in (queues[MOST_PRUNED - 1], None)
    rest = Pruned(0, 0, 0) if first.next is None else await store.prune(limit=10_000, after=first.next)
    assert (first.expired + rest.expired, rest.next) == (len(queues), None)
    assert await store.prune(after=queues[-1]) == NOTHING
