"""Which errors are retried, never retried, or no failure, as the task says, in each executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.core.job import State
from penstock.events import JobFailed, JobSnoozed
from tests.worker.conftest import Told, at_work, becomes, ended, in_a_burst
from tests.worker.task_bodies import FORGIVING, RULES, act, forgiven, judged, lines, linger, made


async def test_an_error_is_tried_again_or_not_as_its_class_says(app: App, run_in: str) -> None:
    task = made(app, run_in, judged, **RULES)
    again = await task.aenqueue("ConnectionResetError")
    never = await task.aenqueue("FileNotFoundError")
    strange = await task.aenqueue("ValueError")
    await in_a_burst(app)
    job = await becomes(again, State.RETRYABLE)
    assert [e.kind for e in job.errors] == ["ConnectionResetError"]
    job = await ended(never)
    assert (job.state, job.attempt) == (State.DEAD, 1)
    assert job.reason == "not retried: discard_on has FileNotFoundError"
    assert [(e.kind, e.message) for e in job.errors] == [("FileNotFoundError", "it is wrong")]
    job = await ended(strange)
    assert (job.state, job.attempt) == (State.DEAD, 1)
    assert job.reason == "not retried: retry_on has no ValueError"


async def test_what_is_no_failure_is_tried_again_uncharged_and_uncounted(app: App, run_in: str) -> None:
    told = Told(app)
    task = made(app, run_in, forgiven, **FORGIVING)
    spared = await task.using(max_attempts=1).aenqueue("ConnectionResetError")
    counted = await task.aenqueue("ValueError")
    unsure = await task.aenqueue("KeyError")
    await in_a_burst(app)
    job = await becomes(spared, State.RETRYABLE)
    assert (job.attempt, job.errors) == (0, ())
    assert job.reason == "no failure: ConnectionResetError: it is wrong"
    assert 3_500_000 < job.run_at - job.enqueued_at < 3_900_000, "it waits as its policy says"
    for handle, kind in ((counted, "ValueError"), (unsure, "KeyError")):
        job = await becomes(handle, State.RETRYABLE)
        assert (job.attempt, [e.kind for e in job.errors]) == (1, [kind])
    (stats,) = await app.store.stats()
    assert (stats.processed, stats.failed) == (2, 2)
    assert (await told.one(JobSnoozed)).id == spared.id
    assert {event.id for event in told.of(JobFailed)} == {counted.id, unsure.id}


async def test_an_is_failure_that_fails_is_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    handle = await made(app, "thread", forgiven, **FORGIVING).aenqueue("KeyError")
    await in_a_burst(app)
    await becomes(handle, State.RETRYABLE)
    assert "is_failure is wrong too" in caplog.text


@pytest.mark.parametrize(
    ("rules", "state"),
    [
        ({"retry_on": TimeoutError}, State.RETRYABLE),
        ({"retry_on": (ValueError,)}, State.DEAD),
        ({"discard_on": (TimeoutError,)}, State.DEAD),
        ({"is_failure": lambda error: False, "max_attempts": 1}, State.RETRYABLE),
    ],
)
async def test_the_rules_are_asked_about_timeouts_as_well(
    app: App, run_in: str, tmp_path: Path, rules: dict[str, object], state: State
) -> None:
    task = made(app, run_in, linger, timeout="50ms", retry="1h", **rules)
    handle = await task.aenqueue(str(tmp_path / "began"))
    async with at_work(app):
        job = await becomes(handle, state)
    assert len(lines(tmp_path / "began")) == 1
    assert job.attempt == (0 if "is_failure" in rules else 1)
    if state is State.DEAD:
        assert (job.reason or "").startswith("not retried: ")
        assert "Timeout" in (job.reason or "")


async def test_a_task_that_steers_is_not_asked(app: App, run_in: str) -> None:
    task = made(app, run_in, act, retry="1h", retry_on=(OSError,), is_failure=lambda error: False)
    again, later = await task.aenqueue("retry"), await task.aenqueue("snooze")
    dead = await task.aenqueue("discard")
    await in_a_burst(app)
    assert (await becomes(again, State.RETRYABLE)).attempt == 1
    await becomes(later, State.SCHEDULED)
    assert (await ended(dead)).reason == "Discard: never again"


async def test_they_hold_for_a_job_that_is_taken_without_a_worker(app: App) -> None:
    task = made(app, "async", judged, **RULES)
    handle = await task.aenqueue("unused")
    with pytest.raises(FileNotFoundError):
        async with app.take("default"):
            raise FileNotFoundError("gone")
    assert (await ended(handle)).reason == "not retried: discard_on has FileNotFoundError"


async def test_an_apps_rules_are_those_of_its_tasks_unless_they_have_their_own(url: str) -> None:
    app = App(url, retry_on=(OSError,), retry="1h")
    try:
        strict = made(app, "async", judged)
        lenient = made(app, "thread", judged, name="lenient", retry_on=None)
        first, second = await strict.aenqueue("ValueError"), await lenient.aenqueue("ValueError")
        await in_a_burst(app)
        assert (await ended(first)).state is State.DEAD
        assert (await becomes(second, State.RETRYABLE)).attempt == 1
    finally:
        app.close()


async def test_a_raw_handler_has_such_rules_too(app: App) -> None:
    @app.handler(queue="legacy", discard_on=ValueError)
    async def handle(job: object) -> None:
        raise UnicodeError("of a kind of ValueError")

    handle_ = await app.aenqueue_raw("legacy", b"x")
    await in_a_burst(app)
    assert (await ended(handle_)).reason == "not retried: discard_on has ValueError"
