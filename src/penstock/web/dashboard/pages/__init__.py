"""All pages and acts of the dashboard, in the order of the navigation: a phone shows the first four."""

from penstock.web.dashboard import job_filters
from penstock.web.dashboard.pages import (
    audit,
    batches,
    bulk_acts,
    enqueue,
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
    queues,
    search,
    steps,
    tasks,
    workers,
)
from penstock.web.dashboard.view import DashboardAct, DashboardPage

__all__ = ["ACTS", "PAGES"]

PAGES: tuple[DashboardPage, ...] = (
    overview.PAGE,
    queues.PAGE,
    queues.QUEUE,
    jobs.PAGE,
    job_changes.PAGE,
    job.PAGE,
    job.DOCUMENT,
    job_edit.PAGE,
    errors.PAGE,  # a phone has the pages so far in its bar, the others behind a button
    tasks.PAGE,
    tasks.TASK,
    workers.PAGE,
    workers.WORKER,
    workers.STACKS,
    flows.PAGE,
    flow.PAGE,
    steps.PAGE,
    periodic.PAGE,
    periodic.ENTRY,
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
    *queues.ACTS,
    *job.ACTS,
    *job_changes.ACTS,
    *bulk_acts.ACTS,
    *job_filters.ACTS,
    *job_edit.ACTS,
    *enqueue.ACTS,
    *workers.ACTS,
    *flows.ACTS,
    *flow.ACTS,
    *steps.ACTS,
    *periodic.ACTS,
    *batches.ACTS,
)
