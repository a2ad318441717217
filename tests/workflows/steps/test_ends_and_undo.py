"""The undo functions of a flow run for every end that is not a success."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from penstock import App, current_job
from penstock.app.attempt import running as running_attempt
from penstock.client.handle import Handle
from penstock.core.job import Ref, State
from penstock.core.lifecycle import DEADLINE_PASSED, RUNNING_CANCELLED
from penstock.errors import Cancel, Discard
from penstock.retry import Fixed
from penstock.stores.contract import STEP_UNDO, RecordedStep, StepRecord, Store
from penstock.testing import inline
from penstock.worker.leased_jobs import LeasedJob
from penstock.workflows import chain, current_flow, current_sync_flow
from tests.doubles import Double
from tests.lease_clocks import LeaseClock
from tests.workflows.steps.conftest import Running, until


def did(ran: list[str], name: str) -> Callable[[], str]:
    def act() -> str:
        ran.append(name)
        return name

    return act


def undo(ran: list[str]) -> Callable[[str], None]:
    return lambda name: ran.append(f"undo {name}")


Wait = Callable[[Any], Any]
#: What a flow waits for.
WAITS: dict[str, Wait] = {
    "a timer": lambda flow: flow.sleep("1d"),
    "a signal": lambda flow: flow.wait_for("go", timeout="1d"),
    "a long signal": lambda flow: flow.wait_for("go"),
    "its loop": lambda flow: _looped(flow),
    "one of two": lambda flow: flow.first(go=flow.wait_for("go"), late=flow.sleep("1d")),
    "branches": lambda flow: flow.branches(a=flow.sleep("1d"), b=flow.sleep("2d")),
}


async def _looped(flow: Any) -> None:
    async for n in flow.iterate("rows", [1, 2, 3], every=0):
        await flow.sleep("1d", key=str(n))


def saga(app: App, ran: list[str], wait: Wait, **options: Any) -> Any:
    """A flow that reserves, charges, waits and sends."""

    @app.task(name="saga", **options)
    async def work() -> str:
        flow = current_flow()
        await flow.step("reserve", did(ran, "reserve"), undo=undo(ran))
        await flow.step("charge", did(ran, "charge"), undo=undo(ran))
        await wait(flow)
        await flow.step("send", did(ran, "send"))
        return "done"

    return work


BEGUN = ["reserve", "charge"]
UNDONE = [*BEGUN, "undo charge", "undo reserve"]


async def state_of(handle: Handle[Any]) -> State | None:
    job = await handle.ajob()
    return None if job is None else job.state


# ── cancelled from outside ──


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_flow_that_is_cancelled_while_it_waits_undoes_its_steps(
    app: App, ran: list[str], wait: str, attempts: int
) -> None:
    work = saga(app, ran, WAITS[wait], max_attempts=attempts)
    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run()
        assert handle.status() is State.SUSPENDED
        assert handle.cancel("the order is withdrawn") is State.RUNNING
        box.run()
        job = handle.job()
        box.advance("3d")
        assert handle.job() == job
    assert (job.state, job.reason, job.errors) == (State.CANCELLED, "the order is withdrawn", ())
    assert ran == UNDONE


async def test_a_flow_that_is_cancelled_while_it_runs_undoes_its_steps(
    running: Running, ran: list[str]
) -> None:
    begun = asyncio.Event()

    async def hangs(flow: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    work = saga(running.app, ran, hangs)
    await running.start()
    handle = await work.aenqueue()
    await begun.wait()
    assert await handle.acancel() is State.RUNNING
    await until(lambda: state_of(handle), State.CANCELLED)
    job = await handle.ajob()
    assert job is not None
    assert (job.reason, ran) == (RUNNING_CANCELLED, UNDONE)


async def test_a_step_that_was_interrupted_is_not_undone(running: Running, ran: list[str]) -> None:
    begun = asyncio.Event()

    async def hangs() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    @running.app.task
    async def work() -> None:
        flow = current_flow()
        await flow.step("reserve", did(ran, "reserve"), undo=undo(ran))
        await flow.step("charge", hangs, undo=undo(ran))

    await running.start()
    handle = await work.aenqueue()
    await begun.wait()
    await handle.acancel()
    await until(lambda: state_of(handle), State.CANCELLED)
    assert ran == ["reserve", "undo reserve"]


class _Crossing(Double):
    """A store that stores the step of the branch b first, and answers it once `a` has its answer."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.stored, self.answered = asyncio.Event(), asyncio.Event()

    async def record_steps(self, steps: Sequence[StepRecord]) -> list[RecordedStep]:
        if "/a/" in steps[0].name:
            await self.stored.wait()
        answers = await self._store.record_steps(steps)
        if "/b/" in steps[0].name:
            self.stored.set()
            await self.answered.wait()
        return answers


