"""Namespaces: two teams on one store do not see each other's data."""

from __future__ import annotations

import asyncio

from penstock.core.job import State
from penstock.core.unique import UniqueKey
from penstock.stores.contract import Store, Wake, WorkerInfo
from tests.store.facts import (
    DAY,
    HOUR,
    LEASE,
    SOON,
    OpenStore,
    add,
    all_jobs,
    asleep,
    end,
    ids,
    new,
    running,
    take,
    the,
    token,
)


async def test_everything_has_its_own_namespace(open_store: OpenStore, clock) -> None:
    a, b = open_store(namespace="team-a"), open_store(namespace="team-b")
    spec = new("same", unique=UniqueKey("k"))
    await add(a, spec)
    await add(b, spec)
    job = (await take(a))[0]
    await end(a, job)
    assert (await the(b, spec)).state is State.AVAILABLE
    await a.settings("default", paused=True, closed=True)
    assert [(q.paused, q.closed) for q in await b.queues()] == [(False, False)]
    assert [s.processed for s in await b.stats()] == [0]
    await a.announce(WorkerInfo("w1", "host", 1, 0, (), ("t",), 1))
    assert await b.workers() == []
    assert len(await a.find("same")) == len(await b.find("same")) == 1
    assert ids(await all_jobs(b)) == ["same"]
    assert ids(await take(b)) == ["same"]
    clock.advance(DAY)
    assert (await a.reclaim(["default"], limit=9, lease=LEASE, worker="w", token=token())).jobs == []
    assert (await a.reclaim([], limit=9, lease=LEASE, worker="w", token=token(), of=["w1"])).jobs == []
    assert (await a.prune()).finished == 1
    assert await counts_of(b) == {State.RUNNING: 1}


async def counts_of(store: Store) -> dict[State, int]:
    return (await store.queues())[0].counts


async def test_two_stores_on_one_namespace_see_the_same(open_store: OpenStore) -> None:
    one, two = open_store(namespace="team-a"), open_store(namespace="team-a")
    job = await running(one)
    assert await all_jobs(two) == [job]


async def test_the_empty_namespace_is_one_like_others(open_store: OpenStore) -> None:
    plain, named = open_store(), open_store(namespace="x")
    await add(plain, new("a"))
    assert await all_jobs(named) == []
    await add(named, new("a", delay=HOUR))
    assert (await the(plain, new("a"))).state is State.AVAILABLE


async def test_news_stay_in_their_namespace(open_store: OpenStore) -> None:
    a, b = open_store(namespace="a"), open_store(namespace="b")
    job = await running(a)
    await b.wait([], timeout=0)
    wait = asyncio.create_task(b.wait(["default"], timeout=300))
    await asleep(wait)
    await add(a, new())
    await a.cancel([job.ref])
    await a.settings("default", closed=True)
    assert await asyncio.wait_for(wait, SOON) is Wake.NOTHING
