"""The list of queues."""

from __future__ import annotations

from typing import Any

from penstock.web.dashboard.page import DashboardPage
from penstock.web.dashboard.queue_rows import queue_rows
from penstock.web.dashboard.view import View

__all__ = ["PAGE"]


#: Rows of the table; others are found by their names.
_MOST = 500


async def show(view: View) -> dict[str, Any]:
    part = view.asked("name").lower()
    queues = await view.queues()
    shown = [queue for queue in queues if part in queue.name.lower()]
    rows = queue_rows(view, shown)
    return {
        "rows": rows[:_MOST],
        "more": max(0, len(rows) - _MOST),
        "part": view.asked("name"),
        "all": len(queues),
    }


PAGE = DashboardPage(name="queues", path="/queues", title="Queues", show=show, navigation="Queues", key="q")
