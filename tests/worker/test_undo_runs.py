"""Runs that only undo: of jobs that are cancelled, or past their deadline, and have steps to undo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.attempt import Attempt, current_job
from penstock.app.deciding import STEP_FAILED
from penstock.core.job import Job, State
from penstock.core.lifecycle import DEADLINE_PASSED, RUNNING_CANCELLED
from penstock.errors import Cancel, Discard, FlowSuspended, Snooze
from penstock.retry import Fixed
from penstock.stores.contract import STEP_UNDO, HeartbeatRequest, StepRecord
from penstock.testing import inline
from penstock.worker.executor.attempt import Attempts
from penstock.worker.leased_jobs import LeasedJob
from tests.lease_clocks import LeaseClock, time_out
from tests.worker.conftest import Dam, at_work, becomes, ended, patient, quick, until

#: What the flow of a job with steps to undo has in its checkpoint.
MARK = b'{"undo!":[null,{}]}'


class Flow:
    """What the worker asks of a flow. It undoes when its function ends, if this run only undoes."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.checkpoint = MARK

    def finish(self) -> None:
        assert self.attempt.owner is not None
        if self.attempt.owner.undoes is not None:
            raise LookupError("nothing more is stored")

    async def failed(self, error: BaseException) -> BaseException:
        owner = self.attempt.owner
        assert owner is not None
        if owner.undoes is None or owner.interrupt is not None or isinstance(error, FlowSuspended):
            return error
        return Cancel(owner.undoes) if self.attempt.job.cancel_asked else Discard(f"undone: {owner.undoes}")

    def error_to_end_with(self, error: BaseException) -> BaseException:
        return error


class Undoable:
    """A task with steps to undo. `first` and `then` are what its first run and the later ones do."""

    def __init__(self, app: App, **options: Any) -> None:
        self.app = app
        self.reasons: list[str | None] = []
        self.begun = asyncio.Event()
        self.undoing = asyncio.Event()
        self.first: Callable[[], Any] = lambda: asyncio.Event().wait()
        self.then: Callable[[], Any] = lambda: None
        self.uses_flow = True

        @app.task(name="flow", **options)
        async def flow() -> str:
            attempt = current_job()
            assert attempt.owner is not None
            self.reasons.append(attempt.owner.undoes)
            undoes = attempt.owner.undoes is not None
            if self.uses_flow or not undoes:
                attempt.flow = Flow(attempt)
            if not undoes:
                await note_undo(app, attempt.job)
                self.begun.set()
                await one(self.first)
                return "done"
            self.undoing.set()
            await one(self.then)
            return "returned"

        self.task = flow


async def one(act: Callable[[], Any]) -> None:
    found = act()
    if found is not None:
        await found


async def note_undo(app: App, job: Job) -> None:
    """Store what a flow stores before its first step with an undo function."""
    await app.store.record_steps([StepRecord(job.lease, STEP_UNDO, b"null", 10_000)])
    await app.store.extend([HeartbeatRequest(job.lease, 10_000, checkpoint=MARK, lasting=True)])


def raises(error: BaseException) -> Callable[[], Any]:
    def act() -> None:
        raise error

    return act


def suspends(seconds: int = 3_600) -> Callable[[], Any]:
    return raises(FlowSuspended(seconds * 1_000))


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def this_job() -> LeasedJob:
    """The job that runs here, as its worker has it."""
    leased = current_job().owner
    assert isinstance(leased, LeasedJob)
    return leased


async def times_out() -> None:
    time_out(this_job())
    await asyncio.Event().wait()


# ── cancels ──


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize("reason", [None, "not wanted"])
async def test_a_suspended_job_that_is_cancelled_runs_once_more(
    app: App, reason: str | None, attempts: int
) -> None:
    """Also in its last attempt, whose start is recorded before."""
    flow = Undoable(app, max_attempts=attempts)
    flow.first = suspends()
    async with at_work(app, config=patient()):
        handle = await flow.task.aenqueue()
        await becomes(handle, State.SUSPENDED)
        assert await handle.acancel(*([] if reason is None else [reason])) is State.RUNNING
        job = await ended(handle)
    assert (job.state, job.reason) == (State.CANCELLED, reason or RUNNING_CANCELLED)
    assert (job.attempt, job.errors) == (1, ())
    assert flow.reasons == [None, RUNNING_CANCELLED]


