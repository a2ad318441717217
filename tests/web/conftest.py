"""lmstfy's interface, served on real sockets over each store, whose clock the tests move."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.dialects.lmstfy.service import LmstfyService
from penstock.stores.contract import Store
from penstock.stores.memory import MemoryStore
from penstock.stores.sqlite import SqliteStore
from tests import servers
from tests.sqlite_files import new_file
from tests.store.facts import TEST_FOLDER, key_prefix
from tests.web.wire import Client

STORES = ("memory", "redis", "redis-cluster", "sqlite")


class Served:
    """A running service, and clients of it."""

    def __init__(self, store: Store, clock: ManualClock, **options: Any) -> None:
        self.store = store
        self.clock = clock
        self.service = LmstfyService({"default": store}, **{"need_tokens": False, **options})
        self.port = self.admin_port = 0
        self._clients: list[Client] = []

    async def start(self) -> None:
        self.port = await self.service.start("127.0.0.1", 0)
        self.admin_port = await self.service.start_admin("127.0.0.1", 0)
        await self.service.backends["default"].catch_up()

    def client(self, token: str = "") -> Client:
        self._clients.append(Client(self.port, token))
        return self._clients[-1]

    def admin(self) -> Client:
        self._clients.append(Client(self.admin_port))
        return self._clients[-1]

    async def advance(self, seconds: float) -> None:
        """Move the store's clock, and do what has become due."""
        self.clock.advance(int(seconds * 1_000))
        await self.service.backends["default"].catch_up()

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        await self.service.stop(2.0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames and "upstream" not in metafunc.fixturenames:
        metafunc.parametrize("kind", STORES, indirect=True)


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "redis-cluster":  # its servers are never away, and slow while others use the machine
        monkeypatch.setattr("penstock.stores.redis.wire.calls._BRIEF", 10.0)
    yield str(request.param)
    if request.param == "redis" and servers.SHARED_REDIS.started:
        servers.remove_keys([servers.SHARED_REDIS.started], having=TEST_FOLDER)
    elif request.param == "redis-cluster" and servers.SHARED_CLUSTER.started:
        servers.remove_keys(servers.SHARED_CLUSTER.started.servers, having=TEST_FOLDER)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=int(time.time() * 1_000))


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=f"{TEST_FOLDER}{uuid.uuid4().hex[:8]}-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def open_store(kind: str, clock: ManualClock, home: Path) -> Iterator[Callable[[], Store]]:
    """Opens one more store object over the data of this test."""
    opened: list[Store] = []

    def open_one() -> Store:
        if kind == "memory":
            opened.append(MemoryStore(str(home), clock=clock))
        elif kind == "sqlite":
            opened.append(SqliteStore(new_file(home / "jobs.db", clock), clock=clock))
        else:
            from penstock.stores.redis.store import RedisStore

            shared = servers.SHARED_REDIS if kind == "redis" else servers.SHARED_CLUSTER
            url = shared.get().url
            opened.append(RedisStore(f"{url}?prefix={key_prefix(home)}", clock=clock))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
async def served(open_store: Callable[[], Store], clock: ManualClock) -> AsyncIterator[Served]:
    """The service without tokens."""
    one = Served(open_store(), clock)
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
def client(served: Served) -> Client:
    return served.client()


@pytest.fixture
async def local(clock: ManualClock, home: Path) -> AsyncIterator[Served]:
    """The service without tokens over a store in memory, for what is the same on every store."""
    store = MemoryStore(str(home), clock=clock)
    one = Served(store, clock)
    await one.start()
    yield one
    await one.stop()
    store.close()
