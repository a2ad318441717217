"""Timeouts in every executor; their clock starts with the function."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.attempt import Attempt, current_job
from penstock.core.job import State
from penstock.errors import AttemptTimeout, Snooze
from penstock.events import JobDied, JobFailed
from penstock.testing import inline
from penstock.worker.executor.attempt import Attempts
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.pools.child_process import ChildProcess
from penstock.worker.pools.messages import WorkerHello
from penstock.worker.pools.starters import ChildStarter
from tests.lease_clocks import LeaseClock, time_out
from tests.worker.conftest import Told, at_work, becomes, ended, in_a_burst, quick, started, until
from tests.worker.task_bodies import act, heed, lines, linger, made, obey, swallow, swallow_async


class ChildDoor:
    """Child processes wait here before they start."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()


@pytest.fixture
def child_door(monkeypatch: pytest.MonkeyPatch) -> ChildDoor:
    door, start = ChildDoor(), ChildProcess.open

    async def start_later(child: ChildProcess, hello: WorkerHello, starter: ChildStarter) -> None:
        door.reached.set()
        await door.open.wait()
        await start(child, hello, starter)

    monkeypatch.setattr(ChildProcess, "open", start_later)
    return door


async def test_an_attempt_that_takes_too_long_is_stopped_and_tried_again(
    app: App, run_in: str, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    handle = await made(app, run_in, linger, timeout="150ms", retry="1h").aenqueue(str(began))
    async with at_work(app):
        job = await becomes(handle, State.RETRYABLE)
        assert [(e.kind, e.attempt) for e in job.errors] == [("Timeout", 1)]
        assert job.errors[0].message == "the attempt timed out after 0.15 s"
        assert len(lines(began)) <= 1, "it is not tried again yet"
        assert job.attempt == 1


async def test_the_slot_is_free_again_and_the_worker_goes_on(app: App, run_in: str, tmp_path: Path) -> None:
    slow = await made(app, run_in, linger, timeout="100ms", retry="1h").aenqueue(str(tmp_path / "began"))
    good = await made(app, run_in, act).aenqueue("return")
    async with at_work(app, concurrency=1):
        assert await good.aresult(60) == "done in attempt 1"
        assert (await becomes(slow, State.RETRYABLE)).errors[0].kind == "Timeout"


async def test_a_last_attempt_that_times_out_is_dead(app: App, run_in: str, tmp_path: Path) -> None:
    task = made(app, run_in, linger, timeout="50ms", max_attempts=1)
    handle = await task.aenqueue(str(tmp_path / "began"))
    async with at_work(app):
        job = await ended(handle)
    assert (job.state, job.reason) == (State.DEAD, "the only attempt failed")
    assert [e.kind for e in job.errors] == ["Timeout"]


async def test_without_a_timeout_nothing_is_stopped(app: App, run_in: str, tmp_path: Path) -> None:
    task = made(app, run_in, linger, timeout=None)
    left = made(app, run_in, act, timeout=None)
    handle = await task.aenqueue(str(tmp_path / "began"), 0.3)
    async with at_work(app):
        assert await (await left.aenqueue("remaining")).aresult(10) is None
        assert await handle.aresult(60) == "stayed"


async def test_a_task_knows_how_much_time_it_has_left(app: App, run_in: str) -> None:
    task = made(app, run_in, act, timeout="10h")
    handle = await task.aenqueue("remaining")
    sooner = await task.using(deadline=in_an_hour()).aenqueue("remaining")
    async with at_work(app):
        assert 9 * 3_600 < await handle.aresult(60) <= 10 * 3_600
        assert 1_800 < await sooner.aresult(60) <= 3_600.001


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


async def test_a_deadline_stops_an_attempt_and_is_the_end(
    app: App, run_in: str, tmp_path: Path, lease_clock: LeaseClock
) -> None:
    began = tmp_path / "began"
    task = made(app, run_in, linger, retry="1ms", timeout="10h")
    handle = await task.using(deadline=in_an_hour()).aenqueue(str(began))
    async with at_work(app) as worker:
        lease_clock.pass_deadline(await started(worker, began))
        job = await ended(handle)
    assert (job.state, job.reason, job.attempt) == (State.DEAD, "its deadline has passed", 1)
    assert [(e.kind, e.message) for e in job.errors] == [("Timeout", "its deadline has passed")]


@pytest.mark.parametrize("record", [False, True], ids=["", "on-record"])
@pytest.mark.parametrize("run_in", ["async", "thread"])
async def test_a_deadline_that_passes_between_the_slot_and_the_start_ends_a_job_without_a_start(
    app: App, run_in: str, record: bool, tmp_path: Path, lease_clock: LeaseClock, monkeypatch: Any
) -> None:
    began = tmp_path / "began"
    begin = Attempts.begin

    def begin_late(attempts: Attempts, leased: LeasedJob) -> Attempt:
        lease_clock.pass_deadline(leased)
        return begin(attempts, leased)

    monkeypatch.setattr(Attempts, "begin", begin_late)
    task = made(app, run_in, linger, max_attempts=1 if record else 3)
    handle = await task.using(deadline=in_an_hour()).aenqueue(str(began))
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.reason, job.attempt) == (State.DEAD, "its deadline has passed", 0)
    assert [(e.kind, e.message) for e in job.errors] == [
        ("DeadlinePassed", "it was not started before its deadline")
    ]
    assert not lines(began)


