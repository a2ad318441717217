"""The list of queues."""

from __future__ import annotations

from typing import Any

from penstock.web.dashboard.page import DashboardPage
from penstock.web.dashboard.queue_rows import queue_rows
from penstock.web.dashboard.view import View

__all__ = ["PAGE"]


async def show(view: View) -> dict[str, Any]:
    part = view.asked("name").lower()
    queues = await view.queues()
    shown = [queue for queue in queues if part in queue.name.lower()]
    return {"rows": queue_rows(view, shown), "part": view.asked("name"), "all": len(queues)}


PAGE = DashboardPage(name="queues", path="/queues", title="Queues", show=show, navigation="Queues", key="q")
