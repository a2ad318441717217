"""All pages and acts of the dashboard, in the order of the navigation: a phone shows the first four."""

from penstock.web.dashboard import saved_views
from penstock.web.dashboard.page import DashboardAct, DashboardPage
from penstock.web.dashboard.pages import (
    audit,
    batches,
    bulk_acts,
    enqueue,
    entry,
    errors,
    flow,
    flows,
    health,
    job,
    job_changes,
    job_edit,
    jobs,
    limits,
    overview,
    periodic,
    queue,
    queues,
    search,
    steps,
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
    job.PAGE,
    job.DOCUMENT,
    job_edit.PAGE,
    errors.PAGE,  # a phone has the pages so far in its bar, the others behind a button
    tasks.PAGE,
    task.PAGE,
    workers.PAGE,
    worker.PAGE,
    worker.STACKS,
    flows.PAGE,
    flow.PAGE,
    steps.PAGE,
    periodic.PAGE,
    entry.PAGE,
    batches.PAGE,
    bulk_acts.PAGE,
    bulk_acts.BULK_ACTS,
    enqueue.PAGE,
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
    *flow.ACTS,
    *steps.ACTS,
    *entry.ACTS,
    *batches.ACTS,
)
