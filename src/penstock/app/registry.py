"""The registrations of an application: tasks, raw handlers, middleware, listeners, hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, get_args, overload

import msgspec

from penstock.app.periodic import PeriodicOptions, of_task
from penstock.app.store_support import check_support
from penstock.app.task import AsyncBatchTask, AsyncTask, Handler, Limits, SyncBatchTask, SyncTask, Task, Using
from penstock.app.task_factory import make_handler, make_task
from penstock.client.client import Client
from penstock.client.middleware import (
    AroundAttempt,
    AroundEnqueue,
    Callbacks,
    MiddlewareStack,
    Moment,
    OnError,
    OnSuccess,
)
from penstock.client.option_readers import check_function, shown_name
from penstock.client.options import HandlerOptions, Options, TaskOptions, refuse_unknown
from penstock.core import lazy
from penstock.core.errors import ConfigError
from penstock.core.events import Event, EventBus, Health
from penstock.core.formats import Duration, milliseconds
from penstock.core.ids import check_queue
from penstock.core.job import RawJob, Ref
from penstock.core.relations import Batch
from penstock.core.schedule import NewEntry, Schedule

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
HandlerT = TypeVar("HandlerT", bound=Callable[[RawJob], Any])
AttemptT = TypeVar("AttemptT", bound=AroundAttempt)
HealthT = TypeVar("HealthT", bound=Callable[[Health], object])
SuccessT = TypeVar("SuccessT", bound=OnSuccess)
ErrorT = TypeVar("ErrorT", bound=OnError)
EnqueueT = TypeVar("EnqueueT", bound=AroundEnqueue)
EventT = TypeVar("EventT", bound=Event)
TaskT = TypeVar("TaskT", bound=Task[..., Any])


class Hooks(msgspec.Struct, frozen=True):
    """The hooks of each worker process in order of registration. A hook takes nothing, or the app."""

    on_startup: list[Callable[..., Any]] = []
    on_drain: list[Callable[..., Any]] = []
    on_shutdown: list[Callable[..., Any]] = []
    #: Functions with the interval between two calls (ms).
    on_health: list[tuple[int, Callable[[Health], object]]] = []


class TaskDecorator(Protocol):
    """The type of `@app.task(...)`: turns a function into its task."""

    @overload  # a coroutine function is a function too, and mypy sees only that
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class BatchDecorator(Protocol):
    """The type of `@app.task(batch=...)`: turns a function of a list into a task of its elements."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[[list[T]], Coroutine[Any, Any, R]], /
    ) -> AsyncBatchTask[T, R]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], R], /) -> SyncBatchTask[T, R]: ...


