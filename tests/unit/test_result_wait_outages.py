"""Waits for a result, an end or progress survive an outage of the store, within their timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock import App, Handle, StoreUnavailable
from penstock.testing import FaultyStore

#: A way to wait: gets the app, a handle and the timeout, and returns what it was told.
Wait = Callable[[App, Handle[Any], Any], Coroutine[Any, Any, Any]]


async def result(app: App, handle: Handle[Any], timeout: Any) -> Any:
    return await asyncio.to_thread(handle.result, timeout)


async def aresult(app: App, handle: Handle[Any], timeout: Any) -> Any:
    return await handle.aresult(timeout)


async def results(app: App, handle: Handle[Any], timeout: Any) -> Any:
    return (await asyncio.to_thread(app.results, [handle], timeout=timeout))[0]


async def aresults(app: App, handle: Handle[Any], timeout: Any) -> Any:
    return (await app.aresults([handle], timeout=timeout))[0]


async def as_completed(app: App, handle: Handle[Any], timeout: Any) -> Any:
    (ended,) = await asyncio.to_thread(list, app.as_completed([handle], timeout=timeout))
    return ended.result()


async def as_completed_async(app: App, handle: Handle[Any], timeout: Any) -> Any:
    (ended,) = [one async for one in app.as_completed([handle], timeout=timeout)]
    return await ended.aresult()


async def follow(app: App, handle: Handle[Any], timeout: Any) -> Any:
    return await asyncio.to_thread(list, handle.follow_progress(every="50ms", timeout=timeout)) or 42


async def follow_async(app: App, handle: Handle[Any], timeout: Any) -> Any:
    return [one async for one in handle.follow_progress(every="50ms", timeout=timeout)] or 42


async def drained(app: App, handle: Handle[Any], timeout: Any) -> Any:
    return await asyncio.to_thread(app.drained, handle.queue, timeout) and 42


async def drained_async(app: App, handle: Handle[Any], timeout: Any) -> Any:
    return await app.adrained(handle.queue, timeout) and 42


WAITS = [result, aresult, results, aresults, as_completed, as_completed_async, follow, follow_async]
every_wait = pytest.mark.parametrize("wait", [*WAITS, drained, drained_async], ids=lambda wait: wait.__name__)
ASKED = ("get", "wait_for_end", "stream_ends", "queues")


@pytest.fixture
def app() -> App:
    app = App("memory://")
    faults = FaultyStore(app.store)
    app.use_store(faults.store)
    app.state.faults = faults

    @app.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    return app


async def ended_job(app: App) -> Handle[Any]:
    handle = await app.tasks["double"].aenqueue(21)
    async with app.take("default") as job:
        job.returns(42)
    return handle


@every_wait
@pytest.mark.parametrize("by", ["own", "id"])
async def test_a_wait_outlives_an_outage(app: App, wait: Wait, by: str) -> None:
    handle = await ended_job(app)
    for verb in ASKED:
        app.state.faults.fail(verb, times=2)
    assert await wait(app, handle if by == "own" else app.handle(handle.id, task="double"), "20s") == 42
    assert max(app.state.faults.calls[verb] for verb in ASKED) > 2, "nothing of this wait has failed"


@every_wait
async def test_an_outage_that_lasts_longer_than_the_wait_is_its_error(app: App, wait: Wait) -> None:
    handle = await ended_job(app)
    app.state.faults.down()
    with pytest.raises(StoreUnavailable):
        await wait(app, handle, "300ms")


@every_wait
async def test_without_a_timeout_an_outage_may_last_as_long_as_it_likes(app: App, wait: Wait) -> None:
    handle = await ended_job(app)
    for verb in ASKED:
        app.state.faults.fail(verb, times=3)
    assert await wait(app, handle, None) == 42


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
async def test_what_passes_by_no_waiting_is_raised_at_once(app: App, wait: Wait) -> None:
    handle = await ended_job(app)
    for verb in ASKED:
        app.state.faults.fail(verb, error=RuntimeError("no outage"))
    with pytest.raises(RuntimeError, match="no outage"):
        await wait(app, handle, "20s")
