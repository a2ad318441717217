"""The list of jobs. Its address has the filters, the order and the columns, so a link shows the same list."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import ConfigError
from penstock.core.job import TERMINAL, Job, State
from penstock.inspector import JobSearch
from penstock.stores.contract import JobFilter, check_search
from penstock.web.dashboard.job_filters import (
    ORDERS,
    PARAMETERS,
    allowed_filter,
    clean_query,
    filter_asked,
    order_asked,
    orders_of,
    saved_views,
    terms,
)
from penstock.web.dashboard.pulse import totals
from penstock.web.dashboard.shared_reads import FRESH_FOUND, LIVE_STEPS, FoundList
from penstock.web.dashboard.view import Card, DashboardPage, View, card

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
SPANS = (("1h", "last hour"), ("24h", "last 24 hours"), ("7d", "last 7 days"))
#: Parameters that have a field of their own in the form of filters.
_FIELDS = ("text", "task", "since", "worker", "flow")
_REVERSED = {"newest": "oldest", "oldest": "newest", "due": "due-last", "due-last": "due"}
_REVERSED |= {"ended": "ended-first", "ended-first": "ended"}
#: Acts on jobs in the bar of the list. With True, the script does it at once to selected jobs.
ACTS = (("retry", "Retry", True), ("run-now", "Run now", True), ("cancel", "Cancel", False))
MORE_ACTS = (
    *(("reschedule", "Reschedule"), ("move", "Move"), ("duplicate", "Duplicate")),
    *(("complete", "Complete"), ("discard", "Discard"), ("delete", "Delete")),
)


@dataclass
class JobList:
    """A page of jobs. `seen`, `total`: how far the search came, if it is not finished.

    `steps`: of the search. `kept`: it is not repeated while the page is open; the jobs are read again.
    `away`: queues that it could not search, because their part of the store does not answer.
    """

    jobs: list[Job] = field(default_factory=list)
    next: str | None = None
    seen: int = 0
    total: int = 0
    steps: int = 0
    kept: bool = False
    away: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chip:
    """A part of the filter that a click takes away."""

    says: str
    without: str


async def show(view: View) -> dict[str, Any]:
    queues = await view.queues()
    found: Card[JobList]
    filter = JobFilter()
    try:
        filter = filter_asked(view)
        found = await card(_found(view, filter))
    except ConfigError as error:
        found = Card(error=str(error))
    asked, without = view.all_asked("queue"), view.all_asked("not-queue")
    counts = totals([q for q in queues if (not asked or q.name in asked) and q.name not in without])
    order, views = order_asked(view, filter), saved_views(view.request)
    here = clean_query(view.request.url.query)
    return {
        "found": found,
        "counts": counts,
        "matching": _matching(filter, counts),
        "queue_names": [queue.name for queue in queues],
        "chosen_states": view.all_asked("state"),
        "chips": list(_chips(view, filter)),
        "kept": _kept(view),
        "columns": COLUMNS,
        "shown": _columns(view),
        "orders": orders_of(filter.states),
        "order": order,
        "reversed": _REVERSED[order],
        "spans": SPANS,
        "when": _when,
        "searched": number_asked(view, "seen"),
        "filtered": any(view.asked(name) for name in PARAMETERS),
        "views": views,
        "saved_as": next((one.name for one in views if one.query == here), ""),
        "acts": ACTS,
        "more_acts": MORE_ACTS,
        "may_act": view.may_somewhere("bulk.start"),
    }


async def list_jobs(
    view: View, filter: JobFilter, *, order: str | None = None, limit: int | None = _PAGE
) -> JobList:
    """A page of the jobs that match, of the queues that the visitor may read. None: without a limit."""
    allowed = await allowed_filter(view, filter)
    if allowed is None:
        return JobList()
    by, descending, _ = ORDERS[order or order_asked(view, filter)]
    made, began = JobList(), time.monotonic()
    view.shared.reads.count(2)  # the number of jobs to pass, and the first step
    async with aclosing(
        view.inspector.search(
            JobSearch(allowed, by, descending), after=view.asked("after") or None, limit=limit
        )
    ) as steps:
        async for step in steps:
            made.steps += 1
            view.shared.reads.count(1 if made.steps > 1 else 0)
            made.jobs += step.jobs
            made.next, made.seen, made.total, made.away = step.next, step.seen, step.total, step.away
            if time.monotonic() - began > _PATIENCE:
                break
    if limit is not None and len(made.jobs) == limit:
        view.shared.reads.count(1)  # the search looks whether another job matches
    return made


async def _found(view: View, filter: JobFilter) -> JobList:
    """The jobs of the page. If the search for them took long, a page that refreshes itself does not search
    again, but reads again what was found."""
    lists, key = view.shared.found_lists, (view.visitor, view.request.url.query)
    kept = lists.get(key) if view.live else None
    if kept is not None:
        jobs = await _read_again(view, filter, kept)
        return JobList(jobs, kept.next, kept.seen, kept.total, kept=True, away=kept.away)
    made = await list_jobs(view, filter)
    made.kept = made.steps > LIVE_STEPS
    if "x-penstock-part" in view.request.headers:  # the next part of a search, for a page that is open
        return made
    if made.kept:
        refs = tuple(job.ref for job in made.jobs)
        lists.put(key, FoundList(refs, made.next, made.seen, made.total, made.away))
    else:
        lists.drop(key)
    return made


async def _read_again(view: View, filter: JobFilter, found: FoundList) -> list[Job]:
    """Those of the jobs that still match, of the queues that the visitor may read now."""
    allowed = await allowed_filter(view, filter)
    if allowed is None or not found.refs:
        return []
    wanted = check_search(allowed, ORDERS[order_asked(view, filter)][0])
    key = (view.visitor, view.request.url.query, found.refs)
    return await view.read(key, lambda: view.inspector.matching(wanted, found.refs), fresh=FRESH_FOUND)


def number_asked(view: View, name: str) -> int:
    """A number in the query that says how far a search came; 0 for what is none."""
    text = view.asked(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else 0


def _matching(filter: JobFilter, counts: dict[str, int]) -> int | None:
    """The number of jobs that match, if the counters of the queues know it."""
    if filter != JobFilter(filter.queues, filter.states):
        return None
    return sum(n for state, n in counts.items() if not filter.states or state in filter.states)


def _chips(view: View, filter: JobFilter) -> Iterator[Chip]:
    """What is filtered by without a field that shows it."""
    for term in terms(view, filter):
        if term.name in ("header", "not-task"):
            rest = [value for value in view.all_asked(term.name) if value != term.value]
            yield Chip(term.says, view.here(**{term.name: rest or None, "after": None, "seen": None}))
        elif term.name == "until" or (term.name == "since" and view.asked("since") not in dict(SPANS)):
            yield Chip(term.says, view.here(**{term.name: None, "before": None, "after": None, "seen": None}))
    for name in ("not-queue", "not-state", "queue"):
        values = view.all_asked(name)
        for value in values if name != "queue" or len(values) > 1 else ():
            rest = [one for one in values if one != value]
            says = f"{name.replace('-', ' ')} {value}"
            yield Chip(says, view.here(**{name: rest or None, "after": None, "seen": None}))


def _kept(view: View) -> list[tuple[str, str]]:
    """The parameters of the filter that its form has no field for."""
    shown = (*_FIELDS, "order", "column", "after", "seen", "found")
    several = len(view.all_asked("queue")) > 1
    return [
        (name, value)
        for name, value in view.request.query_params.multi_items()
        if value and name not in shown and (name != "queue" or several) and name in PARAMETERS
    ]


def _columns(view: View) -> list[str]:
    asked = view.all_asked("column")
    known = [name for name, _, _ in COLUMNS]
    return [name for name in known if name in asked] or [name for name, _, usual in COLUMNS if usual]


def _when(job: Job) -> tuple[str, int | None]:
    """The instant that matters in the job's state, and what happened then."""
    if job.state in TERMINAL:
        return "ended", job.ended_at
    if job.state is State.RUNNING:
        return "started", job.fetched_at
    return ("enqueued", job.enqueued_at) if job.state is State.AVAILABLE else ("due", job.run_at)


PAGE = DashboardPage(name="jobs", path="/jobs", title="Jobs", show=show, navigation="Jobs", key="j")
