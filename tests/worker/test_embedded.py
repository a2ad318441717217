"""A worker embedded in a program: its settings, and its idle state."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.config import Config
from penstock.core.job import Job, State
from penstock.worker import Worker
from tests.worker.conftest import at_work, becomes, ended, patient


@pytest.mark.parametrize("idle", [True, False], ids=["with free slots", "with none"])
async def test_a_cancellation_does_not_wait_for_the_next_heartbeat(app: App, idle: bool) -> None:
    @app.task
    async def endless() -> int:
        await asyncio.Event().wait()
        return 1

    async with at_work(app, config=patient(), concurrency=5 if idle else 1):
        handle = await endless.aenqueue()
        await becomes(handle, State.RUNNING)
        assert await handle.acancel() is State.RUNNING
        assert (await ended(handle)).state is State.CANCELLED


def test_what_is_not_said_in_code_is_as_the_environment_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = App("memory://")
    monkeypatch.setenv("PENSTOCK_CONCURRENCY", "7")
    monkeypatch.setenv("PENSTOCK_STRICT", "true")
    heard, told = Worker(app, ["a"]), Worker(app, ["a"], concurrency=3, strict=False)
    assert (heard.info().concurrency, heard._setup.strict) == (7, True)
    assert (told.info().concurrency, told._setup.strict) == (3, False)
    given = Worker(app, ["a"], config=Config())
    assert (given.info().concurrency, given._setup.strict) == (Config().concurrency, False)


@pytest.mark.parametrize("run_in", ["async", "thread"])
async def test_a_task_sees_the_context_of_its_middleware(app: App, run_in: str) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody's")

    @app.around_attempt
    async def set_tenant(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        if job.spec.headers:
            tenant.set(job.spec.headers["tenant"])
        return await call()

    async def read() -> str:
        return tenant.get()

    task = app.task(name="read")(read if run_in == "async" else lambda: tenant.get())
    async with at_work(app, concurrency=1):
        first = await task.using(headers={"tenant": "north"}).aenqueue()
        second = await task.aenqueue()
        assert [await first.aresult(60), await second.aresult(60)] == ["north", "nobody's"]


async def test_a_worker_serves_once(app: App) -> None:
    worker = Worker(app, ["a"], burst=True)
    await worker.run()
    with pytest.raises(RuntimeError, match="make another one"):
        await worker.run()
