"""One task: its attempts and times as charts, by queue with percentiles, its errors, and who runs it."""

from __future__ import annotations

from typing import Any

from penstock.core.job import State
from penstock.web.access_tokens import Right
from penstock.web.dashboard.cards import Card, card
from penstock.web.dashboard.page import DashboardPage
from penstock.web.dashboard.pages.enqueue import offered_tasks
from penstock.web.dashboard.pages.errors import error_lines
from penstock.web.dashboard.pages.tasks import failed_share, ordered, seen_tasks
from penstock.web.dashboard.statistics_charts import RANGES, range_asked, statistics_charts
from penstock.web.dashboard.view import View

__all__ = ["PAGE"]

_ERRORS = 20
#: States of jobs that a link of the page leads to.
_STATES = (State.AVAILABLE, State.RUNNING, State.RETRYABLE, State.SCHEDULED, State.DEAD, State.PARKED)


async def show(view: View) -> dict[str, Any]:
    name, chosen = view.free_name("task"), range_asked(view)
    found = await seen_tasks(view, chosen.length, name)
    rows = ordered(view, found.value or [])
    return {
        "title": name,
        "task": name,
        "offered": name in offered_tasks(view),
        "states_shown": [state.value for state in _STATES],
        "ranges": RANGES,
        "chosen": chosen,
        "minutes": chosen.length / 60_000,
        "charts": await card(statistics_charts(view, chosen, task=name)),
        "found": found,
        "rows": rows,
        "most": max([one.processed for one in rows], default=0) or 1,
        "share": failed_share,
        "errors": await _errors(view, name),
        "workers": await _workers(view, name),
    }


async def _errors(view: View, name: str) -> Card[Any]:
    read = view.inspector.statistics.errors
    found = await view.card(("errors", name), lambda: read(task=name, limit=1_000))
    seen = [one for one in found.value or [] if view.sees(one.queue)]
    return Card({"lines": error_lines(view, seen[:_ERRORS]), "all": len(seen)}, found.error)


async def _workers(view: View, name: str) -> Card[Any]:
    """The workers that know the task; none for a visitor who may not read all queues."""
    found = await view.card("fleet", lambda: view.inspector.workers(jobs=0), cost=2)
    knowing = [one for one in found.value or [] if name in one.tasks and view.visitor.may(Right.READ)]
    return Card(knowing, found.error)


PAGE = DashboardPage(name="task", path="/tasks/{task}", title="Task", show=show)
