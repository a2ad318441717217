"""FaultyStore fails exactly on demand, and otherwise behaves like its store."""

from __future__ import annotations

import asyncio

import pytest

from penstock import App, ConfigError, StoreBusy, StoreUnavailable, Worker
from penstock.core.job import NewJob
from penstock.stores.memory import MemoryStore
from penstock.testing import FaultyStore


async def test_a_refused_call_does_nothing_and_the_next_one_works() -> None:
    faulty = FaultyStore(MemoryStore())
    faulty.fail("enqueue", error=StoreBusy("not now"))
    with pytest.raises(StoreBusy, match="not now"):
        await faulty.store.enqueue([NewJob("a", "t")])
    assert await faulty.store.find("a") == []
    await faulty.store.enqueue([NewJob("a", "t")])
    assert len(await faulty.store.find("a")) == 1
    assert faulty.calls["enqueue"] == 2


async def test_a_lost_reply_has_done_its_work() -> None:
    faulty = FaultyStore(MemoryStore())
    faulty.lose_reply("enqueue")
    with pytest.raises(StoreUnavailable):
        faulty.store.sync.enqueue([NewJob("a", "t")])
    assert len(await faulty.store.find("a")) == 1


async def test_a_store_that_is_away_refuses_all_until_it_is_back() -> None:
    faulty = FaultyStore(MemoryStore())
    faulty.down()
    for call in (faulty.store.queues, faulty.store.workers):
        with pytest.raises(StoreUnavailable):
            await call()
    faulty.up()
    assert await faulty.store.queues() == []


def test_a_verb_that_no_store_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'settle'"):
        FaultyStore(MemoryStore()).fail("setle")


@pytest.mark.parametrize("lost", [False, True])
async def test_a_worker_settles_until_it_is_answered(lost: bool) -> None:
    app = App("memory://")
    ran: list[int] = []

    @app.task
    async def once() -> int:
        ran.append(1)
        return 5

    faulty = FaultyStore(app.store)
    app.use_store(faulty.store)
    (faulty.lose_reply if lost else faulty.fail)("settle", times=2)
    handle = await once.aenqueue()
    await asyncio.wait_for(Worker(app, burst=True).run(), 60)
    assert ran == [1]
    assert await handle.aresult(60) == 5
