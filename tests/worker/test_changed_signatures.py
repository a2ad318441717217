"""Jobs whose arguments fit only another release of their task are parked for it, as unknown tasks are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.app.app import App
from penstock.client.handle import Handle
from penstock.core.job import Job, State
from penstock.core.relations import Batch
from penstock.encryption import new_key
from penstock.errors import Retry, SignatureMismatch, Undecodable
from penstock.events import JobParked, TaskUnknown
from penstock.stores.contract import Parked
from penstock.testing import FaultyStore
from tests.sqlite_files import new_url
from tests.worker import newer_task_bodies, task_bodies
from tests.worker.conftest import Told, at_work, becomes, ended, in_a_burst, patient, until
from tests.worker.task_bodies import MOVED, made


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "redis":
        yield f"{request.getfixturevalue('redis').url}?prefix=penstock-{uuid4().hex}"
    elif request.param == "memory":
        yield f"memory://{uuid4().hex}"
    else:
        yield new_url(tmp_path)


@pytest.fixture
def old(new_app: Callable[[], App], run_in: str) -> App:
    """An app of yesterday, whose `greet` takes a name, and how many times."""
    app = new_app()
    made(app, run_in, task_bodies.greet, retry="1h")
    return app


@pytest.fixture
def new(new_app: Callable[[], App], run_in: str) -> App:
    """One of today: it needs to know the language, too."""
    app = new_app()
    if run_in == "async":
        app.task(name="greet", retention="1h", run_in="async")(newer_task_bodies.greet_async)
    else:
        app.task(name="greet", retention="1h", run_in=run_in)(newer_task_bodies.greet)  # type: ignore[call-overload]
    return app


async def parked(app: App) -> int:
    return sum(one.jobs for one in await app.store.parked())


async def of_newer(app: App, n: int = 1) -> list[Handle[Any]]:
    """Jobs that only the new release can run."""
    payload = b'{"name":"Ann","lang":"de"}'
    return [await app.aenqueue_raw("default", payload, "greet", retention="1h") for _ in range(n)]


async def of_older(app: App, n: int = 1) -> list[Handle[Any]]:
    """Jobs that only the old release can run."""
    return [await app.aenqueue_raw("default", b'{"name":"Bob"}', "greet", retention="1h") for _ in range(n)]


class Fetches:
    """How often jobs came to this app's workers."""

    def __init__(self, app: App) -> None:
        self.jobs = 0
        self.calls = 0
        inner = app.store.fetch

        async def fetch(*args: Any, **options: Any) -> Any:
            fetched = await inner(*args, **options)
            self.calls += 1
            self.jobs += len(fetched.jobs)
            return fetched

        app.store.fetch = fetch  # type: ignore[method-assign]


async def test_an_old_worker_sets_aside_what_only_newer_code_knows_and_the_new_one_runs_it_once(
    old: App, new: App, app: App
) -> None:
    told, (handle,) = Told(old), await of_newer(app)
    called: list[str] = []
    old.on_failure(lambda job, error: called.append(f"failure {error}"))
    old.on_dead(lambda job, error: called.append(f"dead {error}"))
    async with at_work(old):
        job = await becomes(handle, State.PARKED)
        assert (job.attempt, job.errors) == (0, ())
        assert "unknown argument(s) 'lang'" in (job.reason or "")
        await until(lambda: bool(told.of(JobParked)), "JobParked is told")
        for event in told.of(JobParked):  # the worker may take it once more until it has announced its tasks
            assert (event.id, event.queue, event.task) == (handle.id, "default", "greet")
            assert "'lang'" in event.reason
        async with at_work(new):
            assert await handle.aresult(60) == "hallo Ann"
    assert (await ended(handle)).attempt == 1
    assert (called, told.of(TaskUnknown)) == ([], [])


async def test_a_new_worker_sets_aside_what_only_older_code_knows_and_the_old_one_runs_it_once(
    old: App, new: App, app: App
) -> None:
    (handle,) = await of_older(app)
    async with at_work(new):
        job = await becomes(handle, State.PARKED)
        assert (job.attempt, job.errors) == (0, ())
        assert "the argument 'lang' is missing" in (job.reason or "")
        async with at_work(old):
            assert await handle.aresult(60) == "hello Bob"
    assert (await ended(handle)).attempt == 1