async def test_steps_are_undone_in_the_order_of_the_store(running: Running, ran: list[str]) -> None:
    store = running.app.store
    crossing = _Crossing(store)

    @running.app.task(max_attempts=1)
    async def work() -> None:
        flow = current_flow()

        async def a() -> None:
            await flow.step("hold", did(ran, "a"), undo=undo(ran))
            crossing.answered.set()

        await flow.branches(a=a(), b=flow.step("hold", did(ran, "b"), undo=undo(ran)))
        raise Discard("both are held")

    running.app.use_store(cast(Store, crossing))
    await running.start()
    handle = await work.aenqueue()
    await until(lambda: state_of(handle), State.DEAD)
    assert ran[2:] == ["undo a", "undo b"]
    await running.stop()
    running.app.use_store(store)


async def test_a_thread_is_undone_after_a_cancel(running: Running, ran: list[str]) -> None:
    @running.app.task
    def work() -> None:
        flow = current_sync_flow()
        flow.step("charge", did(ran, "charge"), undo=undo(ran))
        flow.wait_for("go")

    await running.start()
    handle = await work.aenqueue()
    await until(lambda: state_of(handle), State.SUSPENDED)
    assert await handle.acancel("no") is State.RUNNING
    await until(lambda: state_of(handle), State.CANCELLED)
    assert ran == ["charge", "undo charge"]


def test_a_flow_without_undo_is_cancelled_at_once(app: App, ran: list[str]) -> None:
    @app.task
    async def work() -> None:
        flow = current_flow()
        await flow.step("a", did(ran, "a"))
        await flow.sleep("1d")

    with inline(app) as box:
        handle = work.enqueue()
        box.run()
        assert handle.cancel() is State.CANCELLED
        box.run_all()
    assert ran == ["a"]


def test_a_flow_that_waits_for_its_retry_is_undone_when_it_is_cancelled(app: App, ran: list[str]) -> None:
    def fails(flow: Any) -> None:
        raise OSError("the network is down")

    work = saga(app, ran, fails, max_attempts=3, retry=Fixed(3_600_000))
    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run()
        assert handle.status() is State.RETRYABLE
        assert handle.cancel("enough") is State.RUNNING
        box.run()
        job = handle.job()
    assert (job.state, job.reason) == (State.CANCELLED, "enough")
    assert ran == UNDONE


def test_a_failed_undo_of_a_cancelled_flow_is_tried_again(app: App, ran: list[str]) -> None:
    tries: list[str] = []

    def refund(name: str) -> None:
        tries.append(name)
        if len(tries) == 1:
            raise OSError("the bank is closed")
        ran.append(f"undo {name}")

    @app.task(max_attempts=3, retry=Fixed(1_000))
    async def work() -> None:
        flow = current_flow()
        await flow.step("charge", did(ran, "charge"), undo=refund)
        await flow.step("reserve", did(ran, "reserve"), undo=undo(ran))
        await flow.sleep("1d")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run()
        handle.cancel("no")
        box.run_all()
        job = handle.job()
    assert (job.state, job.reason) == (State.CANCELLED, "no")
    assert [error.kind for error in job.errors] == ["OSError"]
    assert ran == ["charge", "reserve", "undo reserve", "undo charge"]


def test_the_nodes_of_a_cancelled_flow_are_undone_before_it_calls_back(app: App, ran: list[str]) -> None:
    work = saga(app, ran, WAITS["a signal"])

    @app.task
    async def note(text: str) -> None:
        ran.append(text)

    with inline(app, raises=False) as box:
        handle = chain(work.job()).on_complete(note.job("over")).enqueue()
        box.run()
        handle.cancel()
        box.run()
        assert handle.status().value == "cancelled"
    assert ran == [*UNDONE, "over"]


