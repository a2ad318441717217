"""A task: its decorator's options, its call options, and its function."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from penstock import App, ArgumentError, ConfigError, Handle, NewJob, exponential, steps
from penstock.app.task import AsyncTask, SyncTask
from penstock.core.job import DEFAULT_TIMEOUT, FINISHED_KEPT, MAX_ATTEMPTS
from penstock.core.unique import Unique
from penstock.errors import AttemptCancelled, Snooze, Undecodable
from penstock.events import JobDied
from penstock.retry import Custom, Exponential, Fibonacci, Fixed, Polynomial, Steps, asynq, sidekiq


def add(a: int, b: int = 1) -> int:
    """The sum."""
    return a + b


async def aadd(a: int, b: int = 1) -> int:
    return a + b


def nothing(a: int) -> None: ...


@pytest.fixture
def app() -> App:
    return App("memory://")


def stored(handle: Handle[Any]) -> NewJob:
    """What was put into the store."""
    job = handle.job()
    assert job is not None
    return job.spec


# ── the function ─────────────────────────────────────────────────────────────────────────────────


def test_calling_a_task_is_calling_its_function(app: App) -> None:
    assert app.task(add)(1, b=4) == 5


async def test_calling_an_async_task_is_awaited_as_its_function_is(app: App) -> None:
    assert await app.task(aadd)(1, b=4) == 5


def test_a_task_looks_like_its_function(app: App) -> None:
    task = app.task(add)
    assert (task.__name__, task.__doc__, task.__wrapped__) == ("add", "The sum.", add)  # type: ignore[attr-defined]
    assert inspect.signature(task) == inspect.signature(add)
    assert isinstance(task, SyncTask)
    assert isinstance(app.task(aadd), AsyncTask)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="inspect cannot be told before 3.12")
def test_frameworks_see_that_an_async_task_is_a_coroutine_function(app: App) -> None:
    assert inspect.iscoroutinefunction(app.task(aadd))
    assert not inspect.iscoroutinefunction(app.task(add))


def test_an_attribute_of_the_function_cannot_break_the_task(app: App) -> None:
    @functools.wraps(add)
    def wrapped(a: int) -> int:
        return a

    wrapped.name = "not this"  # type: ignore[attr-defined]
    task = app.task(wrapped)
    assert task.name != "not this"


# ── names ────────────────────────────────────────────────────────────────────────────────────────


def test_a_task_is_named_by_its_module_and_qualified_name(app: App) -> None:
    assert app.task(add).name == f"{__name__}.add"
    assert app.tasks == {f"{__name__}.add": app.tasks[f"{__name__}.add"]}


def test_a_nested_function_is_named_without_the_locals(app: App) -> None:
    @app.task
    def inner() -> None: ...

    assert inner.name == f"{__name__}.test_a_nested_function_is_named_without_the_locals.inner"


def test_two_tasks_cannot_have_the_same_name(app: App) -> None:
    app.task(add)
    with pytest.raises(ConfigError, match=r"has a task '.*\.add' already.*another name="):
        app.task(add)


@pytest.mark.parametrize("function", [lambda: 1, functools.partial(add, 1)])
def test_a_function_without_a_name_must_be_given_one(app: App, function: Any) -> None:
    with pytest.raises(ConfigError, match="no name of its own"):
        app.task(function)
    assert app.task(name="mail.send")(function).name == "mail.send"


@pytest.mark.parametrize("name", ["", "a b", "line\nbreak", "x" * 201, 7])
def test_a_name_that_is_none_is_refused(app: App, name: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be a task's name"):
        app.task(name=name)(add)


SCRIPT = """
from penstock import App
app = App("memory://")
@app.task
def work() -> None: ...
if __name__ == "__main__":
    print(work.name)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "command", "name"),
    [
        ({"tasks.py": SCRIPT}, ["tasks.py"], "tasks.work"),
        ({"shop/__init__.py": "", "shop/tasks.py": SCRIPT}, ["shop/tasks.py"], "shop.tasks.work"),
        ({"shop/__init__.py": "", "shop/tasks.py": SCRIPT}, ["-m", "shop.tasks"], "shop.tasks.work"),
        ({"shop/__main__.py": SCRIPT}, ["-m", "shop"], "shop.__main__.work"),
    ],
)
def test_a_script_names_its_tasks_as_a_worker_that_imports_it(
    tmp_path: Path, files: dict[str, str], command: list[str], name: str
) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    ran = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == name
    module = name.rpartition(".")[0]
    imported = subprocess.run(
        [sys.executable, "-c", f"import {module} as m; print(m.work.name)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert imported.stdout.strip() == name


# ── what may be a task ───────────────────────────────────────────────────────────────────────────


def generator() -> Any:
    yield 1


async def async_generator() -> Any:
    yield 1


class Callable_:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("mail", r"decorates a function, not 'mail'; its options go by keyword"),
        (int, "decorates a function, not <class 'int'>"),
        (generator, "generator is a generator"),
        (async_generator, "async_generator is a generator"),
        (staticmethod(add), "belongs below @staticmethod"),
        (classmethod(add), "does not go with @classmethod"),
    ],
)
def test_what_is_no_function_is_refused(app: App, function: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        app.task(function)


def test_a_task_cannot_become_a_task_again(app: App) -> None:
    with pytest.raises(ConfigError, match=r"add is a task already"):
        App("memory://").task(app.task(add))


@pytest.mark.parametrize(("function", "run_in"), [(add, "thread"), (aadd, "async"), (Callable_(), "async")])
def test_where_a_task_runs_follows_from_its_function(app: App, function: Any, run_in: str) -> None:
    assert app.task(name="x")(function).run_in == run_in


def test_a_function_at_the_top_of_a_module_may_run_in_a_process(app: App) -> None:
    assert app.task(run_in="process")(add).run_in == "process"


@pytest.mark.parametrize(
    ("function", "run_in", "says"),
    [
        (aadd, "thread", "an `async def` runs in the event loop"),
        (aadd, "process", "an `async def` runs in the event loop"),
        (add, "async", "would block the event loop"),
        (add, "procces", "not one of 'async', 'thread', 'process'"),
        (lambda: 1, "process", "needs a function at the top of a module"),
        (functools.partial(add, 1), "process", "needs a function at the top of a module"),
    ],
)
def test_where_a_task_cannot_run_is_said(app: App, function: Any, run_in: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"the task 'x': .*{says}"):
        app.task(name="x", run_in=run_in)(function)


# ── options ──────────────────────────────────────────────────────────────────────────────────────


def test_a_task_without_options_has_the_documented_defaults(app: App) -> None:
    task = app.task(add)
    job = stored(task.enqueue(1))
    assert (job.queue, job.priority, job.delay, job.run_at) == ("default", 0, 0, None)
    assert (job.timeout, job.max_attempts, job.retry) == (DEFAULT_TIMEOUT, MAX_ATTEMPTS, None)
    assert (job.retention, job.unique, job.at_most_once, job.headers) == (FINISHED_KEPT, None, False, None)
    assert job.payload == b'{"a":1}'


def test_every_option_of_a_task_reaches_its_jobs(app: App) -> None:
    task = app.task(
        queue="mail",
        priority=-7,
        max_attempts=3,
        retry="10s",
        timeout=timedelta(seconds=30),
        expires="1h",
        retention="2d",
        unique="5m",
        headers={"team": "a"},
    )(add)
    job = stored(task.enqueue(1))
    assert (job.queue, job.priority, job.max_attempts, job.retry) == ("mail", -7, 3, Fixed(10_000))
    assert (job.timeout, job.expires_in, job.retention) == (30_000, 3_600_000, 2 * 86_400_000)
    assert job.unique is not None
    assert (job.unique.period, job.headers) == (300_000, {"team": "a"})
    assert (task.queue, task.timeout, task.retention, task.unique) == (
        "mail",
        30_000,
        172_800_000,
        Unique(period="5m"),
    )


def test_an_app_sets_the_defaults_of_its_tasks() -> None:
    app = App("memory://", queue="low", timeout=None, max_attempts=2, retry="fibonacci", retention="1h")
    job = stored(app.task(add).enqueue(1))
    assert (job.queue, job.timeout, job.max_attempts, job.retry) == ("low", None, 2, Fibonacci())
    assert job.retention == 3_600_000
    assert app.task(nothing).retention == 0


def test_a_task_that_returns_nothing_keeps_nothing_unless_it_says_so(app: App) -> None:
    assert app.task(nothing).retention == 0
    assert app.task(name="b", retention="1m")(nothing).retention == 60_000
    assert app.task(name="c", retention=None)(add).retention == 0
    assert app.task(name="d")(lambda: 1).retention == FINISHED_KEPT


def test_an_at_most_once_job_has_one_attempt(app: App) -> None:
    job = stored(app.task(delivery="at-most-once")(add).enqueue(1))
    assert (job.at_most_once, job.max_attempts) == (True, 1)


def backoff(attempt: int, error: BaseException, job: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        (None, None),
        (5, Fixed(5_000)),
        ("2m", Fixed(120_000)),
        (timedelta(hours=1), Fixed(3_600_000)),
        ([1, "1m"], Steps((1_000, 60_000))),
        (steps(1, 2), Steps((1_000, 2_000))),
        (exponential("2s"), Exponential(2_000)),
        ("exponential", Exponential()),
        ("polynomial", Polynomial()),
        ("asynq", asynq()),
        ("sidekiq", sidekiq()),
        (backoff, Custom()),
    ],
)
def test_a_retry_rule_may_be_written_in_many_ways(app: App, written: Any, policy: Any) -> None:
    task = app.task(retry=written)(add)
    assert task.retry == policy
    assert task.retry_function is (backoff if written is backoff else None)


