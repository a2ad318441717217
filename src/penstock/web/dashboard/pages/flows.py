"""The list of flows: state, progress, age; and the jobs that are suspended, with what they wait for."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import ConfigError
from penstock.core.flow import FlowState
from penstock.core.job import State
from penstock.inspector import FlowPageView, JobRow, JobSearch, WaitView
from penstock.stores.contract import JobFilter, JobOrder
from penstock.web.dashboard.cards import card
from penstock.web.dashboard.flow_rows import flow_row, shade_of
from penstock.web.dashboard.page import DashboardPage
from penstock.web.dashboard.view import View

__all__ = ["PAGE"]

_PAGE = 50
#: Suspended jobs that are shown with what they wait for: each costs a read.
_SUSPENDED = 6


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
        "all_states": [(state.value, shade_of(state.value)) for state in FlowState],
        "shade_of": shade_of,
        "waiting": waiting,
        "searched": (bool(chosen) or not view.may("read")) and len(flows) < _PAGE,
    }


async def _page(view: View, chosen: list[str]) -> FlowPageView:
    try:
        states = tuple(FlowState(text) for text in chosen)
    except ValueError:
        known = ", ".join(state.value for state in FlowState)
        raise ConfigError(f"state: choose from {known}") from None
    after = view.asked("after") or None
    sees, whose = (None, None) if view.may("read") else (view.sees, view.visitor.scopes)
    read = view.inspector.flows.flows
    return await view.read(
        ("flows", states, after, whose),
        lambda: read(after=after, limit=_PAGE, states=states, sees=sees),
        cost=2,
    )


async def _waiting(view: View) -> list[tuple[JobRow, list[WaitView]]]:
    """The suspended jobs that are due next, and what they wait for."""
    seen = () if view.may("read") else tuple(queue.name for queue in await view.queues())
    if not seen and not view.may("read"):
        return []
    filter = JobFilter(queues=seen, states=(State.SUSPENDED,))
    search = JobSearch(filter, JobOrder.DUE, descending=False)
    jobs = await view.read(("suspended", seen), lambda: _first(view, search), cost=2)
    addresses = [f"{job.queue}/{job.id}" for job in jobs]
    read = view.inspector.flows.waits
    waits = await view.read(("waits", *addresses), lambda: read(addresses), cost=1 + 2 * len(addresses))
    return [(job, [one for one in waits if (one.queue, one.id) == (job.queue, job.id)]) for job in jobs]


async def _first(view: View, search: JobSearch) -> list[JobRow]:
    async for step in view.inspector.search(search, limit=_SUSPENDED):
        return step.jobs
    return []


PAGE = DashboardPage(name="flows", path="/flows", title="Flows", show=show, navigation="Flows", key="f")