async def test_a_lone_old_worker_sets_them_aside_for_the_one_that_takes_its_place(
    old: App, new: App, app: App
) -> None:
    handles = await of_newer(app, 10)
    await in_a_burst(old)
    assert await app.store.parked() == [Parked("default", "greet", 10)]
    async with at_work(new):
        assert {await handle.aresult(60) for handle in handles} == {"hallo Ann"}
    assert {(await ended(handle)).attempt for handle in handles} == {1}


@pytest.mark.parametrize("run_in", ["async"], indirect=True)
async def test_the_old_worker_does_not_take_them_again_and_runs_on(
    old: App, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    fetches = Fetches(old)
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        async with at_work(old, config=patient()) as worker:
            for handle in await of_newer(app, 20):
                await becomes(handle, State.PARKED)
            await until(lambda: worker.info().tasks == (), "it says that it has not that task")
            (again,) = await of_older(app)
            assert await again.aresult(60) == "hello Bob", "what is ready it takes"
            jobs = fetches.jobs
            (last,) = await of_older(app)
            assert await last.aresult(60) == "hello Bob"
            assert fetches.jobs - jobs <= 1
            calls = fetches.calls
            await asyncio.sleep(0.3)
            assert fetches.calls - calls <= 2, "it is idle"
    assert fetches.jobs <= 3 * 20, "until its word is out it may meet some of them again"
    assert await parked(app) == 20
    lines = [record.message for record in caplog.records if "'lang'" in record.message]
    assert 1 <= len(lines) <= 3, "a line for each would hide all others"


@pytest.mark.parametrize("run_in", ["async"], indirect=True)
async def test_a_rolling_deploy_loses_nothing(old: App, new: App, app: App) -> None:
    """Two old workers, then one of each: whatever was enqueued for either release runs there, once."""
    async with at_work(old, concurrency=3, config=patient()):
        handles = [*await of_older(app, 30), *await of_newer(app, 30)]
        await until(lambda: _is(parked(app), 30), "the newer ones are set aside")
        async with at_work(new, concurrency=3, config=patient()):
            handles += await of_newer(app, 30)
            jobs = [await ended(handle) for handle in handles]
    assert {(job.state, job.attempt) for job in jobs} == {(State.COMPLETED, 1)}


async def _is(found: Any, wanted: int) -> bool:
    return bool(await found == wanted)


@pytest.mark.parametrize("run_in", ["async"], indirect=True)
async def test_where_both_have_met_jobs_of_the_other_an_operators_retry_gives_them_back(
    old: App, new: App, app: App
) -> None:
    async with at_work(old), at_work(new):
        handles = [*await of_older(app, 20), *await of_newer(app, 20)]

        async def all_over() -> bool:
            found = [await handle.ajob() for handle in handles]
            waiting = [job for job in found if job is not None and job.state is State.PARKED]
            await app.store.retry([job.ref for job in waiting])
            return all(job is not None and job.state is State.COMPLETED for job in found)

        await until(all_over, "all have run")
    assert {(await ended(handle)).attempt for handle in handles} == {1}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"name":5}', "the argument 'name' is not a stored str"),
        (b"\x00 no JSON", "neither a JSON object nor an array"),
        (b'"text"', "neither a JSON object nor an array"),
    ],
)
async def test_what_no_release_could_have_stored_is_dead_at_once(
    old: App, app: App, payload: bytes, reason: str
) -> None:
    handle = await app.aenqueue_raw("default", payload, "greet", retention="1h")
    await in_a_burst(old)
    job = await ended(handle)
    assert (job.state, [e.kind for e in job.errors]) == (State.DEAD, ["Undecodable"])
    assert reason in (job.reason or "")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'["Ann", 1, "de"]', "3 positional arguments for 2 parameters"),
        (b"{}", "the argument 'name' is missing"),
        (b'{"name":5,"lang":"de"}', "unknown argument(s) 'lang'"),
    ],
)
@pytest.mark.parametrize("run_in", ["async"], indirect=True)
async def test_what_has_other_names_or_another_number_is_set_aside(
    old: App, app: App, payload: bytes, reason: str
) -> None:
    handle = await app.aenqueue_raw("default", payload, "greet", retention="1h")
    await in_a_burst(old)
    job = await becomes(handle, State.PARKED)
    assert reason in (job.reason or "")


