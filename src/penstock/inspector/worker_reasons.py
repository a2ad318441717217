"""Why no worker takes a job now: nobody serves its queue or knows its task, or no slot is free for it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.job import Job
from penstock.inspector.why_views import Reason
from penstock.stores.contract import WorkerInfo

__all__ = ["knows", "no_server", "worker_reasons"]


def knows(worker: WorkerInfo, job: Job) -> bool:
    """Whether the worker can run a job of this task in this queue."""
    return job.task in worker.tasks or job.queue in worker.handled


def no_server(job: Job) -> Reason:
    """That nobody serves the queue."""
    return Reason("no worker", f"no live worker serves the queue {job.queue!r}")


def worker_reasons(job: Job, serving: Sequence[WorkerInfo]) -> list[Reason]:
    """Why none of the live workers of the queue takes the job now; none if one does."""
    if not serving:
        return [no_server(job)]
    fetching = [worker for worker in serving if worker.state == "running"]
    if not fetching:
        states = ", ".join(sorted({worker.state for worker in serving}))
        return [Reason("no worker", f"no worker of the queue fetches jobs now ({states})")]
    if not any(knows(worker, job) for worker in fetching):
        return [Reason("unknown task", f"no live worker knows the task {job.task!r}: it will be parked")]
    taken = [_taken(worker, job) for worker in fetching]
    return [Reason("busy", _busy(fetching, set(taken)))] if all(taken) else []


def _taken(worker: WorkerInfo, job: Job) -> str:
    """Which slots of the worker the job would need, if they are all taken; else ""."""
    if worker.running >= worker.concurrency:
        return "slots"
    if job.queue in worker.full_queues:
        return "slots of the queue"
    return "process slots" if job.task in worker.full_tasks else ""


def _busy(workers: Sequence[WorkerInfo], taken: set[str]) -> str:
    who = "the only worker" if len(workers) == 1 else f"the {len(workers)} workers"
    if taken == {"slots"}:
        return f"all {sum(worker.concurrency for worker in workers)} slots of {who} of the queue are taken"
    if taken == {"slots of the queue"}:
        return f"all slots that {who} of the queue may use for it are taken"
    if taken == {"process slots"}:
        return f"all process slots of {who} of the queue are taken"
    return f"none of {who} of the queue has a free slot for it"
