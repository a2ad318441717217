"""A clock that was ahead for a moment leaves no growing data behind."""

from __future__ import annotations

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.stores.redis.layout import ms_of, packed
from penstock.stores.redis.store import RedisStore
from tests.store.facts import HOUR, add, end, ids, new, some, take
from tests.store.redis_corruptor import RedisCorruptor


def size(corruptor: RedisCorruptor, queue: str, id: str) -> int:
    with corruptor.client() as client:
        return len(client.hget(corruptor.key(queue, "jobs"), packed(id)))


async def test_producers_carry_a_clock_that_was_ahead_to_no_other_queue(
    store: RedisStore, corruptor: RedisCorruptor, clock: ManualClock
) -> None:
    await add(store, new("before", queue="a"))
    usual = size(corruptor, "a", "before")
    clock.advance(HOUR)
    await add(store, new("ahead", queue="a"))
    clock.advance(-HOUR)
    await add(store, new("other", queue="b"), *some(3, queue="b"))
    assert size(corruptor, "b", "other") == usual
    (first, *_) = await take(store, 9, "b")
    assert first.id == "other"
    assert ms_of(first.generation) == clock.now()


async def test_a_queue_that_has_run_empty_forgets_it(
    store: RedisStore, corruptor: RedisCorruptor, clock: ManualClock
) -> None:
    await add(store, new("before"))
    usual = size(corruptor, "default", "before")
    clock.advance(HOUR)
    await add(store, new("ahead"))
    clock.advance(-HOUR)
    await add(store, new("later"))
    jobs = await take(store, 9)
    assert ids(jobs) == ["before", "ahead", "later"], "in the order of enqueue all the same"
    assert len({job.generation for job in jobs}) == 3
    for job in jobs:
        await end(store, job, Transition(State.COMPLETED))
    await add(store, new("healed"))
    assert size(corruptor, "default", "healed") == usual
