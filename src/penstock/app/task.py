"""A function that can be enqueued."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from penstock.client.client import Client
from penstock.client.handle import Handle
from penstock.client.job_call import JobCall, Template
from penstock.client.key_functions import KeyFunctions, key_functions_of
from penstock.client.options import (
    CallOptions,
    HandlerOptions,
    Options,
    RetryFunction,
    RunIn,
    TaskOptions,
    check_function,
    override,
    override_call,
    refuse_unknown,
    shown_name,
)
from penstock.codec import ArgsCodec, ElementCodec, ResultCodec, UpgradingCodec, result_codec_of
from penstock.core.batch import Batch
from penstock.core.errors import ConfigError
from penstock.core.ids import check_task_name
from penstock.core.retry import RetryPolicy
from penstock.core.text import plain
from penstock.core.unique import Unique

__all__ = [
    "AsyncBatchTask",
    "AsyncTask",
    "Handler",
    "Limits",
    "SyncBatchTask",
    "SyncTask",
    "Task",
    "Using",
    "check_task_name",
    "make_handler",
    "make_task",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Later(Generic[P, R]):
    """What can be called later; the arguments are checked at the call, by type checkers and at run time."""

    def __init__(self, client: Client, template: Template, args: ArgsCodec, id: str = "") -> None:
        self._client = client
        self._template = template
        self._encode = args.encode
        self._id = id

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a job that will make this call; it is safe once this returns.

        Raises ArgumentError where the call does not fit the function, EnqueueError or StoreError where
        the store did not take it.
        """
        return self._client.enqueue(JobCall(self._template, self._encode(args, kwargs), self._id))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """The same, without blocking the event loop; concurrent calls share one write."""
        return await self._client.aenqueue(JobCall(self._template, self._encode(args, kwargs), self._id))

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """The job of this call for `app.enqueue_many`; checked now, stored then."""
        return JobCall(self._template, self._encode(args, kwargs), self._id)


class Limits(msgspec.Struct, frozen=True):
    """How many bytes the arguments of one job may take, and its result."""

    payload: int
    result: int


class Task(_Later[P, R]):
    """A function under a name. Calling it is calling the function; `enqueue` lets a worker call it.

    Made by `@app.task`. Durations are ms here, as in all that Penstock keeps.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        client: Client,
        name: str,
        options: Options,
        run_in: RunIn,
        codecs: tuple[ArgsCodec, ResultCodec],
        aliases: tuple[str, ...] = (),
        key_functions: KeyFunctions | None = None,
        carried: ArgsCodec | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        #: The names that it had before.
        self.aliases = aliases
        self.options = options
        self.run_in: RunIn = run_in
        self.args, self.result = codecs
        self._key_functions = key_functions
        #: What one job carries: the arguments, or of a batch one element of its list.
        self.carried = carried or self.args
        template = Template(name, options, self.result, self.carried, key_functions)
        super().__init__(client, template, self.carried)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Using[P, R]:
        """The same task with other options for this call: `task.using(delay="5m").enqueue(...)`."""
        who = f"{self.name}.using()"
        chosen = override_call(self.options, options, who=who)
        if "unique" in options:
            _check_unique(chosen, self.function, who)
            _check_unique_batch(chosen, who)
        template = Template(self.name, chosen, self.result, self.carried, self._key_functions)
        return Using(self._client, template, self.carried, plain(options.get("id", "")))

    @property
    def queue(self) -> str:
        return self.options.queue

    @property
    def priority(self) -> int:
        return self.options.priority

    @property
    def max_attempts(self) -> int:
        return self.options.max_attempts

    @property
    def retry(self) -> RetryPolicy | None:
        return self.options.retry

    @property
    def retry_function(self) -> RetryFunction | None:
        return self.options.retry_function

    @property
    def timeout(self) -> int | None:
        return self.options.timeout

    @property
    def expires(self) -> int | None:
        return self.options.expires_in

    @property
    def retention(self) -> int:
        return self._template.retention

    @property
    def unique(self) -> Unique | None:
        return self.options.unique

    @property
    def at_most_once(self) -> bool:
        return self.options.at_most_once

    @property
    def batch(self) -> Batch | None:
        return self.options.batch

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


class SyncTask(Task[P, R]):
    """A task made of a `def`: called directly, it returns what the function returns."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """A task made of an `async def`: called directly, it is awaited as the function is."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


