"""Workers of real apps on real stores, started and stopped by the tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.app import App
from penstock.config import Config, load
from penstock.worker import Worker

#: No test waits longer than this for something that should happen at once (s).
PATIENCE = 10.0


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def app(url: str) -> App:
    return App(url)


def quick(**knobs: Any) -> Config:
    """A configuration with short periods, so that nothing needs long waits."""
    settings = {"drain_timeout": "2s", "thread_grace": "100ms", "heartbeat": "200ms", "lease": "1s"}
    return load({**settings, **knobs}, env={}, file=None).config


@contextlib.asynccontextmanager
async def at_work(app: App, *args: Any, **options: Any) -> AsyncIterator[Worker]:
    """A worker that serves while the block runs, then drains."""
    options.setdefault("config", quick())
    worker = Worker(app, *args, **options)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(PATIENCE):
            await running


async def until(condition: Callable[[], Awaitable[bool] | bool], what: str) -> None:
    """Wait for something that another process or thread does, and of which no event tells."""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                met = condition()
                if not isinstance(met, bool):
                    met = await met
                if met:
                    return
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"it did not happen within {PATIENCE} s: {what}")
