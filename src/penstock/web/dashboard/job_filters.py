"""The filters of the list of jobs, as its address has them, and the views that a browser has saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from penstock.core.errors import ConfigError
from penstock.core.job import State
from penstock.core.text import one_line
from penstock.inspector import FILTERS, JobAct, ends_of_ranges, read_filter
from penstock.stores.contract import JobFilter, JobOrder, check_search
from penstock.web.dashboard.formats import compact, exact
from penstock.web.dashboard.view import DashboardAct, View

_COOKIE = "penstock-views"
_YEAR = 31_536_000
#: How many views are kept, the characters of a name and, as it is stored, of all together: a browser refuses
#: larger cookies.
_MOST_VIEWS, _LONGEST_NAME, _LARGEST = 20, 40, 3_600


@dataclass(frozen=True)
class SavedView:
    """A named query of the list of jobs."""

    name: str
    query: str


def saved_views(request: Request) -> list[SavedView]:
    """The views of this browser. What cannot be read is left out."""
    try:
        pairs = parse_qsl(request.cookies.get(_COOKIE, ""), max_num_fields=_MOST_VIEWS)
    except ValueError:
        return []
    # a query is read and written again, so that a link has nothing in it but parameters
    views = [SavedView(one_line(name)[:_LONGEST_NAME], clean_query(query)) for name, query in pairs]
    return [view for view in views if view.name and view.query]


async def save(view: View) -> Response:
    """Keep the query of the form under a name, in the place of a view with that name."""
    name, query = one_line(view.form.get("name"))[:_LONGEST_NAME].strip(), clean_query(view.form.get("query"))
    if not name:
        raise ConfigError("A view needs a name.")
    if not query:
        raise ConfigError("Choose a filter first: this is the list of all jobs.")
    others = [one for one in saved_views(view.request) if one.name != name]
    if len(others) >= _MOST_VIEWS:
        raise ConfigError(f"{_MOST_VIEWS} views are saved in this browser: remove one first.")
    answer = view.done(f"The view {name} is saved in this browser.", "/jobs")
    return _kept(view, answer, [*others, SavedView(name, query)])


async def remove(view: View) -> Response:
    """Remove a view."""
    name = view.form.get("name")
    answer = view.done(f"The view {name} is removed.", "/jobs")
    return _kept(view, answer, [one for one in saved_views(view.request) if one.name != name])


def _kept(view: View, answer: Response, views: list[SavedView]) -> Response:
    text = urlencode([(one.name, one.query) for one in views], quote_via=quote)
    if len(text) > _LARGEST:
        raise ConfigError("The saved views are too long for a browser to keep: remove one first.")
    path = view.base or "/"
    secure = view.request.url.scheme == "https"
    answer.set_cookie(_COOKIE, text, _YEAR, path=path, secure=secure, httponly=True, samesite="lax")
    return answer


def clean_query(query: str) -> str:
    """A query in the form in which all are compared; "" for what is none."""
    try:
        return urlencode(parse_qsl(query.removeprefix("?"), max_num_fields=200))
    except ValueError:
        return ""


ACTS = (
    DashboardAct(path="/jobs/views", do=save, act="search", somewhere=True),
    DashboardAct(path="/jobs/views/remove", do=remove, act="search", somewhere=True),
)


#: The query parameters that select jobs: the filters of all interfaces, and queues that are left out.
PARAMETERS = (*FILTERS, "not-queue")
ORDERS = {
    "newest": (JobOrder.ENQUEUED, True, "Newest first"),
    "oldest": (JobOrder.ENQUEUED, False, "Oldest first"),
    "due": (JobOrder.DUE, False, "Next due first"),
    "due-last": (JobOrder.DUE, True, "Latest due first"),
    "ended": (JobOrder.ENDED, True, "Latest end first"),
    "ended-first": (JobOrder.ENDED, False, "Earliest end first"),
}
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
    given = {
        name: _all(view, name) if kind.several else [text] if (text := view.asked(name)) else []
        for name, kind in FILTERS.items()
    }
    filter = read_filter(given, now=view.now, written=lambda name, text: f"{name}={text!r:.60}")
    for name in filter.headers:
        if view.shared.redaction.hides(name):
            raise ConfigError(f"header={name!r:.60}: values of this header are hidden")
    return replace(filter, hidden=view.shared.redaction.patterns if filter.text else ())


async def allowed_filter(view: View, filter: JobFilter, act: str | JobAct = "search") -> JobFilter | None:
    """The filter for the queues on which the visitor may do this act; None if there are none.

    Excluded queues are left out here, because a store only knows which queues to look at.
    """
    without = set(_all(view, "not-queue"))
    if view.may(act) and not without:
        return filter
    known = filter.queues or [queue.name for queue in await view.queues()]
    chosen = [name for name in known if view.may(act, name) and name not in without]
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
    for name, end, at in ends_of_ranges(filter):
        yield Term(end, "", f"{name} {'since' if end == 'since' else 'before'} {exact(at)}")


def _all(view: View, name: str) -> list[str]:
    found = list(dict.fromkeys(view.all_asked(name)))
    if len(found) > _MOST:
        raise ConfigError(f"{name}: give at most {compact(_MOST)} of them")
    return found
