"""All pages and acts of the dashboard, in the order of the navigation."""

from penstock.web.dashboard.page import DashboardAct, DashboardPage
from penstock.web.dashboard.pages import (
    batches,
    entry,
    flow,
    flows,
    job,
    jobs,
    overview,
    periodic,
    queue,
    queues,
    search,
    steps,
)

__all__ = ["ACTS", "PAGES"]

PAGES: tuple[DashboardPage, ...] = (
    overview.PAGE,
    queues.PAGE,
    queue.PAGE,
    jobs.PAGE,
    job.PAGE,
    job.DOCUMENT,
    flows.PAGE,
    flow.PAGE,
    steps.PAGE,
    periodic.PAGE,
    entry.PAGE,
    batches.PAGE,
    search.PAGE,
)

ACTS: tuple[DashboardAct, ...] = (*queue.ACTS, *job.ACTS, *flow.ACTS, *steps.ACTS, *entry.ACTS, *batches.ACTS)