class Registry:
    """The registering half of an app. Registering opens no connection."""

    def __init__(
        self,
        client: Client,
        middleware: MiddlewareStack,
        events: EventBus,
        defaults: Options,
        limits: Limits,
    ) -> None:
        #: By name, and by the old names (`aliases`) of renamed tasks.
        self.tasks: dict[str, Task[..., Any]] = {}
        self.handlers: dict[str, Handler] = {}
        self.periodic_entries: dict[Ref, NewEntry] = {}
        self.middleware = middleware
        self.events = events
        self.callbacks = Callbacks()
        self.hooks = Hooks()
        self._client = client
        self._defaults = defaults
        self._limits = limits

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(self, /, *, batch: Batch, **options: Unpack[TaskOptions]) -> BatchDecorator: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        batch: Batch | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(queue="mail", timeout="30s", …)`.

        With `batch=Batch(...)` the function takes a list; its jobs are enqueued element by element,
        collected, and run together. Raises ConfigError for an unknown or invalid option, and for a name that
        is taken.
        """

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            task = make_task(function, self._client, self._defaults, self._limits, options, batch)
            calls = _callbacks_in(options, f"the task {task.name!r}")
            self._refuse_taken(task)
            check_support(self._client.made_store, tasks=[task])
            self.tasks.update(dict.fromkeys([task.name, *task.aliases], task))
            self.middleware.rename(task.aliases, task.name)
            self.callbacks.rename(task.aliases, task.name)
            for moment, call in calls.items():
                self.callbacks.add(moment, call, task=task.name)
            return task

        return register if function is None else register(function)

    def _refuse_taken(self, task: Task[..., Any]) -> None:
        for name in (task.name, *task.aliases):
            other = self.tasks.get(name)
            if other is None:
                continue
            if name == task.name == other.name:
                raise ConfigError(f"this app has a task {name!r} already: give one of the two another name=")
            role = "name" if name == task.name else "alias"
            other_role = "name" if name == other.name else "alias"
            raise ConfigError(
                f"{name!r}, {role} of the task {task.name!r}, is {other_role} of the task {other.name!r} "
                "already: remove it from one of the two"
            )

    def handler(self, **options: Unpack[HandlerOptions]) -> Callable[[HandlerT], HandlerT]:
        """Make a function the handler of every raw job of a queue: `@app.handler(queue="legacy")`.

        Returns the function itself.
        """

        def register(function: HandlerT) -> HandlerT:
            handler = make_handler(function, self._defaults, self._limits, options)
            if handler.queue in self.handlers:
                raise ConfigError(f"the queue {handler.queue!r} has a handler already: a queue has one")
            check_support(self._client.made_store, handlers=[handler])
            calls = _callbacks_in(options, f"the handler of the queue {handler.queue!r}")
            self.handlers[handler.queue] = handler
            for moment, call in calls.items():
                self.callbacks.add(moment, call, queue=handler.queue)
            return function

        return register

    @overload
    def periodic(
        self,
        schedule: str | None = None,
        /,
        *,
        task: Task[..., Any] | Using[..., Any],
        **options: Unpack[PeriodicOptions],
    ) -> NewEntry: ...
    @overload
    def periodic(
        self, schedule: str | None = None, /, **options: Unpack[PeriodicOptions]
    ) -> Callable[[TaskT], TaskT]: ...
    def periodic(
        self,
        schedule: str | None = None,
        /,
        *,
        task: Task[..., Any] | Using[..., Any] | None = None,
        **options: Unpack[PeriodicOptions],
    ) -> Any:
        """Make a task periodic: `@app.periodic("*/5 * * * *", tz="Europe/Berlin")` above `@app.task`, or
        `app.periodic(every="30s", task=report, args=[1])`.

        Workers that serve its queue store the entry when they start, and enqueue its jobs. The default for
        `name` is the task's name. Raises ConfigError, or ArgumentError if the arguments do not fit the task.
        """
        who = "app.periodic()"
        refuse_unknown(options, PeriodicOptions.__optional_keys__ | {"task"}, who=who, place="periodic")
        given: dict[str, Any] = dict(options)
        when = Schedule.of(schedule, every=given.pop("every", None), tz=given.pop("tz", None))

        def register(task: Any) -> Any:
            if not isinstance(task, (Task, Using)):
                raise ConfigError(f"{who}: {task!r} is not a task: write @app.periodic(...) above @app.task")
            task._template.refuse_unless(task._client is self._client)
            entry = of_task(task, when, by_code=True, **given)
            if entry.ref in self.periodic_entries:
                raise ConfigError(
                    f"{who}: the queue {entry.ref.queue!r} has an entry {entry.name!r} already: "
                    "give one of the two another name="
                )
            check_support(self._client.made_store, entries=[entry])
            self.periodic_entries[entry.ref] = entry
            return entry

        def decorate(task: TaskT) -> TaskT:
            register(task)
            return task

        return decorate if task is None else register(task)

    @property
    def identities(self) -> dict[str, str]:
        """The oldest name of each renamed task, by its other names: keys, entries and counts go by it."""
        return {name: task.identity for name, task in self.tasks.items() if name != task.identity}

    def queues(self) -> list[str]:
        """The queues of the registered tasks, handlers and periodic entries, in that order."""
        of_tasks = [task.queue for task in self.tasks.values()]
        of_entries = [ref.queue for ref in self.periodic_entries]
        return list(dict.fromkeys([*of_tasks, *self.handlers, *of_entries]))

    @overload
    def around_attempt(self, call: AttemptT, /) -> AttemptT: ...
    @overload
    def around_attempt(
        self, /, *, queue: str | None = None, task: str | Task[..., Any] | None = None
    ) -> Callable[[AroundAttempt], AroundAttempt]: ...
    def around_attempt(
        self,
        call: AroundAttempt | None = None,
        /,
        *,
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
    ) -> Any:
        """Add middleware around attempts of all tasks or one queue or task: `async def timing(job, call)`."""

        def register(call: AroundAttempt) -> AroundAttempt:
            if lazy.returned_by(call) != lazy.ASYNC:
                raise ConfigError(f"{call!r}: middleware around an attempt is an `async def` of (job, call)")
            _check_arguments(call, 2, "middleware around an attempt takes (job, call)")
            self.middleware.add_attempt(call, queue=_queue(queue), task=_task_name(task))
            return call

        return register if call is None else register(call)

    @overload
    def around_enqueue(self, call: EnqueueT, /) -> EnqueueT: ...
    @overload
    def around_enqueue(
        self, /, *, queue: str | None = None, task: str | Task[..., Any] | None = None
    ) -> Callable[[AroundEnqueue], AroundEnqueue]: ...
    def around_enqueue(
        self,
        call: AroundEnqueue | None = None,
        /,
        *,
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
    ) -> Any:
        """Add middleware around enqueues of all tasks or one queue or task: `def stamp(new): return new`."""

        def register(call: AroundEnqueue) -> AroundEnqueue:
            if lazy.returned_by(call):
                raise ConfigError(f"{call!r}: middleware around an enqueue is a plain `def` of (new)")
            _check_arguments(call, 1, "middleware around an enqueue takes (new), the NewJob")
            self.middleware.add_enqueue(call, queue=_queue(queue), task=_task_name(task))
            return call

        return register if call is None else register(call)

    @overload
    def on_success(self, call: SuccessT, /) -> SuccessT: ...
    @overload
    def on_success(
        self, /, *, queue: str | None = None, task: str | Task[..., Any] | None = None
    ) -> Callable[[SuccessT], SuccessT]: ...
    def on_success(
        self,
        call: Any = None,
        /,
        *,
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
    ) -> Any:
        """Register a callback `(job, result)` for completed jobs: `def` or `async def`, run in the worker.

        For all jobs, or those of one queue or task. An error in the callback is logged and has no other
        effect.
        """
        return self._add_callback("on_success", call, queue, task)

    @overload
    def on_failure(self, call: ErrorT, /) -> ErrorT: ...
    @overload
    def on_failure(
        self, /, *, queue: str | None = None, task: str | Task[..., Any] | None = None
    ) -> Callable[[ErrorT], ErrorT]: ...
    def on_failure(
        self,
        call: Any = None,
        /,
        *,
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
    ) -> Any:
        """Register a callback `(job, error)` for failed attempts, whether the job is retried or dead."""
        return self._add_callback("on_failure", call, queue, task)

    @overload
    def on_dead(self, call: ErrorT, /) -> ErrorT: ...
    @overload
    def on_dead(
        self, /, *, queue: str | None = None, task: str | Task[..., Any] | None = None
    ) -> Callable[[ErrorT], ErrorT]: ...
    def on_dead(
        self,
        call: Any = None,
        /,
        *,
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
    ) -> Any:
        """Register a callback `(job, error)` for dead jobs, called after `on_failure`."""
        return self._add_callback("on_dead", call, queue, task)

    def _add_callback(
        self, moment: Moment, call: Any, queue: str | None, task: str | Task[..., Any] | None
    ) -> Any:
        def register(call: Any) -> Any:
            _check_callback(moment, call, f"app.{moment}")
            self.callbacks.add(moment, call, queue=_queue(queue), task=_task_name(task))
            return call

        return register if call is None else register(call)

    def on(self, kind: type[EventT]) -> Callable[[Callable[[EventT], None]], Callable[[EventT], None]]:
        """Listen to a kind of event: `@app.on(JobDied)`. Called in a separate thread; delays no job."""
        if not isinstance(kind, type) or not issubclass(kind, Event):
            raise ConfigError(f"app.on({kind!r}) takes a class of events, as in app.on(JobDied)")

        def register(listener: Callable[[EventT], None]) -> Callable[[EventT], None]:
            _check_listener(listener, f"app.on({kind.__name__})")
            self.events.listen(kind, listener)
            return listener

        return register

    def on_startup(self, hook: F) -> F:
        """Register a hook (`def` or `async def`) for the start of each worker process, before any fetch."""
        return _add_hook(self.hooks.on_startup, hook, "app.on_startup")

    def on_drain(self, hook: F) -> F:
        """Register a hook for when a worker process has stopped fetching and its last jobs still run."""
        return _add_hook(self.hooks.on_drain, hook, "app.on_drain")

    def on_shutdown(self, hook: F) -> F:
        """Register a hook for the end of each worker process, after its last job."""
        return _add_hook(self.hooks.on_shutdown, hook, "app.on_shutdown")

    @overload
    def on_health(self, call: HealthT, /) -> HealthT: ...
    @overload
    def on_health(self, /, *, every: Duration = ...) -> Callable[[HealthT], HealthT]: ...
    def on_health(self, call: Any = None, /, *, every: Duration = "15s") -> Any:
        """Register a callback `(health)`, called in each worker process at its start and once per `every`.

        No job waits for it.
        """
        span = milliseconds(every, what="every")
        if span < _MIN_HEALTH_INTERVAL:
            raise ConfigError(f"app.on_health(every={every!r}) is too often: use 100ms or more")

        def register(call: Any) -> Any:
            check_function(call, 1, "app.on_health", "takes (health)")
            self.hooks.on_health.append((span, call))
            return call

        return register if call is None else register(call)


#: Minimum interval of health callbacks (ms): each one writes to the store.
_MIN_HEALTH_INTERVAL = 100
_MOMENTS: tuple[Moment, ...] = get_args(Moment)


def _callbacks_in(options: Mapping[str, Any], who: str) -> dict[Moment, Any]:
    """The callbacks among these options, checked."""
    found: dict[Moment, Any] = {m: options[m] for m in _MOMENTS if options.get(m) is not None}
    for moment, call in found.items():
        _check_callback(moment, call, f"{who}: {moment}")
    return found


def _check_callback(moment: Moment, call: Any, what: str) -> None:
    says = "(job, result)" if moment == "on_success" else "(job, error)"
    check_function(call, 2, what, f"takes {says}")


def _check_listener(listener: Any, what: str) -> None:
    check_function(listener, 1, what, "takes (event)")
    if lazy.returned_by(listener):
        raise ConfigError(
            f"{what}={shown_name(listener)}: a listener is a plain `def`, called in a thread of its own; "
            "an `async def` may be a callback: @app.on_success, @app.on_failure or @app.on_dead"
        )


def _add_hook(hooks: list[Callable[..., Any]], hook: F, what: str) -> F:
    if not callable(hook):
        raise ConfigError(f"{what}({hook!r:.100}) is not a function: a hook takes nothing, or the app")
    if (why := lazy.refuse_generator(hook)) is not None:
        raise ConfigError(f"{what}({shown_name(hook)}) is a generator function: {why}")
    if inspect.signature(hook).parameters:
        _check_arguments(hook, 1, "a hook takes nothing, or the app")
    hooks.append(hook)
    return hook


def _check_arguments(call: Callable[..., Any], count: int, rule: str) -> None:
    try:
        inspect.signature(call).bind(*[None] * count)
    except TypeError:
        raise ConfigError(f"{call!r}: {rule}") from None


def _queue(queue: str | None) -> str | None:
    return None if queue is None else check_queue(queue)


def _task_name(task: str | Task[..., Any] | None) -> str | None:
    return task.name if isinstance(task, Task) else task