async def test_a_deadline_that_passes_while_a_child_starts_ends_a_job_without_a_start(
    app: App, tmp_path: Path, child_door: ChildDoor
) -> None:
    began = tmp_path / "began"
    deadline = datetime.now(UTC) + timedelta(seconds=1)
    handle = await made(app, "process", linger).using(deadline=deadline).aenqueue(str(began))
    async with at_work(app):
        await until(lambda: datetime.now(UTC) > deadline + timedelta(milliseconds=2), "the deadline")
        child_door.open.set()
        job = await ended(handle)
    assert (job.state, job.reason, job.attempt) == (State.DEAD, "its deadline has passed", 0)
    assert not lines(began)


async def test_a_job_whose_deadline_has_passed_is_dead_without_a_start(
    app: App, run_in: str, tmp_path: Path
) -> None:
    told, died = Told(app), []
    app.on_dead(lambda job, error: died.append(error.kind))
    task = made(app, run_in, linger)
    handle = await task.using(deadline=datetime.now(UTC)).aenqueue(str(tmp_path / "began"), 0.0)
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.reason, job.attempt) == (State.DEAD, "its deadline has passed", 0)
    assert not lines(tmp_path / "began")
    assert (await told.one(JobDied)).id == handle.id
    assert died == ["DeadlinePassed"]


async def test_a_deadline_that_passes_before_the_next_attempt_ends_the_job_at_once(app: App) -> None:
    """Nobody has to wait for an end that is certain."""
    task = made(app, "async", act, retry="2h")
    handle = await task.using(deadline=datetime.now(UTC) + timedelta(hours=1)).aenqueue("raise")
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.attempt) == (State.DEAD, 1)
    assert job.reason == "its deadline passes before its next attempt"


async def test_a_deadline_that_passed_while_the_job_slept_ends_it_without_a_start() -> None:
    app, starts = App("memory://"), []

    @app.task
    async def waiter() -> None:
        starts.append(1)
        raise Snooze("2h")

    with inline(app, raises=False) as box:
        handle = await waiter.using(deadline=box.now + timedelta(hours=1)).aenqueue()
        await box.arun_all()
        job = await handle.ajob()
    assert job is not None
    assert (job.state, job.reason, job.attempt) == (State.DEAD, "its deadline has passed", 0)
    assert starts == [1]