@pytest.mark.parametrize("attempts", [1, 5])
async def test_a_running_job_that_is_cancelled_is_interrupted_and_runs_once_more(
    app: App, attempts: int
) -> None:
    flow = Undoable(app, max_attempts=attempts)
    seen: list[str] = []

    async def first() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("interrupted")

    flow.first = first
    async with at_work(app, config=patient()):
        handle = await flow.task.aenqueue()
        await flow.begun.wait()
        assert await handle.acancel("not wanted") is State.RUNNING
        job = await ended(handle)
    assert (job.state, job.reason, seen) == (State.CANCELLED, "not wanted", ["interrupted"])
    assert flow.reasons == [None, RUNNING_CANCELLED]
    failed = await app.store.steps(job.ref, names=[STEP_FAILED])
    assert [(step.value or b"").partition(b"\0")[0] for step in failed] == [RUNNING_CANCELLED.encode()]


async def test_heartbeats_and_further_cancels_leave_the_run_alone(app: App) -> None:
    flow = Undoable(app)
    flow.first, go_on = suspends(), asyncio.Event()
    seen: list[str] = []

    async def then() -> None:
        await go_on.wait()
        seen.append("undone")

    flow.then = then
    async with at_work(app, config=quick(heartbeat="50ms")) as worker:
        handle = await flow.task.aenqueue()
        await becomes(handle, State.SUSPENDED)
        await handle.acancel()
        await flow.undoing.wait()
        assert await handle.acancel("again") is State.RUNNING
        assert worker._services is not None
        (leased,) = worker._services.leased_jobs
        before = leased.extended
        await until(
            lambda: leased.extended > before or leased.interrupt is not None, "a heartbeat is answered"
        )
        assert leased.interrupt is None
        go_on.set()
        job = await ended(handle)
    assert (job.state, job.reason, seen) == (State.CANCELLED, RUNNING_CANCELLED, ["undone"])


async def test_a_job_that_is_cancelled_while_it_waits_for_a_slot_is_undone(app: App) -> None:
    flow = Undoable(app)
    flow.first = suspends()
    dam = Dam(app, 200)
    async with at_work(app, config=patient()):
        handle = await flow.task.aenqueue()
        await becomes(handle, State.SUSPENDED)
    await app.store.retry([handle.ref])
    async with at_work(app, concurrency=1, config=quick()) as worker:
        await dam.fill()
        await dam.full(worker)
        await handle.acancel()
        dam.open()
        job = await ended(handle)
    assert (job.state, flow.reasons[-1]) == (State.CANCELLED, RUNNING_CANCELLED)


async def test_a_drained_worker_leaves_the_undo_to_another(app: App) -> None:
    flow = Undoable(app)
    flow.first = suspends()
    flow.then = lambda: asyncio.Event().wait()
    async with at_work(app, config=quick(drain_timeout="10ms")):
        handle = await flow.task.aenqueue()
        await becomes(handle, State.SUSPENDED)
        await handle.acancel()
        await flow.undoing.wait()
    assert (await becomes(handle, State.AVAILABLE)).cancel_asked
    flow.then = lambda: None
    async with at_work(app):
        job = await ended(handle)
    assert job.state is State.CANCELLED
    assert flow.reasons == [None, RUNNING_CANCELLED, RUNNING_CANCELLED]


