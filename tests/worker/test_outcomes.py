"""Every outcome of an attempt, in every executor: the job gets the right state, and the worker continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.app.app import App
from penstock.client.handle import Handle
from penstock.core.clock import ManualClock
from penstock.core.job import Job, State
from penstock.core.lifecycle import EXPIRED
from penstock.errors import JobDead, Retry
from penstock.events import JobReleased, TaskUnknown
from penstock.stores.connect import connect
from penstock.testing import FaultyStore
from tests.worker.conftest import Told, at_work, becomes, ended, in_a_burst, quick
from tests.worker.task_bodies import act, fail_soon, fail_without_idea, made, no_idea, soon

HOUR = 3_600_000


#: The words of a result that cannot be stored: its type and place.
UNENCODABLE = (
    "act: result['found'][1], 1j (complex), does not fit its annotation Any: "
    "a value of type complex cannot be stored without an annotation that says what it is"
)
#: How it acts → where its job is then, the attempts it was charged, its errors' kinds, the job's reason.
OUTCOMES: dict[str, tuple[State, int, list[str], str | None]] = {
    "return": (State.COMPLETED, 1, [], None),
    "raise": (State.RETRYABLE, 1, ["ValueError"], None),
    "retry": (State.RETRYABLE, 1, ["Retry"], None),
    "snooze": (State.SCHEDULED, 0, [], None),
    "discard": (State.DEAD, 1, ["Discard"], "Discard: never again"),
    "cancel": (State.CANCELLED, 1, [], "not wanted"),
    "unencodable": (State.DEAD, 1, ["ResultError"], f"ResultError: {UNENCODABLE}"),
}


async def test_each_end_of_an_attempt_has_its_own_outcome(app: App, run_in: str) -> None:
    task = made(app, run_in, act, retry=["2h", "3h"])
    handles = {how: await task.aenqueue(how) for how in OUTCOMES}
    await in_a_burst(app)
    for how, handle in handles.items():
        job = await handle.ajob()
        assert job is not None
        assert (job.state, job.attempt, [e.kind for e in job.errors], job.reason) == OUTCOMES[how], how
    due = {how: (await _job(handle)).run_at for how, handle in handles.items()}
    errors = {how: (await _job(handle)).errors for how, handle in handles.items()}
    assert due["raise"] - errors["raise"][0].at == pytest.approx(2 * HOUR, abs=60_000), "the policy's wait"
    assert due["retry"] - errors["retry"][0].at == pytest.approx(HOUR, abs=60_000), "its own wait"
    assert due["snooze"] - (await _job(handles["snooze"])).enqueued_at == pytest.approx(HOUR, abs=60_000)
    assert await handles["return"].aresult(60) == "done in attempt 1"
    assert errors["unencodable"][0].message == UNENCODABLE
    with pytest.raises(JobDead, match="never again"):
        await handles["discard"].aresult(10)
    (stats,) = await app.store.stats()
    assert (stats.processed, stats.failed) == (len(OUTCOMES) - 1, 4)


async def test_failed_attempts_are_tried_again_until_they_are_spent(app: App, run_in: str) -> None:
    task = made(app, run_in, act, retry="1ms")
    lucky = await task.aenqueue("raise at first")
    luckless = await task.using(max_attempts=2).aenqueue("raise")
    sleepy = await task.using(max_attempts=1).aenqueue("snooze")
    await in_a_burst(app)
    job = await ended(lucky)
    assert (job.state, job.attempt) == (State.COMPLETED, 3)
    assert [(e.attempt, e.kind, e.message) for e in job.errors] == [
        (1, "ValueError", "attempt 1 is wrong"),
        (2, "ValueError", "attempt 2 is wrong"),
    ]
    for error in job.errors:
        assert "task_bodies.py" in error.traceback
        assert 'raise ValueError(f"attempt' in error.traceback
    job = await ended(luckless)
    assert (job.state, job.attempt, len(job.errors)) == (State.DEAD, 2, 2)
    assert job.reason == "all 2 attempts failed"
    with pytest.raises(JobDead, match="it is wrong"):
        await luckless.aresult(10)
    assert (await becomes(sleepy, State.SCHEDULED)).attempt == 0, "a snooze is not charged, also at the last"


async def test_a_retry_function_says_when_and_where_it_fails_the_default_does(app: App, run_in: str) -> None:
    knows = await made(app, run_in, fail_soon, retry=soon).aenqueue()
    does_not = await made(app, run_in, fail_without_idea, retry=no_idea).aenqueue()
    async with at_work(app):
        job = await becomes(knows, State.RETRYABLE)
        assert job.run_at - job.errors[0].at == pytest.approx(1_000_000, abs=60_000)
        job = await becomes(does_not, State.RETRYABLE)
        assert job.errors[0].message == "it is wrong"
        assert 0 < job.run_at - job.errors[0].at <= 60_000


async def _job(handle: Handle[Any]) -> Job:
    job = await handle.ajob()
    assert job is not None
    return job


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
async def test_the_worker_continues_after_any_exception(app: App, run_in: str, how: str, kind: str) -> None:
    task = made(app, run_in, act, retry="1h")
    bad = await task.aenqueue(how)
    good = await task.aenqueue("return")
    await in_a_burst(app, concurrency=1)
    job = await becomes(bad, State.RETRYABLE)
    assert [e.kind for e in job.errors] == [kind]
    assert await good.aresult(60) == "done in attempt 1"


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
        assert await handle.aresult(60) == "done"


async def test_a_return_with_a_pending_cancellation_completes_and_affects_no_other_job(app: App) -> None:
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
        assert await handle.aresult(60) == "done"


async def test_timeouts_and_groups_of_asyncio_work_inside_a_task(app: App) -> None:
    @app.task
    async def work() -> list[str]:
        task = asyncio.current_task()
        assert task is not None
        said: list[str] = [str(task.cancelling())]  # CPython 3.11's TaskGroup leaves a count behind
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
        return said

    handles = [await work.aenqueue() for _ in range(4)]
    await in_a_burst(app, concurrency=2)
    for handle in handles:
        assert await handle.aresult(60) == ["0", "timeout", "group"]


async def _fail() -> None:
    raise ValueError


async def test_arguments_that_do_not_fit_are_dead_at_once_and_the_worker_goes_on(
    app: App, new_app: Callable[[], App], run_in: str
) -> None:
    task = made(app, run_in, act, queue="mail")
    bad = await new_app().aenqueue_raw("mail", b'{"how":[1,2,3]}', "act")
    worse = await new_app().aenqueue_raw("mail", b"\x00 no JSON", "act")
    good = await task.aenqueue("return")
    await in_a_burst(app, concurrency=1)
    for handle in (bad, worse):
        job = await ended(handle)
        assert (job.state, job.attempt) == (State.DEAD, 1)
        assert [e.kind for e in job.errors] == ["Undecodable"]
        assert (job.reason or "").startswith("Undecodable: ")
        assert "act" in (job.reason or "")
    assert await good.aresult(60) == "done in attempt 1"


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
            assert await handle.aresult(60) == "sent"
    assert (await ended(handle)).attempt == 1
    assert told.of(JobReleased) == [], "a parked job is not one that goes back to its queue"


async def test_a_job_that_expired_is_not_started(app: App, url: str) -> None:
    ran: list[str] = []

    @app.task(expires="1h", retention="1h")
    async def work() -> None:
        ran.append("late")

    clock = ManualClock()
    app.use_store(connect(url, namespace="expiry", clock=clock))
    handle = await work.aenqueue()
    clock.advance(HOUR)
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.reason, ran) == (State.CANCELLED, EXPIRED, [])


async def test_one_that_expired_on_its_way_to_a_slot_is_not_started_either(
    app: App, faults: FaultyStore
) -> None:
    """Leased in time, and heard of only when the fetch is repeated, 50 ms to 200 ms later."""
    ran: list[str] = []

    @app.task(expires="40ms", retention="1h")
    async def work() -> None:
        ran.append("late")

    async with at_work(app):
        faults.lose_reply("fetch")
        handle = await work.aenqueue()
        job = await ended(handle)
    assert (job.state, job.reason, job.attempt, ran) == (State.CANCELLED, EXPIRED, 0, [])


async def test_dead_jobs_are_kept_as_long_as_the_configuration_says(app: App) -> None:
    task = made(app, "async", fail_soon, max_attempts=1)
    gone, kept = await task.aenqueue(), await task.using(retention="1h").aenqueue()
    await in_a_burst(app, config=quick(keep_dead="0s"))
    assert await gone.ajob() is None
    assert (await ended(kept)).state is State.DEAD


async def test_steering_that_makes_no_sense_is_the_attempts_own_failure(app: App) -> None:
    @app.task(retry="1h")
    async def work() -> None:
        raise Retry("soon", delay="soon")

    handle = await work.aenqueue()
    await in_a_burst(app)
    job = await becomes(handle, State.RETRYABLE)
    assert job.errors[0].kind == "ConfigError"
    assert "soon" in job.errors[0].message