async def test_the_clock_of_a_timeout_starts_when_the_function_does(app: App, run_in: str) -> None:
    """Four jobs, one slot: the clock of each starts after the function before has read it last."""
    task = made(app, run_in, act, timeout="1h")
    handles = [await task.aenqueue("clock") for _ in range(4)]
    before = time.monotonic()
    await in_a_burst(app, concurrency=1)
    for _, left, after in sorted([await handle.aresult(60) for handle in handles]):
        assert before <= after + left - 3_600, "not before"
        assert left <= 3_600, "nor after it has begun"
        before = after


async def test_an_async_task_is_cancelled_and_may_clean_up(app: App) -> None:
    cleaned: list[str] = []

    @app.task(timeout="50ms", retry="1h")
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append("up")

    handle = await work.aenqueue()
    async with at_work(app, config=quick(cleanup_grace="60s")):
        assert (await becomes(handle, State.RETRYABLE)).errors[0].kind == "Timeout"
    assert cleaned == ["up"]


async def test_the_result_of_an_async_task_after_its_timeout_does_not_count(app: App) -> None:
    @app.task(timeout="50ms", retry="1h")
    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        return "too late"

    handle = await work.aenqueue()
    async with at_work(app):
        job = await becomes(handle, State.RETRYABLE)
    assert (job.errors[0].kind, job.result) == ("Timeout", None)


@pytest.mark.usefixtures("impatient")
async def test_an_async_task_that_swallows_its_cancellation_is_given_up(app: App, tmp_path: Path) -> None:
    began = tmp_path / "began"
    task = made(app, "async", swallow, timeout="50ms", retry="1h")
    assert task.function is swallow_async
    handle = await task.aenqueue(str(began))
    other = await made(app, "async", act, queue="other").aenqueue("return")
    async with at_work(app, concurrency=2) as worker:
        job = await becomes(handle, State.RETRYABLE)
        assert job.errors[0].kind == "Timeout"
        assert await other.aresult(60) == "done in attempt 1"
        assert worker._services is not None
        assert worker._services.slots.lost == 1
        (tmp_path / "began.go").touch()
    assert await handle.astatus() is State.RETRYABLE, "its late result changed nothing"


# ── threads ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_thread_first_sees_that_it_should_stop(app: App, tmp_path: Path) -> None:
    seen: list[str] = []

    @app.task(timeout="50ms", retry="1h")
    def work() -> None:
        try:
            obey(str(tmp_path / "began"))
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    handle = await work.aenqueue()
    async with at_work(app, config=quick(thread_grace="5s")):
        job = await becomes(handle, State.RETRYABLE)
    assert seen == ["AttemptCancelled"]
    assert job.errors[0].kind == "Timeout"


async def test_the_result_of_a_thread_after_its_timeout_does_not_count(app: App, tmp_path: Path) -> None:
    handle = await made(app, "thread", heed, timeout="50ms", retry="1h").aenqueue(str(tmp_path / "began"))
    async with at_work(app, config=quick(thread_grace="5s")):
        job = await becomes(handle, State.RETRYABLE)
    assert (job.errors[0].kind, job.result) == ("Timeout", None)


async def test_a_thread_that_does_not_look_is_hit_by_an_exception(app: App) -> None:
    seen: list[str] = []

    @app.task(timeout="50ms", retry="1h")
    def work() -> None:
        try:
            while True:
                time.sleep(0.001)
        except AttemptTimeout as error:
            seen.append(type(error).__name__)
            raise

    handle = await work.aenqueue()
    async with at_work(app):
        job = await becomes(handle, State.RETRYABLE)
    assert seen == ["AttemptTimeout"]
    assert job.errors[0].kind == "Timeout"


