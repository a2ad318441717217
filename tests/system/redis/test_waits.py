"""Waits for results and progress survive an outage of Redis that is longer than the call timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import App, Handle, StoreUnavailable
from tests.servers import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.system]

#: A call gives up after this; the outage lasts longer.
CALL, OUTAGE = "700ms", 6.5


def made(url: str) -> tuple[App, Handle[Any]]:
    app = App(f"{url}?timeout={CALL}&connect_timeout=300ms")

    @app.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    return app, app.tasks["double"].enqueue(21)


async def end(app: App) -> None:
    """Play the worker, once the store is there."""
    while True:
        try:
            async with app.take("default") as job:
                job.returns(42)
            return
        except StoreUnavailable:
            await asyncio.sleep(0.1)


async def outage(server: RedisServer) -> None:
    await asyncio.sleep(0.3)
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(OUTAGE)
    await asyncio.to_thread(server.start_again)


async def last(following: Any) -> Any:
    return [one async for one in following] or 42


async def first(completed: Any) -> Any:
    (ended,) = [handle async for handle in completed]
    return await ended.aresult()


ASYNC: dict[str, Callable[[App, Handle[Any]], Awaitable[Any]]] = {
    "aresult": lambda app, handle: handle.aresult(60),
    "aresults": lambda app, handle: app.aresults([handle], timeout=60),
    "as_completed": lambda app, handle: first(app.as_completed([handle], timeout=60)),
    "follow_progress": lambda app, handle: last(handle.follow_progress("100ms", timeout=60)),
    "adrained": lambda app, handle: app.adrained("default", 60),
}
SYNC: dict[str, Callable[[App, Handle[Any]], Any]] = {
    "result": lambda app, handle: handle.result(60),
    "results": lambda app, handle: app.results([handle], timeout=60),
    "as_completed": lambda app, handle: [one.result() for one in app.as_completed([handle], timeout=60)],
    "follow_progress": lambda app, handle: list(handle.follow_progress("100ms", timeout=60)) or 42,
    "drained": lambda app, handle: app.drained("default", 60),
}


async def test_all_waits_of_a_loop_outlive_it(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis(appendonly=True)
    app, handle = await asyncio.to_thread(made, server.url)
    waits = {name: asyncio.ensure_future(wait(app, handle)) for name, wait in ASYNC.items()}
    await outage(server)
    await end(app)
    told = dict(zip(waits, await asyncio.gather(*waits.values(), return_exceptions=True), strict=True))
    assert told == {name: [42] if name == "aresults" else name == "adrained" or 42 for name in ASYNC}
    app.close()


async def test_all_waits_of_threads_outlive_it(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis(appendonly=True)
    app, handle = await asyncio.to_thread(made, server.url)
    waits = {name: asyncio.ensure_future(asyncio.to_thread(wait, app, handle)) for name, wait in SYNC.items()}
    await outage(server)
    await end(app)
    told = dict(zip(waits, await asyncio.gather(*waits.values(), return_exceptions=True), strict=True))
    lists = ("results", "as_completed")
    assert told == {name: [42] if name in lists else name == "drained" or 42 for name in SYNC}
    app.close()
