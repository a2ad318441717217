"""The list of tasks: how often each is attempted, how many attempts fail, and how long they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.inspector import TaskStatsView
from penstock.web.access_tokens import Right
from penstock.web.dashboard.cards import Card, card
from penstock.web.dashboard.page import DashboardPage
from penstock.web.dashboard.pages.enqueue import offered_tasks
from penstock.web.dashboard.statistics_charts import RANGES, range_asked
from penstock.web.dashboard.view import View

__all__ = ["ORDERS", "PAGE", "failed_share", "ordered", "seen_tasks"]

_MOST_SHOWN = 100
_MOST_IDLE = 100
#: The name under which workers count what they could not start: jobs of tasks that they do not know.
_UNKNOWN = "?"


def failed_share(one: TaskStatsView) -> float:
    """The share of the ended attempts that failed."""
    return one.failed / one.processed if one.processed else 0.0


#: Columns by which the list can be ordered: the largest value comes first.
ORDERS: dict[str, Callable[[TaskStatsView], Any]] = {
    "attempts": lambda one: one.processed,
    "failed": lambda one: (one.failed, failed_share(one)),
    "wait": lambda one: one.wait.p95 or 0.0,
    "p95": lambda one: one.run.p95 or 0.0,
    "total": lambda one: (one.run.mean or 0.0) * one.processed,
}


async def show(view: View) -> dict[str, Any]:
    chosen = range_asked(view)
    found = await seen_tasks(view, chosen.length)
    part = view.asked("name").casefold()
    shown = [one for one in found.value or [] if part in one.task.casefold() or part in one.queue.casefold()]
    return {
        "ranges": RANGES,
        "chosen": chosen,
        "minutes": chosen.length / 60_000,
        "found": found,
        "tasks": ordered(view, shown)[:_MOST_SHOWN],
        "more": max(0, len(shown) - _MOST_SHOWN),
        "most": max([one.processed for one in shown], default=0) or 1,
        "share": failed_share,
        "part": view.asked("name"),
        "offered": offered_tasks(view),
        "idle": await card(_idle(view, found.value or [])) if not part else Card(value=[]),
    }


async def seen_tasks(view: View, span: int, task: str | None = None) -> Card[list[TaskStatsView]]:
    """The statistics of tasks in the queues that the visitor may read."""
    read = view.inspector.statistics.tasks
    found = await view.card(("tasks", None, task, span), lambda: read(span=span, task=task))
    seen = [one for one in found.value or [] if view.sees(one.queue) and one.task != _UNKNOWN]
    return Card(seen, found.error)


def ordered(view: View, tasks: Iterable[TaskStatsView]) -> list[TaskStatsView]:
    """The tasks in the order that the query names; by attempts otherwise."""
    key = ORDERS.get(view.asked("order"), ORDERS["attempts"])
    return sorted(sorted(tasks, key=lambda one: (one.task, one.queue)), key=key, reverse=True)


async def _idle(view: View, active: Sequence[TaskStatsView]) -> list[str]:
    """Names of tasks that the app or a worker knows, and that had no attempt."""
    if not view.visitor.may(Right.READ):
        return []  # a worker's tasks may be of queues that the visitor may not see
    workers = await view.read("fleet", lambda: view.inspector.workers(jobs=0), cost=2)
    known = {name for worker in workers for name in worker.tasks}
    known |= set(view.shared.app.tasks) if view.shared.app is not None else set()
    return sorted(known - {one.task for one in active})[:_MOST_IDLE]


PAGE = DashboardPage(name="tasks", path="/tasks", title="Tasks", show=show, navigation="Tasks", key="t")