async def test_so_is_what_an_older_upgrade_does_not_know(app: App, new_app: Callable[[], App]) -> None:
    """The rule holds for tasks that take older arguments, too: these come from a newer release."""
    made(app, "async", task_bodies.greet, **MOVED)
    (handle,) = await of_newer(new_app())
    await in_a_burst(app)
    job = await becomes(handle, State.PARKED)
    assert "unknown argument(s) 'lang'" in (job.reason or "")
    assert "upgrade= failed with KeyError" in (job.reason or "")


async def test_so_is_an_at_most_once_job_and_the_last_attempt(app: App, new_app: Callable[[], App]) -> None:
    app.task(name="greet", delivery="at-most-once")(task_bodies.greet_async)
    newer = new_app()
    greet: Any = newer.task(name="greet", delivery="at-most-once", retention="1h")(
        newer_task_bodies.greet_async
    )
    handle = await greet.aenqueue("Ann", "de")
    async with at_work(app):
        await becomes(handle, State.PARKED)
        async with at_work(newer):
            assert await handle.aresult(60) == "hallo Ann"
    assert (await ended(handle)).attempt == 1


async def test_so_is_what_middleware_wraps_and_a_batch(app: App, new_app: Callable[[], App]) -> None:
    @app.around_attempt
    async def note(job: Job, call: Callable[[], Any]) -> Any:
        return await call()

    @app.task(name="collect")
    def before(items: list[str], lang: str) -> None: ...

    newer = new_app()

    @newer.task(name="collect", batch=Batch(max_size=2), retention="1h")
    def collect(items: list[str]) -> None:
        newer.state.items = items

    handles = [await collect.aenqueue(item) for item in ("a", "b")]
    await in_a_burst(app)
    batch = await becomes(newer.handle(f"{handles[0].id}.batch"), State.PARKED)
    assert "the argument 'lang' is missing" in (batch.reason or "")
    await in_a_burst(newer)
    assert newer.state.items == ["a", "b"]
    assert {(await ended(handle)).state for handle in handles} == {State.COMPLETED}


async def test_a_take_of_such_a_job_parks_it(app: App, new_app: Callable[[], App]) -> None:
    made(app, "async", task_bodies.greet)
    told, (handle,) = Told(app), await of_newer(new_app())
    with pytest.raises(SignatureMismatch, match="'lang'"):
        async with app.take() as job:
            _ = job.kwargs
    found = await becomes(handle, State.PARKED)
    assert "'lang'" in (found.reason or "")
    assert (found.attempt, found.errors) == (0, ())
    assert (await told.one(JobParked)).id == handle.id


async def test_another_jobs_arguments_are_no_reason_to_set_this_one_aside(
    app: App, new_app: Callable[[], App]
) -> None:
    """A function that reads a job of a changed task itself."""
    made(app, "async", task_bodies.greet, queue="inner")

    @app.task(name="outer", queue="outer", retention="1h")
    async def outer() -> None:
        async with app.take("inner") as job:
            _ = job.args

    inner = await app.aenqueue_raw("inner", b'{"lang":"de"}', "greet", retention="1h")
    handle = await outer.aenqueue()
    await in_a_burst(app, ["outer"])
    assert (await becomes(inner, State.PARKED)).attempt == 0
    assert (await ended(handle)).state is State.DEAD
    assert issubclass(SignatureMismatch, Undecodable)


async def test_its_reason_is_for_those_with_the_key_only(url: str) -> None:
    """It quotes what the job carries."""

    def upgrade(old: dict[str, Any]) -> dict[str, Any]:
        raise Retry(f"what is {old['secret']}?")

    key = new_key()
    app = App(url, key=key)
    app.task(name="greet", upgrade=upgrade)(task_bodies.greet)
    handle = await app.aenqueue_raw("default", b'{"secret":"hunter2"}', "greet")
    await in_a_burst(app)
    job = await becomes(handle, State.PARKED)
    assert "hunter2" in (job.reason or "")
    keyless = App(url)
    (bare,) = await keyless.store.get([handle.ref])
    assert bare is not None
    assert "hunter2" not in repr(bare)
    app.close()
    keyless.close()


async def test_it_is_settled_though_the_store_was_away(app: App, faults: FaultyStore) -> None:
    made(app, "async", task_bodies.greet)
    (handle,) = await of_newer(app)
    faults.fail("settle", times=2)
    async with at_work(app):
        await becomes(handle, State.PARKED)
