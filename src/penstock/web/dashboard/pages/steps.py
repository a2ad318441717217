"""The durable steps of one job, as they are stored; forms to send signals, and to drop and replace steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.client.signals import sent, signal_of
from penstock.core.errors import ArgumentError
from penstock.core.job import TERMINAL, Ref, State
from penstock.inspector import Change, DurableStepView, StepsView
from penstock.stores.contract import SignalStatus
from penstock.web.dashboard.json_tree import TreeNode, holds_hidden, json_text, json_tree
from penstock.web.dashboard.rows import FlowTableRow, colour_of, flow_row
from penstock.web.dashboard.signal_fields import entered_signal, signal_fields
from penstock.web.dashboard.task_form import ArgumentField
from penstock.web.dashboard.view import DashboardAct, DashboardPage, NotFoundError, View, segment

#: Reads of the store: the job, its steps and values, jobs of a gather and their flow.
_READS = 5
#: Values of steps of one page, as nodes of their trees.
_MOST_NODES = 60
#: Signals that were set aside, of one wait: the last ones.
_MOST_ASIDES = 5
_SENT = {
    SignalStatus.RECEIVED: "The signal is sent: the job has received it.",
    SignalStatus.STORED: "The signal is stored: the job does not wait for it any more.",
    SignalStatus.EXISTS: "A signal with this name and key is stored already; it stays.",
    SignalStatus.REPLACED: "The stored signal has the new data.",
}


@dataclass(frozen=True)
class AsideRow:
    """A signal that was set aside: its data as a tree, and the reason unless a part of the data is hidden."""

    at: int
    why: str
    tree: TreeNode | None


@dataclass(frozen=True)
class StepRow:
    """A step with its result as a tree, the time since the step before, and the flow of its jobs.

    - `fields`: of the form for the signal that it waits for.
    - `droppable`, `replaceable`: which forms it has. `text`: its value in the form, "" if a part is hidden.
    """

    step: DurableStepView
    tree: TreeNode | None
    after: float | None
    flow: FlowTableRow | None
    asides: Sequence[AsideRow]
    fields: Sequence[ArgumentField]
    droppable: bool
    replaceable: bool
    text: str


@dataclass(frozen=True)
class WrongData:
    """Data that was not taken, as it was typed, and why. `step`: whose value it is; "": it is of a signal."""

    name: str
    key: str
    text: str
    error: str
    step: str = ""


async def show(view: View) -> dict[str, Any]:
    return _values(view, await _steps(view))


def _values(
    view: View, found: StepsView, sent: tuple[str, str, Sequence[ArgumentField]] | None = None
) -> dict[str, Any]:
    """The values of the page. `sent`: name and key of a signal, and its fields as a form has sent them."""
    job = found.job
    may = view.may("flows.send", job.queue)
    rows, before = [], job.enqueued_at
    for step in found.steps:
        after = (step.at - before) / 1000 if step.at >= before else None
        fields: Sequence[ArgumentField] = ()
        if may and step.waits and step.kind == "signal":
            is_sent = sent is not None and sent[:2] == (step.name, step.key)
            fields = sent[2] if sent is not None and is_sent else typed_fields(view, step.of)
        rows.append(_row(view, step, after, fields, may and job.state is not State.RUNNING))
        before = step.at
    return {
        "title": job.task,
        "job": job,
        "found": found,
        "rows": rows,
        "colour_of": colour_of,
        "may": may,
        "ended": job.state in TERMINAL,
        "wrong": None,
    }


def _row(
    view: View, step: DurableStepView, after: float | None, fields: Sequence[ArgumentField], editable: bool
) -> StepRow:
    redaction = view.shared.redaction
    raw = None if step.value is None else bytes(step.value)
    tree = None if raw is None else json_tree(raw, redaction, most=_MOST_NODES)
    asides = []
    for one in step.aside[-_MOST_ASIDES:]:
        hides = holds_hidden(bytes(one.data), redaction)
        why = "its data, a part of which is hidden, does not fit" if hides else one.why
        asides.append(AsideRow(one.at, why, json_tree(bytes(one.data), redaction, most=_MOST_NODES)))
    return StepRow(
        step,
        tree,
        after,
        None if step.flow is None else flow_row(view, step.flow),
        asides,
        fields,
        editable and step.kind != "undo",
        editable and not step.waits and step.kind in ("step", "signal", "gather", "first"),
        "" if raw is None or holds_hidden(raw, redaction) else json_text(raw, redaction),
    )


def typed_fields(view: View, schema: msgspec.Raw | None) -> Sequence[ArgumentField]:
    """The fields of a form for the data of a signal; none if it takes any JSON."""
    return () if schema is None else signal_fields(bytes(schema), view.shared.redaction)


async def _steps(view: View) -> StepsView:
    address = f"{view.queue}/{view.id}"
    found = await view.read(("steps", address), lambda: view.inspector.flows.steps(address), cost=_READS)
    if found is None:
        says = "It may have ended and been removed after its retention, or been deleted."
        raise NotFoundError(f"There is no flow or job {view.id} in the queue {view.queue}. {says}")
    return found


async def change(view: View) -> Response | dict[str, Any]:
    """Send a signal, or drop or replace a step: what the form of the page asks for."""
    match view.form.get("act"):
        case "drop":
            return await _drop(view)
        case "set":
            return await _set(view)
    return await _send(view)


async def _drop(view: View) -> Response:
    step = view.form.get("step")
    done = await view.inspector.flows.drop_step(f"{view.queue}/{view.id}", step)
    return await _changed(view, done, "jobs.drop-step", step)


async def _set(view: View) -> Response | dict[str, Any]:
    step, text = view.form.get("step"), view.form.get("data")
    if not text:  # the field of a hidden value is empty
        return await _again(view, WrongData("", "", "", "Enter the new value as JSON.", step))
    try:
        done = await view.inspector.flows.set_step(f"{view.queue}/{view.id}", step, text.encode())
    except ArgumentError as error:
        return await _again(view, WrongData("", "", text, str(error), step))
    return await _changed(view, done, "jobs.set-step", step)


async def _changed(view: View, done: Change, act: str, step: str) -> Response:
    if done.outcome == "done":
        await view.audit(act, f"{done.queue}/{done.id}", {"step": step})
    return view.done(f"Job {done.id}: {done.says}.", _path(view), failed=done.outcome != "done")


async def _send(view: View) -> Response | dict[str, Any]:
    """Send the signal that this job waits for, to this job alone. Wrong data comes back in its field."""
    ref, path = Ref(view.queue, view.id), _path(view)
    name, key = view.form.get("name"), view.form.get("key")
    for other in await view.inspector.refs(ref.id):  # a signal names its receiver by the id alone
        if not view.may("flows.send", other.queue):
            return view.done(
                "Another queue, on which you have no right, has a job of this id.", path, failed=True
            )
    found = await view.inspector.flows.waits([f"{ref.queue}/{ref.id}"])
    waits = [wait for wait in found if (wait.kind, wait.signal, wait.key) == ("signal", name, key)]
    if not waits:
        return view.done("This job does not wait for this signal any more.", path, failed=True)
    text, schema = view.form.get("data"), waits[0].of
    if schema is not None and "typed" in view.form:
        fields = signal_fields(bytes(schema), view.shared.redaction)
        data = entered_signal(fields, view.form, bytes(schema))
        if data is None:
            return {**_values(view, await _steps(view), (name, key, fields)), "refresh": "never"}
        text = data.decode()
    try:
        signal = signal_of(name, key, msgspec.json.decode(text or "null"), ref.id, None, None)
        status = sent(signal, await view.inspector.flows.send(signal))
    except msgspec.DecodeError as error:
        return await _wrong_signal(view, text, f"The data is not JSON, and nothing was sent: {error}")
    except RecursionError:
        return await _wrong_signal(view, text, "The data is nested too deeply, and nothing was sent.")
    except ArgumentError as error:
        return await _wrong_signal(view, text, str(error))
    await view.audit("flows.signal", f"{ref.queue}/{ref.id}", {"name": name, "key": key})
    return view.done(_SENT[status], path, failed=status is not SignalStatus.RECEIVED)


async def _wrong_signal(view: View, text: str, error: str) -> dict[str, Any]:
    return await _again(view, WrongData(view.form.get("name"), view.form.get("key"), text, error))


async def _again(view: View, wrong: WrongData) -> dict[str, Any]:
    """The page with what was typed, which no refresh replaces."""
    return {**await show(view), "wrong": wrong, "refresh": "never"}


def _path(view: View) -> str:
    return f"/jobs/{segment(view.queue)}/{segment(view.id)}/steps"


PAGE = DashboardPage(
    name="steps", path="/jobs/{queue}/{id}/steps", title="Steps", show=show, refresh="always"
)
ACTS = (DashboardAct(path=PAGE.path, do=change, act="flows.send", shows=PAGE),)
