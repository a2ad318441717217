"""Callbacks of succeeded, failed and dead jobs: called after the settlement, without delaying jobs."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.attempt import NoCurrentJob, current_job
from penstock.core.job import AttemptError, Job, State
from penstock.stores.contract import HeartbeatRequest, Share
from penstock.testing import FaultyStore, inline
from penstock.worker import callbacks
from tests.worker.conftest import Door, at_work, becomes, ended, in_a_burst, patient, quick, until
from tests.worker.task_bodies import act, linger, made


class CallRecorder:
    """Callbacks of all three kinds that record their calls."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Job, Any]] = []

    def on(self, app: App) -> CallRecorder:
        app.on_success(self.success)
        app.on_failure(self.failure)
        app.on_dead(self.dead)
        return self

    async def success(self, job: Job, result: Any) -> None:
        self.all.append(("success", job, result))

    def failure(self, job: Job, error: AttemptError) -> None:
        self.all.append(("failure", job, error.message))

    async def dead(self, job: Job, error: AttemptError) -> None:
        self.all.append(("dead", job, error.message))

    def of(self, id: str) -> list[tuple[str, Any]]:
        return [(what, said) for what, job, said in self.all if job.id == id]


async def test_each_end_has_its_callbacks_with_the_job_as_it_is_then(app: App, run_in: str) -> None:
    calls = CallRecorder().on(app)
    task = made(app, run_in, act, retry="1h", max_attempts=2)
    good, bad = await task.aenqueue("return"), await task.aenqueue("raise")
    hopeless, unread = await task.aenqueue("discard"), await app.aenqueue_raw("default", b"[", "act")
    quiet = [await task.aenqueue(how) for how in ("snooze", "cancel")]
    await in_a_burst(app)
    await bad.areschedule(delay=0)
    await in_a_burst(app)
    assert calls.of(good.id) == [("success", "done in attempt 1")]
    it = "it is wrong"
    assert calls.of(bad.id) == [("failure", it), ("failure", it), ("dead", it)]
    assert calls.of(hopeless.id) == [("failure", "never again"), ("dead", "never again")]
    assert [what for what, _ in calls.of(unread.id)] == ["failure", "dead"]
    assert [calls.of(handle.id) for handle in quiet] == [[], []]
    assert [
        (what, job.state, job.attempt, len(job.errors)) for what, job, _ in calls.all if job.id == bad.id
    ] == [
        ("failure", State.RETRYABLE, 1, 1),
        ("failure", State.DEAD, 2, 2),
        ("dead", State.DEAD, 2, 2),
    ]
    (dead,) = [job for what, job, _ in calls.all if what == "dead" and job.id == bad.id]
    assert dead.reason == "all 2 attempts failed"


async def test_a_task_has_its_own_and_they_come_before_those_of_all(app: App) -> None:
    said: list[str] = []

    def saying(name: str) -> Callable[..., None]:
        return lambda job, what: said.append(name)

    app.on_dead(saying("app"))
    app.on_dead(queue="mail")(saying("queue"))
    app.on_dead(queue="other")(saying("wrong"))
    task = made(app, "async", act, queue="mail", max_attempts=1, on_dead=saying("task"))
    app.on_dead(task=task)(saying("task, later"))
    await task.aenqueue("raise")
    await made(app, "thread", linger, name="x", on_dead=saying("wrong too")).aenqueue("/dev/null", 0)
    await in_a_burst(app)
    assert said == ["task", "task, later", "queue", "app"]


async def test_the_result_is_what_the_handle_would_give_and_nothing_of_a_task_that_keeps_nothing(
    app: App,
) -> None:
    got: list[Any] = []

    def note(job: Job, result: Any) -> None:
        got.append(result)

    @app.task(on_success=note, retention=0)
    async def pair() -> tuple[int, str]:
        return (1, "a")

    @app.task(on_success=note)
    def nothing() -> None: ...

    @app.handler(queue="raw", on_success=note)
    async def raw(job: object) -> dict[str, int]:
        return {"n": 1}

    for _ in [await pair.aenqueue(), await nothing.aenqueue(), await app.aenqueue_raw("raw", b"x")]:
        pass
    await in_a_burst(app)
    assert sorted(got, key=repr) == [(1, "a"), None, {"n": 1}]


async def test_nothing_is_called_before_the_store_has_the_outcome(app: App) -> None:
    calls = CallRecorder().on(app)
    door = Door.before(app, "settle")
    handle = await made(app, "async", act).aenqueue("return")
    async with at_work(app):
        await door.asked()
        assert calls.all == []
        door.open()
        await until(lambda: calls.of(handle.id) != [], "it is called")