async def test_the_jobs_of_a_gather_are_undone_with_their_job(running: Running, ran: list[str]) -> None:
    child = saga(running.app, ran, WAITS["a signal"])

    @running.app.task
    async def parent() -> None:
        await current_flow().gather([child.using(id="the-child").job()])

    await running.start()
    handle = await parent.aenqueue()
    await until(lambda: state_of(handle), State.SUSPENDED)
    of_it = running.app.handle("the-child")
    await until(lambda: state_of(of_it), State.SUSPENDED)
    assert await handle.acancel() is State.CANCELLED
    await until(lambda: state_of(of_it), State.CANCELLED)
    assert ran == UNDONE


def test_a_cancel_while_the_flow_is_being_undone_changes_nothing(app: App, ran: list[str]) -> None:
    """A run has failed before it reached its steps; the flow is cancelled before the run that undoes them."""
    first: list[bool] = []

    @app.task(max_attempts=2, retry=Fixed(0))
    async def work() -> None:
        flow = current_flow()
        if len(first) == 1:
            first.append(True)
            raise Discard("out of stock")
        first.append(True)
        await flow.step("charge", did(ran, "charge"), undo=undo(ran))
        if len(first) == 1:
            raise OSError("no")
        await flow.step("send", did(ran, "send"))

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run()
        assert handle.status() is State.SUSPENDED
        assert handle.cancel() is State.RUNNING
        box.run_all()
        job = handle.job()
    assert job.ended
    assert "not undone" not in (job.reason or "")
    assert ran == ["charge", "undo charge"]


# ── deadlines ──


@pytest.mark.parametrize("wait", WAITS)
def test_a_deadline_ends_a_flow_that_waits_and_undoes_its_steps(app: App, ran: list[str], wait: str) -> None:
    work = saga(app, ran, WAITS[wait])
    with inline(app, raises=False) as box:
        handle = work.using(deadline=box.now + timedelta(hours=1)).enqueue()
        box.advance("59m")
        assert (handle.status(), ran) == (State.SUSPENDED, BEGUN)
        box.advance("2m")
        job = handle.job()
    assert job.state is State.DEAD
    assert DEADLINE_PASSED in (job.reason or "")
    assert ran == UNDONE


async def test_a_deadline_that_passes_while_the_flow_runs(
    running: Running, ran: list[str], lease_clock: LeaseClock
) -> None:
    async def hangs(flow: Any) -> None:
        leased = current_job().owner
        assert isinstance(leased, LeasedJob)
        lease_clock.pass_deadline(leased)
        await asyncio.Event().wait()

    work = saga(running.app, ran, hangs)
    await running.start()
    handle = await work.using(deadline=datetime.now(UTC) + timedelta(hours=1)).aenqueue()
    await until(lambda: state_of(handle), State.DEAD)
    job = await handle.ajob()
    assert job is not None
    assert job.reason == f"Discard: undone after: {DEADLINE_PASSED}"
    assert ran == UNDONE


# ── errors of the code ──

ENDS: dict[str, Callable[[], BaseException]] = {
    "a cancellation of its own": asyncio.CancelledError,
    "an exit": lambda: SystemExit(3),
    "a generator's exit": GeneratorExit,
    "an interrupt": KeyboardInterrupt,
    "an exception": lambda: ValueError("no luck"),
    "discard": lambda: Discard("enough"),
    "cancel": lambda: Cancel("enough"),
}


@pytest.mark.parametrize("end", ENDS)
def test_whatever_the_code_raises_in_its_last_attempt_its_steps_are_undone(
    app: App, ran: list[str], end: str
) -> None:
    def ends(flow: Any) -> None:
        raise ENDS[end]()

    work = saga(app, ran, ends, max_attempts=1)
    good = saga_that_ends_well(app, ran)
    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        job = handle.job()
        other = good.enqueue()
        box.run_all()
        assert other.status() is State.COMPLETED, "the worker goes on"
    assert job.state is (State.CANCELLED if end == "cancel" else State.DEAD)
    assert ran == [*UNDONE, "good"]


