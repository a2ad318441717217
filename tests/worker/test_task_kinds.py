"""Tasks of all three kinds run in one worker, with their own context."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.attempt import NoCurrentJob, current_job
from penstock.core.job import Progress, State
from penstock.errors import ConfigError
from penstock.inspector import Inspector
from penstock.worker import Worker
from penstock.worker.executor import thread_attempts
from tests.worker.conftest import at_work, ended, in_a_burst, patient, until
from tests.worker.task_bodies import act, lines, linger, made, tell, typed

mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="nobody's")


@pytest.mark.system
async def test_async_thread_and_process_tasks_run_side_by_side(app: App, tmp_path: Path) -> None:
    one = made(app, "async", linger)
    two = made(app, "thread", tell)
    three = made(app, "process", act)
    async with at_work(app):
        first = await one.aenqueue(str(tmp_path / "began"), 0.3)
        second = await two.aenqueue(str(tmp_path / "enough"))
        third = await three.aenqueue("return")
        assert await third.aresult(60) == "done in attempt 1"
        (tmp_path / "enough").touch()
        assert await second.aresult(60) == "told"
        assert await first.aresult(60) == "stayed"


async def test_arguments_and_results_come_back_typed(app: App, run_in: str) -> None:
    task = made(app, run_in, typed)
    when = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
    handle = await task.aenqueue(when, (3, "x"))
    await in_a_burst(app)
    assert await handle.aresult(60) == {"x3": when}


async def test_a_task_knows_its_own_job(app: App, run_in: str) -> None:
    task = made(app, run_in, act, queue="mail")
    handle = await task.aenqueue("facts")
    await in_a_burst(app)
    facts = await handle.aresult(60)
    assert facts == {"id": handle.id, "task": "act", "queue": "mail", "attempt": 1}
    with pytest.raises(NoCurrentJob):
        current_job()


async def test_progress_is_seen_by_others_while_the_job_runs(app: App, run_in: str, tmp_path: Path) -> None:
    task = made(app, run_in, tell)
    async with at_work(app, config=patient()):
        handle = await task.aenqueue(str(tmp_path / "enough"))

        async def seen() -> bool:
            job = await handle.ajob()
            return job is not None and job.progress == Progress(3, 7, "on the way")

        await until(seen, "the progress is in the store, before the next heartbeat")

        async def logged() -> bool:
            (job,) = await Inspector(app.store).job(handle.id)
            return [line.text for line in job.log] == ["on the way"]

        await until(logged, "the log is in the store")
        (tmp_path / "enough").touch()
        assert await handle.aresult(60) == "told"


async def test_the_last_progress_is_not_lost_by_a_heartbeat_that_failed(app: App, faults: Any) -> None:
    go_on = asyncio.Event()

    @app.task
    async def work() -> str:
        faults.fail("extend", times=3)
        current_job().progress(7, of=7)
        await go_on.wait()
        return "done"

    async with at_work(app):
        handle = await work.aenqueue()

        async def seen() -> bool:
            job = await handle.ajob()
            return job is not None and job.progress == Progress(7, 7)

        await until(seen, "the progress is in the store")
        go_on.set()
        assert await handle.aresult(60) == "done"


async def test_what_an_async_job_puts_into_the_context_its_successor_does_not_see(app: App) -> None:
    seen: list[str] = []

    @app.task
    async def work(i: int) -> None:
        seen.append(mark.get())
        mark.set(f"job {i}'s")
        await asyncio.sleep(0)

    mark.set("the caller's")
    await app.aenqueue_many([work.job(i) for i in range(200)])
    await in_a_burst(app, concurrency=2)
    assert len(seen) == 200
    assert set(seen) == {"the caller's"}


async def test_nor_does_one_whose_start_had_to_be_recorded(app: App) -> None:
    seen: list[str] = []

    @app.task(max_attempts=1)
    async def work(i: int) -> None:
        seen.append(mark.get())
        mark.set(f"job {i}'s")

    await app.aenqueue_many([work.job(i) for i in range(50)])
    await in_a_burst(app, concurrency=2)
    assert len(seen) == 50
    assert set(seen) == {"nobody's"}


async def test_what_a_job_puts_into_the_context_of_its_thread_its_successor_does_not_see(app: App) -> None:
    seen: list[str] = []

    @app.task
    def work(i: int) -> None:
        seen.append(mark.get())
        mark.set(f"job {i}'s")

    await app.aenqueue_many([work.job(i) for i in range(50)])
    await in_a_burst(app, concurrency=1)
    assert seen == ["nobody's"] * 50


async def test_after_a_job_its_thread_knows_of_no_current_job(app: App) -> None:
    found: list[str] = []

    @app.task
    def work() -> None:
        found.append(current_job().id)

    handle = await work.aenqueue()
    await in_a_burst(app, concurrency=1)
    assert found == [handle.id]
    with pytest.raises(NoCurrentJob):
        current_job()


async def test_a_worker_without_queues_of_its_own_serves_those_of_its_tasks(app: App) -> None:
    ran: list[str] = []

    @app.task(queue="mail")
    async def mail() -> None:
        ran.append("mail")

    @app.task(queue="post")
    async def post() -> None:
        ran.append("post")

    await mail.aenqueue()
    await post.aenqueue()
    await in_a_burst(app)
    assert sorted(ran) == ["mail", "post"]


def test_a_worker_that_could_never_run_anything_says_so(new_app: Callable[[], App]) -> None:
    with pytest.raises(ConfigError, match="no queues"):
        Worker(new_app())
    with pytest.raises(ConfigError, match="concurrency=0"):
        Worker(new_app(), ["mail"], concurrency=0)


@pytest.mark.slow
async def test_ten_thousand_jobs_run_once_each(app: App) -> None:
    ran: list[int] = []

    @app.task
    async def work(i: int) -> None:
        ran.append(i)

    await app.aenqueue_many([work.job(i) for i in range(10_000)])
    # a lease that is lost in a stall counts as an attempt, also of a job that lay ready and had not begun
    await in_a_burst(app, concurrency=100, config=patient())
    assert sorted(ran) == list(range(10_000))
    (queue,) = await app.store.queues()
    assert queue.counts == {}, "no result was asked for, so nothing is kept"
    (stats,) = await app.store.stats()
    assert (stats.processed, stats.failed) == (10_000, 0)


async def test_jobs_that_enqueue_jobs_are_all_done_when_a_burst_ends(app: App) -> None:
    ran: list[int] = []

    @app.task
    async def work(depth: int) -> None:
        ran.append(depth)
        if depth:
            await app.aenqueue_many([work.job(depth - 1) for _ in range(2)])

    await work.aenqueue(7)
    await in_a_burst(app, concurrency=5)
    assert len(ran) == 2**8 - 1


async def test_the_store_shows_who_runs_a_job(app: App, tmp_path: Path) -> None:
    task = made(app, "async", linger)
    path = tmp_path / "began"
    async with at_work(app) as worker:
        handle = await task.aenqueue(str(path), 0.3)
        await until(lambda: bool(lines(path)), "it has begun")
        job = await handle.ajob()
        assert job is not None
        assert (job.state, job.worker, job.attempt) == (State.RUNNING, worker.id, 1)
        (info,) = await app.store.workers()
        assert (info.id, info.concurrency, info.tasks) == (worker.id, 20, ("linger",))
        assert (await ended(handle)).state is State.COMPLETED
    assert await app.store.workers() == []


async def test_short_jobs_behind_long_ones_are_not_kept_from_another_worker(
    new_app: Callable[[], App], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While calls are short some lie ready for each thread: they must come back when a call is not."""
    monkeypatch.setattr(thread_attempts, "_SHORT", 1.0)
    gate, stuck, ran = threading.Event(), threading.Semaphore(0), set[int]()

    def work(i: int) -> None:
        ran.add(i)
        if i in (300, 301):
            stuck.release()
            gate.wait(20)

    first, second = new_app(), new_app()
    tasks = [app.task(work) for app in (first, second)]
    await first.aenqueue_many([tasks[0].job(i) for i in range(310)])
    async with at_work(first, concurrency=2, config=patient()) as busy:
        await asyncio.to_thread(lambda: stuck.acquire(timeout=5) and stuck.acquire(timeout=5))
        assert busy._services is not None
        assert busy._services.slots.running == 2
        async with at_work(second, concurrency=2, config=patient()):
            await until(lambda: len(ran) == 310, "the other worker has run the rest")
        assert not gate.is_set()
        gate.set()
    assert await first.adrained("default", timeout=60)


async def test_calls_that_lie_ready_are_never_more_attempts_than_there_are_slots(app: App) -> None:
    """An async attempt has a slot without a thread: a call that is stacked then would find a thread idle."""
    lock, now, most = threading.Lock(), 0, 0

    def count(by: int) -> None:
        nonlocal now, most
        with lock:
            now += by
            most = max(most, now)

    @app.task
    def short(seconds: float) -> None:
        count(1)
        if seconds:
            time.sleep(seconds)
        count(-1)

    @app.task
    async def io() -> None:
        count(1)
        await asyncio.sleep(0.01)
        count(-1)

    for _ in range(10):
        await app.aenqueue_many([short.job(0) for _ in range(100)])
        await app.aenqueue_many([io.job() for _ in range(4)])
        await app.aenqueue_many([short.job(0.003) for _ in range(4)])
    await in_a_burst(app, concurrency=4)
    assert most == 4
