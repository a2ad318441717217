"""An app: its parts, its registrations, and its access to the store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import penstock
from penstock import (
    App,
    ArgumentError,
    ConfigError,
    JobEnqueued,
    JobNotFound,
    MissingExtra,
    NewJob,
    RawJob,
    UnknownScheme,
)
from penstock.core.job import FINISHED_KEPT, Job
from penstock.retry import Fixed
from penstock.stores.memory import MemoryStore


def add(a: int) -> int:
    return a


# ── making one ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"namespce": "a"}, r"App\(\) has no option 'namespce' \(did you mean 'namespace'\?\)"),
        ({"priority": 1}, "App.. has no option 'priority'"),
        ({"timeout": -1}, r"App\(\): timeout=-1 is negative"),
        ({"max_attempts": 0}, r"App\(\): max_attempts=0"),
        ({"queue": ""}, "cannot be a queue's name"),
        ({"namespace": "a b"}, "cannot be a namespace"),
        ({"max_payload": -1}, r"App\(\): max_payload=-1"),
        ({"max_result": "much"}, r"App\(\): max_result='much'"),
        ({"max_result": "257MB"}, r"App\(\): max_result='257MB' is more than every store can hold"),
        ({"max_payload": 10**10}, r"App\(\): max_payload=10000000000 is more than every store can hold"),
    ],
)
def test_an_app_that_makes_no_sense_is_refused(options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        App(**options)


def test_a_url_that_makes_no_sense_is_refused_when_the_app_is_made() -> None:
    with pytest.raises(UnknownScheme, match="did you mean 'memory'"):
        App("memry://")


def test_a_missing_driver_is_reported_when_the_app_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.installation.is_installed", lambda name: False)
    with pytest.raises(MissingExtra, match="pip install"):
        App("redis://localhost")


def test_an_app_touches_nothing_before_its_first_job(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    task = app.task(add)
    task.job(1)
    app.handle("x", "default")
    assert list(tmp_path.iterdir()) == []
    task.enqueue(1)
    assert (tmp_path / "jobs.db").exists()
    app.close()


@pytest.mark.parametrize("how", ["with", "async with", "aclose"])
def test_an_app_is_closed_at_the_end_of_its_context(tmp_path: Any, how: str) -> None:
    def open_file() -> bool:
        return (tmp_path / "jobs.db-wal").exists()  # the last connection removes it

    async def asynchronously(app: App) -> None:
        if how == "async with":
            async with app as same:
                await app.task(add).aenqueue(1)
                assert same is app
                assert open_file()
        else:
            await app.task(add).aenqueue(1)
            assert open_file()
            await app.aclose()

    app = App(f"sqlite:///{tmp_path}/jobs.db")
    if how == "with":
        with app as same:
            app.task(add).enqueue(1)
            assert same is app
            assert open_file()
    else:
        asyncio.run(asynchronously(app))
    assert not open_file()


def test_a_store_of_ones_own_takes_the_place_of_the_url() -> None:
    store = MemoryStore()
    app = App(store=store)
    assert app.store is store
    assert app.store_url == "memory://"


def test_the_store_is_created_once_with_several_callers() -> None:
    app = App("memory://")
    start = threading.Barrier(8)
    seen: list[object] = []

    def look() -> None:
        start.wait()
        seen.append(app.store)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(store is seen[0] for store in seen)


def test_apps_of_different_namespaces_do_not_see_each_other() -> None:
    one, two = (App("memory://test-app", namespace=name) for name in ("a", "b"))
    handle = one.task(add).enqueue(1)
    assert two.handle(handle.id, "default").job() is None
    with pytest.raises(JobNotFound):
        two.handle(handle.id)


def test_the_limit_of_a_payload_is_the_apps() -> None:
    small = App("memory://", max_payload=20)
    task = small.task(name="keep")(lambda text: text)
    task.enqueue("short")
    with pytest.raises(ArgumentError, match=r"the limit is 20.*App\(max_payload=\.\.\.\)"):
        task.enqueue("much too long")


def test_what_is_not_said_in_code_may_be_set_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text('timeout = "5s"\nmax_attempts = 7\nnamespace = "file"\n')
    monkeypatch.setenv("PENSTOCK_URL", "memory://outside")
    monkeypatch.setenv("PENSTOCK_MAX_ATTEMPTS", "3")
    monkeypatch.setenv("PENSTOCK_MAX_PAYLOAD", "1kB")
    app = App()
    task = app.task(add)
    assert (app.url, app.namespace, task.timeout, task.max_attempts) == ("memory://outside", "file", 5_000, 3)
    with pytest.raises(ArgumentError, match="the limit is 1,000"):
        app.enqueue_raw("legacy", b"x" * 1_001)
    said = App("memory://", namespace="", max_attempts=2, timeout=None, max_payload=2_000)
    task = said.task(add)
    assert (said.url, said.namespace, task.timeout, task.max_attempts) == ("memory://", "", None, 2)
    said.enqueue_raw("legacy", b"x" * 1_001)


def test_an_unknown_setting_outside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TIMEOTU", "5s")
    with pytest.raises(ConfigError, match=r"PENSTOCK_TIMEOTU is not a setting.*PENSTOCK_TIMEOUT"):
        App()


def test_ten_megabytes_are_refused_and_nothing_is_stored() -> None:
    app = App("memory://")
    task = app.task(name="keep")(lambda text: text)
    with pytest.raises(ArgumentError, match=r"the limit is 1,000,000"):
        task.enqueue("x" * 10_000_000)
    assert app.store.sync.queues() == []


def test_a_closed_app_may_be_used_again(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    task = app.task(add)
    handle = task.enqueue(1)
    app.close()
    app.close()
    assert handle.status() == "available"
    app.close()


def test_an_app_says_what_it_is() -> None:
    app = App("memory://", name="shop")
    app.task(add)
    assert repr(app) == "<App shop of 1 tasks on memory://>"


# ── registering ──────────────────────────────────────────────────────────────────────────────────


def test_an_apps_queues_are_those_of_its_tasks_and_handlers() -> None:
    app = App("memory://", queue="low")
    app.task(add)
    app.task(name="b", queue="mail")(add)
    app.task(name="c")(add)
    app.handler(queue="legacy")(lambda job: None)
    assert app.queues() == ["low", "mail", "legacy"]


async def handle_raw(job: RawJob) -> None: ...


def handle_raw_for_long(job: RawJob) -> str:
    return job.id


def test_a_handler_stays_the_function_that_it_was() -> None:
    app = App("memory://")
    assert app.handler(queue="legacy")(handle_raw) is handle_raw
    handler = app.handlers["legacy"]
    assert (handler.function, handler.run_in, handler.result.keeps) == (handle_raw, "async", False)


def test_a_handler_has_options_like_a_task() -> None:
    app = App("memory://")
    app.handler(queue="legacy", run_in="process", timeout="5s", retry=lambda a, e, j: 1)(handle_raw_for_long)
    handler = app.handlers["legacy"]
    assert (handler.run_in, handler.timeout) == ("process", 5_000)
    assert handler.retry_function is not None


@pytest.mark.parametrize(
    ("options", "function", "says"),
    [
        ({}, handle_raw, "needs the queue whose jobs it takes"),
        ({"queue": "legacy", "name": "x"}, handle_raw, "has no option 'name'"),
        ({"queue": "legacy", "timout": 1}, handle_raw, r"did you mean 'timeout'\?"),
        ({"queue": "a b"}, handle_raw, "cannot be a queue's name"),
        ({"queue": "legacy", "run_in": "thread"}, handle_raw, "an `async def` runs in the event loop"),
        ({"queue": "legacy"}, lambda: None, "takes one argument, the RawJob"),
        ({"queue": "legacy"}, lambda a, b: None, "takes one argument, the RawJob"),
        ({"queue": "legacy"}, "legacy", "decorates a function"),
    ],
)
def test_a_handler_that_makes_no_sense_is_refused(options: Any, function: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        App("memory://").handler(**options)(function)


def test_a_queue_has_one_handler() -> None:
    app = App("memory://")
    app.handler(queue="legacy")(handle_raw)
    with pytest.raises(ConfigError, match="has a handler already"):
        app.handler(queue="legacy")(handle_raw_for_long)


async def timing(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


async def guarding(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


async def tracing(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


def test_middleware_is_registered_for_all_for_a_queue_or_for_a_task() -> None:
    app = App("memory://")
    task = app.task(name="add")(add)
    assert app.around_attempt(task=task)(timing) is timing
    app.around_attempt(queue="mail")(guarding)
    app.around_attempt(tracing)
    assert app.middleware.attempts("mail", "add") == (tracing, guarding, timing)
    assert app.middleware.attempts("other", "other") == (tracing,)


async def async_stamp(new: NewJob) -> NewJob:
    return new


@pytest.mark.parametrize(
    ("register", "function", "says"),
    [
        ("around_attempt", lambda job, call: None, "is an `async def` of"),
        ("around_attempt", async_stamp, r"takes \(job, call\)"),
        ("around_enqueue", async_stamp, "is a plain `def`"),
        ("around_enqueue", lambda: None, r"takes \(new\)"),
        ("on_startup", lambda a, b: None, "a hook takes nothing, or the app"),
        ("on_shutdown", 5, r"app\.on_shutdown\(5\) is not a function"),
    ],
)
def test_what_cannot_be_called_so_is_refused_when_it_is_registered(
    register: str, function: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        getattr(App("memory://"), register)(function)


def test_hooks_are_kept_in_order() -> None:
    app = App("memory://")

    @app.on_startup
    def first() -> None: ...

    @app.on_startup
    async def second(app: App) -> None: ...

    @app.on_drain
    def drain() -> None: ...

    @app.on_shutdown
    def shutdown() -> None: ...

    assert (app.hooks.on_startup, app.hooks.on_drain, app.hooks.on_shutdown) == (
        [first, second],
        [drain],
        [shutdown],
    )
    assert App("memory://").hooks.on_startup == []


def test_a_listener_gets_its_type_of_event() -> None:
    app = App("memory://")
    heard = threading.Event()

    @app.on(JobEnqueued)
    def listen(event: JobEnqueued) -> None:
        heard.set()

    app.task(add).enqueue(1)
    assert heard.wait(60)
    app.close()


def test_listening_to_what_is_no_event_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes a class of events"):
        App("memory://").on(NewJob)  # type: ignore[type-var]


async def _async_listener(event: JobEnqueued) -> None: ...


@pytest.mark.parametrize(
    ("listener", "says"),
    [
        (_async_listener, "a listener is a plain `def`.*an `async def` may be a callback: @app.on_success"),
        (lambda job, error: None, r"app.on\(JobEnqueued\)=<lambda>: it takes \(event\)"),
        (5, r"app.on\(JobEnqueued\)=5 is not a function: it takes \(event\)"),
    ],
)
def test_a_listener_that_cannot_be_called_is_refused_at_once(listener: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        App("memory://").on(JobEnqueued)(listener)


def test_a_method_and_a_builtin_may_listen() -> None:
    app, seen = App("memory://"), list[JobEnqueued]()
    assert app.on(JobEnqueued)(seen.append) == seen.append
    app.task(add).enqueue(1)
    app.close()
    assert [event.task for event in seen] == ["tests.unit.test_app.add"]


# ── raw jobs ─────────────────────────────────────────────────────────────────────────────────────


def test_a_raw_job_keeps_its_bytes() -> None:
    app = App("memory://")
    handle = app.enqueue_raw("legacy", b"\x00\xff", "import", delay="5m", id="x", headers={"a": "b"})
    job = handle.job()
    assert job is not None
    assert (job.spec.payload, job.task, job.queue, job.spec.delay) == (
        b"\x00\xff",
        "import",
        "legacy",
        300_000,
    )
    assert (job.spec.retention, job.spec.headers) == (FINISHED_KEPT, {"a": "b"})


async def test_raw_jobs_may_be_enqueued_async_and_in_bulk() -> None:
    app = App("memory://")
    one = await app.aenqueue_raw("legacy", b"1")
    two, three = await app.aenqueue_many(
        [app.raw_job("legacy", b"2"), app.raw_job("legacy", bytearray(b"3"))]
    )
    payloads = [(await handle.ajob()).spec.payload for handle in (one, two, three)]  # type: ignore[union-attr]
    assert payloads == [b"1", b"2", b"3"]


def test_a_raw_job_has_the_options_of_its_queues_handler() -> None:
    app = App("memory://", timeout="1h")
    app.handler(queue="legacy", timeout="5s", retry=3, priority=7)(handle_raw)
    spec = app.enqueue_raw("legacy", b"").job().spec  # type: ignore[union-attr]
    assert (spec.timeout, spec.retry, spec.priority, spec.retention) == (5_000, Fixed(3_000), 7, 0)
    assert app.enqueue_raw("other", b"").job().spec.timeout == 3_600_000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("error", "queue", "payload", "options", "says"),
    [
        (ArgumentError, "legacy", "text", {}, "the payload is bytes, not 'text'"),
        (ArgumentError, "legacy", b"x" * 101, {}, "takes 101 bytes; the limit is 100"),
        (ConfigError, "a b", b"", {}, "cannot be a queue's name"),
        (ConfigError, "legacy", b"", {"task": "a b"}, "cannot be a task's name"),
        (ConfigError, "legacy", b"", {"dely": 1}, r"did you mean 'delay'\?"),
        (ConfigError, "legacy", b"", {"id": "a b"}, "cannot be a job's id"),
    ],
)
def test_a_raw_job_that_makes_no_sense_is_refused(
    error: type[Exception], queue: str, payload: Any, options: Any, says: str
) -> None:
    with pytest.raises(error, match=says):
        App("memory://", max_payload=100).enqueue_raw(queue, payload, **options)


# ── handles and queues ───────────────────────────────────────────────────────────────────────────


def test_a_handle_is_found_by_queue_and_id() -> None:
    app = App("memory://", queue="low")
    mail = app.task(name="mail", queue="mail")(add)
    assert app.handle("x", "low").queue == "low"
    assert app.handle("x", task=mail).queue == "mail"
    assert app.handle("x", task="mail").queue == "mail"
    assert app.handle("x", "other", task=mail).queue == "other"
    assert app.handle("x", "low", task="elsewhere").task == "elsewhere"


@pytest.mark.parametrize("address", [("a b", "low"), ("a", "a b"), ("", "low")])
def test_an_address_that_is_none_is_refused(address: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be"):
        App("memory://").handle(*address)


def test_a_queue_that_nobody_knows_is_drained() -> None:
    assert App("memory://").drained("nothing", timeout=0)


def test_a_queue_is_drained_when_its_last_job_has_ended() -> None:
    app = App("memory://")
    app.task(add).enqueue(1)
    assert not app.drained("default", timeout=0)

    async def run() -> None:
        async with app.take():
            assert not await app.adrained("default", timeout=0)
        assert await app.adrained("default", timeout=0)

    asyncio.run(run())
    assert app.drained("default", timeout=0)


async def test_draining_is_waited_for() -> None:
    app = App("memory://")
    await app.task(add).aenqueue(1)
    waiting = asyncio.create_task(app.adrained("default", timeout=60))
    async with app.take():
        pass
    assert await waiting


def test_draining_is_waited_for_by_a_thread() -> None:
    app = App("memory://")
    handle = app.task(add).enqueue(1)
    threading.Timer(0.02, handle.cancel).start()
    assert app.drained("default", timeout=60)


async def test_waiting_for_a_queue_is_refused_where_a_loop_runs() -> None:
    with pytest.raises(ConfigError, match=r"use `await app\.adrained\(\)`"):
        App("memory://").drained("default")


# ── the front door ───────────────────────────────────────────────────────────────────────────────


def test_every_public_name_exists() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name).__name__.removeprefix("penstock.") == name
    assert set(penstock.__all__) <= set(dir(penstock))
    assert not hasattr(penstock, "Wroker")


def test_type_checkers_see_the_names_that_the_interpreter_sees() -> None:
    import ast
    import inspect

    seen = [
        alias.name
        for block in ast.parse(inspect.getsource(penstock)).body
        if isinstance(block, ast.If)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    ]
    assert sorted(seen) == penstock.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'penstock' has no attribute 'Ap'"):
        penstock.Ap  # type: ignore[attr-defined]  # noqa: B018


def test_importing_penstock_imports_nothing_of_it() -> None:
    code = "import sys, penstock; print([m for m in sys.modules if m.startswith(('penstock.', 'msgspec'))])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["paused", "closed"])
@pytest.mark.parametrize("value", ["no", 0, "false"])
def test_a_queue_is_paused_and_closed_by_true_and_false_alone(name: Any, value: Any) -> None:
    app = App("memory://")
    with pytest.raises(ConfigError, match=f"{name}={value!r} is neither True nor False"):
        app.queue("mail").settings(**{name: value})
    assert app.store.sync.queues() == []
