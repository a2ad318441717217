"""The list of workers: their slots as cells, memory, CPU and versions; and one worker: its running jobs,
facts of its process, its stacks, and what it can be told to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from penstock.inspector import SentCommand, WorkerAct, WorkerView
from penstock.web.dashboard.rows import held_jobs, seen_workers, worker_row, worker_rows
from penstock.web.dashboard.view import DashboardAct, DashboardPage, NotFoundError, View, card, free_segment

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
        "lines": worker_rows(view, shown, held.value),
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


# ── one worker ───────────────────────────────────────────────────────────────────────────────────

#: The act whose right everything needs that a worker can be told.
_TELL = "tell_workers"
#: For this long (s) the page waits for a worker's reply.
_PATIENCE = 5.0


@dataclass(frozen=True)
class WorkerButton:
    """A button: the act, its label, and what it means."""

    act: str
    label: str
    says: str


_BUTTONS = (
    WorkerButton(
        "quiet",
        "Quiet",
        "It fetches no more jobs; running jobs continue. A quiet worker stays quiet.",
    ),
    WorkerButton("drain", "Drain", "It fetches no more jobs, waits for running ones, and ends."),
    WorkerButton("stop", "Stop", "It ends at once. Its running jobs return to their queues and run again."),
    WorkerButton("restart", "Restart", "A new process replaces it; then it drains."),
)


async def show_one(view: View) -> dict[str, Any]:
    id = view.free_name("worker")
    found = await card(_worker(view, id))
    worker = found.value
    held = await card(held_jobs(view, id))
    jobs = held.value.jobs if held.value else []
    exact = held.value is not None and held.value.all
    shared = worker is not None and worker.supervisor is not None
    return {
        "title": f"{worker.host} {worker.pid}" if worker else id,
        "id": id,
        "path": f"/workers/{free_segment(id)}",
        "found": found,
        "line": worker_row(view, worker, jobs, exact=exact) if worker else None,
        "tasks": worker.tasks if worker and view.sees() else [],
        "held": held,
        "jobs": jobs,
        "more": held.value is not None and held.value.more,
        "started": {(one.queue, one.id) for one in worker.jobs if one.started} if worker else set(),
        "buttons": [one for one in _BUTTONS if shared or one.act != "restart"] if view.may(_TELL) else [],
    }


async def _worker(view: View, id: str) -> WorkerView | None:
    """The worker, if it is alive and serves a queue that the visitor may read."""
    worker = await view.read(("worker", id), lambda: view.inspector.worker(id), cost=3)
    seen = worker is not None and view.sees_one_of(worker.queues)
    return worker if seen else None


async def stacks(view: View) -> dict[str, Any]:
    """The page before and after the worker was asked: what its threads and tasks do."""
    id = view.free_name("worker")
    return {"title": "Stacks", "id": id, "path": f"/workers/{free_segment(id)}", "reply": None}


# ── acts ─────────────────────────────────────────────────────────────────────────────────────────


async def ask_stacks(view: View) -> dict[str, Any] | Response:
    """Ask the worker for its stacks, and show them."""
    sent = await _told(view, WorkerAct.STACKS)
    return sent if isinstance(sent, Response) else {**await stacks(view), "reply": sent.reply}


async def tell(view: View) -> Response:
    """Tell the worker to quiet, drain, stop or restart."""
    act = view.part("act")
    if act not in {one.act for one in _BUTTONS}:
        raise NotFoundError("There is no such act on a worker.")
    sent = await _told(view, WorkerAct(act))
    if isinstance(sent, Response):
        return sent
    says = "no answer; it may still obey" if sent.reply is None else sent.reply.text or act
    failed = sent.reply is None or not sent.reply.done
    return view.done(f"Worker {sent.worker}: {says}.", _path(sent.worker), failed=failed)


async def _told(view: View, act: WorkerAct) -> SentCommand | Response:
    id = view.free_name("worker")
    if await view.inspector.worker(id, jobs=0) is None:
        return view.done(f"There is no live worker {id}.", _path(id), failed=True)
    (sent,) = await view.inspector.tell_workers([id], act.value, by=view.visitor.name, timeout=_PATIENCE)
    await view.audit(f"workers.{act.value}", id)
    return sent


def _path(id: str) -> str:
    return f"/workers/{free_segment(id)}"


WORKER = DashboardPage(
    name="worker", path="/workers/{worker}", title="Worker", show=show_one, refresh="always"
)
STACKS = DashboardPage(
    name="stacks",
    path="/workers/{worker}/stacks",
    title="Stacks",
    show=stacks,
    act=_TELL,
    refresh="never",
)
ACTS = (
    DashboardAct(path="/workers/{worker}/stacks", do=ask_stacks, act=_TELL, shows=STACKS),
    DashboardAct(path="/workers/{worker}/act/{act}", do=tell, act=_TELL),
)
