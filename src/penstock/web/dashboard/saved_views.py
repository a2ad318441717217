"""Saved views: named filters of the list of jobs, in a cookie, so that each browser has its own."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from penstock.core.errors import ConfigError
from penstock.core.text import one_line
from penstock.web.access_tokens import Right
from penstock.web.dashboard.page import DashboardAct
from penstock.web.dashboard.view import View

__all__ = ["ACTS", "SavedView", "clean_query", "saved_views"]

_COOKIE = "penstock-views"
_YEAR = 31_536_000
#: How many views are kept, the characters of a name and, as it is stored, of all together: a browser refuses
#: larger cookies.
_MOST, _LONGEST_NAME, _LARGEST = 20, 40, 3_600


@dataclass(frozen=True)
class SavedView:
    """A named query of the list of jobs."""

    name: str
    query: str


def saved_views(request: Request) -> list[SavedView]:
    """The views of this browser. What cannot be read is left out."""
    try:
        pairs = parse_qsl(request.cookies.get(_COOKIE, ""), max_num_fields=_MOST)
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
    if len(others) >= _MOST:
        raise ConfigError(f"{_MOST} views are saved in this browser: remove one first.")
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
    DashboardAct(path="/jobs/views", do=save, right=Right.READ, somewhere=True),
    DashboardAct(path="/jobs/views/remove", do=remove, right=Right.READ, somewhere=True),
)
