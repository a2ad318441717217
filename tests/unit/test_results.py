"""Results of many jobs: all in one wait, or each as it ends; and the progress of one job."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from penstock import (
    App,
    ConfigError,
    Handle,
    JobDead,
    JobNotFound,
    ResultCancelled,
    ResultNotKept,
    ResultTimeout,
    StoreCorrupt,
    Undecodable,
)
from penstock.core.job import Progress
from penstock.stores.contract import HeartbeatRequest
from penstock.stores.memory import MemoryStore
from penstock.testing import FaultyStore

SOON = 60.0


@pytest.fixture
def app() -> App:
    app = App(store=MemoryStore())

    @app.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    @app.task(name="nothing")
    def nothing() -> None: ...

    return app


async def play(app: App, outcome: Any = None, queue: str = "default") -> None:
    """Play the worker: take a job, and return or raise this; without it, do what the task does."""
    with contextlib.suppress(ZeroDivisionError):
        async with app.take(queue) as job:
            if isinstance(outcome, Exception):
                raise outcome
            job.returns(2 * job.args[0] if outcome is None and job.args else outcome)


Ask = Callable[..., list[Any]]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """`results` by both doors."""

    def by_await(app: App, *args: Any, **kwargs: Any) -> list[Any]:
        return asyncio.run(app.aresults(*args, **kwargs))

    return App.results if request.param == "sync" else by_await


@pytest.fixture(params=["sync", "async"])
def each(request: pytest.FixtureRequest) -> Ask:
    """All that a loop over something gives, by both doors."""

    def by_for(looped: Any) -> list[Any]:
        return list(looped)

    def by_async_for(looped: Any) -> list[Any]:
        async def collect() -> list[Any]:
            return [one async for one in looped]

        return asyncio.run(collect())

    return by_for if request.param == "sync" else by_async_for


def enqueued(app: App, n: int, **options: Any) -> list[Handle[Any]]:
    return [app.tasks["double"].using(**options).enqueue(i) for i in range(n)]


# ── results ──────────────────────────────────────────────────────────────────────────────────────


def test_results_come_in_the_order_of_the_handles_from_any_queues(app: App, ask: Ask) -> None:
    mail, other = enqueued(app, 2, queue="mail"), enqueued(app, 2)
    for queue in ("default", "mail", "default", "mail"):
        asyncio.run(play(app, queue=queue))
    assert ask(app, [mail[1], other[0], other[1], mail[0], mail[1]]) == [2, 0, 2, 0, 2]
    assert ask(app, (handle for handle in mail)) == [0, 2]
    assert ask(app, []) == []


def test_results_are_waited_for_together(app: App, ask: Ask) -> None:
    handles = enqueued(app, 3)

    def work() -> None:
        for _ in handles:
            asyncio.run(play(app))

    later = threading.Timer(0.05, work)
    later.start()
    assert ask(app, handles, timeout=20) == [0, 2, 4]
    later.join()


def test_the_first_failure_is_raised_and_the_others_go_on(app: App, ask: Ask) -> None:
    first, failing, last = enqueued(app, 3, max_attempts=1)
    asyncio.run(play(app))
    asyncio.run(play(app, ZeroDivisionError("no")))
    with pytest.raises(JobDead, match=f"job {failing.id} of double.*ZeroDivisionError: no"):
        ask(app, [first, last, failing], timeout=20)
    asyncio.run(play(app))
    assert ask(app, [first, last]) == [0, 4]


def test_of_failures_that_are_known_at_once_the_first_of_the_list_is_raised(app: App, ask: Ask) -> None:
    a, b = enqueued(app, 2, max_attempts=1)
    for _ in range(2):
        asyncio.run(play(app, ZeroDivisionError("no")))
    with pytest.raises(JobDead, match=b.id):
        ask(app, [b, a])


def test_errors_may_come_in_the_places_of_results(app: App, ask: Ask) -> None:
    done, dead, called_off, odd = enqueued(app, 4, max_attempts=1)
    called_off.cancel("not wanted")
    asyncio.run(play(app))
    asyncio.run(play(app, ZeroDivisionError("no")))
    asyncio.run(play(App(store=app.store), "two"))  # a worker in another language
    nothing, late = app.tasks["nothing"].enqueue(), app.tasks["double"].using(delay="1h").enqueue(1)
    unknown = [app.handle(nothing.id, nothing.queue), app.handle("nobody", "default")]
    given = [done, dead, called_off, odd, nothing, *unknown, late, late]
    found = ask(app, given, timeout=0.05, return_errors=True)
    assert [type(one) for one in found] == [
        *(int, JobDead, ResultCancelled, Undecodable, ResultNotKept, ResultNotKept, JobNotFound),
        *(ResultTimeout, ResultTimeout),
    ]
    assert str(found[-1]) == f"{repr(late)[11:-1]} has not ended within 50ms: it is scheduled"


def test_late_jobs_are_counted_and_the_first_one_is_named(app: App, ask: Ask) -> None:
    done, *late = enqueued(app, 3)
    asyncio.run(play(app))
    with pytest.raises(
        ResultTimeout, match=rf"^2 of 3 jobs are late, .* {late[0].id} .*10ms: it is available$"
    ):
        ask(app, [done, late[0], late[1], late[0]], timeout="10ms")


def test_a_result_that_is_not_kept_is_refused_before_any_wait(app: App, ask: Ask) -> None:
    (waits,) = enqueued(app, 1)
    keeps_nothing = app.tasks["nothing"].enqueue()
    with pytest.raises(ResultNotKept):
        ask(app, [waits, keeps_nothing])
    with pytest.raises(ResultNotKept):
        ask(app, [waits, app.handle(keeps_nothing.id, task="nothing")])
    with pytest.raises(JobNotFound):
        ask(app, [waits, app.handle("nobody", task="double")])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            lambda app: app.handle("x", "default"),
            "takes several handles, a list of them, not one: <Handle of job x",
        ),
        (lambda app: 42, "takes handles, a list of them, not 42"),
        (lambda app: [app.handle("x", "default"), "y"], "takes handles, and number 2 is 'y'"),
        (lambda app: ["x"], "takes handles, and number 1 is 'x'"),
        (
            lambda app: [App("memory://").handle("x", queue="mail")],
            "number 1, of job x in the queue 'mail', is another app's: .* app.handle",
        ),
    ],
)
def test_what_is_no_handle_of_this_app_is_refused(
    app: App, ask: Ask, given: Callable[[App], Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        ask(app, given(app))
    with pytest.raises(ConfigError, match=says):
        app.as_completed(given(app))


@pytest.mark.parametrize("timeout", [-1, "soon"])
def test_a_timeout_that_is_none_is_refused(app: App, ask: Ask, each: Ask, timeout: Any) -> None:
    for call in (
        lambda: ask(app, enqueued(app, 1), timeout=timeout),
        lambda: app.as_completed([], timeout=timeout),
        lambda: app.handle("x", "default").follow_progress(timeout=timeout),
    ):
        with pytest.raises(ConfigError, match="timeout="):
            call()


async def test_blocking_for_results_is_refused_where_a_loop_runs(app: App) -> None:
    with pytest.raises(ConfigError, match=r"use `await app\.aresults\(\)`"):
        app.results([])
    with pytest.raises(ConfigError, match=r"use `async for … in app\.as_completed\(\)`"):
        list(app.as_completed([]))
    with pytest.raises(ConfigError, match=r"use `async for … in handle\.follow_progress\(\)`"):
        list(app.handle("x", "default").follow_progress())


def test_a_store_that_fails_is_an_error_of_the_call(app: App, ask: Ask) -> None:
    faults = FaultyStore(app.store)
    app.use_store(faults.store)
    handles = enqueued(app, 2)
    faults.fail("stream_ends", error=StoreCorrupt("no outage"))
    with pytest.raises(StoreCorrupt):
        ask(app, handles, return_errors=True)


# ── as completed ─────────────────────────────────────────────────────────────────────────────────


def test_handles_come_as_their_jobs_end(app: App, each: Ask) -> None:
    mail, first, second = app.tasks["double"].using(queue="mail").enqueue(5), *enqueued(app, 2)

    def work() -> None:
        for queue in ("default", "mail", "default"):
            asyncio.run(play(app, queue=queue))

    later = threading.Timer(0.05, work)
    later.start()
    ended = each(app.as_completed([mail, second, first, mail], timeout=20))
    later.join()
    assert ended in (
        [first, mail, second],
        [mail, second, first],
        [mail, first, second],
        [first, second, mail],
    )
    assert {handle: handle.result() for handle in ended} == {mail: 10, first: 0, second: 2}


async def test_what_ended_answers_at_once_without_the_store_and_in_a_loop(app: App) -> None:
    faults = FaultyStore(app.store)
    app.use_store(faults.store)
    handles = [await app.tasks["double"].using(max_attempts=1).aenqueue(n) for n in range(2)]
    await play(app)
    await play(app, ZeroDivisionError("no"))
    done, dead = [handle async for handle in app.as_completed(handles)]
    faults.down()
    assert done.result() == await done.aresult() == 0
    for _ in range(2):
        with pytest.raises(JobDead):
            dead.result()
    faults.up()


def test_what_ended_already_comes_in_the_order_of_the_list(app: App, each: Ask) -> None:
    handles = enqueued(app, 20)
    for _ in handles:
        asyncio.run(play(app))
    handles.reverse()
    assert each(app.as_completed(handles)) == handles


def test_a_job_that_keeps_nothing_or_never_was_comes_too(app: App, each: Ask) -> None:
    nothing = app.tasks["nothing"].enqueue()
    asyncio.run(play(app))
    gone, nobody = each(app.as_completed([nothing, app.handle("nobody", "default")]))
    with pytest.raises(ResultNotKept):
        gone.result()
    with pytest.raises(JobNotFound):
        nobody.result()


def test_those_that_are_late_are_an_error_after_those_that_are_not(app: App) -> None:
    done, late = enqueued(app, 2)
    asyncio.run(play(app))
    ended = iter(app.as_completed([late, done], timeout=0.05))
    assert next(ended) == done
    with pytest.raises(ResultTimeout, match=f"1 of 2 jobs are late, the first of them: job {late.id} .*50ms"):
        next(ended)


def test_as_completed_may_be_looped_over_again_and_left_early(app: App) -> None:
    handles = enqueued(app, 2)
    asyncio.run(play(app))
    looped = app.as_completed(handles, timeout=0.2)
    for _ in range(2):
        for handle in looped:
            assert handle == handles[0]
            break


# ── progress ─────────────────────────────────────────────────────────────────────────────────────


async def said(app: App, lease: Any, progress: Progress) -> None:
    await app.store.extend([HeartbeatRequest(lease, 15_000, progress=progress)])


async def next_of(told: AsyncGenerator[Progress, None]) -> Progress:
    return await asyncio.wait_for(anext(told), SOON)


async def test_progress_is_followed_until_the_job_ends(app: App) -> None:
    handle = await app.tasks["double"].aenqueue(2)
    told = handle.follow_progress(every="50ms").__aiter__()
    async with app.take() as job:
        coming = asyncio.create_task(next_of(told))
        await said(app, job.job.lease, Progress(1, 3, "begun"))
        assert await coming == Progress(1, 3, "begun")
        await said(app, job.job.lease, Progress(1, 3, "begun"))
        await said(app, job.job.lease, Progress(2, 3))
        assert await next_of(told) == Progress(2, 3)
        job.returns(4)
    assert [more async for more in told] == []
    assert await handle.aresult() == 4


def test_a_thread_may_follow_too(app: App, each: Ask) -> None:
    handle = app.tasks["double"].enqueue(2)
    seen = threading.Event()

    async def work() -> None:
        async with app.take() as job:
            await said(app, job.job.lease, Progress(1, 2))
            seen.set()
            await said(app, job.job.lease, Progress(2, 2))
            job.returns(4)

    worker = threading.Thread(target=lambda: asyncio.run(work()))
    worker.start()
    assert seen.wait(SOON)
    told = each(handle.follow_progress(every="50ms", timeout=20))
    worker.join()
    assert told in ([Progress(1, 2), Progress(2, 2)], [Progress(2, 2)]), (
        "what is said in between may be missed"
    )


def test_the_end_is_noticed_at_once_with_any_interval(app: App, each: Ask) -> None:
    handle = app.tasks["double"].enqueue(2)
    later = threading.Timer(0.05, lambda: asyncio.run(play(app)))
    later.start()
    assert each(handle.follow_progress(every="1h", timeout=SOON)) == []
    later.join()


def test_following_gives_up_in_time(app: App, each: Ask) -> None:
    handle = app.tasks["double"].enqueue(2)
    with pytest.raises(ResultTimeout, match="has not ended within 20ms: it is available"):
        each(handle.follow_progress(timeout="20ms"))


def test_following_what_never_was_is_an_error_and_what_left_nothing_is_over(app: App, each: Ask) -> None:
    nothing = app.tasks["nothing"].enqueue()
    asyncio.run(play(app))
    assert each(nothing.follow_progress()) == []
    assert each(app.handle(nothing.id, task="nothing").follow_progress()) == []
    with pytest.raises(JobNotFound):
        each(app.handle("nobody", "default").follow_progress())


@pytest.mark.parametrize("every", [0, 0.01, -1, "often"])
def test_to_follow_too_closely_is_refused(app: App, every: Any) -> None:
    with pytest.raises(ConfigError, match="every="):
        app.handle("x", "default").follow_progress(every=every)


async def test_a_progress_stream_polls_at_most_at_its_interval(app: App) -> None:
    faults = FaultyStore(app.store)
    app.use_store(faults.store)
    handle = await app.tasks["double"].aenqueue(2)
    with pytest.raises(ResultTimeout):
        await anext(aiter(handle.follow_progress(every="100ms", timeout="450ms")))
    assert faults.calls["get"] + faults.calls["wait_for_end"] <= 7