async def async_failure(error: Any) -> Any:
    return True


async def async_backoff(attempt: int, error: BaseException, job: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"que": "mail"}, r"no option 'que' \(did you mean 'queue'\?\)"),
        (
            {"zzz": 1},
            "has no option 'zzz'; it has aliases, batch, burst_per_key, concurrency_key, delivery, "
            "discard_on, expires, fair_by, fair_weights, headers, is_failure, keep_dead, max_attempts, "
            "max_running_per_key, name, on_dead, on_failure, on_success, ordered, priority, queue, "
            "rate_per_key, retention, retry, retry_on, run_in, timeout, unique, upgrade",
        ),
        ({"delay": 1}, "no option 'delay'"),
        ({"queue": "a b"}, "cannot be a queue's name"),
        ({"priority": 101}, "priority=101 is not a whole number from -100 to 100"),
        ({"priority": 1.5}, "priority=1.5 is not"),
        ({"priority": True}, "priority=True is not"),
        ({"max_attempts": 0}, "max_attempts=0 is not a whole number of 1 or more"),
        ({"max_attempts": None}, "max_attempts=None is not"),
        ({"timeout": 0}, "timeout=0 would end every attempt at once; None means no limit"),
        ({"timeout": -1}, "timeout=-1 is negative"),
        ({"timeout": "soon"}, "timeout='soon' is not a duration"),
        ({"expires": 0}, "could never start"),
        ({"retention": "-5m"}, "retention='-5m' is negative"),
        ({"keep_dead": -1}, "keep_dead=-1 is negative"),
        ({"unique": 0}, "unique=0 would never be in effect"),
        ({"delivery": "once"}, "neither 'at-least-once' nor 'at-most-once'"),
        ({"delivery": "at-most-once", "max_attempts": 5}, "allows a single attempt"),
        ({"delivery": "at-most-once", "retry": "5m"}, "is never retried: leave retry= out"),
        ({"delivery": "at-most-once", "retry_on": ValueError}, "is never retried: leave retry_on= out"),
        ({"headers": {"a": 1}}, "'a'=1 is not a text"),
        ({"headers": "a"}, "is not a mapping"),
        ({"headers": {"a": "x" * 20_000}}, "the limit is 16000"),
        ({"retry": "polinomial"}, r"did you mean 'polynomial'\?"),
        ({"retry": True}, "for a single attempt use max_attempts=1"),
        ({"retry": []}, "needs at least one delay"),
        ({"retry": -1}, "retry=-1 is negative"),
        ({"retry": lambda attempt: 1}, r"takes \(attempt, error, job\)"),
        ({"retry": async_backoff}, "a plain `def`, not `async def`"),
        ({"retry": steps}, r"call it, as in retry=steps\(…\)"),
        ({"retry": Custom()}, "pass the function itself"),
        ({"retry_on": ()}, "would retry no error: use max_attempts=1"),
        ({"retry_on": "OSError"}, "retry_on='OSError' is not a tuple of exception classes"),
        ({"retry_on": (OSError, "x")}, "retry_on: 'x' is not an exception class"),
        ({"retry_on": OSError()}, "is not a tuple of exception classes"),
        ({"discard_on": (int,)}, "discard_on: <class 'int'> is not an exception class"),
        ({"discard_on": Snooze}, "discard_on: Snooze chooses the outcome itself"),
        ({"discard_on": AttemptCancelled}, "AttemptCancelled is not a failure of the task"),
        ({"retry_on": Undecodable}, "Undecodable always makes the job dead at once"),
        ({"retry_on": OSError, "discard_on": OSError}, "retry_on= and discard_on= both name OSError"),
        ({"is_failure": OSError}, "is not a function: it takes"),
        ({"is_failure": True}, "is_failure=True is not a function"),
        ({"is_failure": lambda: True}, r"takes \(error\) and returns whether"),
        ({"is_failure": async_failure}, "a plain `def`, not `async def`"),
        ({"on_dead": "mail me"}, "on_dead='mail me' is not a function"),
        ({"on_success": lambda job: 1}, r"on_success=.*takes \(job, result\)"),
        ({"on_failure": lambda: 1}, r"on_failure=.*takes \(job, error\)"),
        ({"aliases": "old"}, "aliases='old' is not a tuple of names"),
        ({"aliases": 5}, "aliases=5 is not a tuple of names"),
        ({"aliases": ["a b"]}, "the alias 'a b' cannot be a task's name"),
        ({"aliases": [5]}, "the alias 5 cannot be a task's name"),
        ({"aliases": ["x"]}, "the alias 'x' is listed twice, or is the task's name"),
        ({"aliases": ["a", "a"]}, "the alias 'a' is listed twice"),
        ({"upgrade": {}}, "upgrade={} is not a function"),
        ({"upgrade": lambda: {}}, "takes the old arguments, a dict, and returns the new ones"),
        ({"upgrade": async_failure}, "a plain `def`, not `async def`"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_at_the_decoration(
    app: App, options: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=f"^the task 'x'.*{says}"):
        app.task(name="x", **options)(add)
    assert app.tasks == {}
    assert not app.callbacks.active


# ── one call ─────────────────────────────────────────────────────────────────────────────────────

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_893_499_200_000


def test_a_call_overrules_its_task(app: App) -> None:
    task = app.task(queue="mail", headers={"team": "a", "lang": "en"}, retry=backoff)(add)
    job = stored(
        task.using(
            id="order-17",
            queue="low",
            priority=10,
            delay="5m",
            expires=NOON,
            timeout=None,
            deadline=NOON,
            max_attempts=1,
            retry=[1, 2],
            unique=True,
            retention=0,
            headers={"lang": "de"},
        ).enqueue(1, b=2)
    )
    assert (job.id, job.queue, job.priority, job.delay) == ("order-17", "low", 10, 300_000)
    assert (job.expires_at, job.timeout, job.deadline) == (NOON_MS, None, NOON_MS)
    assert (job.max_attempts, job.retry, job.retention) == (1, Steps((1_000, 2_000)), 0)
    assert job.headers == {"team": "a", "lang": "de"}
    assert job.unique is not None
    assert job.payload == b'{"a":1,"b":2}'
    assert task.queue == "mail"


def test_an_instant_may_be_of_any_zone(app: App) -> None:
    berlin = timezone(timedelta(hours=1))
    handle = app.task(add).using(run_at=datetime(2030, 1, 1, 13, tzinfo=berlin)).enqueue(1)
    assert stored(handle).run_at == NOON_MS


def test_a_call_takes_back_what_its_task_expires_after(app: App) -> None:
    task = app.task(expires="1m")(add)
    assert stored(task.using(expires=None).enqueue(1)).expires_in is None
    assert stored(task.using(expires=NOON).enqueue(1)).expires_in is None


def test_using_may_be_kept_and_used_again(app: App) -> None:
    later = app.task(add).using(delay="5m")
    assert [stored(later.enqueue(n)).delay for n in (1, 2)] == [300_000, 300_000]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dely": 5}, r"no option 'dely' \(did you mean 'delay'\?\)"),
        ({"run_in": "thread"}, "no option 'run_in'"),
        ({"delay": -5}, "delay=-5 is negative"),
        ({"delay": NOON}, "is not a duration"),
        ({"run_at": datetime(2030, 1, 1)}, "is naive"),
        ({"run_at": "tomorrow"}, "is not a datetime"),
        ({"delay": 1, "run_at": NOON}, "give one of them"),
        ({"delay": "10m", "expires": "5m"}, "expire before it is due"),
        ({"run_at": NOON, "expires": NOON}, "expire before it is due"),
        ({"run_at": NOON, "deadline": NOON}, "deadline= is not after its run_at="),
        ({"deadline": "5m"}, "is not a datetime"),
        ({"expires": datetime(2030, 1, 1)}, "is naive"),
        ({"id": "no spaces"}, "cannot be a job's id"),
        ({"id": ""}, "cannot be a job's id"),
        ({"retry": backoff}, "a retry function cannot travel with a job"),
    ],
)
def test_an_option_of_a_call_that_makes_no_sense_is_refused(app: App, options: Any, says: str) -> None:
    task = app.task(name="x")(add)
    with pytest.raises(ConfigError, match=rf"^x\.using\(\).*{says}"):
        task.using(**options)


