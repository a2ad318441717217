"""Makes tasks and handlers from functions, and refuses options that do not fit."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.app.task import (
    AsyncBatchTask,
    AsyncTask,
    Handler,
    Limits,
    SyncBatchTask,
    SyncTask,
    Task,
    check_unique,
    check_unique_batch,
)
from penstock.client.client import Client
from penstock.client.key_functions import key_functions_of
from penstock.client.option_readers import RunIn, check_function, shown_name
from penstock.client.options import HandlerOptions, Options, TaskOptions, override, refuse_unknown
from penstock.codec import ArgsCodec, ElementCodec, ResultCodec, UpgradingCodec, result_codec_of
from penstock.core import lazy
from penstock.core.errors import ConfigError
from penstock.core.ids import check_task_name
from penstock.core.relations import Batch


def make_task(
    function: Callable[..., Any],
    client: Client,
    defaults: Options,
    limits: Limits,
    given: TaskOptions,
    batch: Batch | None = None,
) -> Task[..., Any]:
    """Make the task of a function. Raises ConfigError if function and options do not fit."""
    _check_function(function, "@app.task", given)
    name = check_task_name(given["name"] if "name" in given else _name_of(function))
    who = f"the task {name!r}"
    refuse_unknown(given, TaskOptions.__optional_keys__ | {"batch"}, who=who)
    run_in = _run_in(function, given, who)
    aliases = _aliases(given, name, who)
    args = _args_codec(function, given, name, limits.payload, who)
    result = result_codec_of(function, name=name, max_bytes=limits.result)
    options = override(_keeping(defaults, result), given, who=who)
    check_unique(options, function, who)
    key_functions = key_functions_of(function, args, given, who)
    carried = None
    if batch is not None:
        _check_batch(batch, given, who)
        carried = ElementCodec(function, name=name, max_bytes=limits.payload)
        options = msgspec.structs.replace(options, batch=batch)
        check_unique_batch(options, who)
    kinds = (SyncTask, AsyncTask) if batch is None else (SyncBatchTask, AsyncBatchTask)
    kind: type[Task[..., Any]] = kinds[run_in == "async"]
    task = kind(function, client, name, options, run_in, (args, result), aliases, key_functions, carried)
    if run_in != "async":
        return task
    if sys.version_info >= (3, 12):  # frameworks that inspect the task see a coroutine function
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


def make_handler(
    function: Callable[..., Any], defaults: Options, limits: Limits, given: HandlerOptions
) -> Handler:
    """Make the handler of a function. Raises ConfigError if function and options do not fit."""
    _check_function(function, "@app.handler", given)
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
    check_unique(options, None, who)
    return Handler(options.queue, function, options, _run_in(function, given, who), result)


def _keeping(defaults: Options, result: ResultCodec) -> Options:
    """The defaults for a function with this result: without a result the default retention is 0."""
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
            raise ConfigError(
                f"{who}: the alias {alias!r} is listed twice, or is the task's name: leave it out"
            )
    return tuple(names)


def _args_codec(
    function: Callable[..., Any], given: TaskOptions, name: str, max_bytes: int, who: str
) -> ArgsCodec:
    upgrade = given.get("upgrade")
    if upgrade is None:
        return ArgsCodec(function, name=name, max_bytes=max_bytes)
    check_function(upgrade, 1, f"{who}: upgrade", "takes the old arguments, a dict, and returns the new ones")
    if lazy.returned_by(upgrade) == lazy.ASYNC:
        raise ConfigError(f"{who}: upgrade={shown_name(upgrade)} is a plain `def`, not `async def`")
    return UpgradingCodec(function, upgrade, name=name, max_bytes=max_bytes)


def _check_function(function: Any, decorator: str, given: Mapping[str, Any]) -> None:
    if isinstance(function, classmethod):
        raise ConfigError(
            f"{decorator} does not go with @classmethod: use @staticmethod above the task, or a function"
        )
    if isinstance(function, staticmethod):
        raise ConfigError(f"{decorator} belongs below @staticmethod, next to the function")
    if isinstance(function, Task):
        raise ConfigError(f"{function.name} is a task already")
    if not callable(function) or isinstance(function, type):
        raise ConfigError(
            f"{decorator} decorates a function, not {function!r}; its options go by keyword: {decorator}(…=…)"
        )
    if (why := lazy.refuse_generator(function)) is not None:
        raise ConfigError(f"{shown_name(function)} is a generator function: {why}")
    if "run_in" not in given and not lazy.returned_by(function) and (inner := lazy.wrapped_by(function)):
        raise ConfigError(
            f"{shown_name(function)} wraps a function that returns {inner}, which nobody would await: "
            "make the wrapper `async def`, and await the function in it. If it runs the function itself, as "
            "by asyncio.run(), say so with run_in='thread'"
        )
    if _is_method(function):
        raise ConfigError(
            f"{shown_name(function)} is a method, and no worker has the object that it belongs to: write a "
            "function at the top of the module that takes what identifies the object, or a @staticmethod "
            "above the task; a method of an object that each process has, as in app.task(mailer.send), may "
            "be a task"
        )


def _is_method(function: Any) -> bool:
    """Whether it is a function of a class body that takes the object, or the class, as its first argument."""
    qualname = getattr(function, "__qualname__", "").rpartition("<locals>.")[2]
    if "." not in qualname or inspect.ismethod(function):  # a bound method has its object
        return False
    code = getattr(function, "__code__", None)
    return code is not None and code.co_argcount > 0 and code.co_varnames[0] in ("self", "cls")


def _name_of(function: Callable[..., Any]) -> str:
    """`module.qualname`: the same in producers and workers, even if one ran the file as a script."""
    qualname = getattr(function, "__qualname__", "<lambda>")
    if "<lambda>" in qualname:
        raise ConfigError(f"{function!r} has no name of its own: give the task one with name=")
    return f"{_module_of(function)}.{qualname.replace('<locals>.', '')}"


def _module_of(function: Callable[..., Any]) -> str:
    """The function's module; for a script (`__main__`) the name under which its file would be imported."""
    module: str = function.__module__
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.tasks
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:  # defined at an interactive prompt
        return module
    path = Path(file).absolute()
    parts = [path.stem]
    while (path.parent / "__init__.py").is_file():
        path = path.parent
        parts.insert(0, path.name)
    return ".".join(parts)


def _run_in(function: Callable[..., Any], given: HandlerOptions, who: str) -> RunIn:
    is_async = lazy.returned_by(function) == lazy.ASYNC
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
