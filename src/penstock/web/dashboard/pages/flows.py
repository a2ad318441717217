"""The list of flows: state, progress, age; suspended jobs, with what they wait for; and stored signals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.client.signals import sent, signal_of
from penstock.core.errors import ArgumentError, ConfigError
from penstock.core.flow import FlowState
from penstock.core.job import Job, State
from penstock.inspector import JobSearch, WaitView
from penstock.stores.contract import FlowPage, JobFilter, JobOrder, KeptSignal
from penstock.web.dashboard.json_tree import TreeNode, holds_hidden, json_text, json_tree
from penstock.web.dashboard.rows import colour_of, flow_row
from penstock.web.dashboard.view import Card, DashboardAct, DashboardPage, View, card

_PAGE = 50
#: Suspended jobs that are shown with what they wait for: each costs a read.
_SUSPENDED = 6
#: Stored signals that are shown, and nodes of the tree of each.
_SIGNALS, _MOST_NODES = 20, 30


@dataclass(frozen=True)
class SignalRow:
    """A stored signal with its data as a tree, and as text for its form: "" if a part is hidden.

    `wrong`: what was entered and not taken, and why.
    """

    signal: KeptSignal
    tree: TreeNode | None
    text: str
    wrong: str = ""


async def show(view: View) -> dict[str, Any]:
    chosen = view.all_asked("state")
    page = await card(_page(view, chosen))
    flows = page.value.flows if page.value is not None else []
    waiting = None
    if not chosen and not view.asked("after"):
        waiting = await card(_waiting(view))
    return {
        "page_of_flows": page,
        "rows": [flow_row(view, flow) for flow in flows],
        "chosen": chosen,
        "all_states": [(state.value, colour_of(state.value)) for state in FlowState],
        "colour_of": colour_of,
        "waiting": waiting,
        "signals": await card(_signals(view)) if waiting is not None and view.sees() else None,
        "most_signals": _SIGNALS,
        "searched": (bool(chosen) or not view.sees()) and len(flows) < _PAGE,
    }


async def _page(view: View, chosen: list[str]) -> FlowPage:
    try:
        states = tuple(FlowState(text) for text in chosen)
    except ValueError:
        known = ", ".join(state.value for state in FlowState)
        raise ConfigError(f"state: choose from {known}") from None
    after = view.asked("after") or None
    sees, whose = (None, None) if view.sees() else (view.sees, view.visitor.scopes)
    read = view.inspector.flows.flows
    return await view.read(
        ("flows", states, after, whose),
        lambda: read(after=after, limit=_PAGE, states=states, sees=sees),
        cost=2,
    )


async def _waiting(view: View) -> list[tuple[Job, list[WaitView]]]:
    """The suspended jobs that are due next, and what they wait for."""
    seen = () if view.sees() else tuple(queue.name for queue in await view.queues())
    if not seen and not view.sees():
        return []
    filter = JobFilter(queues=seen, states=(State.SUSPENDED,))
    search = JobSearch(filter, JobOrder.DUE, descending=False)
    jobs = await view.read(("suspended", seen), lambda: _first(view, search), cost=2)
    addresses = [f"{job.queue}/{job.id}" for job in jobs]
    read = view.inspector.flows.waits
    waits = await view.read(("waits", *addresses), lambda: read(addresses), cost=1 + 2 * len(addresses))
    return [(job, [one for one in waits if (one.queue, one.id) == (job.queue, job.id)]) for job in jobs]


async def _signals(view: View) -> list[SignalRow]:
    """The first stored signals, and one more if there are more. They belong to no queue."""
    read = view.inspector.flows.signals
    found = await view.read("signals", lambda: read(limit=_SIGNALS + 1))
    redaction = view.shared.redaction
    rows = []
    for one in found:
        text = "" if holds_hidden(one.data, redaction) else json_text(one.data, redaction)
        rows.append(SignalRow(one, json_tree(one.data, redaction, most=_MOST_NODES), text))
    return rows


async def change_signal(view: View) -> dict[str, Any] | Response:
    """Drop a stored signal, or replace its data. Wrong data comes back in its field."""
    form, flows = view.form, view.inspector.flows
    name, key, flow = form.get("name"), form.get("key"), form.get("flow") or None
    facts = {"name": name, "key": key}
    if form.get("act") == "drop":
        if not await flows.drop_signal(name, key, flow):
            return view.done(_GONE, "/flows", failed=True)
        await view.audit("flows.drop-signal", flow or "", facts)
        return view.done("The signal is dropped.", "/flows")
    if not any(one.flow == flow for one in await flows.signals(name=name, key=key)):
        return view.done(_GONE, "/flows", failed=True)
    text = form.get("data")
    try:
        signal = signal_of(name, key, msgspec.json.decode(text), flow, None, None, replace=True)
        status = sent(signal, await flows.send(signal))
    except msgspec.DecodeError as error:
        return await _not_replaced(view, text, f"The data is not JSON, and nothing was changed: {error}")
    except RecursionError:
        return await _not_replaced(view, text, "The data is nested too deeply, and nothing was changed.")
    except ArgumentError as error:
        return await _not_replaced(view, text, str(error))
    await view.audit("flows.signal", flow or "", {**facts, "replace": "yes"})
    return view.done(f"The signal is {status.value}.", "/flows")


async def _not_replaced(view: View, text: str, error: str) -> dict[str, Any]:
    """The page with what was entered, which no refresh replaces."""
    made = await show(view)
    chosen = (view.form.get("name"), view.form.get("key"), view.form.get("flow") or None)
    signals: Card[list[SignalRow]] = made["signals"] or Card([])
    rows = [
        replace(row, text=text, wrong=error)
        if (row.signal.name, row.signal.key, row.signal.flow) == chosen
        else row
        for row in signals.value or []
    ]
    return {**made, "signals": Card(rows, signals.error), "refresh": "never"}


_GONE = "This signal is not stored any more: a job has received it, or its time is over."


async def _first(view: View, search: JobSearch) -> list[Job]:
    async for step in view.inspector.search(search, limit=_SUSPENDED):
        return step.jobs
    return []


PAGE = DashboardPage(name="flows", path="/flows", title="Flows", show=show, navigation="Flows", key="f")
ACTS = (DashboardAct(path=PAGE.path, do=change_signal, act="flows.drop_signal", shows=PAGE),)
