"""Workers as operators see them, and the jobs that they hold."""

from __future__ import annotations

import msgspec

from penstock.core.formats import instant, iso
from penstock.core.job import Job
from penstock.inspector.job_views import ProgressView, progress_view
from penstock.stores.contract import WorkerInfo

__all__ = ["RunningView", "WorkerView", "running_view", "worker_view"]


class RunningView(msgspec.Struct, frozen=True):
    """A job that a worker holds. `since`: when it was leased, and `age`: how many seconds ago; `started`:
    whether its function is known to have started."""

    queue: str
    id: str
    task: str
    attempt: int
    since: str | None
    started: bool
    progress: ProgressView | None
    age: float | None


class WorkerView(msgspec.Struct, frozen=True):
    """A worker process and the jobs it holds.

    - `more`: it holds more than `jobs` lists; `running`, their number, is then from the worker's last report.
    - `silent`: seconds since its last heartbeat.
    - `ahead`: seconds that its clock is ahead of the store's; None if unknown.
    """

    id: str
    host: str
    pid: int
    supervisor: int | None
    state: str
    started_at: str
    seen_at: str
    queues: list[str]
    tasks: list[str]
    concurrency: int
    running: int
    version: str
    memory: int  # resident bytes
    cpu: float  # CPU seconds used
    jobs: list[RunningView]
    more: bool
    silent: float
    ahead: float | None


def worker_view(info: WorkerInfo, jobs: list[Job], *, more: bool, now: int) -> WorkerView:
    """A worker and the jobs that it holds, at the store's time `now`."""
    return WorkerView(
        id=info.id,
        host=info.host,
        pid=info.pid,
        supervisor=info.supervisor,
        state=info.state,
        started_at=instant(info.started_at),
        seen_at=instant(info.seen_at),
        queues=list(info.queues),
        tasks=list(info.tasks),
        concurrency=info.concurrency,
        # the worker's own number is some seconds old
        running=max(info.running, len(jobs)) if more else len(jobs),
        version=info.version,
        memory=info.memory,
        cpu=info.cpu,
        jobs=[running_view(job, now) for job in jobs],
        more=more,
        silent=max(0, now - info.seen_at) / 1000,
        ahead=(info.clock - info.seen_at) / 1000 if info.clock else None,
    )


def running_view(job: Job, now: int) -> RunningView:
    """A job that a worker holds, at the store's time `now`."""
    return RunningView(
        job.queue,
        job.id,
        job.task,
        job.attempt,
        iso(job.fetched_at),
        job.started,
        progress_view(job.progress),
        None if job.fetched_at is None else max(0, now - job.fetched_at) / 1000,
    )
