"""in_namespace: one store serves many namespaces over one set of connections."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.errors import ConfigError
from penstock.stores.contract import DocumentChange, Store, Wake, WorkerInfo, WorkerOffer
from tests.store.facts import (
    DAY,
    LEASE,
    SOON,
    OpenStore,
    add,
    all_jobs,
    asleep,
    counts,
    end,
    ids,
    new,
    running,
    take,
    take_one,
    the,
    token,
)


async def test_a_namespace_is_the_one_that_another_store_opens(store: Store, open_store: OpenStore) -> None:
    view, other = store.in_namespace("team-b"), open_store(namespace="team-b")
    spec = new()
    await add(view, spec)
    assert await all_jobs(store) == []
    assert await all_jobs(other) == [await the(view, spec)]
    await end(other, await take_one(other))
    assert (await the(view, spec)).state is State.COMPLETED


async def test_each_namespace_has_one_object(store: Store) -> None:
    view = store.in_namespace("team-b")
    assert store.in_namespace("team-b") is view
    assert view.in_namespace("team-b") is view
    assert view.in_namespace("") is store
    assert view.in_namespace("team-c") is store.in_namespace("team-c")
    assert store.in_namespace("") is store
    assert view.url == store.url
    with pytest.raises(ConfigError, match="namespace"):
        store.in_namespace("a/b")


async def test_calls_that_travel_together_stay_in_their_namespaces(store: Store) -> None:
    views = [store.in_namespace(f"n{n}") for n in range(8)]
    for _ in range(3):
        await asyncio.gather(*(add(view, new(f"same-{n}"), new()) for n, view in enumerate(views)))
        jobs = await asyncio.gather(*(take(view, 2) for view in views))
        for n, view in enumerate(views):
            assert jobs[n][0].id == f"same-{n}"
            assert await counts(view) == {State.RUNNING: 2}
        await asyncio.gather(*(store.delete([job.ref for job in found]) for found in jobs))
        deleted = [view.delete([job.ref for job in jobs[n]], running=True) for n, view in enumerate(views)]
        assert await asyncio.gather(*deleted) == [[State.RUNNING] * 2] * 8
    assert await store.queues() == []


async def test_everything_has_its_own_namespace(store: Store, clock: ManualClock) -> None:
    view = store.in_namespace("team-b")
    job = await running(store)
    await store.settings("default", paused=True, closed=True)
    await store.announce(WorkerInfo("w1", "host", 1, 0, (), ("t",), 1))
    await store.change_documents("tokens", [DocumentChange("a", b"")])
    assert (await view.queues(), await view.workers(), await view.stats()) == ([], [], [])
    assert (await view.documents("tokens")).documents == []
    assert await view.find(job.id) == []
    clock.advance(DAY)
    assert (await view.reclaim(["default"], limit=9, lease=LEASE, worker="w", token=token())).jobs == []
    assert (await view.reclaim([], limit=9, lease=LEASE, worker="w", token=token(), of=["w1"])).jobs == []
    assert await the(store, job) == job


async def test_a_wait_is_woken_by_its_own_namespace_alone(store: Store) -> None:
    view = store.in_namespace("team-b")
    job = await running(store)
    waits = [
        asyncio.create_task(one.wait(["default"], timeout=timeout, offer=WorkerOffer("w1", token(), LEASE)))
        for one, timeout in ((store, 300), (view, 60_000))
    ]
    for wait in waits:
        await asleep(wait)
    await add(view, new("here"))
    assert Wake.WORK in await asyncio.wait_for(waits[1], SOON)
    assert await asyncio.wait_for(waits[0], SOON) is Wake.NOTHING
    assert await the(store, job) == job


async def test_a_view_hears_of_requests_to_stop_and_of_ends(store: Store) -> None:
    view = store.in_namespace("team-b")
    job = await running(view)
    await view.wait([], timeout=0)
    wait = asyncio.create_task(view.wait(["default"], timeout=60_000))
    result = asyncio.create_task(view.wait_for_end([job.ref], timeout=60_000))
    await asleep(wait)
    await view.cancel([job.ref])
    assert Wake.CANCEL in await asyncio.wait_for(wait, SOON)
    await end(view, job)
    (ended,) = await asyncio.wait_for(result, SOON)
    assert ended is not None
    assert ended.state is State.COMPLETED


async def test_the_sync_verbs_of_a_view_are_in_its_namespace(store: Store) -> None:
    view, spec = store.in_namespace("team-b"), new()
    await asyncio.to_thread(view.sync.enqueue, [spec])
    assert await all_jobs(store) == []
    assert (await asyncio.to_thread(view.sync.get, [spec.ref])) == [await the(view, spec)]


async def test_closing_a_view_leaves_the_store_open(store: Store) -> None:
    view = store.in_namespace("team-b")
    await add(store, new("a"))
    await add(view, new("b"))
    view.close()
    assert ids(await all_jobs(store)) == ["a"]
    assert ids(await all_jobs(view)) == ["b"]
    store.close()
    wait = asyncio.create_task(view.wait(["default"], timeout=60_000))
    assert Wake.WORK in await asyncio.wait_for(wait, SOON)
    assert ids(await take(view, 9)) == ["b"]
