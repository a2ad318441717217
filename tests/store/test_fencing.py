"""Fencing (I3): only the holder of the lease token changes a running job."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import Job, Lease, Progress, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Settled, Settlement, Share, Store
from tests.cases import case, each
from tests.store.facts import (
    AGAIN,
    COMPLETED,
    DAY,
    DEAD,
    ENDINGS,
    HOUR,
    LEASE,
    MINUTE,
    PARKED,
    RELEASED,
    OpenStore,
    add,
    all_jobs,
    counts,
    end,
    gone,
    in_state,
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


async def everything_there_is(store: Store) -> object:
    return await all_jobs(store), await store.queues(), await store.stats()


async def changes_nothing(store: Store, lease: Lease) -> None:
    """Whatever is done with this lease, nothing comes of it; not one byte."""
    before = await everything_there_is(store)
    there = await store.get([lease.ref]) != [None]
    for ending in ENDINGS.values():
        settlement = Settlement(lease, ending, b"late", then=(new("follows"),))
        assert await store.settle([settlement]) == [Settled.STALE if there else Settled.GONE]
    request = HeartbeatRequest(
        lease, DAY, started=True, progress=Progress(99, 100, "late"), checkpoint=b"late"
    )
    assert await store.extend([request]) == [LeaseStatus.LOST]
    assert await everything_there_is(store) == before


# ── how a lease becomes stale ──

Way = Callable[[Store, ManualClock, Job], Awaitable[object]]
WAYS: dict[str, Way] = {}


def way(act: Way) -> Way:
    WAYS[act.__name__.replace("_", " ")] = act
    return act


@way
async def reclaimed(store: Store, clock: ManualClock, job: Job) -> object:
    clock.advance(LEASE)
    return await store.reclaim(["default"], limit=1, lease=LEASE, worker="w2", token=token())


@way
async def reclaimed_by_name(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.reclaim([], limit=1, lease=LEASE, worker="w1", token=token(), of=["w1"])


@way
async def completed(store: Store, clock: ManualClock, job: Job) -> object:
    return await end(store, job, COMPLETED, result=b"first")


@way
async def removed(store: Store, clock: ManualClock, job: Job) -> object:
    return await end(store, job, Transition(State.COMPLETED))


@way
async def died(store: Store, clock: ManualClock, job: Job) -> object:
    return await end(store, job, DEAD)


@way
async def failed_and_waits(store: Store, clock: ManualClock, job: Job) -> object:
    return await end(store, job, retryable(HOUR))


@way
async def snoozes(store: Store, clock: ManualClock, job: Job) -> object:
    return await end(store, job, snoozed(HOUR))


@way
async def parked_by_its_worker(store: Store, clock: ManualClock, job: Job) -> object:
    return await end(store, job, PARKED)


@way
async def released_and_waits(store: Store, clock: ManualClock, job: Job) -> object:
    return await end(store, job, RELEASED)


@way
async def released_and_fetched_by_another(store: Store, clock: ManualClock, job: Job) -> object:
    await end(store, job, RELEASED)
    return await take_one(store, worker="w2")


@way
async def released_and_fetched_by_the_same_worker(store: Store, clock: ManualClock, job: Job) -> object:
    await end(store, job, RELEASED)
    return await take_one(store, worker="w1")


@way
async def completed_and_retried(store: Store, clock: ManualClock, job: Job) -> object:
    await end(store, job, COMPLETED)
    return await store.retry([job.ref])


@way
async def completed_retried_and_fetched(store: Store, clock: ManualClock, job: Job) -> object:
    await end(store, job, COMPLETED)
    await store.retry([job.ref])
    return await take_one(store, worker="w1")


@way
async def removed_and_enqueued_again(store: Store, clock: ManualClock, job: Job) -> object:
    await end(store, job, Transition(State.COMPLETED))
    return await add(store, job.spec)


@way
async def removed_enqueued_again_and_fetched(store: Store, clock: ManualClock, job: Job) -> object:
    await end(store, job, Transition(State.COMPLETED))
    await add(store, job.spec)
    return await take_one(store, worker="w1")


@way
async def released_and_cancelled(store: Store, clock: ManualClock, job: Job) -> object:
    await end(store, job, RELEASED)
    return await store.cancel([job.ref])


@way
async def released_and_deleted(store: Store, clock: ManualClock, job: Job) -> object:
    await end(store, job, RELEASED)
    return await store.delete([job.ref])


async def test_a_stale_lease_changes_nothing(store: Store, clock: ManualClock) -> None:
    for n, how in enumerate(sorted(WAYS)):  # each alone in a namespace
        with case(how):
            alone = store.in_namespace(f"n{n}")
            job = await running(alone)
            await WAYS[how](alone, clock, job)
            await changes_nothing(alone, job.lease)


async def test_a_job_enqueued_again_and_fetched_with_the_same_token_is_another(store: Store) -> None:
    spec = new()
    share = [Share("default", 1, 1)]
    leases = []
    for _ in range(2):
        await add(store, spec)
        (job,) = (await store.fetch(share, limit=1, lease=LEASE, worker="w1", token="same")).jobs
        leases.append(job.lease)
        if len(leases) == 1:
            await end(store, job, Transition(State.COMPLETED))
    ghost, alive = leases
    assert (ghost.token, ghost.id) == (alive.token, alive.id)
    assert ghost.generation < alive.generation
    await changes_nothing(store, ghost)
    assert await store.extend([HeartbeatRequest(alive, LEASE)]) == [LeaseStatus.HELD]


# ── what is not the lease ──


async def test_every_part_of_a_lease_must_fit(store: Store) -> None:
    job = await running(store)
    other = await running(store)
    right = job.lease
    wrong = [
        replace(right, token=token()),
        replace(right, token=""),
        replace(right, token=right.token + " "),
        replace(right, token=right.token.upper()),
        replace(right, token=right.token[:-1]),
        replace(right, token="%"),
        replace(right, token=other.lease.token),
        replace(right, generation=right.generation + 1),
        replace(right, generation=0),
        replace(right, generation=-right.generation),
        replace(right, id=right.id + "x"),
        replace(right, id=right.id.upper()),
        replace(right, queue="Default"),
        replace(right, queue=""),
    ]
    for lease in wrong:
        if lease != right:
            await changes_nothing(store, lease)
    await end(store, job)


@each("state", sorted(set(State) - {State.RUNNING}))
async def test_a_made_up_lease_changes_no_job_that_is_not_running(store: Store, state: State) -> None:
    job = await in_state(store, state)
    for made_up in ("", "None", "null", "0"):
        await changes_nothing(store, Lease(job.queue, job.id, made_up, job.generation))


async def test_the_token_of_one_job_of_a_fetch_holds_the_others_by_their_own_names(store: Store) -> None:
    await add(store, new(), new())
    first, second = await take(store, 2)
    assert first.token == second.token
    await end(store, first, RELEASED)
    await changes_nothing(store, first.lease)
    await end(store, second, COMPLETED)


# ── what others may do to a running job ──


async def test_operators_and_producers_do_not_touch_a_running_job(store: Store, clock: ManualClock) -> None:
    job = await running(store, expires_in=1, retention=1)
    await store.enqueue([replace(job.spec, task="another")])
    await store.retry([job.ref])
    await store.reschedule([job.ref], delay=5)
    await store.delete([job.ref])
    await store.purge("default", list(State))
    await store.drop("default")
    await store.settings("default", paused=True, closed=True)
    clock.advance(DAY)
    await store.promote(["default"], limit=9)
    await store.prune(keep_finished=0, keep_dead=0)
    await store.retire("w1")
    assert await take(store, 9) == []
    assert await the(store, job) == job
    await store.settings("default", paused=False, closed=False)
    assert await store.extend([HeartbeatRequest(job.lease, LEASE)]) == [LeaseStatus.HELD]
    await end(store, job)


async def test_a_request_to_stop_does_not_take_the_lease(store: Store) -> None:
    job = await running(store)
    await store.cancel([job.ref])
    assert await the(store, job) == replace(job, cancel_asked=True)
    await end(store, job)


async def test_of_two_settlements_exactly_one_applies(store: Store, clock: ManualClock) -> None:
    transitions = [Transition(State.COMPLETED), COMPLETED, DEAD, AGAIN, retryable(MINUTE), RELEASED]
    for first, second in itertools.permutations(transitions, 2):
        job = await running(store)
        answers = await store.settle([Settlement(job.lease, first), Settlement(job.lease, second)])
        assert answers[0] is Settled.APPLIED
        assert answers[1] in (Settled.STALE, Settled.GONE)
        found = await store.get([job.ref])
        assert found == [None] if first == transitions[0] else found[0] and found[0].state is first.state
        await store.delete([job.ref])


async def test_a_stale_settlement_in_a_batch_spoils_nothing(store: Store, clock: ManualClock) -> None:
    await add(store, *(new() for _ in range(3)))
    lost, b, c = await take(store, 3)
    clock.advance(LEASE)
    await store.extend([HeartbeatRequest(b.lease, LEASE), HeartbeatRequest(c.lease, LEASE)])
    await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())
    answers = await store.settle([Settlement(job.lease, COMPLETED) for job in (b, lost, c)])
    assert answers == [Settled.APPLIED, Settled.STALE, Settled.APPLIED]
    assert await counts(store) == {State.COMPLETED: 2, State.RUNNING: 1}


async def test_a_lease_is_fenced_across_store_objects(store: Store, open_store: OpenStore) -> None:
    other = open_store()
    job = await running(store)
    (stolen,) = (await other.reclaim([], limit=1, lease=LEASE, worker="w2", token=token(), of=["w1"])).jobs
    await changes_nothing(store, job.lease)
    await end(store, stolen, Transition(State.COMPLETED))  # the lease counts, not the door
    assert await gone(other, job)


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stale_lease_removes_nothing(store: Store, n: int) -> None:
    """The usual end, of which a store makes short work: completed, and nothing to keep."""
    await add(store, *some(n))
    jobs = await take(store, n)
    found = await store.reclaim(
        (), limit=1, lease=LEASE, worker="heir", token=token(), of=[jobs[0].worker or ""]
    )
    lost = {job.id for job in found.jobs}
    answers = await store.settle([Settlement(job.lease, Transition(State.COMPLETED)) for job in jobs])
    assert answers == [Settled.STALE if job.id in lost else Settled.APPLIED for job in jobs]
    (mine,) = found.jobs
    assert (await the(store, mine)).token == mine.token
