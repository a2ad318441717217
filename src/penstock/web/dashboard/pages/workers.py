"""The list of workers: their slots as cells, memory, CPU, versions, and the jobs that run the longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.inspector import WorkerView
from penstock.web.dashboard.cards import card
from penstock.web.dashboard.page import DashboardPage
from penstock.web.dashboard.view import View
from penstock.web.dashboard.worker_rows import held_jobs, seen_workers, worker_lines

__all__ = ["PAGE"]

_PAGE = 50
_LONGEST = 15


async def show(view: View) -> dict[str, Any]:
    workers, held = await card(seen_workers(view)), await card(held_jobs(view))
    part = view.asked("name").casefold()
    matching = [one for one in workers.value or [] if _matches(view, one, part)]
    start = next((n + 1 for n, one in enumerate(matching) if one.id == view.asked("after")), 0)
    shown = matching[start : start + _PAGE]
    jobs = held.value.jobs if held.value else []
    ids = {one.id for one in matching}
    return {
        "workers": workers,
        "part": view.asked("name"),
        "lines": worker_lines(view, shown, held.value),
        "next": shown[-1].id if start + _PAGE < len(matching) else None,
        "sums": _sums(matching),
        "held": held,
        "names": {one.id: f"{one.host} {one.pid}" for one in workers.value or [] if one.host},
        "longest": [one for one in jobs if not part or one.job.worker in ids][:_LONGEST],
        "more": held.value is not None and held.value.more,
    }


def _matches(view: View, worker: WorkerView, part: str) -> bool:
    queues = filter(view.sees, worker.queues)  # else the filter would tell names of others
    facts = (worker.id, worker.host, worker.state, worker.version, str(worker.pid), *queues)
    return any(part in fact.casefold() for fact in facts)


def _sums(workers: Sequence[WorkerView]) -> dict[str, Any]:
    return {
        "workers": len(workers),
        "hosts": len({one.host for one in workers}),
        "slots": sum(one.concurrency for one in workers),
        "running": sum(one.running for one in workers),
        "versions": sorted({one.version or "unknown" for one in workers}),
        "memory": sum(one.memory for one in workers),
    }


PAGE = DashboardPage(
    name="workers",
    path="/workers",
    title="Workers",
    show=show,
    navigation="Workers",
    key="w",
    refresh="always",
)
