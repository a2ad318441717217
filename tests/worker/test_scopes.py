"""What libraries keep by task, thread or context belongs to one job, and does not go on into the next."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from penstock.app.app import App
from penstock.core.job import Job
from tests.worker.conftest import in_a_burst

scope: ContextVar[str] = ContextVar("scope", default="nobody's")


async def test_a_job_that_fails_before_it_awaits_leaves_its_task_with_it(app: App) -> None:
    """What it has added to such a session is not committed by the next job."""
    added: dict[Any, list[int]] = {}

    @app.task(max_attempts=1)
    async def work(n: int) -> list[int]:
        mine = added.setdefault(asyncio.current_task(), [])
        mine.append(n)
        if n == 0:
            raise ValueError("of the first")
        return mine

    handles = [await work.aenqueue(n) for n in range(2)]
    await in_a_burst(app, concurrency=1)
    assert await handles[1].aresult(1) == [1]


@pytest.mark.parametrize("around", [False, True])
async def test_a_job_that_awaits_has_an_asyncio_task_of_its_own(app: App, around: bool) -> None:
    """As `async_scoped_session(…, scopefunc=asyncio.current_task)` keeps a session for each."""
    sessions: dict[Any, int] = {}

    async def session(n: int) -> int:
        await asyncio.sleep(0)
        return sessions.setdefault(asyncio.current_task(), n)

    if around:

        @app.around_attempt
        async def begin(job: Job, call: Any) -> Any:
            await session(-1 - len(sessions))
            return await call()

    @app.task
    async def work(n: int) -> int:
        return await session(n)

    handles = [await work.aenqueue(n) for n in range(5)]
    await in_a_burst(app, concurrency=1)
    found = [await handle.aresult(1) for handle in handles]
    assert len(set(found)) == 5
    assert found == ([-1, -2, -3, -4, -5] if around else [0, 1, 2, 3, 4])


async def test_an_interrupted_job_leaves_its_task_with_it(app: App) -> None:
    tasks: list[Any] = []

    @app.task(max_attempts=1)
    async def work(how: str) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        if how == "fail":
            raise ValueError("of the first")

    for how in ("fail", "return"):
        await work.aenqueue(how)
    await in_a_burst(app, concurrency=1)
    assert len(tasks) == len(set(tasks)) == 2


async def test_no_job_of_any_executor_sees_the_context_of_the_one_before(app: App) -> None:
    @app.task
    async def at_once(n: int) -> str:
        seen = scope.get()
        scope.set(f"of {n}")
        return seen

    @app.task
    async def awaits(n: int) -> str:
        await asyncio.sleep(0)
        return await at_once.function(n)

    @app.task
    def in_thread(n: int) -> str:
        seen = scope.get()
        scope.set(f"of {n}")
        return seen

    handles = [await task.aenqueue(n) for n in range(3) for task in (at_once, awaits, in_thread)]
    await in_a_burst(app, concurrency=1)
    assert {await handle.aresult(1) for handle in handles} == {"nobody's"}
