"""Middleware around blocks of `app.take`: it runs as around a worker's attempts."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Cancel, Discard, Retry, State, Worker, current_job
from penstock.app.attempt import NoCurrentJob
from penstock.config import load
from penstock.core.job import Job
from penstock.errors import AttemptCancelled, AttemptTimeout, ResultError

Call = Callable[[], Awaitable[Any]]

# ruff: noqa: PT012 (what raises here is the block)

mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="nobody's")


@pytest.fixture
def app() -> Iterator[App]:
    made = App("memory://")

    @made.task(name="send", queue="mail", retention="1h", retry="1h")
    async def send(to: str) -> str:
        return f"sent to {to}"

    yield made
    made.close()


async def enqueued(app: App, to: str = "ann") -> Any:
    return await app.tasks["send"].aenqueue(to)


async def job_of(handle: Any) -> Job:
    job = await handle.ajob()
    assert job is not None
    return job  # type: ignore[no-any-return]


def noting(said: list[str], name: str) -> Callable[[Job, Call], Awaitable[Any]]:
    async def note(job: Job, call: Call) -> Any:
        said.append(f"{name} before")
        await asyncio.sleep(0)
        try:
            return await call()
        finally:
            await asyncio.sleep(0)
            said.append(f"{name} after")

    return note


async def test_the_first_is_the_outermost_and_those_of_other_queues_and_tasks_do_not_run(app: App) -> None:
    said: list[str] = []
    app.around_attempt(task="send")(noting(said, "task"))
    app.around_attempt(queue="mail")(noting(said, "queue"))
    app.around_attempt(noting(said, "first"))
    app.around_attempt(noting(said, "second"))
    app.around_attempt(queue="other")(noting(said, "wrong"))
    app.around_attempt(task="other")(noting(said, "wrong"))
    handle = await enqueued(app)
    async with app.take("mail"):
        said.append("block")
    names = ["first", "second", "queue", "task"]
    assert said == [f"{n} before" for n in names] + ["block"] + [f"{n} after" for n in reversed(names)]
    assert (await job_of(handle)).state is State.COMPLETED


async def test_it_sees_and_may_replace_the_result(app: App) -> None:
    @app.around_attempt
    async def double(job: Job, call: Call) -> Any:
        return f"{await call()}, twice"

    handle = await enqueued(app)
    async with app.take("mail") as job:
        job.returns("by hand")
    assert await handle.aresult(60) == "by hand, twice"


async def test_a_result_of_it_that_does_not_fit_makes_the_job_dead(app: App) -> None:
    @app.around_attempt
    async def wrong(job: Job, call: Call) -> Any:
        await call()
        return 5

    handle = await enqueued(app)
    with pytest.raises(ResultError, match="does not fit"):
        async with app.take("mail"):
            pass
    job = await job_of(handle)
    assert (job.state, [e.kind for e in job.errors]) == (State.DEAD, ["ResultError"])


async def test_without_a_call_its_own_outcome_counts_and_the_next_job_comes(app: App) -> None:
    @app.around_attempt
    async def choose(job: Job, call: Call) -> Any:
        match (job.spec.headers or {}).get("how"):
            case "answer":
                return "answered"
            case "cancel":
                raise Cancel("not today")
            case "retry":
                raise Retry(delay="1h")
        return await call()

    first = await app.tasks["send"].using(headers={"how": "answer"}).aenqueue("a")
    second = await app.tasks["send"].using(headers={"how": "cancel"}).aenqueue("b")
    third = await app.tasks["send"].using(headers={"how": "retry"}).aenqueue("c")
    last = await enqueued(app)
    async with app.take("mail") as job:
        assert job.id == last.id
    assert await first.aresult(60) == "answered"
    assert [(await job_of(one)).state for one in (second, third)] == [State.CANCELLED, State.RETRYABLE]
    async with app.take("mail", wait=0) as none:
        assert none is None


async def test_what_it_raises_before_the_block_fails_the_attempt_and_goes_to_the_caller(app: App) -> None:
    @app.around_attempt
    async def refuse(job: Job, call: Call) -> Any:
        raise LookupError("no tenant")

    handle = await enqueued(app)
    with pytest.raises(LookupError, match="no tenant"):
        async with app.take("mail"):
            raise AssertionError("the block has run")
    job = await job_of(handle)
    assert (job.state, [e.kind for e in job.errors]) == (State.RETRYABLE, ["LookupError"])


async def test_what_it_raises_after_the_block_takes_the_place_of_its_end(app: App) -> None:
    @app.around_attempt
    async def translate(job: Job, call: Call) -> Any:
        try:
            return await call()
        except KeyError:
            raise Discard("no such customer") from None

    handle = await enqueued(app)
    async with app.take("mail"):
        raise KeyError("ann")
    job = await job_of(handle)
    assert (job.state, [e.kind for e in job.errors]) == (State.DEAD, ["Discard"])


async def test_an_error_that_it_handles_is_none(app: App) -> None:
    @app.around_attempt
    async def excuse(job: Job, call: Call) -> Any:
        try:
            return await call()
        except KeyError:
            return "excused"

    handle = await enqueued(app)
    async with app.take("mail"):
        raise KeyError("ann")
    assert await handle.aresult(60) == "excused"


async def test_an_error_that_passes_through_is_the_callers(app: App) -> None:
    app.around_attempt(noting([], "any"))
    handle, error = await enqueued(app), KeyError("ann")
    with pytest.raises(KeyError) as caught:
        async with app.take("mail"):
            raise error
    assert caught.value is error
    assert [e.kind for e in (await job_of(handle)).errors] == ["KeyError"]


async def test_context_variables_and_the_current_job_are_there(app: App) -> None:
    seen: list[str] = []

    @app.around_attempt
    async def bind(job: Job, call: Call) -> Any:
        seen.append(current_job().id)
        token = mark.set(job.id)
        try:
            return await call()
        finally:
            seen.append(current_job().id)
            mark.reset(token)

    handle = await enqueued(app)
    async with app.take("mail"):
        assert mark.get() == handle.id
    assert (seen, mark.get()) == ([handle.id, handle.id], "nobody's")
    with pytest.raises(NoCurrentJob):
        current_job()


async def test_its_own_timeout_ends_the_block(app: App) -> None:
    @app.around_attempt
    async def hurry(job: Job, call: Call) -> Any:
        async with asyncio.timeout(0.02):
            return await call()

    handle = await enqueued(app)
    with pytest.raises(TimeoutError):
        async with app.take("mail"):
            await asyncio.sleep(60)
    job = await job_of(handle)
    assert (job.state, [e.kind for e in job.errors]) == (State.RETRYABLE, ["TimeoutError"])


@pytest.mark.parametrize("where", ["before", "block", "after"])
async def test_a_caller_that_is_cancelled_gives_the_job_back_and_cleans_up(app: App, where: str) -> None:
    said, there = list[str](), asyncio.Event()

    async def rest(place: str) -> None:
        if place == where:
            there.set()
            await asyncio.sleep(60)

    @app.around_attempt
    async def clean(job: Job, call: Call) -> Any:
        try:
            await rest("before")
            value = await call()
            await rest("after")
            return value
        except asyncio.CancelledError:
            return "whatever it makes of that"
        finally:
            said.append("cleaned")

    handle = await enqueued(app)

    async def consume() -> None:
        async with app.take("mail"):
            await rest("block")

    consuming = asyncio.create_task(consume())
    await there.wait()
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming
    job = await job_of(handle)
    assert (job.state, job.attempt, said) == (State.AVAILABLE, 0, ["cleaned"])


@pytest.mark.parametrize("where", ["before", "block", "after"])
async def test_the_attempts_timeout_covers_it(app: App, where: str) -> None:
    async def rest(place: str) -> None:
        if place == where:
            await asyncio.sleep(60)

    @app.around_attempt
    async def linger(job: Job, call: Call) -> Any:
        await rest("before")
        value = await call()
        await rest("after")
        return value

    handle = await app.tasks["send"].using(timeout="50ms").aenqueue("ann")
    with pytest.raises(AttemptTimeout):
        async with app.take("mail"):
            await rest("block")
    job = await job_of(handle)
    assert (job.state, [e.kind for e in job.errors]) == (State.RETRYABLE, ["Timeout"])
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancelled_job_is_cancelled_even_if_it_ignores_the_request(app: App) -> None:
    @app.around_attempt
    async def swallow(job: Job, call: Call) -> Any:
        try:
            return await call()
        except AttemptCancelled:
            return "as if nothing had happened"

    handle = await enqueued(app)
    with pytest.raises(AttemptCancelled):
        async with app.take("mail", lease="300ms"):
            await handle.acancel()
            await asyncio.sleep(60)
    assert (await job_of(handle)).state is State.CANCELLED


async def test_a_block_runs_once_and_in_its_own_task(app: App) -> None:
    in_a_task = [True, False]

    @app.around_attempt
    async def elsewhere(job: Job, call: Call) -> Any:
        if in_a_task.pop(0):
            return await asyncio.create_task(call())  # type: ignore[arg-type]
        await call()
        return await call()

    handle = await enqueued(app)
    with pytest.raises(RuntimeError, match="in the task that took the job"):
        async with app.take("mail"):
            raise AssertionError("the block has run")
    await handle.aretry()
    with pytest.raises(RuntimeError, match="runs once"):
        async with app.take("mail"):
            pass


async def test_what_it_does_in_a_worker_and_around_a_block_is_the_same(app: App) -> None:
    said: list[str] = []
    app.around_attempt(noting(said, "any"))
    await enqueued(app)
    async with app.take("mail"):
        pass
    by_hand = list(said)
    await enqueued(app)
    await Worker(app, burst=True, config=load({}, env={}, file=Path("/dev/null")).config).run()
    assert said == [*by_hand, *by_hand]
