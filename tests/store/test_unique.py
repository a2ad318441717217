"""Unique keys: a key is held in its queue until its job ends or is removed, or its period is over."""

from __future__ import annotations

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import TERMINAL, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.unique import UniqueKey
from penstock.stores.contract import Enqueued, EnqueueStatus, Store
from tests.cases import each
from tests.store.facts import (
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
    gone,
    in_state,
    new,
    running,
    take,
    take_one,
    the,
    token,
)

K = UniqueKey("k")


async def held_by(store: Store, key: UniqueKey = K, queue: str = "default") -> str | None:
    """Who has the key: asked by trying to take it, which is taken back."""
    probe = new(unique=key, queue=queue, delay=DAY)
    (answer,) = await store.enqueue([probe])
    if answer.status is EnqueueStatus.DUPLICATE:
        return answer.id
    assert answer.status is EnqueueStatus.NEW
    await store.delete([probe.ref])
    return None


async def test_a_duplicate_is_not_stored_and_names_the_holder(store: Store) -> None:
    first, second = new(unique=K), new(unique=K)
    await add(store, first)
    assert await store.enqueue([second]) == [Enqueued(EnqueueStatus.DUPLICATE, first.id)]
    assert await gone(store, second)
    assert await counts(store) == {State.AVAILABLE: 1}
    assert (await store.stats())[0].enqueued == 1


async def test_a_batch_sees_its_earlier_items(store: Store) -> None:
    first, second = new(unique=K), new(unique=K)
    assert await store.enqueue([first, second, first]) == [
        Enqueued(EnqueueStatus.NEW, first.id),
        Enqueued(EnqueueStatus.DUPLICATE, first.id),
        Enqueued(EnqueueStatus.EXISTS, first.id),
    ]


async def test_a_used_id_takes_precedence_over_other_refusals(store: Store) -> None:
    first, taken = new(unique=K), new()
    await add(store, first, taken)
    assert await store.enqueue([new(taken.id, unique=K)]) == [Enqueued(EnqueueStatus.EXISTS, taken.id)]
    await store.settings("default", closed=True)
    more = new(unique=K)
    assert await store.enqueue([more, new(taken.id, unique=K)]) == [
        Enqueued(EnqueueStatus.CLOSED, more.id),
        Enqueued(EnqueueStatus.EXISTS, taken.id),
    ]


async def test_keys_and_queues_stand_apart(store: Store) -> None:
    await add(
        store,
        new(unique=K),
        new(unique=UniqueKey("K")),
        new(unique=K, queue="other"),
        new(),
        new(),
    )


@each("state", sorted(set(State) - TERMINAL))
async def test_the_key_is_held_in_every_state_that_has_not_ended(store: Store, state: State) -> None:
    job = await in_state(store, state, unique=K)
    assert await held_by(store) == job.id


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_the_key_is_free_when_its_job_has_ended(store: Store, state: State) -> None:
    await in_state(store, state, unique=K)
    assert await held_by(store) is None


async def test_the_key_is_free_when_its_job_is_gone(store: Store) -> None:
    job = await running(store, unique=K)
    await end(store, job, Transition(State.COMPLETED))
    assert await held_by(store) is None
    await add(store, job.spec)
    await store.delete([job.ref])
    assert await held_by(store) is None
    await add(store, job.spec)
    await store.purge("default", [State.AVAILABLE])
    assert await held_by(store) is None


async def test_the_key_is_free_when_its_job_is_cancelled(store: Store) -> None:
    job = await in_state(store, State.AVAILABLE, unique=K)
    await store.cancel([job.ref])
    assert await held_by(store) is None


@pytest.mark.parametrize("verb", ["fetch", "promote", "prune"])
async def test_the_key_is_free_when_its_job_has_expired(store: Store, clock: ManualClock, verb: str) -> None:
    spec = new(unique=K, expires_in=MINUTE, delay=MINUTE if verb == "promote" else 0)
    await add(store, spec)
    clock.advance(MINUTE)
    assert await held_by(store) == spec.id  # until somebody meets it
    if verb == "fetch":
        await take(store)
    elif verb == "promote":
        await store.promote(["default"], limit=9)
    else:
        await store.prune()
    assert (await the(store, spec)).state is State.CANCELLED
    assert await held_by(store) is None


async def test_a_key_held_through_loss_and_reclaim(store: Store, clock: ManualClock) -> None:
    job = await running(store, unique=K)
    clock.advance(LEASE)
    found = await store.reclaim(["default"], limit=1, lease=LEASE, worker="w2", token=token())
    assert await held_by(store) == job.id
    await end(store, found.jobs[0], DEAD)
    assert await held_by(store) is None


# ── periods ──