class SyncBatchTask(Task[[T], None], Generic[T, R]):
    """A task made of a `def` that takes a list, and is enqueued element by element."""

    def __call__(self, items: list[T], /) -> R:
        result: R = self.function(items)
        return result


class AsyncBatchTask(Task[[T], None], Generic[T, R]):
    """The same, made of an `async def`."""

    def __call__(self, items: list[T], /) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(items)
        return coroutine


class Using(_Later[P, R]):
    """A task with the options of one call; may be kept and used again."""

    def __repr__(self) -> str:
        return f"<Using of {self._template.task}>"


class Handler:
    """A function that takes every raw job of a queue, whatever its name."""

    def __init__(
        self,
        queue: str,
        function: Callable[..., Any],
        options: Options,
        run_in: RunIn,
        result: ResultCodec,
    ) -> None:
        self.queue = queue
        self.function = function
        self.options = options
        self.run_in: RunIn = run_in
        self.result = result

    @property
    def timeout(self) -> int | None:
        return self.options.timeout

    @property
    def retry_function(self) -> RetryFunction | None:
        return self.options.retry_function

    def __repr__(self) -> str:
        return f"<Handler of the queue {self.queue!r}>"


def make_task(
    function: Callable[..., Any],
    client: Client,
    defaults: Options,
    limits: Limits,
    given: TaskOptions,
    batch: Batch | None = None,
) -> Task[..., Any]:
    """The task of this function; raises ConfigError where function and options do not go together."""
    _check_function(function, "@app.task")
    name = check_task_name(given["name"] if "name" in given else _name_of(function))
    who = f"the task {name!r}"
    refuse_unknown(given, TaskOptions.__optional_keys__ | {"batch"}, who=who)
    run_in = _run_in(function, given, who)
    aliases = _aliases(given, name, who)
    args = _args_codec(function, given, name, limits.payload, who)
    result = result_codec_of(function, name=name, max_bytes=limits.result)
    options = override(_keeping(defaults, result), given, who=who)
    _check_unique(options, function, who)
    key_functions = key_functions_of(function, args, given, who)
    carried = None
    if batch is not None:
        _check_batch(batch, given, who)
        carried = ElementCodec(function, name=name, max_bytes=limits.payload)
        options = msgspec.structs.replace(options, batch=batch)
        _check_unique_batch(options, who)
    kinds = (SyncTask, AsyncTask) if batch is None else (SyncBatchTask, AsyncBatchTask)
    kind: type[Task[..., Any]] = kinds[run_in == "async"]
    task = kind(function, client, name, options, run_in, (args, result), aliases, key_functions, carried)
    if run_in != "async":
        return task
    if sys.version_info >= (3, 12):  # so that frameworks which look see what calling it gives
        inspect.markcoroutinefunction(task)
    return task


def _check_batch(batch: object, given: TaskOptions, who: str) -> None:
    if not isinstance(batch, Batch):
        raise ConfigError(
            f"{who}: batch={batch!r} is not a Batch: write batch=Batch(max_size=100, max_wait='5s')"
        )
    if "upgrade" in given:
        raise ConfigError(
            f"{who}: upgrade= does not go with batch=: let the element's type read what was stored before"
        )
    for name in ("concurrency_key", "fair_by"):
        if given.get(name) is not None:
            raise ConfigError(f"{who}: {name}= does not go with batch=: a batch has members of many keys")


def _check_unique_batch(options: Options, who: str) -> None:
    rule = options.unique
    if options.batch is not None and rule is not None and (rule.names is not None or callable(rule.key)):
        raise ConfigError(
            f"{who}: a job of a batch carries one element: unique=True compares it, unique_key= names it; "
            "by= and a function need arguments"
        )


def make_handler(
    function: Callable[..., Any], defaults: Options, limits: Limits, given: HandlerOptions
) -> Handler:
    """The handler of this function; raises ConfigError as `make_task` does."""
    _check_function(function, "@app.handler")
    if "queue" not in given:
        raise ConfigError("@app.handler needs the queue whose jobs it takes: @app.handler(queue='legacy')")
    who = f"the handler of the queue {given['queue']!r}"
    refuse_unknown(given, HandlerOptions.__optional_keys__, who=who)
    result = result_codec_of(function, name=who, max_bytes=limits.result)
    options = override(_keeping(defaults, result), given, who=who)
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise ConfigError(f"{who}: its function takes one argument, the RawJob") from None
    _check_unique(options, None, who)
    return Handler(options.queue, function, options, _run_in(function, given, who), result)


