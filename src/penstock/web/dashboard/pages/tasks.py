"""The list of tasks: how often each is attempted, how many attempts fail, and how long they take; and one
task with charts, its numbers by queue, its errors, and who runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.core.job import State
from penstock.inspector import TaskStatsView
from penstock.web.dashboard.pages.enqueue import offered_tasks
from penstock.web.dashboard.pages.errors import error_lines
from penstock.web.dashboard.statistics_charts import RANGES, range_asked, statistics_charts
from penstock.web.dashboard.view import Card, DashboardPage, View, card

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
    found = await view.card(
        ("tasks", None, task, span), lambda: read(span=span, task=task), cost=1 if task is None else 2
    )
    seen = [one for one in found.value or [] if view.sees(one.queue) and one.task != _UNKNOWN]
    return Card(seen, found.error)


def ordered(view: View, tasks: Iterable[TaskStatsView]) -> list[TaskStatsView]:
    """The tasks in the order that the query names; by attempts otherwise."""
    key = ORDERS.get(view.asked("order"), ORDERS["attempts"])
    return sorted(sorted(tasks, key=lambda one: (one.task, one.queue)), key=key, reverse=True)


async def _idle(view: View, active: Sequence[TaskStatsView]) -> list[str]:
    """Names of tasks that the app or a worker knows, and that had no attempt under any name."""
    if not view.sees():
        return []  # a worker's tasks may be of queues that the visitor may not see
    workers = await view.read("fleet", lambda: view.inspector.workers(jobs=0), cost=2)
    known = {name for worker in workers for name in worker.tasks}
    known |= set(view.shared.app.tasks) if view.shared.app is not None else set()
    renamed = await view.read("identities", view.inspector.statistics.identities, cost=2)
    counted = {one.task for one in active}
    return sorted(name for name in known if renamed.get(name, name) not in counted)[:_MOST_IDLE]


PAGE = DashboardPage(name="tasks", path="/tasks", title="Tasks", show=show, navigation="Tasks", key="t")


# ── one task ─────────────────────────────────────────────────────────────────────────────────────

_ERRORS = 20
#: States of jobs that a link of the page leads to.
_STATES = (State.AVAILABLE, State.RUNNING, State.RETRYABLE, State.SCHEDULED, State.DEAD, State.PARKED)


async def show_one(view: View) -> dict[str, Any]:
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
    found = await view.card(("errors", name), lambda: read(task=name, limit=1_000), cost=2)
    seen = [one for one in found.value or [] if view.sees(one.queue)]
    return Card({"lines": error_lines(view, seen[:_ERRORS]), "all": len(seen)}, found.error)


async def _workers(view: View, name: str) -> Card[Any]:
    """The workers that know the task; none for a visitor who may not read all queues."""
    found = await view.card("fleet", lambda: view.inspector.workers(jobs=0), cost=2)
    knowing = [one for one in found.value or [] if name in one.tasks and view.sees()]
    return Card(knowing, found.error)


TASK = DashboardPage(name="task", path="/tasks/{task}", title="Task", show=show_one)
