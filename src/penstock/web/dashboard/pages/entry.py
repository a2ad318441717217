"""One periodic entry: its schedule, its last and next runs, its arguments; trigger, pause and resume."""

from __future__ import annotations

from typing import Any

from starlette.responses import RedirectResponse, Response

from penstock.inspector import EntryRunsView
from penstock.web.access_tokens import Right
from penstock.web.dashboard.formats import local_time
from penstock.web.dashboard.json_tree import stored_tree
from penstock.web.dashboard.page import DashboardAct, DashboardPage
from penstock.web.dashboard.run_strip import strip_of
from penstock.web.dashboard.view import NotFoundError, View, segment

__all__ = ["ACTS", "PAGE"]

_LAST, _NEXT = 20, 20
_WIDE = 1000.0


async def show(view: View) -> dict[str, Any] | Response:
    found = await _entry(view)
    if found is None:
        return RedirectResponse(view.link("/periodic", name=view.id), 303)
    entry = found.entry
    return {
        "title": entry.name,
        "entry": entry,
        "found": found,
        "strip": strip_of(found.runs, view.now, _WIDE, lambda id: view.job_link(entry.queue, id)),
        "passed": [run for run in reversed(found.runs) if run.passed],
        "coming": [run for run in found.runs if not run.passed],
        "local": lambda at: local_time(at, entry.tz),
        "arguments": stored_tree(entry.payload, entry.payload_base64, view.shared.redaction),
        "may": view.may("operate", entry.queue),
    }


async def _entry(view: View) -> EntryRunsView | None:
    address = f"{view.queue}/{view.id}"
    read = view.inspector.runs
    found = await view.read(("runs", address), lambda: read(address, last=_LAST, next=_NEXT), cost=2)
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


PAGE = DashboardPage(name="entry", path="/periodic/{queue}/{id}", title="Periodic entry", show=show)
ACTS = (DashboardAct(path="/periodic/{queue}/{id}/switch/{act}", do=switch, right=Right.OPERATE),)
