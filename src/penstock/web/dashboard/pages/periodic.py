"""Periodic entries: the schedule in plain words, last and next runs; and what a cron expression means."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.core.errors import ConfigError
from penstock.inspector import PreviewView, preview
from penstock.web.dashboard.cards import Card
from penstock.web.dashboard.formats import local_time
from penstock.web.dashboard.page import DashboardPage
from penstock.web.dashboard.run_strip import strip_of
from penstock.web.dashboard.view import View

__all__ = ["PAGE"]

_PAGE = 50
_WIDE = 200.0
_TRIED = 6


async def show(view: View) -> dict[str, Any]:
    part, after = view.asked("name"), view.asked("after") or None
    queues = None if view.may("read") else [queue.name for queue in await view.queues()]
    read = view.inspector.entry_page
    page = await view.card(
        ("entry page", part, after, tuple(queues or ())),
        lambda: read(part=part, queues=queues, after=after, limit=_PAGE),
        cost=2,
    )
    found = page.value.entries if page.value is not None else []
    return {
        "entries_page": page,
        "entries": [
            (one, strip_of(one.runs, view.now, _WIDE, partial(view.job_link, one.entry.queue)))
            for one in found
            if view.sees(one.entry.queue)
        ],
        "part": part,
        "tried": _tried(view),
        "local": lambda at: local_time(at, view.asked("tz") or "UTC"),
    }


def _tried(view: View) -> Card[PreviewView] | None:
    """What the expression in the address means."""
    text = view.asked("cron")
    if not text:
        return None
    try:
        return Card(preview(text, view.asked("tz") or None, view.now, _TRIED))
    except ConfigError as error:
        return Card(error=str(error))


PAGE = DashboardPage(
    name="periodic", path="/periodic", title="Periodic", show=show, navigation="Periodic", key="p"
)
