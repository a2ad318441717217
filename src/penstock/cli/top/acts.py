"""The acts of `penstock top`: what each asks before it is done, what it does, and what it says then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

from penstock.cli.audited_acts import AuditedAct, acting_user
from penstock.cli.faults import CommandError
from penstock.cli.job_acts import bulk_steps
from penstock.core.job import Ref, State
from penstock.inspector import (
    Change,
    ErrorGroupView,
    HeldView,
    Inspector,
    JobAct,
    JobRow,
    QueueView,
    WorkerView,
)
from penstock.stores.contract import JobFilter

__all__ = ["PlannedAct", "plan"]

#: Seconds to wait for the reply of a worker.
_PATIENCE = 10.0


class PlannedAct(NamedTuple):
    """An act on one row. `audited`: its entry in the audit log; None if the inspector writes one itself."""

    question: str
    run: Callable[[], Awaitable[str]]
    audited: AuditedAct | None


async def plan(inspector: Inspector, act: str, subject: Any) -> PlannedAct:
    """Prepare an act of a pane on the subject of one of its rows."""
    match subject:
        case QueueView():
            return _of_queue(inspector, subject)
        case WorkerView():
            return _of_worker(inspector, act, subject)
        case HeldView():
            return _of_job(inspector, JobAct(act), Ref(subject.job.queue, subject.job.id), subject.job.task)
        case JobRow():
            return _of_job(inspector, JobAct(act), Ref(subject.queue, subject.id), subject.task)
        case ErrorGroupView():
            return await _of_group(inspector, JobAct(act), subject)
    raise TypeError(f"nothing to {act}: {subject!r}")


def _of_queue(inspector: Inspector, queue: QueueView) -> PlannedAct:
    verb = "resume" if queue.paused else "pause"

    async def run() -> str:
        await (inspector.resume if queue.paused else inspector.pause)(queue.name)
        return f"{queue.name}: {verb}d"

    return PlannedAct(f"{verb} the queue {queue.name}?", run, AuditedAct(f"queue.{verb}", [queue.name]))


def _of_worker(inspector: Inspector, act: str, worker: WorkerView) -> PlannedAct:
    place = f"{worker.host}:{worker.pid}"

    async def run() -> str:
        (sent,) = await inspector.tell_workers([worker.id], act, by=acting_user(), timeout=_PATIENCE)
        return f"{place}: {'no answer; it may still obey' if sent.reply is None else sent.reply.text}"

    also = " and all processes of its supervisor" if worker.supervisor is not None else ""
    return PlannedAct(f"{act} the worker {place}{also}?", run, AuditedAct(f"workers.{act}", [worker.id]))


def _of_job(inspector: Inspector, act: JobAct, ref: Ref, task: str) -> PlannedAct:
    where = f"{ref.queue}/{ref.id}"

    async def run() -> str:
        changes: list[Change] = await inspector.act(act, [ref])
        return f"{where}: {', '.join(change.says for change in changes)}"

    return PlannedAct(f"{act} the job {where} ({task})?", run, AuditedAct(f"jobs.{act}", [where]))


async def _of_group(inspector: Inspector, act: JobAct, group: ErrorGroupView) -> PlannedAct:
    """All dead jobs of the task, as a bulk act: an error is not indexed, and its group has many texts."""
    filter = JobFilter((group.queue,), (State.DEAD,), group.task)
    async with aclosing(inspector.bulk.dry_run(filter)) as counting:
        count = ([0] + [found async for found in counting])[-1]

    if not count:
        raise CommandError(f"no job of the task {group.task} in {group.queue} is dead now")

    async def run() -> str:
        bulk = await inspector.bulk.start(act, filter, by=acting_user())
        async with aclosing(bulk_steps(inspector, bulk)) as steps:
            bulk = [bulk, *[step async for step in steps]][-1]
        return f"{act}: {bulk.done:,} done, {bulk.refused:,} refused" + (
            f": {bulk.error}" if bulk.error else ""
        )

    jobs = "job" if count == 1 else "jobs"
    question = f"{act} {count:,} dead {jobs} of the task {group.task} in {group.queue}?"
    return PlannedAct(question, run, None)
