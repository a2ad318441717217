"""Listeners get each event with its facts, and delay nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.events import (
    Event,
    JobCompleted,
    JobDied,
    JobEnqueued,
    JobFailed,
    JobReleased,
    JobSnoozed,
    JobStarted,
    WorkerStarted,
    WorkerStopped,
)
from penstock.stores.contract import HeartbeatRequest, Share
from tests.worker.conftest import Told, at_work, in_a_burst, quick, until
from tests.worker.task_bodies import act, made


async def test_each_step_of_a_job_is_an_event_with_its_facts(app: App, run_in: str) -> None:
    told, began = Told(app), time.time() * 1000
    task = made(app, run_in, act, retry=["1ms"], max_attempts=2)
    good = await task.aenqueue("return")
    bad = await task.aenqueue("raise")
    sleepy = await task.aenqueue("snooze")
    worker = await in_a_burst(app)
    await until(lambda: bool(told.of(WorkerStopped)), "the worker's end is told")

    def of(id: str) -> list[str]:
        """What was told of it; a process task may have been fetched before there was a slot for it."""
        its = [e for e in told.all if getattr(e, "id", None) == id]
        return [type(e).__name__ for e in its if not isinstance(e, JobReleased)]

    assert of(good.id) == ["JobEnqueued", "JobStarted", "JobCompleted"]
    assert of(bad.id) == ["JobEnqueued", "JobStarted", "JobFailed", "JobStarted", "JobDied"]
    assert of(sleepy.id) == ["JobEnqueued", "JobStarted", "JobSnoozed"]
    assert {e.attempt for e in told.of(JobEnqueued)} == {0}
    (completed,) = told.of(JobCompleted)
    assert (completed.queue, completed.task, completed.attempt) == ("default", "act", 1)
    assert completed.seconds >= 0
    (failed,) = told.of(JobFailed)
    assert (failed.attempt, failed.error, failed.delay) == (1, "ValueError: it is wrong", 1)
    (died,) = told.of(JobDied)
    assert (died.attempt, died.error) == (2, "ValueError: it is wrong")
    (snoozed,) = told.of(JobSnoozed)
    assert snoozed.delay == 3_600_000
    assert [e.attempt for e in told.of(JobStarted) if e.id == bad.id] == [1, 2]
    assert [e.worker for e in told.of(WorkerStarted)] == [worker.id]
    assert [e.worker for e in told.of(WorkerStopped)] == [worker.id]
    assert all(began - 1_000 <= e.at <= time.time() * 1000 + 1_000 for e in told.all)


async def test_a_slow_listener_delays_no_job(app: App) -> None:
    go_on = threading.Event()
    heard: list[Event] = []

    @app.on(Event)
    def listen(event: Event) -> None:
        go_on.wait(20)
        heard.append(event)

    task = made(app, "async", act)
    handles = await app.aenqueue_many([task.job("return") for _ in range(300)])
    await in_a_burst(app)
    for handle in handles:
        assert await handle.aresult(60) == "done in attempt 1"
    assert heard == []
    go_on.set()
    await until(lambda: len(heard) >= 900, "and then it hears of all")


async def test_a_listener_that_raises_disturbs_neither_jobs_nor_other_listeners(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[JobCompleted] = []

    @app.on(JobCompleted)
    def wrong(event: JobCompleted) -> None:
        raise ValueError("the listener is wrong")

    @app.on(JobCompleted)
    def right(event: JobCompleted) -> None:
        heard.append(event)

    handle = await made(app, "async", act).aenqueue("return")
    await in_a_burst(app)
    assert await handle.aresult(60) == "done in attempt 1"
    await until(lambda: len(heard) == 1, "the other listener heard")
    assert "the listener is wrong" in caplog.text


@pytest.mark.slow
async def test_more_events_than_listeners_can_take_are_dropped_and_counted(app: App) -> None:
    go_on = threading.Event()

    @app.on(JobStarted)
    def listen(event: JobStarted) -> None:
        go_on.wait(20)

    @app.task
    async def work() -> None: ...

    await app.aenqueue_many([work.job() for _ in range(11_000)])
    await in_a_burst(app, concurrency=50)
    assert app.events.dropped > 0
    go_on.set()


async def test_without_listeners_no_event_is_created(app: App) -> None:
    handle = await made(app, "async", act).aenqueue("return")
    await in_a_burst(app)
    assert await handle.aresult(60) == "done in attempt 1"
    assert app.events._thread is None


async def test_a_start_is_reported_before_the_function_has_ended(app: App, tmp_path: Path) -> None:
    told = Told(app)
    go_on = asyncio.Event()

    @app.task
    async def work() -> None:
        await go_on.wait()

    await work.aenqueue()
    async with at_work(app, config=quick()):
        await told.one(JobStarted)
        go_on.set()


async def test_reclaimed_jobs_give_the_same_events_as_their_worker_would(app: App) -> None:
    told = Told(app)
    task = made(app, "async", act)
    last = await task.using(max_attempts=1).aenqueue("return")
    shares = [Share("default", 1, 1)]
    died = await app.store.fetch(shares, limit=1, lease=1, worker="gone", token="t1")
    await app.store.extend([HeartbeatRequest(died.jobs[0].lease, 1, started=True)])
    first = await task.aenqueue("return")
    await app.store.fetch(shares, limit=1, lease=1, worker="gone", token="t2")
    async with at_work(app, config=quick(reclaim_every="50ms")):
        end = await told.one(JobDied)
        loss = await told.one(JobFailed)
    assert (end.id, end.attempt, end.queue) == (last.id, 1, "default")
    assert end.error == "LeaseLost: the worker did not extend the lease"
    assert (loss.id, loss.attempt, loss.delay) == (first.id, 1, 0)
