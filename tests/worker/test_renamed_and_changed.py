"""Jobs of an older version: found by the old name of their task, with migrated arguments.

Unreadable jobs are dead at once, with the reason, and do not affect others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.app.app import App
from penstock.client.handle import Handle
from penstock.core.job import Job, NewJob, RawJob, State
from penstock.core.relations import Batch
from penstock.core.stats import sum_of
from penstock.errors import ConfigError
from penstock.stores.contract import Resolution
from tests.worker import process_tasks
from tests.worker.conftest import at_work, becomes, ended, in_a_burst, until
from tests.worker.task_bodies import MOVED, act, greet, made


async def enqueued(app: App, task: str, payload: bytes, **options: Any) -> Handle[Any]:
    """As an older version would have done it."""
    return await app.aenqueue_raw("default", payload, task, retention="1h", **options)


async def test_a_worker_runs_jobs_under_all_names_that_its_task_has_had(
    app: App, new_app: Callable[[], App], run_in: str
) -> None:
    old = new_app()
    handles = [await enqueued(old, name, b'{"name":"Ann"}') for name in ("old.greet", "older.greet", "greet")]
    made(app, run_in, greet, **MOVED)
    await in_a_burst(app)
    for handle in handles:
        assert await handle.aresult(60) == "hello Ann"


async def test_parked_jobs_of_the_old_name_go_to_a_worker_that_has_it_as_an_alias(
    app: App, new_app: Callable[[], App]
) -> None:
    ignorant = new_app()
    handle = await enqueued(ignorant, "old.greet", b'{"name":"Ann"}')
    async with at_work(ignorant, ["default"]):
        await becomes(handle, State.PARKED)
        made(app, "async", greet, **MOVED)
        async with at_work(app):
            assert await handle.aresult(60) == "hello Ann"
            infos = await app.store.workers()
    assert {"greet", "old.greet", "older.greet"} in [set(info.tasks) for info in infos]


async def test_middleware_and_callbacks_of_a_task_go_with_its_old_names(app: App) -> None:
    seen: list[str] = []
    task = made(app, "async", greet, **MOVED)

    @app.around_attempt(task=task)
    async def note(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(f"around {job.task}")
        return await call()

    @app.on_success(task=task)
    async def rejoice(job: Job, result: str) -> None:
        seen.append(f"{result} by {job.task}")

    await enqueued(app, "old.greet", b'{"name":"Ann"}')
    await in_a_burst(app)
    assert seen == ["around old.greet", "hello Ann by old.greet"]


async def test_middleware_and_callbacks_that_name_a_former_name_go_with_the_task(app: App) -> None:
    """Also of the members of a batch, which all releases enqueue under the oldest name."""
    seen: list[str] = []

    @app.around_attempt(task="old.greet")
    async def note(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(f"around {job.task}")
        return await call()

    @app.around_enqueue(task="collect")
    def stamp(new: NewJob) -> NewJob:
        seen.append(f"enqueued {new.task}")
        return new

    task = made(app, "async", greet, **MOVED)

    @app.on_success(task="older.greet")
    async def rejoice(job: Job, result: str) -> None:
        seen.append(f"{result} by {job.task}")

    @app.task(name="collect", aliases=("gather",), batch=Batch(max_size=2))
    async def collect(items: list[int]) -> None: ...

    await task.aenqueue("Ann")
    await collect.aenqueue(1)
    await in_a_burst(app)
    assert sorted(seen) == ["around greet", "enqueued gather", "hello Ann by greet"]


async def test_all_names_of_a_task_are_counted_under_the_oldest(app: App, new_app: Callable[[], App]) -> None:
    """Attempts and groups of errors: those of the older release, and of both names in the newer one."""
    older = new_app()

    async def fails() -> None:
        raise ValueError("no luck")

    old = older.task(name="pay", max_attempts=1)(fails)
    new = app.task(name="charge", aliases=("pay", "billing.pay"), max_attempts=1)(fails)
    await old.aenqueue()
    await in_a_burst(older)
    await old.aenqueue()
    await new.aenqueue()
    await in_a_burst(app)
    rows = (await app.store.read_stats(Resolution.MINUTE, span=600_000)).rows
    (group,) = await app.store.read_errors()
    counted = sum_of([row.stats for row in rows])
    assert (counted.processed, counted.failed, counted.dead, group.count) == (3, 3, 3, 3)
    assert {row.task for row in rows} == {group.task} == {"pay"}


@pytest.mark.parametrize(
    ("aliases", "says"),
    [
        (("b", "a"), ["the task 'a': running workers of another release know 'a' as its oldest name"]),
        (("b",), []),
        (("a",), []),
        (("a", "b"), ["the task 'b': running workers of another release know 'b' as its oldest name"]),
    ],
    ids=["wrong order", "one", "another", "two tasks become one"],
)
async def test_a_worker_warns_at_start_of_names_that_it_does_not_share(
    app: App,
    new_app: Callable[[], App],
    caplog: pytest.LogCaptureFixture,
    aliases: tuple[str, ...],
    says: list[str],
) -> None:
    older = new_app()
    for name in ("a", "b"):
        older.task(name=name)(greet)
    app.task(name="c", aliases=aliases)(greet)
    caplog.set_level("INFO", "penstock.worker")
    async with at_work(older, ["default"]):
        await until(lambda: caplog.text.count(" serves ") == 1, "the older release serves")
        async with at_work(app):
            await until(lambda: caplog.text.count(" serves ") == 2, "the newer one, too")
    warned = [one.getMessage() for one in caplog.records if "another release" in one.getMessage()]
    assert [one.split(",")[0] for one in warned] == says
    assert all("aliases= lists all former names, the oldest first" in one for one in warned)


@pytest.mark.parametrize(
    ("schedule", "args", "options", "warns"),
    [
        ("@hourly", ["Ann"], {"name": "greetings"}, True),
        ("@hourly", ["Ann"], {"queue": "other"}, True),
        ("@hourly", ["Ann"], {}, False),
        ("@daily", ["Ann"], {"name": "greetings"}, False),
        ("@hourly", ["Bob"], {"name": "greetings"}, False),
    ],
)
async def test_a_worker_warns_at_start_of_an_entry_that_would_fire_twice(
    app: App,
    new_app: Callable[[], App],
    caplog: pytest.LogCaptureFixture,
    schedule: str,
    args: list[str],
    options: dict[str, Any],
    warns: bool,
) -> None:
    older = new_app()
    older.periodic("@hourly", task=older.task(name="hello")(greet), args=["Ann"])
    task: Any = app.task(name="greet", aliases=("hello",))(greet)
    options = dict(options)
    if "queue" in options:
        task = task.using(queue=options.pop("queue"))
    app.periodic(schedule, task=task, args=args, **options)

    caplog.set_level("INFO", "penstock.worker")

    async def stored() -> bool:
        return bool((await app.store.entries()).entries)

    async with at_work(older):
        await until(stored, "the older release has stored its entry")
        async with at_work(app):
            await until(lambda: caplog.text.count(" serves ") == 2, "both serve")
    said = [one.getMessage() for one in caplog.records if "each instant has two jobs" in one.getMessage()]
    assert len(said) == warns
    assert all("keep the queue and the name of an entry, name='hello'" in one for one in said)


async def test_a_job_that_is_taken_is_upgraded_too(app: App) -> None:
    made(app, "async", greet, **MOVED)
    await enqueued(app, "old.greet", b'{"first":"Ann","last":"Lee"}')
    async with app.take("default") as job:
        assert (job.args, dict(job.kwargs)) in [(("Ann Lee",), {}), ((), {"name": "Ann Lee"})]


async def test_old_arguments_are_upgraded_and_those_that_fit_are_not(app: App, run_in: str) -> None:
    made(app, run_in, greet, **MOVED)
    old = await enqueued(app, "greet", b'{"first":"Ann","last":"Lee"}')
    new = await enqueued(app, "greet", b'{"name":"Bob","times":2}')
    await in_a_burst(app)
    assert await old.aresult(60) == "hello Ann Lee"
    assert await new.aresult(60) == "hello Bobhello Bob"


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b'{"first":"Ann"}', "upgrade= failed with KeyError: 'last'"),
        (b'{"first":0}', "upgrade= returned None"),
        (b'{"first":1}', "arguments returned by upgrade= do not fit either"),
        (b'{"first":2}', "arguments returned by upgrade= cannot be stored"),
        (b'["Ann", 2, 3]', "3 positional arguments for 2 parameters"),
    ],
)
async def test_an_upgrade_that_fails_sets_the_job_aside_with_the_reason(
    app: App, run_in: str, payload: bytes, says: str
) -> None:
    """A release whose upgrade knows them, as a newer one may, gets it."""
    made(app, run_in, greet, **MOVED)
    bad = await enqueued(app, "greet", payload)
    good = await enqueued(app, "greet", b'{"name":"Bob"}')
    await in_a_burst(app, concurrency=1)
    job = await becomes(bad, State.PARKED)
    assert (job.attempt, job.errors) == (0, ())
    assert says in (job.reason or "")
    assert await good.aresult(60) == "hello Bob"


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b'{"name":["Ann"]}', "upgrade= failed with KeyError: 'last'"),
        (b"\xff no JSON", "neither a JSON object nor an array"),
    ],
)
async def test_what_no_upgrade_makes_fit_is_dead_with_the_reason_if_its_names_do(
    app: App, run_in: str, payload: bytes, says: str
) -> None:
    made(app, run_in, greet, **MOVED)
    bad = await enqueued(app, "greet", payload)
    good = await enqueued(app, "greet", b'{"name":"Bob"}')
    await in_a_burst(app, concurrency=1)
    job = await ended(bad)
    assert (job.state, job.attempt, [e.kind for e in job.errors]) == (State.DEAD, 1, ["Undecodable"])
    assert says in (job.reason or "")
    assert await good.aresult(60) == "hello Bob"


NONSENSE = [
    b"null",
    b"17",
    b'"how"',
    b"\x00",
    b'{"how"',
    b'{"how": "\xff"}',
    b'{"how": {"$datetime": "yesterday"}}',
    b"[" * 100_000,
    b'{"how": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"how": 1' + b"0" * 10_000 + b"}",
]


async def test_the_worker_continues_after_any_payload(app: App, run_in: str) -> None:
    task = made(app, run_in, act)
    bad = [await enqueued(app, "act", payload) for payload in NONSENSE]
    good = await task.aenqueue("return")
    await in_a_burst(app, concurrency=1)
    for payload, handle in zip(NONSENSE, bad, strict=True):
        job = await ended(handle)
        found = (job.state, job.attempt, [e.kind for e in job.errors])
        assert found == (State.DEAD, 1, ["Undecodable"]), payload[:40]
        assert (job.reason or "").startswith("Undecodable: act"), payload[:40]
    assert await good.aresult(60) == "done in attempt 1"


async def test_a_raw_job_that_is_no_json_is_dead_at_once_where_its_handler_reads_it_as_such(
    app: App, run_in: str
) -> None:
    async def read_async(job: RawJob) -> Any:
        return job.json()

    app.handler(queue="json", run_in=run_in)(read_async if run_in == "async" else process_tasks.read)  # type: ignore[typeddict-item]
    bad = await app.aenqueue_raw("json", b"\x00 no JSON")
    good = await app.aenqueue_raw("json", b'{"a":1}', retention="1h")
    await in_a_burst(app, concurrency=1)
    job = await ended(bad)
    assert (job.state, job.attempt, [e.kind for e in job.errors]) == (State.DEAD, 1, ["Undecodable"])
    assert f"the payload of job {bad.id} is not JSON" in (job.reason or "")
    assert await good.aresult(60) == {"a": 1}


def test_a_name_belongs_to_one_task(app: App) -> None:
    made(app, "async", greet, **MOVED)

    def refuses(says: str, **options: Any) -> None:
        with pytest.raises(ConfigError, match=says):
            made(app, "async", act, **options)

    refuses("'old.greet', name of the task 'old.greet', is alias of the task 'greet'", name="old.greet")
    refuses("'greet', alias of the task 'act', is name of the task 'greet'", aliases=["greet"])
    refuses("'old.greet', alias of the task 'act', is alias of the task 'greet'", aliases=("x", "old.greet"))
    assert set(app.tasks) == {"greet", "old.greet", "older.greet"}, "who is refused leaves nothing behind"
    made(app, "async", act, aliases=["x"])
    assert app.tasks["x"] is app.tasks["act"]
    assert repr(app).startswith("<App of 2 tasks")
