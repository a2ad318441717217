"""New arguments for a stored job: checked against the signature of its task, if this app knows the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.app.app import App
from penstock.app.task import Task
from penstock.core.errors import ArgumentError, Undecodable
from penstock.core.job import Job, NewJob

_ENCODE = msgspec.json.Encoder().encode
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def edited_call(
    job: Job, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, app: App | None = None
) -> NewJob:
    """The job's call with these arguments, which are JSON values; all old arguments are replaced.

    - With the task in `app`: the arguments are decoded, checked and encoded as by an enqueue. Partition,
      tenant and batch are computed again, if they were computed from the old arguments.
    - Without: the arguments are stored as they are, either by position or by name.

    Raises ArgumentError if the arguments do not fit.
    """
    task = None if app is None else task_of(app, job)
    if task is None:
        return replace(job.spec, payload=_unchecked(job, args, kwargs))
    new = _call(task, _payload(task, args or (), kwargs or {}))
    try:
        old = _call(task, job.spec.payload, stored=True)
    except (ArgumentError, Undecodable):  # it has not run since its task has changed
        return replace(job.spec, payload=new.payload)
    computed = {
        name: getattr(new, name)
        for name in ("partition", "tenant", "batch_terms")
        if getattr(old, name) == getattr(job.spec, name)
    }
    return replace(job.spec, payload=new.payload, **computed)


def task_of(app: App, job: Job) -> Task[..., Any] | None:
    """The task of a job in this app, by its name or a former one; None if the app has none."""
    return task_named(app, job.task)


def task_named(app: App, name: str) -> Task[..., Any] | None:
    """The task of this name, or of this former name; None if the app has none."""
    return app.tasks.get(name) or next((one for one in app.tasks.values() if name in one.aliases), None)


def _call(task: Task[..., Any], payload: bytes, *, stored: bool = False) -> NewJob:
    """The job of a call whose arguments are in this JSON."""
    try:
        args, kwargs = task.carried.decode(payload) if stored else task.carried.decode_call(payload)
    except Undecodable as error:
        raise ArgumentError(str(error)) from None
    return task.job(*args, **kwargs).new()


def _payload(task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The arguments as `decode_call` reads them: one JSON array or object."""
    if not kwargs:
        return _ENCODE(list(args))
    named = [name for name, one in task.carried.signature.parameters.items() if one.kind in _BY_POSITION]
    if len(args) > len(named):
        raise ArgumentError(f"{task.name}: give all arguments by name, or at most {len(named)} by position")
    twice = kwargs.keys() & set(named[: len(args)])
    if twice:
        raise ArgumentError(f"{task.name}: {', '.join(sorted(twice))} is given by position and by name")
    return _ENCODE({**dict(zip(named, args, strict=False)), **kwargs})


def _unchecked(job: Job, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> bytes:
    if job.spec.batch_terms is not None:  # it carries one element
        if kwargs or args is None or len(args) != 1:
            raise ArgumentError(f"a job of the batch task {job.task!r} has one argument: give it by position")
        return _ENCODE(args[0])
    if args and kwargs:
        raise ArgumentError(
            f"the task {job.task!r} is not known here: give all arguments by position, or all by name"
        )
    return _ENCODE(list(args) if args else dict(kwargs or {}))
