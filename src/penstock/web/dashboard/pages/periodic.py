"""Periodic entries: the schedule in plain words, last and next runs, and what a cron expression means; and
one entry: its arguments; trigger, pause and resume."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import RedirectResponse, Response

from penstock.core.errors import ConfigError
from penstock.inspector import EntryRunsView, PreviewView, preview
from penstock.web.dashboard.formats import local_time
from penstock.web.dashboard.json_tree import json_tree
from penstock.web.dashboard.rows import strip_of
from penstock.web.dashboard.view import Card, DashboardAct, DashboardPage, NotFoundError, View, segment

_PAGE = 50
_WIDE = 200.0
_TRIED = 6


async def show(view: View) -> dict[str, Any]:
    part, after = view.asked("name"), view.asked("after") or None
    queues = None if view.sees() else [queue.name for queue in await view.queues()]
    read = view.inspector.entry_page
    page = await view.card(
        ("entry page", part, after, tuple(queues or ())),
        lambda: read(part=part, queues=queues, after=after, limit=_PAGE),
        cost=3,
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


# ── one entry ────────────────────────────────────────────────────────────────────────────────────

_LAST, _NEXT = 20, 20
_WIDE_OF_ONE = 1000.0


async def show_one(view: View) -> dict[str, Any] | Response:
    found = await _entry(view)
    if found is None:
        return RedirectResponse(view.link("/periodic", name=view.id), 303)
    entry = found.entry
    return {
        "title": entry.name,
        "entry": entry,
        "found": found,
        "strip": strip_of(found.runs, view.now, _WIDE_OF_ONE, lambda id: view.job_link(entry.queue, id)),
        "passed": [run for run in reversed(found.runs) if run.passed],
        "coming": [run for run in found.runs if not run.passed],
        "local": lambda at: local_time(at, entry.tz),
        "arguments": json_tree(entry.spec.job.payload, view.shared.redaction),
        "may": view.may("trigger_entry", entry.queue),
    }


async def _entry(view: View) -> EntryRunsView | None:
    address = f"{view.queue}/{view.id}"
    read = view.inspector.runs
    found = await view.read(("runs", address), lambda: read(address, last=_LAST, next=_NEXT), cost=3)
    return found[0] if found else None


async def switch(view: View) -> Response:
    """Trigger, pause or resume the entry."""
    act, address = view.part("act"), f"{view.queue}/{view.id}"
    path = f"/periodic/{segment(view.queue)}/{segment(view.id)}"
    inspector = view.inspector
    if act == "trigger":
        changes = await inspector.trigger_entry(address)
        says = [change.says for change in changes]
        done = any(change.outcome == "done" for change in changes)
    elif act in ("pause", "resume"):
        entries = await (inspector.pause_entry if act == "pause" else inspector.resume_entry)(address)
        says, done = [f"{act}d" for _ in entries], bool(entries)
    else:
        raise NotFoundError(f"There is no act {act:.20} on a periodic entry.")
    if not says:
        return view.done(f"There is no periodic entry {view.id}.", "/periodic", failed=True)
    if done:
        await view.audit(f"periodic.{act}", address)
    return view.done(f"{view.id}: {', '.join(says)}.", path, failed=not done)


ENTRY = DashboardPage(name="entry", path="/periodic/{queue}/{id}", title="Periodic entry", show=show_one)
ACTS = (DashboardAct(path="/periodic/{queue}/{id}/switch/{act}", do=switch, act="trigger_entry"),)
