"""At-most-once jobs and last attempts: the store records the start before the function runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.core.job import State
from penstock.stores.contract import LeaseStatus
from penstock.testing import FaultyStore
from penstock.worker.executor.runners import Runners
from penstock.worker.fetcher import Fetcher
from penstock.worker.leased_jobs import LeasedJob
from tests.worker.conftest import Door, at_work, becomes, ended, in_a_burst, patient, quick, until
from tests.worker.task_bodies import act, lines, linger, made


async def test_a_failed_attempt_is_the_only_one(app: App, run_in: str) -> None:
    task = made(app, run_in, act, delivery="at-most-once")
    handle = await task.aenqueue("raise")
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.attempt) == (State.DEAD, 1)
    assert job.reason == "at-most-once: a started attempt never starts again"


async def test_a_timeout_ends_it_for_good(app: App, run_in: str, tmp_path: Path) -> None:
    began = tmp_path / "began"
    task = made(app, run_in, linger, delivery="at-most-once", timeout="50ms")
    handle = await task.aenqueue(str(began))
    async with at_work(app):
        assert (await ended(handle)).state is State.DEAD
    assert len(lines(began)) == 1


async def test_a_worker_that_stops_meanwhile_does_not_give_it_back(
    app: App, run_in: str, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    task = made(app, run_in, linger, delivery="at-most-once")
    handle = await task.aenqueue(str(began))
    async with at_work(app, config=quick(drain_timeout="10ms")):
        await until(lambda: bool(lines(began)), "it has begun")
    job = await ended(handle)
    assert job.state is State.DEAD
    assert [e.kind for e in job.errors] == ["WorkerStopped"]
    await in_a_burst(app)
    assert len(lines(began)) == 1


async def test_before_it_has_started_it_may_go_elsewhere(
    app: App, faults: FaultyStore, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    handle = await made(app, "async", linger, delivery="at-most-once").aenqueue(str(began), 0.0)
    faults.fail("extend")
    await in_a_burst(app, config=patient())
    job = await ended(handle)
    assert (job.state, job.attempt, job.errors) == (State.COMPLETED, 1, ())
    assert len(lines(began)) == 1


async def test_a_start_that_cannot_be_recorded_leaves_its_slot_to_the_next_job(
    app: App, faults: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fetcher, "_jobs_ahead", lambda _: 1)  # both come with one fetch
    await made(app, "async", act, delivery="at-most-once").using(id="first").aenqueue("return")
    ran: list[str] = []
    await app.task(ran.append).aenqueue("next")
    faults.fail("extend")
    door = Door.before(app, "settle")  # the first does not come back meanwhile
    async with at_work(app, config=patient(concurrency=1, slot_wait="1h")):
        await until(lambda: ran == ["next"], "the next job has run")
        door.open()
        assert (await ended(app.handle("first"))).state is State.COMPLETED


async def test_a_worker_that_stops_while_the_start_is_recorded_gives_it_back(
    app: App, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    handle = await made(app, "async", linger, delivery="at-most-once").aenqueue(str(began), 0.0)
    door = Door.before(app, "extend")
    async with at_work(app, config=patient(drain_timeout="10ms")) as worker:
        await door.asked()
        worker.stop()
        job = await becomes(handle, State.AVAILABLE)
        assert (job.attempt, job.started) == (0, False)
        door.open()
    await in_a_burst(app)
    assert (await ended(handle)).state is State.COMPLETED
    assert len(lines(began)) == 1


@pytest.mark.parametrize("run_in", ["async", "thread"])
async def test_a_cancellation_before_the_start_is_recorded_ends_it_and_the_next_starts(
    app: App, run_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the turn of the loop in which it gets its slot: the task that records it has not begun."""
    task = made(app, run_in, act, delivery="at-most-once")
    launch = Runners.launch_on_record

    def interrupted(runners: Runners, leased: LeasedJob) -> None:
        launch(runners, leased)
        if leased.job.id == "first":
            assert worker._services is not None
            worker._services.executor.on_lease_status(leased, LeaseStatus.CANCEL_ASKED)

    monkeypatch.setattr(Runners, "launch_on_record", interrupted)
    async with at_work(app, config=quick(concurrency=1)) as worker:
        handles = [await task.using(id=id).aenqueue("return") for id in ("first", "second")]
        states = [(await ended(handle)).state for handle in handles]
    assert states == [State.CANCELLED, State.COMPLETED]


async def test_the_start_of_a_last_attempt_is_in_the_store_before_it_begins(app: App, run_in: str) -> None:
    seen: list[tuple[bool, State]] = []

    def look() -> None:
        job = app.handle(current_job().id).job()
        assert job is not None
        seen.append((job.started, job.state))

    async def look_async() -> None:
        job = await app.handle(current_job().id).ajob()
        assert job is not None
        seen.append((job.started, job.state))

    task = app.task(max_attempts=1)(look if run_in == "thread" else look_async)
    await task.aenqueue()
    await in_a_burst(app, config=patient())
    assert seen == [(True, State.RUNNING)]


@pytest.mark.system
async def test_that_of_a_process_too(app: App, tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, "process", linger, max_attempts=1).aenqueue(str(began), 0.2)
    async with at_work(app, config=patient()):
        await until(lambda: bool(lines(began)), "it has begun")
        job = await handle.ajob()
        assert job is not None
        assert (job.started, job.state) == (True, State.RUNNING)
        assert await handle.aresult(60) == "stayed"


async def test_an_earlier_attempt_costs_no_such_write(app: App, faults: FaultyStore) -> None:
    task = made(app, "async", act)
    await app.aenqueue_many([task.job("return") for _ in range(100)])
    await in_a_burst(app, config=patient())
    assert faults.calls["extend"] == 0


async def test_starts_are_recorded_together(app: App, faults: FaultyStore) -> None:
    task = made(app, "async", act, max_attempts=1)
    await app.aenqueue_many([task.job("return") for _ in range(200)])
    await in_a_burst(app, config=patient(), concurrency=100)
    assert 0 < faults.calls["extend"] < 100
