"""All pages and acts of the dashboard, in the order of the navigation."""

from penstock.web.dashboard.page import DashboardAct, DashboardPage
from penstock.web.dashboard.pages import enqueue, job, job_edit, jobs, overview, queue, queues, search

__all__ = ["ACTS", "PAGES"]

PAGES: tuple[DashboardPage, ...] = (
    overview.PAGE,
    queues.PAGE,
    queue.PAGE,
    jobs.PAGE,
    job.PAGE,
    job.DOCUMENT,
    job_edit.PAGE,
    enqueue.PAGE,
    search.PAGE,
)

ACTS: tuple[DashboardAct, ...] = (*queue.ACTS, *job.ACTS, *job_edit.ACTS, *enqueue.ACTS)