async def test_a_period_releases_the_key_in_any_state_of_its_job(store: Store, clock: ManualClock) -> None:
    key = UniqueKey("k", MINUTE)
    first, second, third = new(unique=key), new(unique=key), new(unique=key)
    await add(store, first)
    clock.advance(MINUTE - 1)
    assert await store.enqueue([second]) == [Enqueued(EnqueueStatus.DUPLICATE, first.id)]
    clock.advance(1)
    await add(store, second)
    assert await store.enqueue([third]) == [Enqueued(EnqueueStatus.DUPLICATE, second.id)]
    assert await counts(store) == {State.AVAILABLE: 2}


async def test_the_former_holder_frees_nothing_of_its_successors(store: Store, clock: ManualClock) -> None:
    key = UniqueKey("k", MINUTE)
    first, second = new(unique=key), new(unique=key)
    await add(store, first)
    clock.advance(MINUTE)
    await add(store, second)
    await end(store, await take_one(store), COMPLETED)
    assert (await the(store, first)).state is State.COMPLETED
    assert await held_by(store, key) == second.id
    await store.delete([first.ref])
    assert await held_by(store, key) == second.id


async def test_the_period_is_the_holders(store: Store, clock: ManualClock) -> None:
    await add(store, new("first", unique=UniqueKey("k", HOUR)))
    clock.advance(MINUTE)
    assert await held_by(store, UniqueKey("k", 1)) == "first"
    assert await held_by(store, UniqueKey("k")) == "first"
    clock.advance(HOUR)
    assert await held_by(store, UniqueKey("k")) is None


async def test_a_period_of_nothing_holds_nothing(store: Store) -> None:
    key = UniqueKey("k", 0)
    await add(store, new(unique=key), new(unique=key))
    assert await held_by(store) is None


async def test_a_period_counts_from_the_enqueue_not_from_the_start(store: Store, clock: ManualClock) -> None:
    key = UniqueKey("k", MINUTE)
    await add(store, new(unique=key, delay=HOUR))
    clock.advance(MINUTE)
    assert await held_by(store, key) is None


# ── retry by an operator ──


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_a_job_that_is_brought_back_takes_its_key_again(store: Store, state: State) -> None:
    job = await in_state(store, state, unique=K)
    await store.retry([job.ref])
    assert await held_by(store) == job.id
    await end(store, await take_one(store))
    assert await held_by(store) is None


async def test_a_job_that_is_brought_back_when_its_key_is_taken_runs_without(store: Store) -> None:
    dead = await in_state(store, State.DEAD, unique=K)
    holder = new(unique=K)
    await add(store, holder)
    assert await store.retry([dead.ref]) == [State.DEAD]
    assert (await the(store, dead)).state is State.AVAILABLE
    assert await held_by(store) == holder.id
    await store.cancel([dead.ref])
    assert await held_by(store) == holder.id
    await store.retry([dead.ref])
    await store.cancel([holder.ref])
    assert await held_by(store) is None  # nobody waits for a key


async def test_of_two_that_are_brought_back_the_first_has_the_key(store: Store) -> None:
    jobs = [await in_state(store, State.DEAD, unique=K) for _ in range(2)]
    await store.retry([jobs[1].ref, jobs[0].ref])
    assert await held_by(store) == jobs[1].id


async def test_a_key_is_taken_again_for_what_is_left_of_its_period(store: Store, clock: ManualClock) -> None:
    key = UniqueKey("k", HOUR)
    job = await in_state(store, State.DEAD, unique=key)
    clock.advance(HOUR - 1)
    await store.retry([job.ref])
    assert await held_by(store, key) == job.id
    clock.advance(1)
    assert await held_by(store, key) is None
    await end(store, await take_one(store), DEAD)
    await store.retry([job.ref])
    assert await held_by(store, key) is None


async def test_a_queued_job_without_its_key_does_not_get_it_by_a_retry(store: Store) -> None:
    dead = await in_state(store, State.DEAD, unique=K)
    holder = new(unique=K)
    await add(store, holder)
    await store.retry([dead.ref])
    await store.delete([holder.ref])
    assert await store.retry([dead.ref]) == [State.AVAILABLE]  # it has not ended since
    assert await held_by(store) is None


async def test_other_store_objects_know_the_same_holders(store: Store, open_store: OpenStore) -> None:
    spec = new(unique=K)
    await add(store, spec)
    assert await held_by(open_store()) == spec.id


async def test_many_unique_jobs_at_once(store: Store) -> None:
    def batch() -> list[NewJob]:
        return [new(unique=UniqueKey(f"k{n}")) for n in range(1_100)]

    first = batch()
    await add(store, *first)
    answers = await store.enqueue(batch())
    assert answers == [Enqueued(EnqueueStatus.DUPLICATE, job.id) for job in first]
