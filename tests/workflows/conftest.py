"""Apps on every store whose flows the tests run with a worker in the same event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock import App, Worker
from penstock.encryption import Cipher, Keyring
from penstock.stores.encrypted import encrypted_store
from tests import servers
from tests.sqlite_files import new_url

#: No test waits longer than this for something that should happen at once (s).
PATIENCE = 60.0

STORES = ["memory", "sqlite", "redis", "redis-cluster", "encrypted"]

Burst = Callable[..., Awaitable[None]]


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on each kind of store."""
    prefix = f"penstock-{uuid4().hex[:8]}"
    if request.param == "sqlite":
        made = App(new_url(tmp_path))
    elif request.param == "redis":
        made = App(f"{servers.SHARED_REDIS.get().url}?prefix={prefix}")
    elif request.param == "redis-cluster":
        made = App(f"{servers.SHARED_CLUSTER.get().url}?prefix={prefix}")
    else:
        made = App(f"memory://{uuid4().hex}")
    if request.param == "encrypted":
        made.use_store(encrypted_store(made.store, Cipher(Keyring([bytes(32)]))))
    yield made
    made.close()


async def in_a_burst(app: App, **options: Any) -> None:
    """Run a worker until there is nothing to do, counting ends in between."""
    async with asyncio.timeout(PATIENCE):
        while True:
            await Worker(app, burst=True, **options).run()
            advanced = await app.store.advance_flows()
            ready = sum([queue.counts.get("available", 0) for queue in await app.store.queues()])
            if not advanced and not ready:  # the worker itself may have enqueued what follows, at its end
                return
