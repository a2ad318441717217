"""Transitions: every step of lifecycle.LEGAL occurs by the allowed verbs, and no other step does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import TERMINAL, Job, Lease, State
from penstock.core.lifecycle import LEGAL
from penstock.core.unique import UniqueKey
from penstock.stores.contract import EnqueueStatus, Settled, Settlement, Store, WorkerInfo
from tests.store.facts import (
    DAY,
    ENDINGS,
    HOUR,
    LEASE,
    add,
    in_state,
    new,
    take,
    token,
)

Act = Callable[[Store, ManualClock, Job], Awaitable[object]]
After = dict[State, State | None]

S, A, R, T = State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.RETRYABLE
C, X, D, P = State.COMPLETED, State.CANCELLED, State.DEAD, State.PARKED
W = State.WAITING
G, U = State.COLLECTING, State.SUSPENDED

#: What each act makes of a job in each state; a state that is not named stays, and so does its whole job.
ACTS: dict[str, tuple[Act, After]] = {}


def act(after: After) -> Callable[[Act], Act]:
    def keep(way: Act) -> Act:
        ACTS[way.__name__.replace("_", " ")] = (way, after)
        return way

    return keep


@act({})
async def enqueue_again(store: Store, clock: ManualClock, job: Job) -> object:
    (answer,) = await store.enqueue([job.spec])
    assert answer.status is EnqueueStatus.EXISTS
    return answer


@act({S: S, A: S, T: S, P: S, W: S, G: S})
async def replace_by_a_later_call(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.enqueue([new(unique=job.spec.unique, expires_in=DAY, delay=HOUR)])


@act({S: A, T: A, W: A})  # one that waits in a partition leaves it for what has none
async def replace_by_a_call_for_now(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.enqueue([new(unique=job.spec.unique, expires_in=DAY)])


@act({S: X, A: X, T: X, P: X, W: X, G: X, U: X})
async def cancel(store: Store, clock: ManualClock, job: Job) -> object:
    if job.state is R:
        return None  # it is asked to, which changes a fact but not its state: test_cancel.py
    return await store.cancel([job.ref])


@act({S: D, A: D, T: D, P: D, W: D, G: D, U: D})
async def discard(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.discard([job.ref])


@act({S: C, A: C, T: C, P: C, X: C, D: C, W: C, G: C, U: C})
async def complete(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.complete([job.ref])


@act({S: A, A: A, T: A, P: A, C: A, X: A, D: A, W: W, G: G, U: A})
async def retry(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.retry([job.ref])


@act({S: S, A: S, T: S, W: S, G: S})
async def reschedule_to_later(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.reschedule([job.ref], delay=2 * HOUR)


@act({S: A, A: A, T: A, W: W, G: G})
async def reschedule_to_now(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.reschedule([job.ref])


@act({S: None, A: None, T: None, P: None, W: None, C: None, X: None, D: None, G: None, U: None})
async def delete(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.delete([job.ref])


@act({S: None, A: None, T: None, P: None, R: None, W: None, C: None, X: None, D: None, G: None, U: None})
async def delete_running_too(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.delete([job.ref], running=True)


@act({S: None, A: None, T: None, P: None, W: None, C: None, X: None, D: None, G: None, U: None})
async def purge(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.purge(job.queue, list(State))


@act({A: R})
async def fetch(store: Store, clock: ManualClock, job: Job) -> object:
    return await take(store, 9, worker="w-new")


@act({A: R, P: R})
async def fetch_by_one_who_knows(store: Store, clock: ManualClock, job: Job) -> object:
    await store.announce(WorkerInfo("w-new", "host", 1, 0, (), (job.task,), 1))
    return await take(store, 9, worker="w-new")


@act({})
async def fetch_from_a_paused_queue(store: Store, clock: ManualClock, job: Job) -> object:
    await store.announce(WorkerInfo("w-new", "host", 1, 0, (), (job.task,), 1))
    await store.settings(job.queue, paused=True)
    return await take(store, 9, worker="w-new")


@act({})
async def promote_too_early(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.promote([job.queue], limit=9)


@act({S: A, T: A, U: A})
async def promote_when_due(store: Store, clock: ManualClock, job: Job) -> object:
    clock.advance(HOUR)
    return await store.promote([job.queue], limit=9)


@act({S: X, T: X, U: A})  # a suspended job has started in time
async def promote_when_expired(store: Store, clock: ManualClock, job: Job) -> object:
    clock.advance(DAY)
    return await store.promote([job.queue], limit=9)


@act({A: X})
async def fetch_when_expired(store: Store, clock: ManualClock, job: Job) -> object:
    clock.advance(DAY)
    return await take(store, 9, worker="w-new")


@act({P: X, A: X})
async def fetch_when_expired_by_one_who_knows(store: Store, clock: ManualClock, job: Job) -> object:
    clock.advance(DAY)
    await store.announce(WorkerInfo("w-new", "host", 1, 0, (), (job.task,), 1))
    return await take(store, 9, worker="w-new")


@act({})
async def prune_too_early(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.prune()


@act({S: X, A: X, T: X, P: X, W: X, G: X, C: None, X: None, D: None})
async def prune_when_over(store: Store, clock: ManualClock, job: Job) -> object:
    clock.advance(DAY)
    return await store.prune()


@act({C: None, X: None, D: None})
async def prune_to_the_newest(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.prune(keep_finished=0, keep_dead=0)


@act({})
async def reclaim_too_early(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.reclaim([job.queue], limit=9, lease=LEASE, worker="w-new", token=token())


@act({R: R})
async def reclaim_when_run_out(store: Store, clock: ManualClock, job: Job) -> object:
    clock.advance(LEASE)
    return await store.reclaim([job.queue], limit=9, lease=LEASE, worker="w-new", token=token())


@act({R: R})
async def reclaim_from_the_dead(store: Store, clock: ManualClock, job: Job) -> object:
    return await store.reclaim([], limit=9, lease=LEASE, worker="w-new", token=token(), of=["w1"])


@act({})
async def drop_the_queue(store: Store, clock: ManualClock, job: Job) -> object:
    assert not await store.drop(job.queue)
    return None


def settle_as(name: str) -> None:
    transition = ENDINGS[name]
    after = None if name == "removed" else transition.state

    async def settle(store: Store, clock: ManualClock, job: Job) -> object:
        held = job.token is not None
        lease = job.lease if held else Lease(job.queue, job.id, "made-up", job.generation)
        answers = await store.settle([Settlement(lease, transition)])
        assert answers == [Settled.APPLIED if held else Settled.STALE]
        return answers

    ACTS[f"settle as {name}"] = (settle, {R: after})


for _name in ENDINGS:
    settle_as(_name)


@pytest.mark.parametrize("name", sorted(ACTS))
async def test_an_act_takes_its_steps_and_no_others(store: Store, clock: ManualClock, name: str) -> None:
    """Of a job in each state, alone in a namespace."""
    for state in State:
        await _takes_its_step(store.in_namespace(state.value), clock, name, state)


async def _takes_its_step(store: Store, clock: ManualClock, name: str, state: State) -> None:
    way, after = ACTS[name]
    job = await in_state(store, state, expires_in=DAY, unique=UniqueKey("k", replace=3))
    await way(store, clock, job)
    (found,) = await store.get([job.ref])
    if state not in after:
        assert found == job
        return
    assert (state, after[state]) in LEGAL
    if after[state] is None:
        assert found is None
        return
    assert found is not None
    assert found.state is after[state]
    assert found.generation == job.generation
    assert (found.ended_at is not None) == (found.state in TERMINAL)
    assert (found.token is not None) == (found.worker is not None) == (found.state is R)
    if state is R and found.state is R:
        assert found.token != job.token


@pytest.mark.parametrize(("delay", "state"), [(0, A), (1, S)])
async def test_a_job_begins_available_or_scheduled(store: Store, delay: int, state: State) -> None:
    spec = new(delay=delay)
    await add(store, spec)
    (job,) = await store.get([spec.ref])
    assert job is not None
    assert job.state is state
    assert (None, state) in LEGAL


def test_these_acts_take_every_legal_step() -> None:
    taken = {(before, after) for _, steps in ACTS.values() for before, after in steps.items()}
    # test_partitions.py, test_replaced_arguments.py
    into_a_full_partition = {(before, W) for before in (None, S, A, R, T, P, C, X, D, U)}
    collecting_later = {(None, G), (None, X), (S, G), (C, G), (X, G), (D, G)}
    with_their_batch = collecting_later  # test_batches.py
    assert taken | {(None, A), (None, S), (W, A)} | into_a_full_partition | with_their_batch == set(LEGAL)
