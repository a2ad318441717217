"""Apps on each kind of store, and workers that the tests start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock import App, Worker
from penstock.client.handle import Handle
from penstock.testing import Inline
from penstock.workflows import failures
from penstock.workflows.failures import Failures
from tests import servers
from tests.lease_clocks import LeaseClock
from tests.sqlite_files import new_url


@pytest.fixture(params=["memory", "sqlite", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on a store of each kind."""
    name = uuid4().hex
    url = {
        "memory": lambda: f"memory://{name}",
        "sqlite": lambda: new_url(tmp_path),
        "redis": lambda: f"{servers.SHARED_REDIS.get().url}?prefix=penstock-{name}",
    }[request.param]()
    app = App(url)
    yield app
    app.close()


class Running:
    """An app with a worker that can be started and stopped."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._worker: Worker | None = None
        self._run: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self._worker = Worker(self.app, concurrency=4)
        self._run = asyncio.ensure_future(self._worker.run())

    async def stop(self) -> None:
        if self._worker is not None and self._run is not None:
            self._worker.stop()
            await self._run
            self._worker = self._run = None


@pytest.fixture
async def running(app: App) -> AsyncIterator[Running]:
    one = Running(app)
    yield one
    await one.stop()
    await app.aclose()


async def until(look: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    """Wait until something has the wanted value."""
    async with asyncio.timeout(60):
        while await look() != wanted:
            await asyncio.sleep(0.01)


@pytest.fixture
def lease_clock(monkeypatch: pytest.MonkeyPatch) -> LeaseClock:
    return LeaseClock(monkeypatch)


@pytest.fixture
def ran() -> list[Any]:
    """What the functions of the test have done, in order."""
    return []


@pytest.fixture
def no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that comes to a cut goes on at once: random programs cut off by events, not by timers."""
    monkeypatch.setattr(failures, "_CUT_GRACE", 0)
    monkeypatch.setattr(Failures, "_age", lambda _failures: 0)


def ended(box: Inline, task: Any, *args: Any) -> Handle[Any]:
    """A job of this task that has run to its end, as far as nothing from outside is needed."""
    handle: Handle[Any] = task.enqueue(*args)
    box.run_all()
    return handle
