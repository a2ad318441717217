"""A producer whose Redis is away gets an error in time, or its job waits in memory and arrives later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import App
from penstock.core.job import State
from penstock.errors import EnqueueUnknown, OutboxFull, StoreUnavailable
from tests.stores.redis.faulty_proxy import FaultyProxy
from tests.system.conftest import Program
from tests.system.redis.conftest import Load, RedisPlace

pytestmark = pytest.mark.slow


SAYS_WHY = r"does not answer|has not answered|closed the connection"


@pytest.mark.parametrize("door", ["sync", "async"])
@pytest.mark.parametrize("how", ["stop", "pause"])
async def test_a_producer_gets_a_clear_error_within_its_timeout(new_redis, place_at, how, door):
    server = new_redis()
    place = place_at(server.url + "?timeout=1s")
    enqueue = through(door, place.tasks.quick)
    await enqueue(0)
    await asyncio.to_thread(getattr(server, how))
    for n in range(2):
        with pytest.raises((StoreUnavailable, EnqueueUnknown), match=SAYS_WHY):
            await enqueue(n)


def through(door: str, task: Any) -> Callable[[int], Awaitable[Any]]:
    """Enqueue through this door."""
    if door == "async":
        return lambda n: task.aenqueue(n)
    return lambda n: asyncio.to_thread(task.enqueue, n)


@pytest.mark.parametrize("door", ["sync", "async"])
async def test_a_lost_reply_is_said_and_the_job_is_not_stored_twice(new_redis, place_at, door):
    server = new_redis()
    with FaultyProxy(server.port) as proxy:
        place = place_at(f"redis://127.0.0.1:{proxy.port}")
        worker = place.worker()
        task = place.tasks.quick
        await through(door, task)(0)
        proxy.lose_reply_to = b"find-me"
        with pytest.raises(EnqueueUnknown) as caught:
            await through(door, task.using(id="find-me"))(1)
        assert caught.value.ids == ("find-me",)
        await asyncio.to_thread(finished, place, worker)


def finished(place: RedisPlace, worker: Program) -> None:
    """It was stored all the same, once."""
    place.completed([place.app.handle("find-me", queue="default")])
    verdict = place.all_ran_once(Load(place), worker)
    assert (verdict.unknown, verdict.completed) == (1, 2)


def test_an_outbox_holds_jobs_during_an_outage_and_sends_them_after(new_redis, place_at):
    server = new_redis("appendfsync always", appendonly=True)
    place = place_at(server.url)
    worker = place.worker()
    app = App(server.url + "?timeout=1s", outbox=100)
    place.ledger.watch(app)

    @app.task(name="quick")
    async def quick(n: int = 0) -> int:
        return n

    try:
        handles = [quick.enqueue(0)]
        server.stop()
        # only the first of them asks the store: if each did, that would take longer than a test may
        handles += [quick.enqueue(n) for n in range(1, 101)]
        with pytest.raises(OutboxFull):
            quick.enqueue(101)
        time.sleep(2.0)
        server.start_again()
        assert app.flush(timeout=20)
    finally:
        app.close()
    jobs = place.completed(handles)
    generations = [job.generation for job in jobs]
    assert generations == sorted(generations), "they arrive in their order"
    place.done(worker)
    assert set(place.runs().values()) == {1}
    assert place.counts() == {State.COMPLETED: 101}
    place.verdict().require()