def saga_that_ends_well(app: App, ran: list[str]) -> Any:
    @app.task(name="good", retention="1h")
    async def good() -> None:
        await current_flow().step("good", did(ran, "good"))

    return good


@pytest.mark.parametrize("end", ENDS)
async def test_whatever_a_thread_raises_in_its_last_attempt_its_steps_are_undone(
    running: Running, ran: list[str], end: str
) -> None:
    @running.app.task(max_attempts=1)
    def work() -> None:
        flow = current_sync_flow()
        flow.step("charge", did(ran, "charge"), undo=undo(ran))
        raise ENDS[end]()

    @running.app.task(retention="1h")
    def good() -> None:
        current_sync_flow().step("good", did(ran, "good"))

    await running.start()
    handle = await work.aenqueue()
    await until(lambda: state_of(handle), State.CANCELLED if end == "cancel" else State.DEAD)
    other = await good.aenqueue()
    await until(lambda: state_of(other), State.COMPLETED)
    assert ran == ["charge", "undo charge", "good"]


@pytest.mark.parametrize("end", ["a cancellation of its own", "an exit", "a generator's exit"])
def test_an_attempt_that_is_not_the_last_is_tried_again(app: App, ran: list[str], end: str) -> None:
    luck: list[int] = []

    def ends(flow: Any) -> Any:
        luck.append(1)
        if len(luck) < 3:
            raise ENDS[end]()
        return flow.sleep(0)

    work = saga(app, ran, ends, max_attempts=3, retry=Fixed(1_000))
    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == "done"
        assert len(handle.job().errors) == 2
    assert ran == [*BEGUN, "send"]


async def test_a_task_that_cancels_itself_is_undone(running: Running, ran: list[str]) -> None:
    def cancels_itself(flow: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        raise ValueError("no luck")

    work = saga(running.app, ran, cancels_itself, max_attempts=1)
    await running.start()
    handle = await work.aenqueue()
    await until(lambda: state_of(handle), State.DEAD)
    assert ran == UNDONE


# ── what the store sees ──


def test_a_step_with_an_undo_is_marked_for_the_store(app: App, ran: list[str]) -> None:
    work = saga(app, ran, WAITS["a timer"])
    with inline(app) as box:
        handle = work.enqueue()
        box.run()
        steps = {step.name: step.value for step in app.store.sync.steps(Ref(handle.queue, handle.id))}
    assert steps[STEP_UNDO] == b"null"


async def test_rows_are_passed_over_by_the_run_that_undoes(running: Running, ran: list[str]) -> None:
    """A loop that the flow had ended is not gone through again."""

    async def rows(after: int | None) -> AsyncIterator[tuple[int, int]]:
        for n in range((after or 0) + 1, 4):
            ran.append(f"row {n}")
            yield n, n

    @running.app.task
    async def work() -> None:
        flow = current_flow()
        async for n in flow.iterate("rows", rows, every=0):
            await flow.step("pay", did(ran, f"pay {n}"), key=str(n), undo=undo(ran))
        await flow.wait_for("go")

    await running.start()
    handle = await work.aenqueue()
    await until(lambda: state_of(handle), State.SUSPENDED)
    await handle.acancel()
    await until(lambda: state_of(handle), State.CANCELLED)
    assert ran[:6] == ["row 1", "pay 1", "row 2", "pay 2", "row 3", "pay 3"]


def test_a_run_that_undoes_goes_through_all_rows_though_its_worker_drains(app: App, ran: list[str]) -> None:
    drains = False

    @app.task
    async def work() -> None:
        flow = current_flow()
        async for n in flow.iterate("rows", [1, 2, 3]):
            await flow.step("charge", did(ran, f"charge {n}"), undo=undo(ran))
            attempt = running_attempt.get()
            assert attempt is not None
            attempt.stopping = drains
        await flow.sleep("1d")

    with inline(app) as box:
        handle = work.enqueue()
        box.run()
        handle.cancel()
        drains = True
        box.run()
        assert handle.status() is State.CANCELLED
    assert ran == [*(f"charge {n}" for n in (1, 2, 3)), *(f"undo charge {n}" for n in (3, 2, 1))]
