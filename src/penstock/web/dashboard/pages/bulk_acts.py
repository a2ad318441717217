"""Bulk acts, which change all jobs that match a filter: their list, and the progress of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from penstock.core.errors import ConfigError
from penstock.core.ids import check_id
from penstock.inspector import BulkAct, BulkState, JobAct, filter_texts
from penstock.web.dashboard.job_filters import has_secrets, terms
from penstock.web.dashboard.pages.job_changes import WORDS
from penstock.web.dashboard.view import Card, DashboardAct, DashboardPage, NotFoundError, View

#: The most bulk acts in the list.
_SHOWN = 100
#: A process has begun a bulk act after this time (ms), if there is one.
_SOON = 5_000


@dataclass(frozen=True)
class BulkRow:
    """A bulk act as it is shown. `share`: of the jobs to look at; `waits`: no process continues it now."""

    bulk: BulkAct
    label: str
    done: str
    selects: str
    share: float
    started: int
    ended: int | None
    seconds: float | None
    left: float | None
    waits: bool


async def show(view: View) -> dict[str, Any]:
    found = await view.card("bulk acts", view.inspector.bulk.all)
    acts = [bulk for bulk in found.value or [] if _sees(view, bulk)]
    running = any(bulk.state is BulkState.RUNNING for bulk in acts)
    if running:
        view.shared.bulk_steps.wake()
    rows = Card([_row(view, bulk) for bulk in acts[:_SHOWN]], found.error)
    return {"acts": rows, "more": len(acts) - _SHOWN, "refresh": "always" if running else "changed"}


async def show_one(view: View) -> dict[str, Any]:
    bulk = await _found(view, view.checked(check_id, "bulk"))
    if bulk.state is BulkState.RUNNING:
        view.shared.bulk_steps.wake()
    row = _row(view, bulk)
    return {
        "title": f"{row.label} jobs",
        "row": row,
        "bulk": bulk,
        "terms": [term.says for term in terms(view, bulk.filter)],
        "listed": "" if has_secrets(view, bulk.filter) else view.link("/jobs", **filter_texts(bulk.filter)),
        "skipped": sorted(bulk.skipped.items(), key=lambda one: -one[1]),
        "may_abort": bulk.state is BulkState.RUNNING and _may(view, bulk, "bulk.abort"),
        "refresh": "always" if bulk.state is BulkState.RUNNING else "never",
        "delay": bulk.delay / 1000 if bulk.act is JobAct.RESCHEDULE else None,
    }


async def _found(view: View, id: str) -> BulkAct:
    bulk = await view.read(("bulk", id), lambda: view.inspector.bulk.get(id))
    if bulk is None or not _sees(view, bulk):
        raise NotFoundError("There is no such bulk act. Those that have ended are kept for 7 days.")
    return bulk


def _row(view: View, bulk: BulkAct) -> BulkRow:
    running = bulk.state is BulkState.RUNNING
    ended = bulk.ended_at
    share = 1.0 if bulk.state is BulkState.DONE else min(1.0, bulk.seen / bulk.total) if bulk.total else 0.0
    seconds = max(0.0, ((ended if ended is not None else view.now) - bulk.created_at) / 1000)
    return BulkRow(
        bulk=bulk,
        label=WORDS[bulk.act].label,
        done=WORDS[bulk.act].done,
        selects=" · ".join(term.says for term in terms(view, bulk.filter)),
        share=share,
        started=bulk.created_at,
        ended=ended,
        seconds=seconds,
        left=seconds * (1 - share) / share if running and share > 0.02 else None,
        waits=running and max(bulk.lease_until, bulk.created_at + _SOON) < view.now,
    )


def _sees(view: View, bulk: BulkAct) -> bool:
    return _may(view, bulk, "bulk.get")


def _may(view: View, bulk: BulkAct, act: str) -> bool:
    """Whether the visitor may do this on all queues of the bulk act."""
    queues = (*(bulk.filter.queues or ("*",)), *((bulk.to,) if bulk.to else ()))
    return all(view.may(act, queue) for queue in queues)


async def abort(view: View) -> Response:
    """Stop a bulk act."""
    id = check_id(view.form.get("id"))
    bulk = await view.inspector.bulk.get(id)
    if bulk is None or not _may(view, bulk, "bulk.abort"):
        raise ConfigError("There is no such bulk act that you may abort.")
    ended = await view.inspector.bulk.abort(id, by=view.visitor.name)
    says = "It had ended already." if ended is None or ended.state is not BulkState.ABORTED else "Aborted."
    return view.done(f"{says} What was changed stays changed.", f"/bulk/{id}")


PAGE = DashboardPage(
    name="bulk_acts", path="/bulk", title="Bulk actions", show=show, navigation="Bulk actions", key="x"
)
BULK_ACTS = DashboardPage(name="bulk_act", path="/bulk/{bulk}", title="Bulk act", show=show_one)
ACTS = (DashboardAct(path="/bulk/abort", do=abort, act="bulk.abort", somewhere=True),)
