"""The overview: what needs attention first, then the last hours as charts."""

from __future__ import annotations

from typing import Any

from penstock.web.dashboard.attention import attention
from penstock.web.dashboard.pulse import totals
from penstock.web.dashboard.rows import queue_rows
from penstock.web.dashboard.statistics_charts import RANGES, activity_charts, range_asked
from penstock.web.dashboard.view import DashboardPage, View, card


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


PAGE = DashboardPage(name="overview", path="/", title="Overview", show=show, navigation="Overview", key="o")
