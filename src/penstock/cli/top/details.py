"""The details of a row of `penstock top`."""

from __future__ import annotations

from typing import Any

from penstock.cli.short_forms import span
from penstock.core.text import block, counted, one_line
from penstock.inspector import ErrorGroupView, HeldView, Inspector, JobRow, QueueView, WorkerView

__all__ = ["details"]

#: The most characters of a traceback.
_TRACEBACK = 4_000


async def details(inspector: Inspector, subject: Any) -> str:
    """What there is to know of the subject of a row, in lines."""
    match subject:
        case QueueView():
            lines = await _of_queue(inspector, subject)
        case WorkerView():
            lines = _of_worker(subject)
        case HeldView():
            lines = await _of_job(inspector, f"{subject.job.queue}/{subject.job.id}")
        case JobRow():
            lines = await _of_job(inspector, f"{subject.queue}/{subject.id}")
        case ErrorGroupView():
            latest = f"{subject.queue}/{subject.job}"
            lines = [f"{subject.count:,} since {subject.first_at}", f"latest job {latest}", ""]
            lines += await _of_job(inspector, latest)
        case _:
            lines = []
    return block("\n".join(lines))


async def _of_queue(inspector: Inspector, shown: QueueView) -> list[str]:
    queue = await inspector.queue(shown.name) or shown
    lines = [f"{state:<10} {count:,}" for state, count in queue.counts.items()]
    lines += ["", f"{counted(queue.workers or 0, 'live worker')} of this queue"]
    for name, on in (("paused", queue.paused), ("throttled", queue.throttled_until is not None)):
        if on:
            lines.append(name + (f" by {queue.stopped_by}" if queue.stopped_by else ""))
    if queue.waits_for:
        lines.append(queue.waits_for)
    if queue.held_by:
        lines.append(f"held by {', '.join(queue.held_by)}")
    for name in queue.limits.__struct_fields__:
        value = getattr(queue.limits, name)
        if value is not None:
            lines.append(f"{name} {value}, set by {queue.set_by.get(name, 'default')}")
    return lines


def _of_worker(worker: WorkerView) -> list[str]:
    return [
        f"id {worker.id}",
        f"{worker.host}, process {worker.pid}, version {worker.version}",
        f"started {worker.started_at}, heartbeat {span(worker.silent)} ago",
        f"{worker.state}, {worker.running} of {worker.concurrency} slots busy",
        *(f"  {job.queue}/{job.id}  {one_line(job.task)}  for {span(job.age)}" for job in worker.jobs),
        f"queues {', '.join(worker.queues)}",
        f"tasks {', '.join(worker.tasks)}",
    ]


async def _of_job(inspector: Inspector, address: str) -> list[str]:
    lines = []
    for why in await inspector.why(address):
        lines += [f"{address} is {why.state} since {why.since}", *(f"  {one.says}" for one in why.reasons)]
    for job in await inspector.job(address):
        lines += ["", f"task {one_line(job.task)}, attempt {job.attempt} of {job.max_attempts}"]
        if job.payload is not None:
            lines.append(f"arguments {bytes(job.payload).decode()[:500]}")
        if job.errors:
            error = job.errors[-1]
            lines += ["", f"{error.kind}: {error.message}", error.traceback[-_TRACEBACK:].rstrip()]
    return lines or [f"{address} is gone"]
