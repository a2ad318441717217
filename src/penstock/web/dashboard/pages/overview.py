"""The overview: what needs attention first, then the last hours as charts."""

from __future__ import annotations

from typing import Any

from penstock.web.access_tokens import Right
from penstock.web.dashboard.activity_charts import activity_charts
from penstock.web.dashboard.attention import attention
from penstock.web.dashboard.cards import card
from penstock.web.dashboard.page import DashboardPage
from penstock.web.dashboard.queue_rows import queue_rows
from penstock.web.dashboard.statistics_charts import RANGES, range_asked
from penstock.web.dashboard.stream import totals
from penstock.web.dashboard.view import View

__all__ = ["PAGE"]


async def show(view: View) -> dict[str, Any]:
    queues = await card(view.queues())
    chosen = range_asked(view)
    return {
        "attention": await card(attention(view)),
        "totals": totals(queues.value or []),
        "queues": queues,
        "rows": queue_rows(view, queues.value or [])[:12],
        "ranges": RANGES,
        "chosen": chosen,
        "charts": await card(activity_charts(view, chosen)),
    }


PAGE = DashboardPage(
    name="overview", path="/", title="Overview", show=show, right=Right.READ, navigation="Overview", key="o"
)
