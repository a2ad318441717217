"""Middleware around attempts, and hooks at the start and end of a worker."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.core.job import Job, NewJob, State
from penstock.errors import Cancel, Discard, Retry, Snooze
from penstock.worker import Worker
from tests.worker.conftest import at_work, becomes, ended, in_a_burst, quick, until
from tests.worker.task_bodies import act, lines, linger, made

Call = Callable[[], Awaitable[Any]]

mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="nobody's")


def noting(said: list[str], name: str) -> Callable[[Job, Call], Awaitable[Any]]:
    async def note(job: Job, call: Call) -> Any:
        said.append(f"{name} before")
        try:
            return await call()
        finally:
            said.append(f"{name} after")

    return note


async def test_middleware_of_the_app_is_outside_that_of_the_queue_outside_that_of_the_task(
    app: App, run_in: str
) -> None:
    said: list[str] = []
    task = made(app, run_in, act, queue="mail")
    app.around_attempt(task=task)(noting(said, "task"))
    app.around_attempt(queue="mail")(noting(said, "queue"))
    app.around_attempt(noting(said, "first"))
    app.around_attempt(noting(said, "second"))
    app.around_attempt(queue="other")(noting(said, "wrong"))
    handle = await task.aenqueue("return")
    await in_a_burst(app)
    names = ["first", "second", "queue", "task"]
    assert said == [f"{n} before" for n in names] + [f"{n} after" for n in reversed(names)]
    assert await handle.aresult(60) == "done in attempt 1"


async def test_middleware_may_replace_the_result(app: App, run_in: str) -> None:
    @app.around_attempt
    async def double(job: Job, call: Call) -> Any:
        return f"{await call()}, twice"

    @app.task
    async def work() -> str:
        return "done"

    @app.task
    def in_a_thread() -> str:
        return "done"

    for task in (work, in_a_thread):
        handle = await task.aenqueue()
        await in_a_burst(app)
        assert await handle.aresult(60) == "done, twice"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Cancel("middleware says so"), State.CANCELLED),
        (Discard("middleware says so"), State.DEAD),
        (Retry("middleware says so", delay="1h"), State.RETRYABLE),
        (Snooze("1h"), State.SCHEDULED),
        (ValueError("middleware is wrong"), State.RETRYABLE),
        (None, State.COMPLETED),
    ],
)
async def test_middleware_may_replace_the_outcome_without_calling_on(
    app: App, error: Exception | None, state: State
) -> None:
    ran: list[str] = []

    @app.around_attempt
    async def instead(job: Job, call: Call) -> Any:
        if error is not None:
            raise error
        return "instead"

    @app.task(retry="1h")
    def work() -> str:
        ran.append("all the same")
        return "done"

    handle = await work.aenqueue()
    await in_a_burst(app)
    job = await becomes(handle, state)
    assert ran == []
    if state is State.COMPLETED:
        assert await handle.aresult(60) == "instead"
    assert job.attempt == (0 if state is State.SCHEDULED else 1)


async def test_middleware_may_make_a_failure_good(app: App, run_in: str) -> None:
    caught: list[str] = []

    @app.around_attempt
    async def forgive(job: Job, call: Call) -> Any:
        try:
            return await call()
        except Exception as error:
            caught.append(str(error))
            return "forgiven"

    handle = await made(app, run_in, act).aenqueue("raise")
    await in_a_burst(app)
    assert await handle.aresult(60) == "forgiven"
    assert "it is wrong" in caught[0]


async def test_middleware_knows_the_job_and_its_attempt(app: App) -> None:
    seen: list[tuple[str, int, str]] = []

    @app.around_attempt
    async def look(job: Job, call: Call) -> Any:
        seen.append((job.id, job.attempt, current_job().id))
        return await call()

    handle = await made(app, "thread", act, retry="1ms").aenqueue("raise at first")
    await in_a_burst(app)
    assert seen == [(handle.id, n, handle.id) for n in (1, 2, 3)]


async def test_what_middleware_puts_into_the_context_its_task_sees_and_no_other_job(app: App) -> None:
    seen: list[tuple[str, str]] = []

    @app.around_attempt
    async def put(job: Job, call: Call) -> Any:
        before = mark.get()
        mark.set(job.id)
        seen.append(("middleware", before))
        return await call()

    @app.task
    async def work() -> None:
        seen.append((current_job().id, mark.get()))

    await app.aenqueue_many([work.job() for _ in range(20)])
    await in_a_burst(app, concurrency=2)
    assert {before for who, before in seen if who == "middleware"} == {"nobody's"}
    assert all(who == found for who, found in seen if who != "middleware")


async def test_middleware_around_an_enqueue_rewrites_the_job_or_refuses_it(app: App) -> None:
    task = made(app, "async", act, queue="mail")
    order: list[str] = []

    @app.around_enqueue(task=task)
    def inner(new: NewJob) -> NewJob:
        order.append("task")
        return new

    @app.around_enqueue
    def stamp(new: NewJob) -> NewJob:
        order.append("app")
        return msgspec.structs.replace(new, headers={"trace": "42"}, priority=7)

    @app.around_enqueue(queue="closed")
    def refuse(new: NewJob) -> NewJob:
        raise ValueError("not today")

    handle = await task.aenqueue("return")
    job = await handle.ajob()
    assert job is not None
    assert (job.spec.headers, job.spec.priority, order) == ({"trace": "42"}, 7, ["app", "task"])
    with pytest.raises(ValueError, match="not today"):
        await task.using(queue="closed").aenqueue("return")
    assert [info.name for info in await app.store.queues()] == ["mail"]


# ── hooks ────────────────────────────────────────────────────────────────────────────────────────


async def test_hooks_are_called_in_their_order_around_the_work(app: App, tmp_path: Path) -> None:
    said: list[str] = []

    @app.on_startup
    async def begin(app: App) -> None:
        await asyncio.sleep(0)
        app.state.pool = "the pool"
        said.append("startup 1")

    @app.on_startup
    def begin_too() -> None:
        said.append("startup 2")

    @app.on_drain
    def drain() -> None:
        said.append("drain")

    @app.on_shutdown
    def end() -> None:
        said.append("shutdown 1")

    @app.on_shutdown
    async def end_too(app: App) -> None:
        await asyncio.sleep(0)
        said.append(f"shutdown 2 of {app.state.pool}")

    @app.task
    async def work() -> None:
        said.append(f"work with {app.state.pool}")
        worker.stop()
        while "drain" not in said:
            await asyncio.sleep(0.001)
        said.append("work ends")

    await work.aenqueue()
    worker = Worker(app, config=quick())
    await worker.run()
    assert said == [
        *("startup 1", "startup 2", "work with the pool", "drain", "work ends"),
        *("shutdown 1", "shutdown 2 of the pool"),
    ]


async def test_a_drain_hook_is_called_when_no_new_job_is_taken_any_more(app: App, tmp_path: Path) -> None:
    hooked, go_on = asyncio.Event(), asyncio.Event()

    @app.on_drain
    async def drain() -> None:
        hooked.set()
        await go_on.wait()

    task = made(app, "async", linger)
    async with at_work(app, config=quick(drain_timeout="10s")) as worker:
        worker.stop()
        await hooked.wait()
        handle = await task.aenqueue(str(tmp_path / "began"), 0.0)
        await asyncio.sleep(0.02)
        go_on.set()
    assert await handle.astatus() is State.AVAILABLE


async def test_a_drain_hook_that_hangs_is_waited_for_no_longer_than_the_drain_lasts(
    app: App, tmp_path: Path
) -> None:
    @app.on_drain
    async def drain() -> None:
        await asyncio.sleep(60)

    began = tmp_path / "began"
    handle = await made(app, "async", linger).aenqueue(str(began))
    async with at_work(app, config=quick(drain_timeout="50ms")):
        await until(lambda: bool(lines(began)), "it has begun")
    assert await handle.astatus() is State.AVAILABLE


async def test_hooks_of_the_end_that_fail_do_not_keep_it_from_coming(
    app: App, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []

    @app.on_drain
    def fail() -> None:
        raise ValueError("the drain hook is wrong")

    @app.on_shutdown
    async def fail_too() -> None:
        raise ValueError("the shutdown hook is wrong")

    @app.on_shutdown
    def end() -> None:
        said.append("shutdown")

    began = tmp_path / "began"
    handle = await made(app, "async", linger).aenqueue(str(began), 0.1)
    async with at_work(app):
        await until(lambda: bool(lines(began)), "it has begun")
    assert (await ended(handle)).state is State.COMPLETED, "what ran was waited for"
    assert said == ["shutdown"]
    assert "the drain hook is wrong" in caplog.text
    assert "the shutdown hook is wrong" in caplog.text


async def test_a_startup_hook_that_fails_is_the_end_before_the_first_job(app: App, tmp_path: Path) -> None:
    @app.on_startup
    def fail() -> None:
        raise ConnectionError("no database")

    handle = await made(app, "async", linger).aenqueue(str(tmp_path / "began"))
    with pytest.raises(ConnectionError, match="no database"):
        await Worker(app, config=quick()).run()
    assert await handle.astatus() is State.AVAILABLE
    assert await app.store.workers() == []


async def test_the_apps_state_is_within_reach_of_every_attempt(app: App) -> None:
    app.state.greeting = "hello"

    @app.task
    def in_a_thread() -> str:
        return str(app.state.greeting)

    @app.task
    async def in_the_loop() -> str:
        return str(app.state.greeting)

    for task in (in_a_thread, in_the_loop):
        handle = await task.aenqueue()
        await in_a_burst(app)
        assert await handle.aresult(60) == "hello"
