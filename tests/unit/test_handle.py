"""A handle: the status and result of a job, and its cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import (
    App,
    ConfigError,
    Discard,
    Handle,
    JobDead,
    JobNotFound,
    ResultCancelled,
    ResultNotKept,
    ResultTimeout,
    State,
    Undecodable,
)
from penstock.core.clock import ManualClock
from penstock.stores.contract import WorkerInfo
from penstock.stores.memory import MemoryStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> App:
    app = App(store=MemoryStore(clock=clock))

    @app.task(name="when")
    def when(day: int) -> datetime:
        return datetime(2030, 1, day, tzinfo=UTC)

    @app.task(name="nothing")
    def nothing() -> None: ...

    return app


async def run_one(app: App, outcome: Any = None) -> None:
    """Play the worker: take a job, and return or raise this."""
    raised = [type(outcome)] if isinstance(outcome, Exception) else []
    with contextlib.suppress(*raised):
        async with app.take() as job:
            if raised:
                raise outcome
            job.returns(outcome)


Ask = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Call a verb of a handle by both doors: `ask(handle, "status")`."""

    def by_call(handle: Handle[Any], verb: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(handle, verb)(*args, **kwargs)

    def by_await(handle: Handle[Any], verb: str, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            return await getattr(handle, "a" + verb)(*args, **kwargs)

        return asyncio.run(call())

    return by_call if request.param == "sync" else by_await


# ── results ──────────────────────────────────────────────────────────────────────────────────────


def test_a_result_comes_back_with_its_type(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].enqueue(2)
    asyncio.run(run_one(app, datetime(2030, 1, 2, tzinfo=UTC)))
    assert ask(handle, "result") == datetime(2030, 1, 2, tzinfo=UTC)
    assert ask(handle, "status") is State.COMPLETED


def test_a_result_is_waited_for(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].enqueue(2)
    later = threading.Timer(0.05, lambda: asyncio.run(run_one(app, datetime(2030, 1, 2, tzinfo=UTC))))
    later.start()
    assert ask(handle, "result", timeout=20) == datetime(2030, 1, 2, tzinfo=UTC)
    later.join()


def test_a_result_that_does_not_come_in_time_is_a_timeout(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].enqueue(2)
    with pytest.raises(ResultTimeout, match="has not ended within 0ms: it is available") as caught:
        ask(handle, "result", timeout=0)
    assert isinstance(caught.value, TimeoutError)


def worker(*queues: str, tasks: tuple[str, ...] = ()) -> WorkerInfo:
    return WorkerInfo("w1", "host", 1, 0, queues, tasks, 4)


@pytest.mark.parametrize(
    ("workers", "note"),
    [
        ([], "; no live worker serves the queue 'default'"),
        ([worker("other", tasks=("when",))], "; no live worker serves the queue 'default'"),
        ([worker("default")], "; no live worker of the queue 'default' knows the task 'when'"),
        ([worker("default", tasks=("when",))], ""),
    ],
)
def test_a_timeout_says_that_no_live_worker_would_start_the_job(
    app: App, ask: Ask, workers: list[WorkerInfo], note: str
) -> None:
    for one in workers:
        asyncio.run(app.store.announce(one))
    with pytest.raises(ResultTimeout) as caught:
        ask(app.tasks["when"].enqueue(2), "result", timeout=0)
    assert str(caught.value).endswith(f"it is available{note}")


def test_a_task_that_returns_nothing_has_no_result_at_once_and_always(app: App, ask: Ask) -> None:
    handle = app.tasks["nothing"].enqueue()
    for _ in range(2):
        with pytest.raises(ResultNotKept, match="annotated `-> None`"):
            ask(handle, "result")
        with pytest.raises(ResultNotKept):
            ask(app.handle(handle.id, task="nothing"), "result")
        if handle.job() is not None:
            asyncio.run(run_one(app))
    assert ask(handle, "status") == "ended"
    with pytest.raises(JobNotFound, match="is not there"):
        ask(app.handle(handle.id, task="nothing"), "status")


def test_a_retention_of_zero_keeps_no_result(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].using(retention=0).enqueue(2)
    with pytest.raises(ResultNotKept):
        ask(handle, "result")
    with pytest.raises(ResultNotKept):
        ask(app.handle(handle.id, "default"), "result")


def test_a_retention_keeps_even_nothing(app: App, ask: Ask) -> None:
    handle = app.tasks["nothing"].using(retention="1m").enqueue()
    asyncio.run(run_one(app))
    assert ask(handle, "result") is None


def test_a_dead_job_raises_its_errors(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].using(max_attempts=1).enqueue(2)
    asyncio.run(run_one(app, ValueError("no such day")))
    with pytest.raises(
        JobDead, match=r"failed for good \(the only attempt failed\): ValueError: no such day"
    ) as e:
        ask(handle, "result")
    assert [(error.kind, error.attempt) for error in e.value.errors] == [("ValueError", 1)]


def test_a_discarded_job_is_dead_at_once(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].enqueue(2)
    asyncio.run(run_one(app, Discard("never mind")))
    with pytest.raises(JobDead, match="failed for good: Discard: never mind"):
        ask(handle, "result")


def test_a_cancelled_job_raises_with_its_reason(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].enqueue(2)
    ask(handle, "cancel", "paid in cash")
    with pytest.raises(ResultCancelled, match="was cancelled: paid in cash"):
        ask(handle, "result")


def test_a_job_that_vanishes_is_not_found(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].enqueue(2)
    asyncio.run(app.store.delete([handle.ref]))
    with pytest.raises(JobNotFound):
        ask(handle, "result")
    with pytest.raises(JobNotFound):
        ask(app.handle("never-was", "default"), "result")


def test_a_handle_from_elsewhere_has_the_result_as_json(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].using(id="x").enqueue(2)
    asyncio.run(run_one(app, datetime(2030, 1, 2, tzinfo=UTC)))
    assert ask(app.handle("x", "default"), "result") == "2030-01-02T00:00:00Z"
    assert ask(app.handle("x", task=app.tasks["when"]), "result") == ask(handle, "result")
    assert ask(app.handle("x", task="when"), "result") == ask(handle, "result")


# ── a handle without a queue ─────────────────────────────────────────────────────────────────────

Search = Callable[..., Handle[Any]]


@pytest.fixture(params=["sync", "async"])
def search(app: App, request: pytest.FixtureRequest) -> Search:
    """Get a handle by both doors: `search("x")`."""
    if request.param == "sync":
        return app.handle
    return lambda *args, **kwargs: asyncio.run(app.ahandle(*args, **kwargs))


def test_a_job_is_found_in_whichever_queue_it_is(app: App, search: Search) -> None:
    handle = app.tasks["when"].using(id="x", queue="low").enqueue(2)
    app.tasks["nothing"].using(id="y", queue="high").enqueue()
    assert search("x") == handle
    assert search("x").task == "when"
    assert search("y").queue == "high"
    assert search("x", task="of another app").queue == "low"


def test_the_search_finds_the_task_and_so_the_type_of_the_result(app: App, search: Search) -> None:
    app.tasks["when"].using(id="x").enqueue(2)
    asyncio.run(run_one(app, datetime(2030, 1, 2, tzinfo=UTC)))
    assert search("x").result() == datetime(2030, 1, 2, tzinfo=UTC)
    assert App(store=app.store).handle("x").result() == "2030-01-02T00:00:00Z"


def test_a_job_that_is_nowhere_is_not_found(search: Search) -> None:
    with pytest.raises(JobNotFound, match="job never-was is in no queue"):
        search("never-was")


@pytest.mark.parametrize("id", ["a b", "", "../x", "x" * 129, "\udc80"])
def test_an_id_that_no_job_can_have_is_not_found(search: Search, id: str) -> None:
    with pytest.raises(JobNotFound, match=r"no job has this id: id=.* cannot be a job's id: use 1 to 128"):
        search(id)


def test_an_id_in_several_queues_needs_the_queue(app: App, search: Search) -> None:
    for queue in ("low", "high"):
        app.tasks["when"].using(id="x", queue=queue).enqueue(2)
    with pytest.raises(ConfigError, match="several queues have a job x: name one of 'high', 'low'"):
        search("x")
    assert search("x", "low").queue == "low"


def test_with_its_queue_or_task_the_store_is_not_asked(app: App, search: Search) -> None:
    assert search("x", "mail").queue == "mail"
    assert search("x", task="when").queue == "default"
    assert search("x", "mail", task="when").queue == "mail"
    for wrong in ("", "a b"):
        with pytest.raises(ConfigError):
            search("x", wrong, task="when")


def test_a_stored_result_that_does_not_fit_is_undecodable(app: App, ask: Ask) -> None:
    app.tasks["when"].using(id="x").enqueue(2)

    async def other_language() -> None:
        async with App(store=app.store).take() as job:
            job.returns("tomorrow")

    asyncio.run(other_language())
    with pytest.raises(Undecodable, match="when"):
        ask(app.handle("x", task="when"), "result")


async def test_blocking_for_a_result_is_refused_where_a_loop_runs(app: App) -> None:
    handle = app.tasks["when"].enqueue(2)
    with pytest.raises(ConfigError, match=r"block the event loop.*use `await handle\.aresult\(\)`"):
        handle.result(timeout=1)


async def test_a_thread_beside_a_loop_may_wait(app: App) -> None:
    handle = app.tasks["when"].enqueue(2)
    waiting = asyncio.create_task(asyncio.to_thread(handle.result, 20))
    await run_one(app, datetime(2030, 1, 2, tzinfo=UTC))
    assert await waiting == datetime(2030, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("timeout", [-1, "soon"])
def test_a_timeout_that_is_none_is_refused(app: App, ask: Ask, timeout: Any) -> None:
    with pytest.raises(ConfigError, match="timeout="):
        ask(app.tasks["when"].enqueue(2), "result", timeout=timeout)


# ── acts ─────────────────────────────────────────────────────────────────────────────────────────


def test_cancelling_says_what_became_of_the_job(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].enqueue(2)
    assert ask(handle, "cancel") is State.CANCELLED
    assert ask(handle, "cancel") is State.CANCELLED
    assert ask(app.handle("never-was", "default"), "cancel") is None


def test_rescheduling_gives_a_new_time(app: App, ask: Ask, clock: ManualClock) -> None:
    handle = app.tasks["when"].enqueue(2)
    assert ask(handle, "reschedule", delay="5m") is State.AVAILABLE
    job = ask(handle, "job")
    assert (job.state, job.run_at) == (State.SCHEDULED, clock.now() + 300_000)
    assert ask(handle, "reschedule", run_at=datetime(2030, 1, 1, tzinfo=UTC)) is State.SCHEDULED
    assert ask(handle, "job").run_at == 1_893_456_000_000
    assert ask(handle, "reschedule", delay=0) is State.SCHEDULED
    assert ask(handle, "status") is State.AVAILABLE


@pytest.mark.parametrize(
    ("when", "says"),
    [
        ({}, "takes either run_at="),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "takes either run_at="),
        ({"delay": -1}, "delay=-1 is negative"),
        ({"run_at": datetime(2030, 1, 1)}, "is naive"),
    ],
)
def test_rescheduling_to_no_time_is_refused(app: App, ask: Ask, when: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ask(app.tasks["when"].enqueue(2), "reschedule", **when)


def test_retrying_brings_a_dead_job_back(app: App, ask: Ask) -> None:
    handle = app.tasks["when"].using(max_attempts=1).enqueue(2)
    asyncio.run(run_one(app, ValueError("no")))
    assert ask(handle, "retry") is State.DEAD
    assert ask(handle, "status") is State.AVAILABLE


def test_handles_of_the_same_job_are_equal(app: App) -> None:
    handle = app.tasks["when"].using(id="x", queue="mail").enqueue(2)
    assert {handle, app.handle("x", "mail")} == {handle}
    assert handle != app.handle("x", "other")
    assert handle != "x"


def test_a_handle_says_what_it_is_of(app: App) -> None:
    handle = app.tasks["when"].using(id="x", unique=True).enqueue(2)
    assert repr(handle) == "<Handle of job x of when in the queue 'default'>"
    assert repr(app.tasks["when"].using(unique=True).enqueue(2)).endswith("'default', existing>")
