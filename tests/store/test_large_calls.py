"""Calls of the maximum size: no job is lost, repeated or out of order."""

from __future__ import annotations

import pytest

from penstock.core.job import State
from penstock.stores.contract import Settled, Settlement, Share, Store
from tests.store.facts import KEEP, LEASE, MINUTE, RELEASED, Transition, add, counts, ids, new, some


async def fetch(store: Store, token: str, limit: int, *queues: str) -> list[str]:
    shares = [Share(queue, limit, limit) for queue in queues or ("default",)]
    found = await store.fetch(shares, limit=limit, lease=LEASE, worker="w1", token=token)
    return ids(found.jobs)


@pytest.mark.parametrize("n", [2_000, 4_000])
async def test_a_large_fetch_that_is_repeated_returns_its_leases(store: Store, n: int) -> None:
    await store.enqueue(some(n + 10))
    first = await fetch(store, "t1", n)
    assert len(first) == n
    assert sorted(await fetch(store, "t1", n)) == sorted(first)
    assert sorted(await fetch(store, "t1", n + 10)) == sorted(first)  # and leases no more
    assert await counts(store) == {State.RUNNING: n, State.AVAILABLE: 10}


async def test_a_large_reclaim_that_is_repeated_returns_its_leases(store: Store) -> None:
    await store.enqueue(some(2_000))
    await fetch(store, "t1", 2_000)
    for _ in range(2):
        found = await store.reclaim((), limit=2_000, lease=LEASE, worker="w2", token="t2", of=["w1"])
        assert len(found.jobs) == 2_000


async def test_a_large_fetch_over_two_queues_is_filled(store: Store) -> None:
    await store.enqueue([*some(5_000, queue="a"), *some(10, queue="b")])
    assert len(await fetch(store, "t1", 5_010, "a", "b")) == 5_010


async def test_jobs_of_mixed_priorities_can_be_cancelled_one_by_one(store: Store) -> None:
    await add(store, *some(500))
    mixed = [new(priority=int(n % 4 == 0)) for n in range(2_000)]
    await store.enqueue(mixed)
    wanted = [job for job in mixed if job.priority == 0]
    assert await store.cancel([job.ref for job in wanted[700:1_100]]) == [State.CANCELLED] * 400
    first = await fetch(store, "t1", 3_000)
    assert first[:500] == [job.id for job in mixed if job.priority == 1]
    assert first[1_000:] == ids([*wanted[:700], *wanted[1_100:]])
    assert (await counts(store)).get(State.AVAILABLE, 0) == 0


async def test_a_batch_over_queues_can_be_deleted_one_by_one(store: Store) -> None:
    await add(store, *some(500, queue="a"))
    mixed = [new(queue="aaab"[n % 4]) for n in range(2_000)]
    await store.enqueue(mixed)
    wanted = [job for job in mixed if job.queue == "a"]
    assert await store.delete([job.ref for job in wanted[700:1_100]]) == [State.AVAILABLE] * 400
    found = await fetch(store, "t1", 2_500, "a")
    assert found[500:] == ids([*wanted[:700], *wanted[1_100:]])
    assert await counts(store, "a") == {State.RUNNING: 1_600}


async def test_a_settlement_is_followed_by_many(store: Store) -> None:
    await add(store, new("first", queue="a"))
    lease = (
        (await store.fetch([Share("a", 1, 1)], limit=1, lease=LEASE, worker="w1", token="t1")).jobs[0].lease
    )
    then = tuple(some(2_100, queue="b"))
    settled = await store.settle([Settlement(lease, Transition(State.COMPLETED, keep=KEEP), then=then)])
    assert settled == [Settled.APPLIED]
    assert await counts(store, "b") == {State.AVAILABLE: 2_100}


async def test_a_large_release_keeps_its_order(store: Store) -> None:
    await store.enqueue(some(600))
    found = await store.fetch([Share("default", 600, 600)], limit=600, lease=MINUTE, worker="w1", token="t1")
    await store.settle([Settlement(job.lease, RELEASED) for job in found.jobs])
    assert await fetch(store, "t2", 600) == ids(found.jobs)