async def test_an_outcome_that_the_store_refuses_calls_nothing(app: App) -> None:
    calls = CallRecorder().on(app)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        begun.set()
        await go_on.wait()

    handle = await work.aenqueue()
    async with at_work(app, config=patient()):
        await begun.wait()
        (job,) = await app.store.get([handle.ref])
        assert job is not None
        taken = await app.store.reclaim(
            (), limit=9, lease=60_000, worker="w", token="t", of=[job.worker or ""]
        )
        assert len(taken.jobs) == 1
        go_on.set()
    assert calls.all == []


async def test_a_lost_answer_of_the_store_calls_them_once(app: App, faults: FaultyStore) -> None:
    calls = CallRecorder().on(app)
    task = made(app, "async", act, max_attempts=1, retention="1h")
    good, bad = await task.aenqueue("return"), await task.aenqueue("raise")
    faults.lose_reply("settle")
    await in_a_burst(app)
    assert len(calls.of(good.id)) == 1
    assert [what for what, _ in calls.of(bad.id)] == ["failure", "dead"]


async def test_one_that_fails_is_logged_and_changes_nothing(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    calls = CallRecorder()

    def wrong(job: Job, result: Any) -> None:
        raise ValueError("the first is wrong")

    async def wrong_too(job: Job, result: Any) -> None:
        raise SystemExit("so is the second")

    async def cancels(job: Job, result: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    task = made(app, "async", act, on_success=cancels)
    for call in (wrong, wrong_too, calls.success):
        app.on_success(call)
    other = made(app, "thread", linger)
    handles = [await task.aenqueue("return"), await other.aenqueue("/dev/null", 0)]
    await in_a_burst(app, concurrency=1)
    for handle in handles:
        assert (await ended(handle)).state is State.COMPLETED
    assert calls.of(handles[1].id) == [("success", "stayed")]
    assert "the first is wrong" in caplog.text
    assert "so is the second" in caplog.text
    assert f"job {handles[1].id}: on_success of linger" in caplog.text


async def test_one_that_returns_what_would_do_its_work_is_logged(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    def yields() -> Iterator[None]:
        yield

    async def returns_it(job: Job, result: Any) -> Any:
        return yields()

    app.on_success(lambda job, result: yields())
    app.on_success(returns_it)
    await made(app, "async", act).aenqueue("return")
    await in_a_burst(app)
    errors = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert len(errors) == 2
    assert all(error.startswith("it returned a generator, and what that stands for") for error in errors)


async def test_they_hold_no_slot_and_delay_no_settlement(app: App) -> None:
    go_on, waits = threading.Event(), asyncio.Event()

    @app.on_success
    def stay(job: Job, result: Any) -> None:
        go_on.wait(20)

    @app.on_success
    async def stay_too(job: Job, result: Any) -> None:
        await waits.wait()

    task = made(app, "async", act)
    async with at_work(app, concurrency=1):
        for handle in [await task.aenqueue("return") for _ in range(30)]:
            assert await handle.aresult(60) == "done in attempt 1"
        go_on.set()
        waits.set()


async def test_callbacks_beyond_the_buffer_are_dropped_and_reported(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "_MAX_WAITING", 10)
    go_on = asyncio.Event()
    called: list[str] = []

    @app.on_success
    async def stay(job: Job, result: Any) -> None:
        await go_on.wait()
        called.append(job.id)

    task = made(app, "async", act)
    async with at_work(app):
        handles = await app.aenqueue_many([task.job("return") for _ in range(50)])
        for handle in handles:
            await handle.aresult(60)
        go_on.set()
    assert 10 <= len(called) <= 18
    assert f"callbacks of {50 - len(called)} job(s) were dropped" in caplog.text


async def test_failures_have_their_place_when_successes_fill_it(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "_MAX_WAITING", 10)
    go_on = asyncio.Event()
    calls = CallRecorder()

    @app.on_success
    async def stay(job: Job, result: Any) -> None:
        await go_on.wait()

    app.on_dead(calls.dead)
    task = made(app, "async", act, max_attempts=1)
    async with at_work(app):
        for handle in await app.aenqueue_many([task.job("return") for _ in range(30)]):
            await handle.aresult(60)
        bad = await task.aenqueue("raise")
        await becomes(bad, State.DEAD)
        go_on.set()
    assert [what for what, _ in calls.of(bad.id)] == ["dead"]


async def test_what_waits_takes_a_bounded_part_of_the_memory(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "_MAX_BYTES", 100_000)
    go_on = asyncio.Event()

    @app.on_success
    async def stay(job: Job, result: Any) -> None:
        await go_on.wait()

    @app.task
    async def work() -> str:
        return "x" * 30_000

    async with at_work(app, concurrency=1) as worker:
        for handle in await app.aenqueue_many([work.job() for _ in range(20)]):
            await handle.aresult(60)
        parts = worker._services
        assert parts is not None
        assert parts.callback_runner._bytes <= 100_000
        assert 20 - 8 - 3 <= parts.callback_runner.dropped <= 20 - 3, (
            "three may wait, and eight are being called"
        )
        go_on.set()
    assert parts.callback_runner._bytes == 0


async def test_one_that_does_not_come_back_is_stopped(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    impatient = functools.partial(callbacks.CallbackExecutor, limit=0.1)
    monkeypatch.setattr(callbacks, "CallbackExecutor", impatient)
    calls = CallRecorder()

    @app.on_success
    async def hang(job: Job, result: Any) -> None:
        await asyncio.Event().wait()

    @app.on_success
    def spin(job: Job, result: Any) -> None:
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            time.sleep(0.002)
        pytest.fail("nobody stopped it")

    app.on_success(calls.success)
    handle = await made(app, "async", act).aenqueue("return")
    await in_a_burst(app)
    assert calls.of(handle.id) == [("success", "done in attempt 1")]
    assert "took longer than 0.1 s" in caplog.text
    assert "callback still running after 0.1 s" in caplog.text


async def test_a_worker_that_drains_calls_them_first_and_then_its_last_hooks(app: App) -> None:
    said: list[str] = []

    @app.on_success
    def note(job: Job, result: Any) -> None:
        said.append("success")

    @app.on_shutdown
    def end() -> None:
        said.append("shutdown")

    await made(app, "async", act).aenqueue("return")
    await in_a_burst(app)
    assert said == ["success", "shutdown"]


async def test_a_burst_runs_what_they_enqueue(app: App) -> None:
    repair = made(app, "thread", act, name="repair")

    @app.on_dead
    async def mend(job: Job, error: AttemptError) -> None:
        await asyncio.sleep(0.1)
        await repair.using(id="repair").aenqueue("return")

    await made(app, "async", act, max_attempts=1).aenqueue("raise")
    await in_a_burst(app)
    assert await app.handle("repair", task=repair).aresult(60) == "done in attempt 1"


async def test_they_are_no_part_of_the_attempt(app: App) -> None:
    refused: list[str] = []

    @app.on_success
    def look(job: Job, result: Any) -> None:
        try:
            current_job()
        except NoCurrentJob:
            refused.append(threading.current_thread().name)

    @app.on_success
    async def look_too(job: Job, result: Any) -> None:
        try:
            current_job()
        except NoCurrentJob:
            refused.append("loop")

    await made(app, "async", act).aenqueue("return")
    await in_a_burst(app)
    assert refused == ["penstock-callback-1", "loop"]


async def test_a_job_that_dies_with_its_worker_calls_those_of_the_one_that_finds_it(app: App) -> None:
    calls = CallRecorder().on(app)
    handle = await made(app, "async", act, max_attempts=1).aenqueue("return")
    gone = await app.store.fetch([Share("default", 1, 1)], limit=1, lease=1, worker="gone", token="t")
    await app.store.extend([HeartbeatRequest(gone.jobs[0].lease, 1, started=True)])
    async with at_work(app, config=quick(reclaim_every="50ms")):
        await becomes(handle, State.DEAD)
        await until(lambda: len(calls.of(handle.id)) == 2, "both are called")
    assert [what for what, _ in calls.of(handle.id)] == ["failure", "dead"]


async def test_without_callbacks_no_callback_thread_is_created(app: App) -> None:
    assert not app.callbacks.active
    handle = await made(app, "async", act).aenqueue("return")
    worker = await in_a_burst(app)
    assert await handle.aresult(60) == "done in attempt 1"
    assert worker._services is not None
    assert worker._services.callback_runner._executor._pool is None


async def test_a_store_that_is_away_delays_them_and_loses_none(app: App, faults: FaultyStore) -> None:
    calls = CallRecorder().on(app)
    handle = await made(app, "async", act).aenqueue("return")
    faults.fail("settle", times=3)
    async with at_work(app):
        await until(lambda: calls.of(handle.id) != [], "it is called")
    assert calls.of(handle.id) == [("success", "done in attempt 1")]


async def test_in_a_test_that_runs_its_jobs_inline_they_are_called_too(app: App) -> None:
    calls = CallRecorder().on(app)
    repair = made(app, "async", act, name="repair")

    @app.on_dead
    async def mend(job: Job, error: AttemptError) -> None:
        await asyncio.sleep(0.1)
        await repair.aenqueue("return")

    task = made(app, "async", act, max_attempts=1)
    with inline(app, raises=False) as box:
        await task.aenqueue("raise")
        ran = await box.arun()
    assert (ran.dead, ran.completed) == (1, 1)
    assert [what for what, _, _ in calls.all] == ["failure", "dead", "success"]
