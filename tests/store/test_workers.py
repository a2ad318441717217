"""announce, retire and workers: which workers run, and what they serve."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.stores.contract import Store, WorkerInfo
from tests.store.facts import MINUTE, OpenStore, running, the


def worker(id: str, *, started_at: int = 0) -> WorkerInfo:
    return WorkerInfo(
        id=id,
        host="host–1",
        pid=4_242,
        started_at=started_at,
        queues=("mail", "default"),
        tasks=("a", "b.c"),
        concurrency=20,
        running=3,
        state="draining",
        supervisor=4_000,
        version="0.1.0",
    )


async def test_an_announced_worker_is_listed_as_it_said(store: Store, clock: ManualClock) -> None:
    assert await store.workers() == []
    await store.announce(worker("w1"))
    assert await store.workers() == store.sync.workers() == [replace(worker("w1"), seen_at=clock.now())]


async def test_a_later_word_replaces_the_earlier_one(store: Store, clock: ManualClock) -> None:
    await store.announce(worker("w1"))
    clock.advance(5)
    later = replace(worker("w1"), running=0, tasks=(), supervisor=None, state="quiet")
    await store.announce(later)
    assert await store.workers() == [replace(later, seen_at=clock.now())]


async def test_when_it_was_seen_is_the_stores_word(store: Store, clock: ManualClock) -> None:
    await store.announce(replace(worker("w1"), seen_at=1))
    assert [w.seen_at for w in await store.workers()] == [clock.now()]


async def test_the_oldest_come_first(store: Store) -> None:
    for w in (worker("c", started_at=3), worker("b", started_at=1), worker("a", started_at=3)):
        await store.announce(w)
    assert [w.id for w in await store.workers()] == ["b", "a", "c"]


async def test_a_worker_without_a_sign_of_life_for_a_minute_is_not_listed(
    store: Store, clock: ManualClock
) -> None:
    await store.announce(worker("w1"))
    clock.advance(MINUTE)
    assert len(await store.workers()) == 1
    clock.advance(1)
    assert await store.workers() == []
    await store.announce(worker("w1"))
    assert len(await store.workers()) == 1


async def test_a_retired_worker_is_gone_and_its_leases_are_not(store: Store) -> None:
    job = await running(store)
    await store.announce(worker("w1"))
    await store.announce(worker("w2"))
    await store.retire("w1")
    assert [w.id for w in await store.workers()] == ["w2"]
    assert await the(store, job) == job
    await store.retire("w1")
    await store.retire("nobody")


async def test_other_store_objects_see_the_same_workers(store: Store, open_store: OpenStore) -> None:
    await store.announce(worker("w1"))
    other = open_store()
    assert await other.workers() == await store.workers()
    await other.retire("w1")
    assert await store.workers() == []
