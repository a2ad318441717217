"""Workers as operators see them, and the jobs that they hold."""

from __future__ import annotations

import msgspec

from penstock.core.formats import instant, iso
from penstock.core.job import Job
from penstock.inspector.job_views import ProgressView, progress_view
from penstock.stores.contract import WorkerInfo

__all__ = ["RunningView", "WorkerView", "worker_view"]


class RunningView(msgspec.Struct, frozen=True):
    """A job that a worker holds. `since`: when it was leased; `started`: whether its function is known to
    have started."""

    queue: str
    id: str
    task: str
    attempt: int
    since: str | None
    started: bool
    progress: ProgressView | None


class WorkerView(msgspec.Struct, frozen=True):
    """A worker process and the jobs it holds. `more`: it holds more than `jobs` lists; `running`, their
    number, is then from the worker's last report."""

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


def worker_view(info: WorkerInfo, jobs: list[Job], *, more: bool) -> WorkerView:
    """A worker and the jobs that it holds."""
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
        jobs=[_running(job) for job in jobs],
        more=more,
    )


def _running(job: Job) -> RunningView:
    return RunningView(
        job.queue,
        job.id,
        job.task,
        job.attempt,
        iso(job.fetched_at),
        job.started,
        progress_view(job.progress),
    )
