"""What a function returns decides how its job ends: the same on every store, in every executor."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from penstock import App, Batch, RawJob, Worker
from penstock.app.task import Task
from penstock.client.handle import Handle
from penstock.core.clock import SystemClock
from penstock.core.job import Job, State
from penstock.errors import ResultError
from penstock.workflows import chain, current_flow, current_sync_flow
from tests.store import lazy_bodies
from tests.store.facts import OpenStore
from tests.store.lazy_bodies import LAZY, ran
from tests.worker.conftest import quick

Call = Callable[[], Awaitable[Any]]

EXECUTORS = ["async", "thread", pytest.param("process", marks=pytest.mark.system)]


@pytest.fixture
def clock() -> SystemClock:
    """A worker lives in real time."""
    return SystemClock()


@pytest.fixture
def app(open_store: OpenStore) -> Iterator[App]:
    app = App("memory://")
    app.use_store(open_store())
    ran.clear()
    yield app
    app.close()


def registered(app: App, name: str) -> Task[..., Any]:
    """This task of `lazy_bodies`, in another app."""
    task = lazy_bodies.app.tasks[name]
    return app.task(name=name, run_in=task.run_in)(task.function)  # type: ignore[call-overload, no-any-return]


async def in_a_burst(app: App) -> None:
    async with asyncio.timeout(20):
        await Worker(app, burst=True, config=quick(lease="15s")).run()


async def job_of(handle: Handle[Any]) -> Job:
    job = await handle.ajob()
    assert job is not None
    return job


@pytest.mark.parametrize("run_in", EXECUTORS)
@pytest.mark.parametrize("retention", ["1h", 0], ids=["kept", "not kept"])
async def test_a_value_that_stands_for_work_not_done_completes_no_job(
    app: App, run_in: str, retention: Any
) -> None:
    task, good = registered(app, run_in).using(retention=retention), registered(app, "good")
    handles = {how: await task.aenqueue(how) for how in LAZY}
    other = await good.aenqueue()
    await in_a_burst(app)
    for how, handle in handles.items():
        job = await job_of(handle)
        assert (job.state, job.attempt, [e.kind for e in job.errors]) == (State.DEAD, 1, ["ResultError"]), how
        assert re.search(LAZY[how][1], job.errors[0].message), job.errors[0].message
    assert ran == []
    assert await other.aresult(10) == "done"


async def test_nor_does_one_that_middleware_drops(app: App) -> None:
    @app.around_attempt
    async def forgets(job: Job, call: Call) -> None:
        await call()

    tasks = [registered(app, name) for name in ("async", "thread")]
    handles = [await task.aenqueue("coroutine") for task in tasks]
    await in_a_burst(app)
    assert [(await job_of(handle)).state for handle in handles] == [State.DEAD] * 2
    assert ran == []


async def test_nor_does_middleware_that_does_not_await_its_call(app: App) -> None:
    @app.around_attempt
    async def forgets_to_await(job: Job, call: Call) -> Any:
        return call()

    tasks = [registered(app, name) for name in ("good", "other")]
    handles = [await task.using(retention="1h").aenqueue() for task in tasks]
    await in_a_burst(app)
    assert [(await job_of(handle)).state for handle in handles] == [State.DEAD] * 2
    assert ran == []


async def test_nor_does_one_of_a_handler_or_a_batch(app: App) -> None:
    @app.handler(queue="raw")
    def handle(job: RawJob) -> Any:
        return LAZY["coroutine"][0]()

    @app.task(batch=Batch(max_size=2))
    def collect(items: list[int]) -> Any:
        return LAZY["generator"][0]()

    handles: list[Handle[Any]] = [await app.aenqueue_raw("raw", b"x")]
    handles += [await collect.aenqueue(n) for n in range(2)]
    await in_a_burst(app)
    assert [(await job_of(handle)).state for handle in handles] == [State.DEAD] * 3
    assert ran == []


async def test_nor_does_one_that_a_block_returns(app: App) -> None:
    handle = await registered(app, "good").aenqueue()
    with pytest.raises(ResultError, match="it returned a coroutine"):
        async with app.take() as taken:
            taken.returns(LAZY["coroutine"][0]())
    assert (await job_of(handle)).state is State.DEAD


def _odd_results() -> dict[str, tuple[Any, Any, str]]:
    nan = float("nan")
    return {
        "nothing for a text": (str, None, "the result, None (NoneType), does not fit its annotation str: "),
        "NaN": (Any, [1, {"price": nan}], "result[1]['price'], nan (float), does not fit"),
        "NaN, annotated": (list[dict[str, float]], [{"price": nan}], "result[0]['price'], nan (float)"),
        "a type": (Any, {"a": [object]}, "result['a'][0], <class 'object'> (type), does not fit"),
        "a wrong type inside": (list[int], [1, 2, "3"], "result[2], '3' (str), does not fit"),
        "comes back as another": (list[list[int]], [[1], (2,)], "result[1], (2,) (tuple), does not fit"),
        "too much": (str, "x" * 1_000_001, "the result takes 1,000,003 bytes; the limit is 1,000,000."),
    }


@pytest.mark.parametrize("how", _odd_results())
async def test_a_result_that_cannot_be_stored_is_dead_at_once_and_its_place_is_named(
    app: App, how: str
) -> None:
    annotation, value, says = _odd_results()[how]

    def work() -> Any:
        ran.append(how)
        return value

    work.__annotations__["return"] = annotation
    handle = await app.task(name="work", retry="0s")(work).aenqueue()
    await in_a_burst(app)
    job = await job_of(handle)
    assert (job.state, job.attempt, ran) == (State.DEAD, 1, [how])
    assert job.errors[0].message.startswith(f"work: {says}")
    assert (job.reason or "").startswith(f"ResultError: work: {says}"[:200])


async def test_the_result_of_another_job_that_a_task_cannot_have_is_retried(app: App) -> None:
    """Only what its own function has returned ends a job for good."""

    @app.task(retry="1h")
    def work() -> None:
        error = ResultError("of a child")
        error.job = "another"
        raise error

    handle = await work.aenqueue()
    await in_a_burst(app)
    assert (await job_of(handle)).state is State.RETRYABLE


async def test_an_annotation_that_cannot_be_resolved_parks_the_jobs_before_they_run(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> Any:
        ran.append("work")

    def takes(item: Any) -> None:
        ran.append("takes")

    work.__annotations__["return"] = "Report"  # as of an import under TYPE_CHECKING
    takes.__annotations__["item"] = "Item"
    handles: list[Handle[Any]] = [
        await app.task(name="work")(work).aenqueue(),
        await app.aenqueue_raw("default", b'{"item":1}', "takes"),
    ]
    app.task(name="takes")(takes)
    other = await registered(app, "good").aenqueue()
    await in_a_burst(app)
    for handle, name, type_ in zip(handles, ("work", "takes"), ("Report", "Item"), strict=True):
        job = await job_of(handle)
        assert (job.state, job.attempt) == (State.PARKED, 0)
        assert (job.reason or "").startswith("cannot run here: ")
        assert f"name {type_!r} is not defined" in (job.reason or "")
        assert any(
            record.levelname == "ERROR" and f"the task {name!r} cannot run here" in record.message
            for record in caplog.records
        )
    assert ran == []
    assert await other.aresult(10) == "done"


async def test_steps_are_not_undone_for_a_result_that_cannot_be_stored(app: App) -> None:
    undone: list[str] = []

    @app.task
    async def in_loop() -> str:
        await current_flow().step("pay", _paid, undo=lambda value: undone.append(value))
        return None  # type: ignore[return-value]

    @app.task
    def in_thread() -> str:
        current_sync_flow().step("pay", _paid, undo=lambda value: undone.append(value))
        return None  # type: ignore[return-value]

    handles = [await task.aenqueue() for task in (in_loop, in_thread)]
    await in_a_burst(app)
    for handle in handles:
        job = await job_of(handle)
        assert (job.state, job.attempt, [e.kind for e in job.errors]) == (State.DEAD, 1, ["ResultError"])
    assert undone == []


def _paid() -> str:
    return "paid"


async def test_a_step_and_an_undo_that_return_a_coroutine_count_as_failed(app: App) -> None:
    @app.task
    def step() -> None:
        current_sync_flow().step("pay", lambda: LAZY["coroutine"][0]())

    @app.task
    def undo() -> None:
        current_sync_flow().step("pay", _paid, undo=lambda _: LAZY["coroutine"][0]())
        raise ValueError("it is wrong")

    handles = [await task.using(max_attempts=1).aenqueue() for task in (step, undo)]
    await in_a_burst(app)
    for handle, what in zip(handles, ("the function of a step", "an undo function"), strict=True):
        job = await job_of(handle)
        assert (job.state, job.errors[-1].kind) == (State.DEAD, "FlowError")
        assert f"{what}: it returned a coroutine" in job.errors[-1].message


async def test_a_step_whose_annotation_cannot_be_resolved_does_not_run(app: App) -> None:
    def pay() -> Any:
        ran.append("pay")

    pay.__annotations__["return"] = "Receipt"

    @app.task
    async def work() -> None:
        await current_flow().step("pay", pay)

    handle = await work.aenqueue()
    await in_a_burst(app)
    job = await job_of(handle)
    assert (job.state, job.attempt, job.errors[0].kind, ran) == (State.DEAD, 1, "FlowError", [])


async def test_a_cursor_that_cannot_be_remembered_ends_the_job_before_its_item(app: App) -> None:
    """Another attempt would do the work of the items again, and come to the same cursor."""

    @app.task(retry="0s")
    async def work() -> None:
        async for item in current_flow().iterate("rows", lambda at: [("row", object())], every=0):
            ran.append(item)

    handle = await work.aenqueue()
    await in_a_burst(app)
    job = await job_of(handle)
    assert (job.state, job.attempt, ran) == (State.DEAD, 1, [])
    assert "A cursor is any JSON value" in job.errors[0].message


async def test_a_result_that_does_not_fit_the_next_job_of_a_flow_ends_that_job_at_once(app: App) -> None:
    @app.task
    def odd() -> Any:
        return "one"

    @app.task(retry="0s")
    def takes(n: int) -> None:
        ran.append("takes")

    await chain(odd.job(), takes).aenqueue()
    for _ in range(2):
        await in_a_burst(app)
        await app.store.advance_flows()
    (job,) = (await app.store.list_jobs(task=takes.name)).jobs
    assert (job.state, job.attempt, [e.kind for e in job.errors], ran) == (State.DEAD, 1, ["Undecodable"], [])