async def test_an_undo_run_that_fails_is_tried_again(app: App) -> None:
    flow = Undoable(app, retry=Fixed(0), max_attempts=5)
    flow.first = suspends()
    luck = [OSError("the bank is closed"), Snooze(0.1)]

    def then() -> None:
        if luck:
            current_job().flow = None
            raise luck.pop(0)

    flow.then = then
    async with at_work(app):
        handle = await flow.task.aenqueue()
        await becomes(handle, State.SUSPENDED)
        await handle.acancel()
        job = await ended(handle)
    assert (job.state, [error.kind for error in job.errors]) == (State.CANCELLED, ["OSError"])
    assert flow.reasons == [None, *[RUNNING_CANCELLED] * 3]


async def test_a_job_without_steps_to_undo_is_cancelled_as_before(app: App) -> None:
    ran: list[str] = []

    @app.task
    async def plain() -> None:
        ran.append("ran")
        raise FlowSuspended(3_600_000)

    async with at_work(app):
        handle = await plain.aenqueue()
        await becomes(handle, State.SUSPENDED)
        assert await handle.acancel() is State.CANCELLED
    assert ran == ["ran"]


# ── what does not undo ──


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_function_that_returns_without_its_flow_is_not_completed(app: App, cancelled: bool) -> None:
    flow = Undoable(app)
    flow.first, flow.uses_flow = suspends(), False
    with inline(app, raises=False) as box:
        handle = flow.task.using(deadline=box.now + timedelta(hours=1)).enqueue()
        box.run()
        if cancelled:
            handle.cancel("not wanted")
        box.run_all()
        job = handle.job()
    why = RUNNING_CANCELLED if cancelled else DEADLINE_PASSED
    assert job.state is State.DEAD
    assert job.reason == f"not undone, as its function returned without its flow: {why}"
    assert list(dict.fromkeys(flow.reasons)) == [None, why]


@pytest.mark.parametrize("error", [ValueError("no luck"), Cancel("enough"), Discard("enough")], ids=repr)
async def test_a_function_that_fails_before_its_flow_runs_once_more(app: App, error: Exception) -> None:
    flow = Undoable(app, max_attempts=1)
    flow.first, flow.uses_flow = suspends(), False
    flow.then = raises(error)
    async with at_work(app):
        handle = await flow.task.aenqueue()
        await becomes(handle, State.SUSPENDED)
        await handle.acancel("not wanted")
        job = await ended(handle)
    assert job.state is State.DEAD
    assert (job.reason or "").startswith("not undone, as its last run ended early: ")
    assert flow.reasons == [None, RUNNING_CANCELLED, RUNNING_CANCELLED]


async def test_a_run_that_waits_in_place_of_undoing_ends(app: App) -> None:
    flow = Undoable(app)
    flow.first = flow.then = suspends()
    async with at_work(app):
        handle = await flow.task.aenqueue()
        await becomes(handle, State.SUSPENDED)
        await handle.acancel()
        job = await ended(handle)
    assert job.state is State.DEAD
    assert job.reason == f"not undone, as its function waited: {RUNNING_CANCELLED}"


async def test_a_run_that_times_out_twice_ends(app: App) -> None:
    flow = Undoable(app, timeout="1h", max_attempts=1)
    flow.first, flow.then = suspends(), times_out
    async with at_work(app):
        handle = await flow.task.aenqueue()
        await becomes(handle, State.SUSPENDED)
        await handle.acancel()
        job = await ended(handle)
    assert job.state is State.DEAD
    assert (job.reason or "").startswith("not undone, as its last run ended early: ")
    assert flow.reasons == [None, RUNNING_CANCELLED, RUNNING_CANCELLED]


# ── deadlines ──


def test_a_suspended_job_is_woken_at_its_deadline(app: App) -> None:
    flow = Undoable(app)
    flow.first = suspends(86_400)
    with inline(app, raises=False) as box:
        handle = flow.task.using(deadline=box.now + timedelta(hours=1)).enqueue()
        box.advance("59m")
        assert handle.status() is State.SUSPENDED
        box.advance("2m")
        job = handle.job()
    assert (job.state, job.reason) == (State.DEAD, f"Discard: undone: {DEADLINE_PASSED}")
    assert list(dict.fromkeys(flow.reasons)) == [None, DEADLINE_PASSED]
    assert job.ended_at is not None
    assert job.ended_at - job.enqueued_at < 3_600_000 + 60_000