@pytest.mark.usefixtures("impatient")
async def test_a_thread_that_swallows_even_that_is_given_up(app: App, tmp_path: Path, caplog: Any) -> None:
    began = tmp_path / "began"
    told = Told(app)
    stuck = await made(app, "thread", swallow, timeout="50ms", retry="1h").aenqueue(str(began))
    good = await made(app, "thread", act).aenqueue("return")
    async with at_work(app, concurrency=2) as worker:
        assert worker._services is not None
        parts = worker._services
        job = await becomes(stuck, State.RETRYABLE)
        assert job.errors[0].kind == "Timeout"
        assert lines(f"{began}.swallowed") == ["AttemptTimeout"]
        assert await good.aresult(60) == "done in attempt 1"
        assert (parts.slots.lost, parts.slots.free) == (1, 1)
        (tmp_path / "began.go").touch()
        pool = parts.executor._threads._pool
        assert pool is not None
        await until(lambda: pool.late == 1, "the thread comes back after all")
    assert await stuck.astatus() is State.RETRYABLE, "its late result changed nothing"
    assert len(told.of(JobFailed)) == 1
    assert "given up" in caplog.text


@pytest.mark.usefixtures("impatient")
async def test_a_worker_whose_slots_all_hang_ends_and_says_so(app: App, tmp_path: Path, caplog: Any) -> None:
    """Nobody replaces a worker that has no supervisor: to wait for ever would look like work."""
    began = tmp_path / "began"
    handle = await made(app, "thread", swallow, timeout="50ms", retry="1h").aenqueue(str(began))
    worker = await in_a_burst(app, concurrency=1)
    assert worker.wants_replacement
    assert "1 of 1 slots are stuck" in caplog.text
    assert await handle.astatus() is State.RETRYABLE
    (tmp_path / "began.go").touch()


# ── processes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.system
async def test_a_process_that_is_over_its_time_is_killed(app: App, tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, "process", swallow, timeout="1h", retry="1h").aenqueue(str(began))
    async with at_work(app) as worker:
        time_out(await started(worker, began))
        assert (await becomes(handle, State.RETRYABLE)).errors[0].kind == "Timeout"
        (pid,) = lines(began)
        await until(lambda: not Path(f"/proc/{pid}").exists(), "the process is gone")


@pytest.mark.system
async def test_the_start_of_a_child_is_not_counted(app: App, child_door: ChildDoor) -> None:
    handle = await made(app, "process", act, timeout="1h").aenqueue("clock")
    async with at_work(app) as worker:
        await child_door.reached.wait()
        assert worker._services is not None
        (leased,) = worker._services.leased_jobs
        before = time.monotonic()
        child_door.open.set()
        _, left, after = await handle.aresult(60)
    assert before <= after + left - 3_600
    assert before <= leased.started


# ── middleware ───────────────────────────────────────────────────────────────────────────────────


async def test_middleware_that_hangs_is_over_its_time_too(app: App, run_in: str) -> None:
    @app.around_attempt
    async def hang(job: Any, call: Any) -> Any:
        result = await call()
        await asyncio.sleep(60)
        return result

    handle = await made(app, run_in, act, timeout="100ms", retry="1h").aenqueue("return")
    async with at_work(app):
        assert (await becomes(handle, State.RETRYABLE)).errors[0].kind == "Timeout"


async def test_middleware_that_hangs_before_the_function_is_over_its_time_too(app: App, run_in: str) -> None:
    @app.around_attempt
    async def hang(job: Any, call: Any) -> Any:
        await asyncio.sleep(60)
        return await call()

    handle = await made(app, run_in, act, timeout="50ms", retry="1h").aenqueue("return")
    async with at_work(app):
        assert (await becomes(handle, State.RETRYABLE)).errors[0].kind == "Timeout"


async def test_remaining_counts_down(app: App) -> None:
    @app.task(timeout="5s")
    async def work() -> bool:
        before = current_job().remaining()
        await asyncio.sleep(0.01)
        after = current_job().remaining()
        return before is not None and after is not None and after < before <= 5

    handle = await work.aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60)
