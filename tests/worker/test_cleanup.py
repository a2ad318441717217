"""Clean-up after a timeout or a cancellation: whoever has noticed it has the time `cleanup_grace`."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.attempt import Attempt, current_job
from penstock.core.job import Job, Lease, NewJob, State
from penstock.errors import AttemptTimeout
from penstock.worker import Worker
from penstock.worker.executor.thread_attempts import _noted_by
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs
from penstock.worker.shared_lease_table import LeaseTable
from tests.worker.conftest import at_work, becomes, ended, quick, until
from tests.worker.task_bodies import linger, made


def look(worker: Worker, later: float) -> None:
    """What the worker does against interrupted attempts so many seconds from now."""
    assert worker._services is not None
    worker._services.executor._interruption.watch(time.monotonic() + later)


async def test_a_coroutine_that_cleans_up_is_not_cancelled_again(app: App) -> None:
    cleaning, done = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    @app.task(timeout="20ms", retry="1h")
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            try:
                await done.wait()
                seen.append("clean")
            except asyncio.CancelledError:
                seen.append("cut off")
                raise

    handle = await work.aenqueue()
    async with at_work(app, config=quick(cleanup_grace="1h")) as worker:
        await cleaning.wait()
        look(worker, 3_000.0)
        await asyncio.sleep(0)
        done.set()
        job = await becomes(handle, State.RETRYABLE)
    assert (seen, job.errors[0].kind) == (["clean"], "Timeout")


@pytest.mark.parametrize("notices", ["exception", "cancelled", "raise_if_cancelled"])
async def test_a_thread_that_cleans_up_is_not_interrupted_again(app: App, notices: str) -> None:
    began, cleaning, done = threading.Event(), threading.Event(), threading.Event()
    seen: list[str] = []

    @app.task
    def work() -> None:
        began.set()
        try:
            while notices != "cancelled" or not current_job().cancelled:
                if notices == "raise_if_cancelled":
                    current_job().raise_if_cancelled()
                done.wait(0.001)
        finally:
            cleaning.set()
            try:
                while not done.wait(0.001):
                    pass
                seen.append("clean")
            except BaseException:
                seen.append("cut off")
                raise

    grace = "0s" if notices == "exception" else "1h"
    config = quick(thread_grace=grace, kill_grace="4h", cleanup_grace="1h")
    handle = await work.aenqueue()
    async with at_work(app, config=config) as worker:
        await until(began.is_set, "it has begun")
        await handle.acancel()
        await until(cleaning.is_set, "it cleans up")
        look(worker, 3_599.0)
        done.set()
        assert (await ended(handle)).state is State.CANCELLED
    assert seen == ["clean"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_after_its_grace_a_clean_up_is_interrupted_and_then_given_up(app: App, kind: str) -> None:
    seen: list[str] = []
    cut = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.Event().wait()
            except BaseException as error:
                seen.append(type(error).__name__)
                raise

    def loop() -> None:
        while not current_job().cancelled:
            cut.wait(0.001)
        try:
            while True:
                cut.wait(0.001)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    task: Any = app.task(timeout="20ms", retry="1h", name="work")(forever if kind == "async" else loop)
    handle = await task.aenqueue()
    async with at_work(app, config=quick(thread_grace="5s", cleanup_grace="50ms", kill_grace="30s")):
        job = await becomes(handle, State.RETRYABLE)
    assert job.errors[0].kind == "Timeout"
    assert seen == ["CancelledError" if kind == "async" else "AttemptTimeout"]


async def test_the_middleware_of_a_killed_process_may_clean_up(app: App, tmp_path: Path) -> None:
    """The child is killed at once; what runs around it in the worker has its time."""
    cleaning, done = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def tidy(job: Job, call: Any) -> Any:
        try:
            return await call()
        finally:
            cleaning.set()
            await done.wait()
            seen.append("clean")

    work = made(app, "process", linger, timeout="200ms", retry="1h")
    app.around_attempt(tidy, task="linger")
    handle = await work.aenqueue(str(tmp_path / "began"))
    async with at_work(app, config=quick(cleanup_grace="1h")) as worker:
        await cleaning.wait()
        look(worker, 3_000.0)
        await asyncio.sleep(0)
        done.set()
        await becomes(handle, State.RETRYABLE)
    assert seen == ["clean"]


def test_the_supervisor_kills_no_worker_for_an_attempt_that_cleans_up() -> None:
    """It reckons `kill_grace` from the deadline in the table, so that moves with the clean-up."""
    table = LeaseTable.create(2)
    jobs = LeasedJobs(table)
    job = Job(NewJob("1", "t", queue="q"), state=State.RUNNING, token="k", generation=1)
    leased = LeasedJob(job, None, 0.0, 0)  # type: ignore[arg-type]
    jobs.add([leased], 10.0)
    assert jobs.try_start(leased)
    leased.ends = 5.0
    jobs.clock_starts(leased)
    jobs.allow_cleanup(leased, 4.0)
    assert table.entries()[0].deadline_ns == 5_000_000_000
    jobs.allow_cleanup(leased, 9.0)
    assert table.entries()[0].deadline_ns == 9_000_000_000
    assert table.entries()[0].lease == Lease("q", "1", "k", 1)
    table.close()


def test_an_exception_in_a_thread_tells_when_it_arrives() -> None:
    attempt = Attempt(Job(NewJob("1", "t"), State.RUNNING))
    found = _noted_by(attempt, AttemptTimeout)
    assert attempt.noticed == 0.0
    with pytest.raises(AttemptTimeout) as caught:
        raise found
    assert attempt.noticed > 0.0
    assert type(caught.value).__qualname__ == "AttemptTimeout"
