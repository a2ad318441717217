"""The search box: an id leads to its job, a name of a queue to the queue, other text to jobs with it."""

from __future__ import annotations

from typing import Any

from starlette.responses import RedirectResponse, Response

from penstock.core.errors import ConfigError
from penstock.web.dashboard.shared_reads import FRESH_STATISTICS
from penstock.web.dashboard.view import DashboardPage, View

#: Ids are compared exactly, and text shorter than this is hardly one.
_SHORTEST_ID = 3


async def show(view: View) -> dict[str, Any] | Response:
    text = view.asked("q")
    if not text:
        return RedirectResponse(view.link("/jobs"), 303)
    queues = await view.queues()
    if any(queue.name == text for queue in queues):
        return RedirectResponse(view.queue_link(text), 303)
    if len(text) >= _SHORTEST_ID and (job := await _job(view, text)) is not None:
        return RedirectResponse(view.job_link(*job), 303)
    tasks = await view.read(
        "last day", lambda: view.inspector.statistics.tasks(span=86_400_000), fresh=FRESH_STATISTICS
    )
    if any(task.task == text and view.sees(task.queue) for task in tasks):
        return RedirectResponse(view.link("/jobs", task=text), 303)
    return RedirectResponse(view.link("/jobs", text=text), 303)


async def _job(view: View, text: str) -> tuple[str, str] | None:
    try:
        refs = await view.inspector.refs(text)
        found = [job for ref in refs[:5] for job in await view.inspector.job(f"{ref.queue}/{ref.id}")]
    except ConfigError:  # it cannot be an id
        return None
    seen = [(job.queue, job.id) for job in found if view.sees(job.queue)]
    return seen[0] if seen else None


PAGE = DashboardPage(name="search", path="/search", title="Search", show=show, refresh="never")
