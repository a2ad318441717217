"""All pages and acts of the dashboard, in the order of the navigation."""

from penstock.web.dashboard import saved_views
from penstock.web.dashboard.page import DashboardAct, DashboardPage
from penstock.web.dashboard.pages import (
    bulk_acts,
    job,
    job_changes,
    jobs,
    overview,
    queue,
    queues,
    search,
)

__all__ = ["ACTS", "PAGES"]

PAGES: tuple[DashboardPage, ...] = (
    overview.PAGE,
    queues.PAGE,
    queue.PAGE,
    jobs.PAGE,
    job_changes.PAGE,
    bulk_acts.PAGE,
    bulk_acts.BULK_ACTS,
    job.PAGE,
    job.DOCUMENT,
    search.PAGE,
)

ACTS: tuple[DashboardAct, ...] = (
    *queue.ACTS,
    *job.ACTS,
    *job_changes.ACTS,
    *bulk_acts.ACTS,
    *saved_views.ACTS,
)
