"""The durable steps of one job: results, timers, gathered jobs, undo runs, and the signal it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.client.signals import sent, signal_of
from penstock.core.errors import ArgumentError
from penstock.core.job import TERMINAL, Ref, State
from penstock.inspector import DurableStepView, StepsView
from penstock.stores.contract import SignalStatus
from penstock.web.access_tokens import Right
from penstock.web.dashboard.flow_rows import FlowRow, flow_row, shade_of
from penstock.web.dashboard.formats import instant_of
from penstock.web.dashboard.json_tree import TreeNode, json_tree
from penstock.web.dashboard.page import DashboardAct, DashboardPage
from penstock.web.dashboard.view import NotFoundError, View, segment

__all__ = ["ACTS", "PAGE"]

#: Reads of the store: the job, its steps and values, jobs of a gather and their flow.
_READS = 5
#: Values of steps of one page, as nodes of their trees.
_MOST_NODES = 60
_SENT = {
    SignalStatus.RECEIVED: "The signal is sent: the job has received it.",
    SignalStatus.STORED: "The signal is stored: the job does not wait for it any more.",
    SignalStatus.EXISTS: "A signal with this name and key is stored already; it stays.",
}


@dataclass(frozen=True)
class StepRow:
    """A step with its result as a tree, the time since the step before, and the flow of its jobs."""

    step: DurableStepView
    tree: TreeNode | None
    after: float | None
    flow: FlowRow | None


@dataclass(frozen=True)
class WrongData:
    """Data for a signal that was not sent, as it was typed, and why."""

    name: str
    key: str
    text: str
    error: str


async def show(view: View) -> dict[str, Any]:
    found = await _steps(view)
    rows, before = [], instant_of(found.job.enqueued_at)
    for step in found.steps:
        at = instant_of(step.at)
        after = (at - before) / 1000 if at is not None and before is not None and at >= before else None
        value = (
            None
            if step.value is None
            else json_tree(bytes(step.value), view.shared.redaction, most=_MOST_NODES)
        )
        flow = None if step.flow is None else flow_row(view, step.flow)
        rows.append(StepRow(step, value, after, flow))
        before = at
    return {
        "title": found.job.task,
        "job": found.job,
        "found": found,
        "rows": rows,
        "shade_of": shade_of,
        "may": view.may("operate", found.job.queue),
        "ended": State(found.job.state) in TERMINAL,
        "wrong": None,
    }


async def _steps(view: View) -> StepsView:
    address = f"{view.queue}/{view.id}"
    found = await view.read(("steps", address), lambda: view.inspector.flows.steps(address), cost=_READS)
    if found is None:
        says = "It may have ended and been removed after its retention, or been deleted."
        raise NotFoundError(f"There is no flow or job {view.id} in the queue {view.queue}. {says}")
    return found


async def send_signal(view: View) -> Response | dict[str, Any]:
    """Send the signal that this job waits for, to this job alone. Wrong data comes back in its field."""
    ref = Ref(view.queue, view.id)
    path = f"/jobs/{segment(ref.queue)}/{segment(ref.id)}/steps"
    name, key = view.form.get("name"), view.form.get("key")
    for other in await view.inspector.refs(ref.id):  # a signal names its receiver by the id alone
        if not view.may("operate", other.queue):
            return view.done(
                "Another queue, on which you have no right, has a job of this id.", path, failed=True
            )
    found = await view.inspector.flows.waits([f"{ref.queue}/{ref.id}"])
    if not any((wait.kind, wait.signal, wait.key) == ("signal", name, key) for wait in found):
        return view.done("This job does not wait for this signal any more.", path, failed=True)
    text = view.form.get("data")
    try:
        signal = signal_of(name, key, msgspec.json.decode(text or "null"), ref.id, None, None)
    except msgspec.DecodeError as error:
        return await _again(view, text, f"The data is not JSON, and nothing was sent: {error}")
    except RecursionError:
        return await _again(view, text, "The data is nested too deeply, and nothing was sent.")
    except ArgumentError as error:
        return await _again(view, text, str(error))
    status = sent(signal, await view.inspector.flows.send(signal))
    await view.audit("flows.signal", f"{ref.queue}/{ref.id}", {"name": name, "key": key})
    return view.done(_SENT[status], path, failed=status is not SignalStatus.RECEIVED)


async def _again(view: View, text: str, error: str) -> dict[str, Any]:
    """The page with what was typed, which no refresh replaces."""
    wrong = WrongData(view.form.get("name"), view.form.get("key"), text, error)
    return {**await show(view), "wrong": wrong, "refresh": "never"}


PAGE = DashboardPage(
    name="steps", path="/jobs/{queue}/{id}/steps", title="Steps", show=show, refresh="always"
)
ACTS = (DashboardAct(path=PAGE.path, do=send_signal, right=Right.OPERATE, shows=PAGE),)
