"""Cancellation: of queued jobs at once, and of running ones soon, in every executor."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.core.job import State
from penstock.core.lifecycle import ASK_CANCELLED
from penstock.errors import ResultCancelled
from penstock.events import JobCancelled
from tests.worker.conftest import Dam, Door, Told, at_work, ended, patient, quick, until
from tests.worker.task_bodies import act, heed, lines, linger, made, obey, swallow


async def test_a_queued_job_is_cancelled_at_once_and_never_starts(app: App, tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, "async", linger).aenqueue(str(began))
    good = await made(app, "thread", act).aenqueue("return")
    assert await handle.acancel() is State.CANCELLED
    async with at_work(app):
        assert await good.aresult(60) == "done in attempt 1"
    job = await ended(handle)
    assert (job.state, job.reason, job.attempt) == (State.CANCELLED, ASK_CANCELLED, 0)
    assert lines(began) == []


@pytest.mark.parametrize("slots", [1, 5])
async def test_a_running_job_is_stopped_before_the_next_heartbeat(
    app: App, run_in: str, slots: int, tmp_path: Path
) -> None:
    """With a slot left the fetcher waits for work beside it; both must not take the news from each other."""
    began = tmp_path / "began"
    handle = await made(app, run_in, linger).aenqueue(str(began))
    async with at_work(app, concurrency=slots, config=patient()):
        await until(lambda: bool(lines(began)), "it has begun")
        assert await handle.acancel() is State.RUNNING
        job = await ended(handle)
    assert (job.state, job.reason, job.attempt) == (State.CANCELLED, "cancelled while running", 1)
    assert job.errors == ()
    with pytest.raises(ResultCancelled):
        await handle.aresult(10)


async def test_a_cancellation_of_a_running_job_has_a_reason(app: App, run_in: str, tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, run_in, linger).aenqueue(str(began))
    async with at_work(app, config=patient()):
        await until(lambda: bool(lines(began)), "it has begun")
        await handle.acancel("by user")
        job = await ended(handle)
    assert (job.state, job.reason) == (State.CANCELLED, "by user")
    with pytest.raises(ResultCancelled, match="by user"):
        await handle.aresult(10)


async def test_many_are_cancelled_one_after_the_other(app: App, tmp_path: Path) -> None:
    task = made(app, "async", linger)
    paths = [tmp_path / f"began{i}" for i in range(4)]
    handles = [await task.aenqueue(str(path)) for path in paths]
    async with at_work(app, concurrency=10, config=patient()):
        await until(lambda: all(lines(path) for path in paths), "all have begun")
        for handle in handles:
            await handle.acancel()
            assert (await ended(handle)).state is State.CANCELLED


async def test_a_thread_that_sees_it_and_comes_back_is_cancelled_not_completed(
    app: App, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    handle = await made(app, "thread", heed).aenqueue(str(began))
    async with at_work(app, config=quick(thread_grace="5s")):
        await until(lambda: bool(lines(began)), "it has begun")
        await handle.acancel()
        job = await ended(handle)
    assert (job.state, job.result) == (State.CANCELLED, None)


async def test_a_thread_task_may_choose_where_it_is_interrupted(app: App, tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, "thread", obey).aenqueue(str(began))
    async with at_work(app, config=quick(thread_grace="5s")):
        await until(lambda: bool(lines(began)), "it has begun")
        await handle.acancel()
        assert (await ended(handle)).state is State.CANCELLED


@pytest.mark.usefixtures("impatient")
async def test_a_thread_that_swallows_it_is_given_up(app: App, tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, "thread", swallow).aenqueue(str(began))
    async with at_work(app, concurrency=3) as worker:
        await until(lambda: bool(lines(began)), "it has begun")
        await handle.acancel()
        assert (await ended(handle)).state is State.CANCELLED
        assert lines(f"{began}.swallowed") == ["AttemptCancelled"]
        assert worker._services is not None
        assert worker._services.slots.lost == 1
        (tmp_path / "began.go").touch()


async def test_a_job_that_makes_an_error_of_its_cancellation_is_not_tried_again(app: App) -> None:
    begun = asyncio.Event()

    @app.task(retry="1ms")
    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise RuntimeError("the connection broke") from None

    handle = await work.using(retention="1h").aenqueue()
    async with at_work(app):
        await begun.wait()
        await handle.acancel()
        assert (await ended(handle)).state is State.CANCELLED


async def test_the_next_job_of_a_slot_knows_nothing_of_the_cancellation(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def work(long: bool) -> list[object]:
        if long:
            begun.set()
            await asyncio.sleep(60)
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0.01)
        return [current_job().cancelled, task.cancelling()]

    handle = await work.aenqueue(True)
    others = [await work.aenqueue(False) for _ in range(3)]
    async with at_work(app, concurrency=1):
        await begun.wait()
        await handle.acancel()
        assert (await ended(handle)).state is State.CANCELLED
        for other in others:
            assert await other.aresult(60) == [False, 0]


async def test_a_job_that_was_asked_to_stop_and_then_lost_its_worker_is_not_started_again(
    app: App, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    handle = await made(app, "async", linger, retry="1ms").aenqueue(str(began))
    from penstock.core.ids import mint_token
    from penstock.stores.contract import Share

    fetched = await app.store.fetch(
        [Share("default", 1, 1)], limit=1, lease=200, worker="somebody else", token=mint_token()
    )
    assert len(fetched.jobs) == 1
    assert await handle.acancel() is State.RUNNING
    async with at_work(app, config=quick(reclaim_every="100ms")):
        job = await ended(handle)
    assert job.state is State.CANCELLED
    assert lines(began) == []


async def test_a_last_attempt_is_cancelled_before_its_start_is_recorded(app: App, tmp_path: Path) -> None:
    """Cancelled between its lease and its start: the record of the start brings the news."""
    began = tmp_path / "began"
    handle = await made(app, "async", linger, max_attempts=1).aenqueue(str(began))
    door = Door.before(app, "extend")
    async with at_work(app, config=patient()):
        await door.asked()
        assert await handle.acancel() is State.RUNNING
        door.open()
        job = await ended(handle)
    assert job.state is State.CANCELLED
    assert lines(began) == []


async def test_one_on_its_way_to_a_slot_is_not_started(app: App) -> None:
    """Fetched ahead by a worker that is used to short jobs; a heartbeat tells it what is no longer wanted."""
    dam = Dam(app, 4_000)
    await dam.fill()
    config = quick(slot_wait="10s", drain_timeout="10s", heartbeat="50ms")
    async with at_work(app, concurrency=1, config=config) as worker:
        at = await dam.full(worker)
        unwanted = dam.handles[at + 1]
        assert await unwanted.acancel() is State.RUNNING
        assert worker._services is not None
        heartbeat = worker._services.heartbeat
        before = heartbeat.last_answered
        await until(lambda: heartbeat.last_answered > before + 0.06, "the worker has been told")
        dam.open()
        assert (await ended(unwanted)).state is State.CANCELLED
    assert at + 1 not in dam.ran


async def test_listeners_get_an_event_of_a_cancellation(app: App, tmp_path: Path) -> None:
    told = Told(app)
    began = tmp_path / "began"
    handle = await made(app, "async", linger).aenqueue(str(began))
    async with at_work(app):
        await until(lambda: bool(lines(began)), "it has begun")
        await handle.acancel()
        event = await told.one(JobCancelled)
    assert (event.id, event.reason, event.attempt) == (handle.id, "cancelled while running", 1)
