"""The list of jobs. Its address has the filters, the order and the columns, so a link shows the same list."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from penstock.core.duration import milliseconds
from penstock.core.errors import ConfigError
from penstock.core.job import TERMINAL, Ref, State
from penstock.inspector import JobRow, JobSearch, parse_state
from penstock.stores.contract import JobFilter, JobOrder, TimeRange
from penstock.web.dashboard.cards import Card, card
from penstock.web.dashboard.page import DashboardPage
from penstock.web.dashboard.stream import totals
from penstock.web.dashboard.view import View

__all__ = ["PAGE", "JobList", "filter_asked", "list_jobs"]

_PAGE = 50
#: A page is shown after this many seconds of searching, also if it is not full.
_PATIENCE = 0.12
#: Columns: name, heading, and whether it is shown without being asked for.
COLUMNS = (
    ("task", "Task", True),
    ("id", "Id", True),
    ("queue", "Queue", True),
    ("attempt", "Attempt", True),
    ("when", "When", True),
    ("about", "About", True),
    ("priority", "Priority", False),
    ("enqueued", "Enqueued", False),
    ("due", "Due", False),
    ("worker", "Worker", False),
)
_ORDERS = {
    "newest": (JobOrder.ENQUEUED, True, "Newest first"),
    "oldest": (JobOrder.ENQUEUED, False, "Oldest first"),
    "due": (JobOrder.DUE, False, "Next due first"),
    "ended": (JobOrder.ENDED, True, "Ended last first"),
}
SPANS = (("1h", "last hour"), ("24h", "last 24 hours"), ("7d", "last 7 days"))
_TIMES = ("enqueued", "due", "ended")


@dataclass
class JobList:
    """A page of jobs. `seen`, `total`: how far the search came, if it is not finished."""

    jobs: list[JobRow] = field(default_factory=list)
    next: str | None = None
    seen: int = 0
    total: int = 0


async def show(view: View) -> dict[str, Any]:
    queues = await view.queues()
    found: Card[JobList]
    try:
        found = await card(list_jobs(view, filter_asked(view), [queue.name for queue in queues]))
    except ConfigError as error:
        found = Card(error=str(error))
    asked = view.all_asked("queue")
    return {
        "found": found,
        "counts": totals([queue for queue in queues if not asked or queue.name in asked]),
        "queue_names": [queue.name for queue in queues],
        "chosen_states": view.all_asked("state"),
        "columns": COLUMNS,
        "shown": _columns(view),
        "orders": {name: says for name, (_, _, says) in _ORDERS.items()},
        "spans": SPANS,
        "when": _when,
        "narrowed": any(view.asked(name) for name in ("task", "text", "worker", "header", "since", "flow")),
    }


def filter_asked(view: View) -> JobFilter:
    """The filter in the query of a page. Raises ConfigError."""
    ranges: dict[str, TimeRange] = {}
    if since := view.asked("since"):
        field_name = view.asked("time", "enqueued")
        if field_name not in _TIMES:
            raise ConfigError(f"time={field_name!r:.40} is none of {', '.join(_TIMES)}")
        ranges[field_name] = TimeRange(since=view.now - milliseconds(since, what="since"))
    text, headers = view.asked("text"), dict(_header(text) for text in view.all_asked("header"))
    for name in headers:
        if view.shared.redaction.hides(name):
            raise ConfigError(f"header={name!r:.60}: values of this header are hidden")
    filter = JobFilter(
        queues=tuple(view.all_asked("queue")),
        states=tuple(parse_state(text) for text in view.all_asked("state")),
        task=view.asked("task") or None,
        worker=view.asked("worker") or None,
        flow=_flow(view.asked("flow")),
        headers=headers,
        text=text,
        hidden=view.shared.redaction.patterns if text else (),
    )
    return replace(filter, **ranges)


async def list_jobs(view: View, filter: JobFilter, visible: list[str]) -> JobList:
    """A page of the jobs that match, of the queues that the visitor may read."""
    if not view.may("read"):
        chosen = [name for name in filter.queues or visible if name in visible]
        if not chosen:
            return JobList()
        filter = replace(filter, queues=tuple(chosen))
    order, descending, _ = _ORDERS.get(view.asked("order", "newest"), _ORDERS["newest"])
    search = JobSearch(filter, order, descending)
    made, began = JobList(), time.monotonic()
    async with aclosing(
        view.inspector.search(search, after=view.asked("after") or None, limit=_PAGE)
    ) as steps:
        async for step in steps:
            view.shared.reads.count(1)
            made.jobs += step.jobs
            made.next, made.seen, made.total = step.next, step.seen, step.total
            if time.monotonic() - began > _PATIENCE:
                break
    return made


def _columns(view: View) -> list[str]:
    asked = view.all_asked("column")
    known = [name for name, _, _ in COLUMNS]
    return [name for name in known if name in asked] or [name for name, _, usual in COLUMNS if usual]


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"header={text!r:.60} is not of the form name=value")
    return name, value


def _flow(text: str) -> Ref | None:
    if not text:
        return None
    queue, slash, id = text.rpartition("/")
    if not slash:
        raise ConfigError(f"flow={text!r:.60} is not of the form queue/id")
    return Ref(queue, id)


def _when(job: JobRow) -> tuple[str, str | None]:
    """The instant that matters in the job's state, and what happened then."""
    state = State(job.state)
    if state in TERMINAL:
        return "ended", job.ended_at
    if state is State.RUNNING:
        return "started", job.fetched_at
    return ("enqueued", job.enqueued_at) if state is State.AVAILABLE else ("due", job.due_at)


PAGE = DashboardPage(name="jobs", path="/jobs", title="Jobs", show=show, navigation="Jobs", key="j")
