"""However an attempt ends, in whatever executor: the job goes where it should, and the worker goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.app import App
from penstock.errors import JobDead, Retry
from penstock.events import JobReleased, TaskUnknown
from penstock.job import DEAD_KEPT, State
from penstock.lifecycle import EXPIRED
from penstock.testing import FaultyStore
from tests.worker.conftest import Told, at_work, becomes, ended, in_a_burst, quick, until
from tests.worker.deeds import act, fail_soon, fail_without_idea, made, no_idea, soon

HOUR = 3_600_000


async def test_a_function_that_comes_back_completes_its_job(app: App, run_in: str) -> None:
    handle = await made(app, run_in, act).aenqueue("return")
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.attempt, job.errors) == (State.COMPLETED, 1, ())
    assert await handle.aresult(1) == "done in attempt 1"


async def test_a_failed_attempt_is_tried_again_and_its_error_is_kept(app: App, run_in: str) -> None:
    handle = await made(app, run_in, act, retry="1ms").aenqueue("raise at first")
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.attempt) == (State.COMPLETED, 3)
    assert [(e.attempt, e.kind, e.message) for e in job.errors] == [
        (1, "ValueError", "attempt 1 is wrong"),
        (2, "ValueError", "attempt 2 is wrong"),
    ]
    for error in job.errors:
        assert "deeds.py" in error.traceback
        assert 'raise ValueError(f"attempt' in error.traceback
    assert await handle.aresult(1) == "done in attempt 3"


async def test_the_wait_between_attempts_is_the_policys(app: App, run_in: str) -> None:
    handle = await made(app, run_in, act, retry=["1h", "2h"]).aenqueue("raise")
    await in_a_burst(app)
    job = await becomes(handle, State.RETRYABLE)
    assert job.attempt == 1
    assert job.run_at - job.errors[0].at == pytest.approx(HOUR, abs=1000)


async def test_a_job_whose_attempts_are_spent_is_dead_and_says_why(app: App, run_in: str) -> None:
    handle = await made(app, run_in, act, retry="1ms", max_attempts=2).aenqueue("raise")
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.attempt, len(job.errors)) == (State.DEAD, 2, 2)
    assert job.reason == "all 2 attempts failed"
    with pytest.raises(JobDead, match="it is wrong"):
        await handle.aresult(1)


async def test_retry_chooses_its_own_time_and_is_charged(app: App, run_in: str) -> None:
    handle = await made(app, run_in, act, retry="1ms").aenqueue("retry")
    await in_a_burst(app)
    job = await becomes(handle, State.RETRYABLE)
    assert job.attempt == 1
    assert [(e.kind, e.message) for e in job.errors] == [("Retry", "not yet")]
    assert job.run_at - job.errors[0].at == pytest.approx(HOUR, abs=1000)


async def test_snooze_is_not_charged(app: App, run_in: str) -> None:
    handle = await made(app, run_in, act, max_attempts=1).aenqueue("snooze")
    await in_a_burst(app)
    job = await becomes(handle, State.SCHEDULED)
    assert (job.attempt, job.errors) == (0, ())
    assert job.run_at - job.enqueued_at == pytest.approx(HOUR, abs=5000)


async def test_discard_is_dead_at_once(app: App, run_in: str) -> None:
    handle = await made(app, run_in, act).aenqueue("discard")
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.attempt, job.reason) == (State.DEAD, 1, "Discard: never again")


async def test_cancel_is_no_failure(app: App, run_in: str) -> None:
    handle = await made(app, run_in, act).aenqueue("cancel")
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.reason, job.errors) == (State.CANCELLED, "not wanted", ())
    (stats,) = await app.store.stats()
    assert (stats.processed, stats.failed) == (1, 0)


async def test_a_retry_function_says_when(app: App, run_in: str) -> None:
    handle = await made(app, run_in, fail_soon, retry=soon).aenqueue()
    await in_a_burst(app)
    job = await becomes(handle, State.RETRYABLE)
    assert job.run_at - job.errors[0].at == pytest.approx(1_000_000, abs=1000)


async def test_where_a_retry_function_raises_the_default_policy_applies(app: App, run_in: str) -> None:
    handle = await made(app, run_in, fail_without_idea, retry=no_idea).aenqueue()
    async with at_work(app):
        job = await becomes(handle, State.RETRYABLE)
    assert job.errors[0].message == "it is wrong"
    assert 0 < job.run_at - job.errors[0].at <= 2000


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancelled", "CancelledError"),
        ("timeout", "AttemptTimeout"),
        ("unshowable", "Unshowable"),
    ],
)
@pytest.mark.parametrize("run_in", ["async", "thread"])  # for processes test_processes.py has it
async def test_whatever_a_task_raises_the_worker_goes_on(app: App, run_in: str, how: str, kind: str) -> None:
    task = made(app, run_in, act, retry="1h")
    bad = await task.aenqueue(how)
    good = await task.aenqueue("return")
    await in_a_burst(app, concurrency=1)
    job = await becomes(bad, State.RETRYABLE)
    assert [e.kind for e in job.errors] == [kind]
    assert await good.aresult(1) == "done in attempt 1"


async def test_a_task_that_cancels_its_own_asyncio_task_fails_alone(app: App) -> None:
    @app.task(retry="1h")
    async def work(selfish: bool) -> str:
        if selfish:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)
        return "done"

    bad = await work.aenqueue(True)
    good = [await work.aenqueue(False) for _ in range(3)]
    await in_a_burst(app, concurrency=1)
    job = await becomes(bad, State.RETRYABLE)
    assert [e.kind for e in job.errors] == ["CancelledError"]
    for handle in good:
        assert await handle.aresult(1) == "done"


async def test_one_that_returns_with_its_cancellation_pending_completes_and_harms_nobody(app: App) -> None:
    @app.task
    async def work(selfish: bool) -> str:
        if selfish:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        else:
            await asyncio.sleep(0)
        return "done"

    handles = [await work.aenqueue(i == 0) for i in range(3)]
    await in_a_burst(app, concurrency=1)
    for handle in handles:
        assert await handle.aresult(1) == "done"


async def test_timeouts_and_groups_of_asyncio_work_inside_a_task(app: App) -> None:
    @app.task
    async def work() -> list[str]:
        said: list[str] = []
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            said.append("timeout")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
                group.create_task(_fail())
        except* ValueError:
            said.append("group")
        task = asyncio.current_task()
        assert task is not None
        said.append(f"{task.cancelling()}")
        return said

    handles = [await work.aenqueue() for _ in range(4)]
    await in_a_burst(app, concurrency=2)
    for handle in handles:
        assert await handle.aresult(1) == ["timeout", "group", "0"]


async def _fail() -> None:
    raise ValueError


async def test_a_result_that_cannot_be_stored_fails_the_attempt(app: App, run_in: str) -> None:
    handle = await made(app, run_in, act, retry="1h").aenqueue("unencodable")
    await in_a_burst(app)
    job = await becomes(handle, State.RETRYABLE)
    assert "object" in job.errors[0].message


async def test_arguments_that_do_not_fit_are_dead_at_once_and_the_worker_goes_on(
    app: App, new_app: Callable[[], App], run_in: str
) -> None:
    task = made(app, run_in, act, queue="mail")
    bad = await new_app().aenqueue_raw("mail", b'{"args":[1,2,3]}', "act")
    worse = await new_app().aenqueue_raw("mail", b"\x00 no JSON", "act")
    good = await task.aenqueue("return")
    await in_a_burst(app, concurrency=1)
    for handle in (bad, worse):
        job = await ended(handle)
        assert (job.state, job.attempt) == (State.DEAD, 1)
        assert [e.kind for e in job.errors] == ["Undecodable"]
        assert (job.reason or "").startswith("Undecodable: ")
        assert "act" in (job.reason or "")
    assert await good.aresult(1) == "done in attempt 1"


async def test_a_job_of_an_unknown_task_waits_parked_for_a_worker_that_knows_it(
    app: App, new_app: Callable[[], App]
) -> None:
    knowing = new_app()

    @knowing.task(queue="mail")
    async def mail() -> str:
        return "sent"

    told = Told(app)
    handle = await mail.aenqueue()
    async with at_work(app, ["mail"]):
        job = await becomes(handle, State.PARKED)
        assert (job.attempt, job.errors) == (0, ())
        assert mail.name in (job.reason or "")
        event = await told.one(TaskUnknown)
        assert (event.id, event.queue, event.task) == (handle.id, "mail", mail.name)
        async with at_work(knowing):
            assert await handle.aresult(5) == "sent"
    assert (await ended(handle)).attempt == 1
    assert told.of(JobReleased) == [], "a parked job is not one that goes back to its queue"


async def test_a_job_that_expired_is_not_started(app: App) -> None:
    ran: list[str] = []

    @app.task(expires="1ms")
    async def work() -> None:
        ran.append("late")

    handle = await work.using(retention="1h").aenqueue()

    async def over() -> bool:
        (due,) = [await app.store.get([handle.ref])]
        return due[0] is not None

    await until(over, "it is there")
    await asyncio.sleep(0.005)  # the store's own clock has to pass a millisecond
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.reason, ran) == (State.CANCELLED, EXPIRED, [])


async def test_one_that_expires_while_it_is_on_its_way_to_a_slot_is_not_started_either(
    app: App, faults: FaultyStore
) -> None:
    ran: list[str] = []

    @app.task(expires="100ms")
    async def work() -> None:
        ran.append("late")

    handle = await work.using(retention="1h").aenqueue()
    faults.lose_reply("fetch")  # leased, and heard of only when the fetch is repeated
    await in_a_burst(app, config=quick())
    job = await ended(handle)
    assert job.state in (State.CANCELLED, State.COMPLETED)
    assert (job.state is State.COMPLETED) == bool(ran)


async def test_dead_jobs_are_kept_as_long_as_the_configuration_says(app: App) -> None:
    task = made(app, "async", act, max_attempts=1)
    short = await task.aenqueue("raise")
    await in_a_burst(app, config=quick(keep_dead="1h"))
    assert (await ended(short)).state is State.DEAD
    assert DEAD_KEPT > HOUR


async def test_steering_that_makes_no_sense_is_the_attempts_own_failure(app: App) -> None:
    @app.task(retry="1h")
    async def work() -> None:
        raise Retry("soon", delay="soon")

    handle = await work.aenqueue()
    await in_a_burst(app)
    job = await becomes(handle, State.RETRYABLE)
    assert job.errors[0].kind == "ConfigError"
    assert "soon" in job.errors[0].message


async def test_counts_of_processed_and_failed_attempts_are_true(app: App) -> None:
    task = made(app, "async", act, retry="1ms")
    await task.aenqueue("raise at first")
    await task.aenqueue("return")
    await task.aenqueue("discard")
    await task.aenqueue("cancel")
    await task.aenqueue("snooze")
    await in_a_burst(app)
    (stats,) = await app.store.stats()
    assert (stats.enqueued, stats.processed, stats.failed) == (5, 3 + 1 + 1 + 1, 2 + 1)


def _unused(_: Any) -> None: ...
