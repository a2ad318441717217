"""What a page and an act are: each is one entry in the table of `pages/__init__.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from starlette.responses import Response

from penstock.web.access_tokens import Right
from penstock.web.dashboard.view import View

__all__ = ["DashboardAct", "DashboardPage", "Refresh"]

#: When an open page refreshes itself: never, if the size of a queue has changed, or at each interval.
Refresh = Literal["never", "changed", "always"]


@dataclass(frozen=True, kw_only=True)
class DashboardPage:
    """A page of the dashboard.

    - `name`: the name of its template, `templates/pages/NAME.html`.
    - `path`: below the dashboard's own path. A part `{queue}` is the queue on which the right is needed.
    - `show`: returns the values for the template, or an answer of its own, such as a redirect.
    - `navigation`: its name in the navigation; "" if it has no place there. `key`: the letter of the keyboard
      shortcut `g` and then this letter. `offered_to`: who sees it there.
    """

    name: str
    path: str
    title: str
    show: Callable[[View], Awaitable[Mapping[str, Any] | Response]]
    right: Right = Right.READ
    navigation: str = ""
    key: str = ""
    offered_to: Right = Right.READ
    refresh: Refresh = "changed"


@dataclass(frozen=True, kw_only=True)
class DashboardAct:
    """A change: a form is sent to `path`. `do` does it, and returns an answer, mostly `view.done(...)`.

    Without `{queue}` in its path, the right is needed on all queues, or with `somewhere` on any queue: then
    `do` checks it on the queues that it changes. With `shows`, `do` may also return the values of the
    template of this page, which has the same path: what is shown is the answer itself.
    """

    path: str
    do: Callable[[View], Awaitable[Mapping[str, Any] | Response]]
    right: Right = Right.OPERATE
    somewhere: bool = False
    shows: DashboardPage | None = None