def test_an_argument_that_does_not_fit_is_refused_and_nothing_is_stored(app: App) -> None:
    task = app.task(name="x")(add)
    for call in (lambda: task.enqueue("1"), lambda: task.enqueue(), lambda: task.job(1, c=2)):  # type: ignore[arg-type,call-arg]
        with pytest.raises(ArgumentError, match=r"^x"):
            call()  # type: ignore[no-untyped-call]
    assert app.store.sync.queues() == []


def test_a_parameter_may_be_called_self(app: App) -> None:
    @app.task
    def odd(self: int, function: int) -> None: ...

    assert odd.job(self=1, function=2).payload == b'{"self":1,"function":2}'


# ── unique ───────────────────────────────────────────────────────────────────────────────────────


def test_the_duplicate_of_a_unique_job_gets_the_existing_handle(app: App) -> None:
    task = app.task(unique=True)(add)
    first, second = task.enqueue(1), task.enqueue(1)
    assert (first.existing, second.existing, second) == (False, True, first)
    assert task.enqueue(2) != first


def test_equal_arguments_are_the_same_however_they_are_written(app: App) -> None:
    @app.task(unique=True)
    def tag(names: set[str], by: dict[str, int]) -> None: ...

    first = tag.enqueue({"a", "b", "c"}, {"x": 1, "y": 2})
    assert tag.enqueue(by={"y": 2, "x": 1}, names={"c", "b", "a"}) == first


