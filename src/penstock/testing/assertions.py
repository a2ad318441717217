"""Assertions about the jobs that an app has enqueued inside `inline(app)`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from penstock.app.app import App
from penstock.app.task import Task
from penstock.client.handle import Handle
from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import format_ms, instant_ms, milliseconds
from penstock.core.job import NewJob
from penstock.testing.recorder import Recorder

#: Facts of a job, beside its arguments, that an assertion may name.
_FACTS = ("queue", "delay", "run_at", "priority", "id", "count")


class Box:
    """Records what an app enqueues. Boxes of one app may be nested; the innermost one is in force."""

    recorder: Recorder
    _boxes: ClassVar[WeakKeyDictionary[App, list[Box]]] = WeakKeyDictionary()

    def enter(self, app: App) -> None:
        self._boxes.setdefault(app, []).append(self)

    def leave(self, app: App) -> None:
        self._boxes[app].remove(self)

    @classmethod
    def of(cls, app: App) -> Box | None:
        """The box that is in force for this app, if there is one."""
        boxes = cls._boxes.get(app)
        return boxes[-1] if boxes else None


class EnqueuedJob:
    """An enqueued job, with its arguments as the task will receive them.

    The job of a node of a flow lacks the arguments that are results of other nodes.
    """

    def __init__(self, app: App, new: NewJob) -> None:
        self._app = app
        self.new = new
        task = app.tasks.get(new.task)
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        if task is not None and new.flow is not None and new.flow.inputs:
            results = {one.name for one in new.flow.inputs}
            known = task.carried.known(new.payload, task.carried.signature.parameters)
            self.kwargs = {name: value for name, value in known.items() if name not in results}
        elif task is not None:
            self.args, self.kwargs = task.carried.decode(new.payload)

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def task(self) -> str:
        return self.new.task

    @property
    def queue(self) -> str:
        return self.new.queue

    @property
    def priority(self) -> int:
        return self.new.priority

    @property
    def headers(self) -> Mapping[str, str]:
        return self.new.headers or {}

    @property
    def delay(self) -> timedelta:
        return timedelta(milliseconds=self.new.delay)

    @property
    def handle(self) -> Handle[Any]:
        """The handle of the job, for its status and result."""
        return self._app.handle(self.new.id, self.new.queue, task=self.new.task or None)

    def __repr__(self) -> str:
        if self.task in self._app.tasks:
            said = [repr(arg) for arg in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
            call = f"{_short(self.task)}({', '.join(said)})"
        else:
            call = f"{self.task or 'a raw job'} {self.new.payload[:60]!r}"
        facts = [f"queue={self.queue!r}"]
        facts += [f"delay={format_ms(self.new.delay)!r}"] if self.new.delay else []
        facts += [f"run_at={self.new.run_at}"] if self.new.run_at is not None else []
        facts += [f"priority={self.priority}"] if self.priority else []
        return f"{call} with {', '.join(facts)}"


def enqueued(app: App, task: Task[..., Any] | str | None = None) -> list[EnqueuedJob]:
    """The jobs that were enqueued inside `inline(app)`, in order: all, or those of one task.

    The list includes jobs that have run. `box.clear()` empties it.
    """
    name = None if task is None else _name(app, task)
    jobs = [job for job in _recorder(app).enqueued if name is None or _name_now(app, job) == name]
    return [EnqueuedJob(app, job) for job in jobs]


def assert_enqueued(app: App, task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> EnqueuedJob:
    """Return the enqueued job of this call. Raises AssertionError, with the jobs found instead, if there is
    none.

    Arguments are compared as the task would receive them, with defaults filled in. Without arguments every
    call of the task matches. `queue`, `delay`, `run_at`, `priority` and `id` are compared with the job;
    `count` is the required number of jobs. A task's own parameter of such a name takes precedence.
    """
    asked = _ExpectedCall(app, task, args, kwargs)
    found = [job for job in enqueued(app) if asked.fits(job)]
    if not found or (asked.count is not None and len(found) != asked.count):
        raise AssertionError(asked.failure(found, enqueued(app)))
    return found[0]


def assert_not_enqueued(app: App, task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> None:
    """Raise AssertionError if a job was enqueued that `assert_enqueued` would find."""
    asked = _ExpectedCall(app, task, args, kwargs)
    found = [job for job in enqueued(app) if asked.fits(job)]
    if found:
        raise AssertionError(f"{asked} should not have been enqueued, but was:{_listed(found)}")


class _ExpectedCall:
    """A call, and the facts that its job must have."""

    def __init__(
        self, app: App, task: Task[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._app = app
        self._name = _name(app, task)
        self._task = app.tasks.get(self._name)
        signature = self._task.carried.signature if self._task else inspect.Signature()
        own = {key for key in kwargs if key in _FACTS and key not in signature.parameters}
        self._facts = {key: value for key, value in kwargs.items() if key in own}
        self.count: int | None = self._facts.pop("count", None)
        self._args = args
        self._kwargs = {key: value for key, value in kwargs.items() if key not in own}
        self._any_call = not args and not self._kwargs
        self._signature = signature
        self._wanted = None if self._any_call else _bound(signature, args, self._kwargs, self._name)

    def fits(self, job: EnqueuedJob) -> bool:
        if _name_now(self._app, job) != self._name or not self._call_fits(job):
            return False
        return all(self._fact_fits(key, value, job.new) for key, value in self._facts.items())

    def _call_fits(self, job: EnqueuedJob) -> bool:
        wanted = self._wanted
        return wanted is None or _bound(self._signature, job.args, job.kwargs, self._name) == wanted

    @staticmethod
    def _fact_fits(key: str, value: Any, new: NewJob) -> bool:
        if key == "delay":
            return new.delay == milliseconds(value, what="delay")
        if key == "run_at":
            return new.run_at == (instant_ms(value) if isinstance(value, datetime) else value)
        return bool(getattr(new, key) == value)

    def failure(self, found: list[EnqueuedJob], there: list[EnqueuedJob]) -> str:
        if found:
            return f"{self} was enqueued {len(found)} time(s), not {self.count}:{_listed(found)}"
        same = [job for job in there if _name_now(self._app, job) == self._name]
        if same:
            return f"{self} was not enqueued; of this task there were:{_listed(same)}"
        if there:
            return f"{self} was not enqueued; of other tasks there were:{_listed(there)}"
        return f"{self} was not enqueued; no job was"

    def __str__(self) -> str:
        said = [repr(arg) for arg in self._args] + [f"{k}={v!r}" for k, v in self._kwargs.items()]
        call = "…" if self._any_call else ", ".join(said)
        facts = ", ".join(f"{key}={value!r}" for key, value in self._facts.items())
        return f"{_short(self._name)}({call})" + (f" with {facts}" if facts else "")


def _bound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> dict[str, Any]:
    """The arguments by name, with defaults filled in."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"{_short(name)} cannot be called like that: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _name_now(app: App, job: NewJob | EnqueuedJob) -> str:
    """The name of the job's task, also of a job that was enqueued under a former one."""
    return app.tasks[job.task].name if job.task in app.tasks else job.task


def _name(app: App, task: Task[..., Any] | str) -> str:
    if isinstance(task, Task):
        return task.name
    if task in app.tasks:
        return app.tasks[task].name
    ends = [name for name, known in app.tasks.items() if name == known.name and _short(name) == task]
    if len(ends) == 1:
        return ends[0]
    raise ConfigError(f"the app has no task {task!r}{did_you_mean(str(task), app.tasks)}")


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _recorder(app: App) -> Recorder:
    box = Box.of(app)
    if box is None:
        raise ConfigError(
            "enqueued jobs are recorded only inside `with penstock.testing.inline(app):`; "
            "enter the block before the code that enqueues"
        )
    return box.recorder


def _listed(jobs: list[EnqueuedJob]) -> str:
    lines = [f"\n  {job!r}" for job in jobs[:10]]
    return "".join(lines) + (f"\n  … and {len(jobs) - 10} more" if len(jobs) > 10 else "")