def test_without_steps_to_undo_it_is_dead_at_its_deadline(app: App) -> None:
    ran: list[str] = []

    @app.task
    async def plain() -> None:
        ran.append("ran")
        raise FlowSuspended(86_400_000)

    with inline(app, raises=False) as box:
        handle = plain.using(deadline=box.now + timedelta(hours=1)).enqueue()
        box.advance("61m")
        job = handle.job()
    assert (job.state, job.reason, set(ran)) == (State.DEAD, DEADLINE_PASSED, {"ran"})


async def test_a_deadline_that_passes_while_it_runs(app: App, lease_clock: LeaseClock) -> None:
    """The deadline interrupts the run, but not the one that undoes; its timeout would."""
    flow = Undoable(app, timeout="1h", max_attempts=3)
    times: list[float | None] = []

    async def first() -> None:
        lease_clock.pass_deadline(this_job())
        await asyncio.Event().wait()

    async def then() -> None:
        times.append(current_job().remaining())
        await asyncio.sleep(0)

    flow.first, flow.then = first, then
    async with at_work(app):
        handle = await flow.task.using(deadline=in_an_hour()).aenqueue()
        job = await ended(handle)
    assert (job.errors[0].kind, job.errors[0].message) == ("Timeout", DEADLINE_PASSED)
    assert (job.state, job.reason) == (State.DEAD, f"Discard: undone: {DEADLINE_PASSED}")
    assert flow.reasons == [None, DEADLINE_PASSED]
    (left,) = times
    assert left is not None
    assert left > 600


async def test_a_deadline_that_passes_between_the_slot_and_the_start_lets_the_run_only_undo(
    app: App, lease_clock: LeaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Undoable(app, retry=Fixed(0))
    flow.first = raises(ValueError("no luck"))
    begin = Attempts.begin

    def begin_late(attempts: Attempts, leased: LeasedJob) -> Attempt:
        if leased.job.attempt == 2:
            lease_clock.pass_deadline(leased)
        return begin(attempts, leased)

    monkeypatch.setattr(Attempts, "begin", begin_late)
    async with at_work(app):
        job = await ended(await flow.task.using(deadline=in_an_hour()).aenqueue())
    assert (job.state, job.reason) == (State.DEAD, f"Discard: undone: {DEADLINE_PASSED}")
    assert flow.reasons == [None, DEADLINE_PASSED]


async def test_a_cancelled_run_is_not_ended_by_its_deadline(app: App, lease_clock: LeaseClock) -> None:
    flow = Undoable(app)
    flow.first, go_on = suspends(), asyncio.Event()
    flow.then = go_on.wait
    async with at_work(app) as worker:
        handle = await flow.task.using(deadline=in_an_hour()).aenqueue()
        await becomes(handle, State.SUSPENDED)
        await handle.acancel()
        await flow.undoing.wait()
        assert worker._services is not None
        (leased,) = worker._services.leased_jobs
        lease_clock.pass_deadline(leased)
        worker._services.executor.watch()
        go_on.set()
        job = await ended(handle)
    assert (job.state, flow.reasons) == (State.CANCELLED, [None, RUNNING_CANCELLED])


# ── errors of the code itself ──


async def test_a_cancellation_of_its_own_does_not_reach_what_follows(app: App) -> None:
    """The task cancels itself, and ends before that is raised: the end of its flow must not be cut off."""
    seen: list[str] = []

    class Awaits(Flow):
        async def failed(self, error: BaseException) -> BaseException:
            await asyncio.sleep(0)
            seen.append(type(error).__name__)
            return error

    @app.task(max_attempts=1)
    async def work() -> None:
        current_job().flow = Awaits(current_job())
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        raise ValueError("no luck")

    async with at_work(app):
        job = await ended(await work.aenqueue())
    assert (job.state, [error.kind for error in job.errors], seen) == (
        State.DEAD,
        ["ValueError"],
        ["ValueError"],
    )