def test_what_is_unique_in_one_queue_may_be_in_another(app: App) -> None:
    task = app.task(unique=True)(add)
    assert task.enqueue(1) != task.using(queue="low").enqueue(1)


# ── functions that return what stands for work not done ─────────────────────────────────────────────


def wrapper(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


async def deed(n: int) -> int:
    return n


class Yields:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (wrapper(deed), "deed wraps a function that returns a coroutine, which nobody would await: make the"),
        (functools.partial(wrapper(deed), 1), "wraps a function that returns a coroutine"),
        (wrapper(wrapper(deed)), "wraps a function that returns a coroutine"),
        (wrapper(generator), "generator wraps a function that returns a generator"),
        (wrapper(async_generator), "async_generator wraps a function that returns an async generator"),
        (contextlib.contextmanager(generator), "generator wraps a function that returns a generator"),
        (functools.partial(generator), "is a generator function: calling it returns a generator and runs no"),
        (Yields(), "is a generator function"),
    ],
)
def test_what_would_do_nothing_is_refused_at_its_definition(app: App, function: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        app.task(name="t")(function)
    with pytest.raises(ConfigError, match=says):
        app.handler(queue="raw")(function)


def test_a_wrapper_that_runs_the_coroutine_itself_says_where_it_runs(app: App) -> None:
    @functools.wraps(deed)
    def call(n: int) -> int:
        return asyncio.run(deed(n))

    with pytest.raises(ConfigError, match="say so with run_in='thread'"):
        app.task(call)
    assert app.task(run_in="thread")(call)(2) == 2


async def test_an_async_wrapper_is_an_async_task(app: App) -> None:
    @functools.wraps(generator)
    async def call() -> list[int]:
        return [1]

    task = app.task(name="t")(call)
    assert task.run_in == "async"
    assert app.task(name="partial")(functools.partial(deed, 1)).run_in == "async"


@pytest.mark.parametrize("moment", ["on_success", "on_failure", "on_dead"])
def test_a_callback_that_yields_is_refused(app: App, moment: str) -> None:
    def yields(job: Any, value: Any) -> Iterator[int]:
        yield 1

    with pytest.raises(ConfigError, match="yields is a generator function: calling it returns a generator"):
        getattr(app, moment)(yields)
    with pytest.raises(ConfigError, match="is a generator function"):
        app.task(name="t", **{moment: yields})(deed)


def test_hooks_listeners_and_rules_that_yield_or_wait_are_refused(app: App) -> None:
    def yields(*args: Any) -> Iterator[int]:
        yield 1

    for register in (app.on_startup, app.on_drain, app.on_shutdown, app.on_health, app.on(JobDied)):
        with pytest.raises(ConfigError, match="generator function"):
            register(yields)
    with pytest.raises(ConfigError, match="`async def`"):
        app.around_attempt(yields)
    with pytest.raises(ConfigError, match="plain `def`"):
        app.around_enqueue(yields)
    for option in ("retry", "is_failure"):
        with pytest.raises(ConfigError):
            app.task(name="t", **{option: functools.partial(deed, 1)})(deed)


# ── methods ──────────────────────────────────────────────────────────────────────────────────────


class Mailer:
    def send(self, to: str) -> str:
        return f"{type(self).__name__} to {to}"

    @classmethod
    def of_class(cls, to: str) -> str:
        return f"{cls.__name__} to {to}"

    @staticmethod
    def plain(to: str) -> str:
        return to


def test_a_method_without_its_object_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match=r"Mailer\.send is a method, and no worker has the object"):
        app.task(Mailer.send)
    with pytest.raises(ConfigError, match="does not go with @classmethod: use @staticmethod"):
        app.task(Mailer.__dict__["of_class"])
    with pytest.raises(ConfigError, match="is a method"):

        class _Local:
            @classmethod
            @app.task
            def of_class(cls) -> None: ...


def test_a_method_with_its_object_is_a_task(app: App) -> None:
    tasks = [app.task(method) for method in (Mailer().send, Mailer.of_class, Mailer.plain)]
    assert [task("Ann") for task in tasks] == ["Mailer to Ann", "Mailer to Ann", "Ann"]
    assert [task.name.rpartition(".")[2] for task in tasks] == ["send", "of_class", "plain"]
    assert [list(task.args.signature.parameters) for task in tasks] == [["to"]] * 3


def test_attributes_of_an_object_do_not_hide_those_of_its_task(app: App) -> None:
    class Deed:
        def __init__(self) -> None:
            self.enqueue = self.queue = "its own"

        def __call__(self) -> None: ...

    task = app.task(name="t", queue="mail")(Deed())
    assert task.queue == "mail"
    assert callable(task.enqueue)