def _keeping(defaults: Options, result: ResultCodec) -> Options:
    """The defaults for a function with this result: who returns nothing keeps nothing, unless it says so."""
    return defaults if result.keeps else msgspec.structs.replace(defaults, retention=0)


def _aliases(given: TaskOptions, name: str, who: str) -> tuple[str, ...]:
    aliases: Any = given.get("aliases", ())
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        raise ConfigError(f"{who}: aliases={aliases!r} is not a tuple of names, as in aliases=('old.name',)")
    names: list[str] = []
    for alias in aliases:
        try:
            names.append(check_task_name(alias))
        except ConfigError:
            raise ConfigError(f"{who}: the alias {alias!r} cannot be a task's name") from None
        if names[-1] == name or names[-1] in names[:-1]:
            raise ConfigError(f"{who}: the alias {alias!r} is there twice, or is its own name: leave it out")
    return tuple(names)


def _args_codec(
    function: Callable[..., Any], given: TaskOptions, name: str, max_bytes: int, who: str
) -> ArgsCodec:
    upgrade = given.get("upgrade")
    if upgrade is None:
        return ArgsCodec(function, name=name, max_bytes=max_bytes)
    check_function(upgrade, 1, f"{who}: upgrade", "takes the old arguments, a dict, and returns the new ones")
    if inspect.iscoroutinefunction(upgrade):
        raise ConfigError(f"{who}: upgrade={shown_name(upgrade)} is a plain `def`, not `async def`")
    return UpgradingCodec(function, upgrade, name=name, max_bytes=max_bytes)


def _check_unique(options: Options, function: Callable[..., Any] | None, who: str) -> None:
    if options.unique is not None:
        try:
            options.unique.check(None if function is None else inspect.signature(function))
        except ConfigError as error:
            raise ConfigError(f"{who}: {error}") from None


def _check_function(function: Any, decorator: str) -> None:
    if isinstance(function, (staticmethod, classmethod)):
        raise ConfigError(f"{decorator} belongs below @{type(function).__name__}, next to the function")
    if isinstance(function, Task):
        raise ConfigError(f"{function.name} is a task already")
    if not callable(function) or isinstance(function, type):
        raise ConfigError(
            f"{decorator} decorates a function, not {function!r}; its options go by keyword: {decorator}(…=…)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{function.__qualname__} is a generator: a worker needs a function that returns")


def _name_of(function: Callable[..., Any]) -> str:
    """`module.qualname`: producers and workers must agree on it, whoever of them ran the file as a script."""
    qualname = getattr(function, "__qualname__", "<lambda>")
    if "<lambda>" in qualname:
        raise ConfigError(f"{function!r} has no name of its own: give the task one with name=")
    return f"{_module_of(function)}.{qualname.replace('<locals>.', '')}"


def _module_of(function: Callable[..., Any]) -> str:
    """The function's module; for a script (`__main__`) the name that importing its file would give it."""
    module = function.__module__
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.tasks
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:  # typed at a prompt
        return module
    path = Path(file).absolute()
    parts = [path.stem]
    while (path.parent / "__init__.py").is_file():
        path = path.parent
        parts.insert(0, path.name)
    return ".".join(parts)


def _run_in(function: Callable[..., Any], given: HandlerOptions, who: str) -> RunIn:
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (not whether, but how it is called)
    )
    chosen = given.get("run_in", "async" if is_async else "thread")
    if chosen not in ("async", "thread", "process"):
        raise ConfigError(f"{who}: run_in={chosen!r} is not one of 'async', 'thread', 'process'")
    if is_async and chosen != "async":
        raise ConfigError(
            f"{who}: an `async def` runs in the event loop; for run_in={chosen!r} make it a plain `def`"
        )
    if not is_async and chosen == "async":
        raise ConfigError(
            f"{who}: a `def` would block the event loop; make it an `async def` for run_in='async'"
        )
    qualname = getattr(function, "__qualname__", "<locals>")
    if chosen == "process" and ("<locals>" in qualname or "<lambda>" in qualname):
        raise ConfigError(
            f"{who}: run_in='process' needs a function at the top of a module, "
            "for the child process imports it by name"
        )
    return chosen
