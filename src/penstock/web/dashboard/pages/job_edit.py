"""New arguments for a job, in the fields of its task; an ended job is retried with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.app.job_edits import edited_call, task_named
from penstock.app.task import Task
from penstock.core.errors import ArgumentError, ConfigError, Undecodable
from penstock.core.formats import json_or_base64
from penstock.core.job import QUEUED, TERMINAL, Job, NewJob, Ref
from penstock.inspector import Change, JobView
from penstock.web.dashboard.json_tree import holds_hidden, json_text
from penstock.web.dashboard.pages.job import read_job
from penstock.web.dashboard.task_form import ArgumentField, argument_fields, fill_from_form, fill_from_job
from penstock.web.dashboard.view import DashboardAct, DashboardPage, View, segment


@dataclass
class _Edit:
    """The form of a job: the fields of its task, or all arguments as JSON in `text`."""

    job: JobView
    task: Task[..., Any] | None = None
    fields: Sequence[ArgumentField] = ()
    text: str = ""
    #: Why the job cannot be edited here; what is wrong with what was sent.
    refusal: str = ""
    problem: str = ""


async def show(view: View) -> dict[str, Any]:
    return _values(view, await _form(view))


async def save(view: View) -> dict[str, Any] | Response:
    """Store the new arguments, and with the button for it retry the job."""
    form = await _form(view)
    if form.refusal:
        return view.done(form.refusal, _path(form.job.queue, form.job.id), failed=True)
    retries = view.form.get("then") == "retry" or form.job.state in TERMINAL
    try:
        rewrite = _rewrite(view, form)
        if rewrite is None:
            form.problem = "Nothing was changed: correct the marked fields."
            return _values(view, form)
        change = await _edited(view, form.job, rewrite, retries=retries)
    except (ArgumentError, ConfigError) as error:
        form.problem = str(error)
        return _values(view, form)
    if change.outcome != "done":
        form.problem = f"{change.says}."
        return _values(view, form)
    addresses = dict.fromkeys((f"{form.job.queue}/{form.job.id}", f"{change.queue}/{change.id}"))
    await view.audit("jobs.edit", list(addresses), {"retry": "yes"} if retries else {})
    return view.done(f"Job {form.job.id}: {change.says}.", _path(change.queue, change.id))


async def _edited(view: View, job: JobView, rewrite: Callable[[Job], NewJob], *, retries: bool) -> Change:
    shown, ref = view.form.get("version"), Ref(job.queue, job.id)
    same = not shown or shown.partition("_")[0] == _version(view, job)
    version = job.version if same else "changed"  # the version of no job: the edit is refused
    if retries:
        return await view.inspector.edit_and_retry(ref, rewrite, version=version, nonce=shown)
    return await view.inspector.edit(ref, rewrite, version=version)


def _version(view: View, job: JobView) -> str:
    """A text that changes with what the form shows of the arguments.

    Not a hash of all arguments, by which hidden ones could be found: somebody would try all values.
    """
    shown = view.shared.redaction.visible_parts(job.spec.payload)
    return sha256(b"\0".join([b"%d" % job.enqueued_at, *shown])).hexdigest()[:16]


# ── the form ─────────────────────────────────────────────────────────────────────────────────────


async def _form(view: View) -> _Edit:
    job = await read_job(view)
    form = _Edit(job)
    form.refusal = _why_not(job)
    if form.refusal:
        return form
    raw = job.spec.payload
    app = view.shared.app
    if app is not None:
        app.import_tasks()
        form.task = task_named(app, job.task)
    if form.task is not None and _fill(form, form.task, raw, view):
        return form
    form.task = None
    if holds_hidden(raw, view.shared.redaction):
        form.refusal = "A rule of this dashboard hides some of its arguments, and the task is not known here."
    form.text = json_text(raw, view.shared.redaction)
    return form


def _fill(form: _Edit, task: Task[..., Any], raw: bytes, view: View) -> bool:
    """Enter the arguments of the job; False if they do not belong to the task as it is now."""
    try:
        arguments = task.carried.raw_by_name(raw)
        form.fields = argument_fields(task, view.shared.redaction)
    except (Undecodable, ConfigError):
        return False
    fill_from_job(form.fields, arguments, view.shared.redaction)
    return True


def _why_not(job: JobView) -> str:
    if job.closed:
        return job.closed
    if job.state not in QUEUED | TERMINAL:
        return f"Its arguments cannot be changed while it is {job.state}."
    if job.members:
        return "It is a batch: its members have the arguments."
    if json_or_base64(job.spec.payload)[0] is None:
        return "Its arguments are not JSON."
    if job.spec.flow is not None and job.state in TERMINAL:
        return "It is a node of a flow: retry it as it is."
    return ""


def _rewrite(view: View, form: _Edit) -> Callable[[Job], NewJob] | None:
    """What makes the new call of a job; None if a field is wrong. Raises ArgumentError."""
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    if form.task is not None:
        arguments = fill_from_form(form.fields, view.form, form.task)
        if any(one.error for one in form.fields):
            return None
        args, kwargs = None, {name: msgspec.Raw(one) for name, one in arguments.items()}
    else:
        form.text = view.form.get("arguments")
        args, kwargs = _unchecked(form)
    app = view.shared.app
    return lambda job: edited_call(job, args, kwargs, app if form.task is not None else None)


def _unchecked(form: _Edit) -> tuple[Sequence[Any] | None, Mapping[str, Any] | None]:
    if form.job.spec.batch_terms is not None:  # it carries one element
        return [msgspec.Raw(form.text.encode())], None
    try:
        found = msgspec.json.decode(form.text, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise ArgumentError(f"the arguments are neither a JSON object nor an array: {error}") from None
    except RecursionError:
        raise ArgumentError("the arguments are nested too deeply") from None
    return (None, found) if isinstance(found, dict) else (found, None)


def _values(view: View, form: _Edit) -> dict[str, Any]:
    return {
        "title": f"Edit {form.job.task}",
        "job": form.job,
        "edit": form,
        # the same form enqueues one copy, however often it is sent
        "version": view.form.get("version") or f"{_version(view, form.job)}_{token_hex(8)}",
        "ended": form.job.state in TERMINAL,
    }


def _path(queue: str, id: str) -> str:
    return f"/jobs/{segment(queue)}/{segment(id)}"


PAGE = DashboardPage(
    name="job_edit", path="/jobs/{queue}/{id}/edit", title="Edit", show=show, refresh="never"
)
ACTS = (DashboardAct(path="/jobs/{queue}/{id}/edit", do=save, act="edit", shows=PAGE),)
