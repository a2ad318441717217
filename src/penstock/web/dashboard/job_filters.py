"""Filters of jobs as the query of an address, so that a link shows the same jobs, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from penstock.core.duration import instant_ms, milliseconds
from penstock.core.errors import ConfigError
from penstock.core.formats import instant
from penstock.core.job import Ref, State
from penstock.inspector import parse_state
from penstock.stores.contract import JobFilter, JobOrder, TimeRange, check_search
from penstock.web.access_tokens import Right
from penstock.web.dashboard.formats import compact, exact
from penstock.web.dashboard.view import View

__all__ = [
    "FILTERS",
    "ORDERS",
    "Term",
    "allowed_filter",
    "filter_asked",
    "filter_query",
    "has_secrets",
    "order_asked",
    "orders_of",
    "terms",
]

#: The query parameters that select jobs.
FILTERS = (
    *("text", "task", "queue", "state", "worker", "header", "flow", "time", "since", "until", "before"),
    *("not-task", "not-queue", "not-state"),
)
ORDERS = {
    "newest": (JobOrder.ENQUEUED, True, "Newest first"),
    "oldest": (JobOrder.ENQUEUED, False, "Oldest first"),
    "due": (JobOrder.DUE, False, "Next due first"),
    "due-last": (JobOrder.DUE, True, "Last due first"),
    "ended": (JobOrder.ENDED, True, "Ended last first"),
    "ended-first": (JobOrder.ENDED, False, "Ended first first"),
}
_TIMES = ("enqueued", "due", "ended")
#: The most values of one parameter that are looked at, and the most queues that are named in words.
_MOST, _NAMED = 50, 3


@dataclass(frozen=True)
class Term:
    """A part of a filter: the parameter, its value, and both in words."""

    name: str
    value: str
    says: str


def filter_asked(view: View) -> JobFilter:
    """The filter in the query of a request. Raises ConfigError."""
    ranges: dict[str, TimeRange] = {}
    since, until = _instant(view, "since"), _instant(view, "until")
    if since is not None or until is not None:
        ranges[_time(view)] = TimeRange(since, until)
    if (before := _instant(view, "before")) is not None:
        seen = ranges.get("enqueued", TimeRange())
        end = before if seen.until is None else min(before, seen.until)
        ranges["enqueued"] = replace(seen, until=end)
    text, headers = view.asked("text"), dict(_header(text) for text in _all(view, "header"))
    for name in headers:
        if view.shared.redaction.hides(name):
            raise ConfigError(f"header={name!r:.60}: values of this header are hidden")
    filter = JobFilter(
        queues=tuple(_all(view, "queue")),
        states=_states(view),
        task=view.asked("task") or None,
        worker=view.asked("worker") or None,
        flow=_flow(view.asked("flow")),
        headers=headers,
        text=text,
        hidden=view.shared.redaction.patterns if text else (),
        not_tasks=tuple(_all(view, "not-task")),
    )
    return replace(filter, **ranges)


async def allowed_filter(view: View, filter: JobFilter, right: Right = Right.READ) -> JobFilter | None:
    """The filter for the queues on which the visitor has this right; None if there are none.

    Excluded queues are left out here, because a store only knows which queues to look at.
    """
    without = set(_all(view, "not-queue"))
    if view.visitor.may(right) and not without:
        return filter
    known = filter.queues or [queue.name for queue in await view.queues()]
    chosen = [name for name in known if view.visitor.may(right, name) and name not in without]
    return replace(filter, queues=tuple(chosen)) if chosen else None


def order_asked(view: View, filter: JobFilter) -> str:
    """The name of the order in the query, if jobs of the filter's states have it: a click on a state keeps
    the rest of the query."""
    name = view.asked("order", "newest")
    return name if name in orders_of(filter.states) else "newest"


def orders_of(states: tuple[State, ...]) -> dict[str, str]:
    """The orders that jobs of all these states have: names, and in words."""
    return {name: says for name, (by, _, says) in ORDERS.items() if _have(states, by)}


def _have(states: tuple[State, ...], order: JobOrder) -> bool:
    try:
        check_search(JobFilter(states=states), order)
    except ConfigError:
        return False
    return True


def filter_query(filter: JobFilter) -> dict[str, Any]:
    """The query for a filter, with instants in the place of times that move."""
    query: dict[str, Any] = {
        "text": filter.text,
        "task": filter.task,
        "queue": list(filter.queues),
        "state": [state.value for state in filter.states],
        "worker": filter.worker,
        "header": [f"{name}={value}" for name, value in filter.headers.items()],
        "flow": filter.flow and f"{filter.flow.queue}/{filter.flow.id}",
        "not-task": list(filter.not_tasks),
    }
    for name in ("due", "ended"):
        range: TimeRange = getattr(filter, name)
        if range != TimeRange():
            query |= {"time": name, "since": _iso(range.since), "until": _iso(range.until)}
    if "time" in query:
        query["before"] = _iso(filter.enqueued.until)
    else:
        query |= {"since": _iso(filter.enqueued.since), "until": _iso(filter.enqueued.until)}
    return query


def has_secrets(view: View, filter: JobFilter) -> bool:
    """Whether the filter has a header whose value is hidden."""
    return any(view.shared.redaction.hides(name) for name in filter.headers)


def terms(view: View, filter: JobFilter) -> Iterator[Term]:
    """The parts of a filter in words; those of states and queues together in one."""
    if filter.states:
        yield Term("state", "", " or ".join(state.value for state in filter.states))
    if filter.queues:
        more = len(filter.queues) - _NAMED
        named = filter.queues[:_NAMED] + ((f"{more} more",) if more > 0 else ())
        yield Term("queue", "", f"queue {' or '.join(named)}")
    if filter.task:
        yield Term("task", filter.task, f"task {filter.task}")
    for name in filter.not_tasks:
        yield Term("not-task", name, f"not task {name}")
    if filter.text:
        yield Term("text", filter.text, f"text “{filter.text}”")
    if filter.worker:
        yield Term("worker", filter.worker, f"worker {filter.worker}")
    for (name, value), shown in zip(
        filter.headers.items(), view.shared.redaction.apply(filter.headers).values(), strict=True
    ):
        yield Term("header", f"{name}={value}", f"header {name}={shown}")
    if filter.flow:
        yield Term("flow", "", f"flow {filter.flow.queue}/{filter.flow.id}")
    for name in _TIMES:
        range: TimeRange = getattr(filter, name)
        if range.since is not None:
            yield Term("since", "", f"{name} since {exact(_iso(range.since))}")
        if range.until is not None:
            yield Term("until", "", f"{name} before {exact(_iso(range.until))}")


# ── parts of the query ───────────────────────────────────────────────────────────────────────────


def _all(view: View, name: str) -> list[str]:
    found = list(dict.fromkeys(view.all_asked(name)))
    if len(found) > _MOST:
        raise ConfigError(f"{name}: give at most {compact(_MOST)} of them")
    return found


def _states(view: View) -> tuple[State, ...]:
    """The states that are asked for, without those that are excluded."""
    wanted = [parse_state(text) for text in _all(view, "state")]
    without = {parse_state(text) for text in _all(view, "not-state")}
    if not without:
        return tuple(wanted)
    left = tuple(state for state in wanted or State if state not in without)
    if not left:
        raise ConfigError("every state is excluded")
    return left


def _time(view: View) -> str:
    name = view.asked("time", "enqueued")
    if name not in _TIMES:
        raise ConfigError(f"time={name!r:.40} is not one of {', '.join(_TIMES)}")
    return name


def _instant(view: View, name: str) -> int | None:
    """An instant in ms: `2h` before now, or a timestamp."""
    text = view.asked(name)
    if not text:
        return None
    if "T" not in text:
        return view.now - milliseconds(text, what=name)
    try:
        return instant_ms(datetime.fromisoformat(text), what=name)
    except ValueError:
        raise ConfigError(f"{name}={text!r:.40} is not a time: write 2h, or 2026-11-20T08:30:00Z") from None


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


def _iso(ms: int | None) -> str | None:
    return None if ms is None else instant(ms)
