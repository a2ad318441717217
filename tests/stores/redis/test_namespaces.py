"""Many namespaces of one store share its connections."""

from __future__ import annotations

import asyncio

from penstock.stores.contract import Wake
from penstock.stores.redis.store import RedisStore
from tests.servers.single import RedisServer
from tests.store.facts import add, asleep, new


async def test_fifty_namespaces_that_wait_take_as_many_connections_as_one(
    redis: RedisServer, prefix: str
) -> None:
    with redis.client() as client:
        before = len(client.client_list())
    store = RedisStore(f"{redis.url}?prefix={prefix}")
    views = [store, *(store.in_namespace(f"n{n}") for n in range(50))]
    try:
        waits = [asyncio.create_task(view.wait(["default"], timeout=60_000)) for view in views]
        for wait in waits:
            await asleep(wait)
        with redis.client() as client:
            assert len(client.client_list()) - before <= 2 + 1  # calls and messages, and this client
        for view in views:
            await add(view, new())
        assert set(await asyncio.gather(*waits)) == {Wake.WORK}
    finally:
        store.close()
