"""Enqueue a task: a form with a field for each argument, typed by the task's signature."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.app.task import Task
from penstock.client.handle import Handle
from penstock.core.errors import ConfigError, PenstockError
from penstock.web.dashboard.json_tree import Redaction
from penstock.web.dashboard.task_form import (
    ArgumentField,
    argument_fields,
    brief,
    fill_from_form,
    shown_signature,
)
from penstock.web.dashboard.view import DashboardAct, DashboardPage, NotFoundError, View, segment

#: Seconds in which the store has to take the job; a full queue may let its producers wait.
_PATIENCE = 10.0
_WHOLE = re.compile(r"[+-]?\d{1,9}")
_OF_CALL = re.compile(r"\A\S+\.using\(\): ")
#: Options of a call: name, label, what it means, an example.
_OPTIONS = (
    ("queue", "Queue", "", ""),
    ("delay", "Delay", "Time until the job may start.", "5m"),
    ("run_at", "Not before", "Instead of a delay, with a time zone.", "2026-11-20T08:30:00Z"),
    ("expires", "Expires after", "The job is cancelled if it has not started by then.", "1h"),
    ("priority", "Priority", "From -100 to 100; higher starts first.", ""),
    ("timeout", "Timeout", "Of one attempt; none for no limit.", "30s"),
    ("max_attempts", "Attempts", "At most.", ""),
    ("unique_key", "Unique key", "Not enqueued while an unfinished job of the task has this key.", ""),
    ("id", "Id", "Refused if it is taken; generated without one.", ""),
)


@dataclass
class OptionField:
    """An option of the call: what is entered, and what is wrong with it."""

    name: str
    label: str
    says: str
    example: str
    text: str = ""
    error: str = ""


async def show(view: View) -> dict[str, Any]:
    name = view.asked("task")
    if not name:
        return _values(view, None)
    task = _task(view, name)
    options = _option_fields(task)
    for option in options:
        option.text = view.asked(option.name)
    return _values(view, task, argument_fields(task, view.shared.redaction), options)


async def enqueue(view: View) -> dict[str, Any] | Response:
    """Enqueue the job of the form, or show the form again with what is wrong."""
    if not view.form.get("task"):
        return view.done("Choose a task.", "/enqueue", failed=True)
    task = _task(view, view.form.get("task"))
    fields, options = argument_fields(task, view.shared.redaction), _option_fields(task)
    arguments = fill_from_form(fields, view.form, task)
    given = _read_options(view, task, options)
    if any(field.error for field in fields) or any(option.error for option in options):
        return _values(view, task, fields, options, "Nothing was enqueued: correct the marked fields.")
    queue = given.get("queue", task.queue)
    if not view.may("enqueue", queue):
        return _values(view, task, fields, options, f"You have no right to enqueue into {queue}.")
    try:
        handle = await _enqueue(task, arguments, given)
    except (PenstockError, TimeoutError) as error:
        why = _OF_CALL.sub("", str(error)) or f"the store has not taken the job within {_PATIENCE:.0f} s"
        return _values(view, task, fields, options, why)
    await view.audit("jobs.enqueue", f"{handle.queue}/{handle.id}", {"task": task.name})
    says = "An unfinished job has this unique key: this is it." if handle.existing else "Enqueued."
    if not view.offers("/jobs/{queue}/{id}"):
        return view.done(says, f"/queues/{segment(handle.queue)}")
    return view.done(says, f"/jobs/{segment(handle.queue)}/{segment(handle.id)}")


async def _enqueue(task: Task[..., Any], arguments: dict[str, bytes], given: dict[str, Any]) -> Handle[Any]:
    raw = msgspec.json.encode({name: msgspec.Raw(one) for name, one in arguments.items()})
    args, kwargs = task.carried.decode_call(raw)
    async with asyncio.timeout(_PATIENCE):
        return await task.using(**given).aenqueue(*args, **kwargs)


# ── the form ─────────────────────────────────────────────────────────────────────────────────────


def _task(view: View, name: str) -> Task[..., Any]:
    task = _tasks(view).get(name)
    if task is None:
        raise NotFoundError(f"This dashboard knows no task {name:.200}.")
    return task


def _tasks(view: View) -> dict[str, Task[..., Any]]:
    """The tasks, by name, of the queues that the visitor may read."""
    app = view.shared.app
    if app is None:
        return {}
    app.import_tasks()
    return {name: task for name, task in sorted(app.tasks.items()) if view.sees(task.queue)}


def offered_tasks(view: View) -> dict[str, Task[..., Any]]:
    """The tasks, by name, whose forms the visitor is offered."""
    return _tasks(view) if view.may_somewhere("enqueue") else {}


def _option_fields(task: Task[..., Any]) -> list[OptionField]:
    usual = {"queue": task.queue, "priority": str(task.priority), "max_attempts": str(task.max_attempts)}
    return [
        OptionField(name, label, says, usual.get(name, example)) for name, label, says, example in _OPTIONS
    ]


def _read_options(view: View, task: Task[..., Any], options: Sequence[OptionField]) -> dict[str, Any]:
    """The options of the form that are filled in; fields get the errors of the options."""
    given: dict[str, Any] = {}
    for option in options:
        option.text = view.form.get(f"o.{option.name}")
        if not option.text:
            continue
        try:
            value = _value(option.name, option.text)
            task.using(**{option.name: value})  # its errors name the option
        except ConfigError as error:
            option.error = _OF_CALL.sub("", str(error))
        else:
            given[option.name] = value
    return given


def _value(name: str, text: str) -> Any:
    if name in ("priority", "max_attempts") and _WHOLE.fullmatch(text):
        return int(text)
    if name == "timeout" and text.lower() == "none":
        return None
    if name != "run_at":
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r:.60} is not an instant: write 2026-11-20T08:30:00Z") from None


def _values(
    view: View,
    task: Task[..., Any] | None,
    fields: Sequence[ArgumentField] = (),
    options: Sequence[OptionField] = (),
    problem: str = "",
) -> dict[str, Any]:
    return {
        "title": "Enqueue" if task is None else f"Enqueue {task.name}",
        "task": task,
        "about": "" if task is None else inspect.cleandoc(task.__doc__ or ""),
        "tasks": [_row(one, view.shared.redaction) for one in _tasks(view).values()] if task is None else [],
        "has_app": view.shared.app is not None,
        "fields": fields,
        "options": options,
        "problem": problem,
        "open": any(option.text for option in options),
        "queue_names": [q.name for q in view.shared.pulse.latest.queues if view.sees(q.name)],
    }


def _row(task: Task[..., Any], redaction: Redaction) -> dict[str, str]:
    about = inspect.cleandoc(task.__doc__ or "").partition("\n")[0]
    return {"name": task.name, "queue": task.queue, "signature": _signature(task, redaction), "about": about}


def _signature(task: Task[..., Any], redaction: Redaction) -> str:
    try:
        shown = shown_signature(task, redaction)
        return brief(str(shown.replace(return_annotation=inspect.Signature.empty)))
    except ConfigError as error:
        return str(error)


PAGE = DashboardPage(
    name="enqueue",
    path="/enqueue",
    title="Enqueue",
    show=show,
    act="enqueue",
    navigation="Enqueue",
    key="n",
    refresh="never",
)
ACTS = (DashboardAct(path="/enqueue", do=enqueue, act="enqueue", somewhere=True, shows=PAGE),)
