"""All pages and acts of the dashboard, in the order of the navigation."""

from penstock.web.dashboard import saved_views
from penstock.web.dashboard.page import DashboardAct, DashboardPage
from penstock.web.dashboard.pages import (
    audit,
    bulk_acts,
    enqueue,
    errors,
    health,
    job,
    job_changes,
    job_edit,
    jobs,
    limits,
    overview,
    queue,
    queues,
    search,
    task,
    tasks,
    worker,
    workers,
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
    job_edit.PAGE,
    enqueue.PAGE,
    errors.PAGE,
    tasks.PAGE,
    task.PAGE,
    workers.PAGE,
    worker.PAGE,
    worker.STACKS,
    limits.PAGE,
    audit.PAGE,
    health.PAGE,
    search.PAGE,
)

ACTS: tuple[DashboardAct, ...] = (
    *queue.ACTS,
    *job.ACTS,
    *job_changes.ACTS,
    *bulk_acts.ACTS,
    *saved_views.ACTS,
    *job_edit.ACTS,
    *enqueue.ACTS,
    *worker.ACTS,
)
