"""Batches: those that collect jobs, those that have started; and the groups of jobs that run as flows."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.core.flow import FlowState
from penstock.inspector import StartedBatchesView
from penstock.web.dashboard.rows import colour_of, flow_row
from penstock.web.dashboard.shared_reads import FRESH_FOUND
from penstock.web.dashboard.view import DashboardAct, DashboardPage, View, card, segment

_COLLECTING, _STARTED, _GROUPS = 100, 30, 10
#: Reads of the store of one search for started batches.
_SEARCH_COST = 4
_OPEN = (FlowState.RUNNING, FlowState.STOPPING)


async def show(view: View) -> dict[str, Any]:
    after, inspector = view.asked("after") or None, view.inspector
    collecting = await view.card("batches", lambda: inspector.batches(limit=_COLLECTING))
    started = await card(_started(view, after))
    groups = await view.card("open flows", lambda: inspector.flows.flows(limit=_GROUPS, states=_OPEN), cost=2)
    return {
        "collecting": collecting,
        "collecting_seen": [one for one in collecting.value or [] if view.sees(one.queue)],
        "started": started,
        "started_seen": [one for one in started.value.batches if view.sees(one.queue)]
        if started.value is not None
        else [],
        "groups": groups,
        "groups_seen": [flow_row(view, flow) for flow in groups.value.flows if view.sees(flow.spec.queue)]
        if groups.value is not None
        else [],
        "colour_of": colour_of,
    }


async def _started(view: View, after: str | None) -> StartedBatchesView:
    """Those of the queues that the visitor may read: a cursor of all may name others."""
    queues = () if view.sees() else tuple(queue.name for queue in await view.queues())
    if not queues and not view.sees():
        return StartedBatchesView([], None)
    read = view.inspector.started_batches
    return await view.read(
        ("started batches", after, queues),
        lambda: read(after=after, limit=_STARTED, queues=queues),
        cost=_SEARCH_COST,
        fresh=FRESH_FOUND,
    )


async def start(view: View) -> Response:
    """Start a collecting batch now."""
    task, key = view.form.get("task"), view.form.get("key")
    batch = await view.inspector.flush_batch(view.queue, task, key)
    if batch is None:
        return view.done(f"The queue {view.queue} collects no such batch now.", "/batches", failed=True)
    await view.audit("batches.flush", f"{view.queue}/{batch}", {"task": task, "key": key})
    return view.done(f"The batch {batch} is available.", f"/jobs/{segment(view.queue)}/{segment(batch)}")


PAGE = DashboardPage(
    name="batches", path="/batches", title="Batches", show=show, navigation="Batches", key="b"
)
ACTS = (DashboardAct(path="/queues/{queue}/batches/start", do=start, act="flush_batch"),)
