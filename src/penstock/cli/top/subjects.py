"""The subject of a row of `penstock top`: its details, and the acts on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

from penstock.cli.faults import CommandError
from penstock.cli.formats import span
from penstock.cli.job_acts import bulk_steps
from penstock.cli.session import AuditedAct, acting_user
from penstock.core.formats import instant, json_or_base64, seconds, shown_text
from penstock.core.job import Job, Ref, State
from penstock.core.text import block, counted, one_line
from penstock.inspector import (
    Change,
    ErrorGroupView,
    Inspector,
    JobAct,
    QueueView,
    WorkerView,
)
from penstock.inspector.job_acts import START_AGAIN
from penstock.inspector.queue_views import limit_values
from penstock.stores.contract import JobFilter

# ── details ──────────────────────────────────────────────────────────────────────────────────────

#: The most characters of a traceback.
_TRACEBACK = 4_000


async def details(inspector: Inspector, subject: Any) -> str:
    """What there is to know of the subject of a row, in lines."""
    match subject:
        case QueueView():
            lines = await _of_queue(inspector, subject)
        case WorkerView():
            lines = _of_worker(subject)
        case Job():
            lines = await _of_job(inspector, f"{subject.queue}/{subject.id}")
        case ErrorGroupView():
            latest = f"{subject.queue}/{subject.job}"
            lines = [f"{subject.count:,} since {instant(subject.first)}", f"latest job {latest}", ""]
            lines += await _of_job(inspector, latest)
        case _:
            lines = []
    return block("\n".join(lines))


async def _of_queue(inspector: Inspector, shown: QueueView) -> list[str]:
    queue = await inspector.queue(shown.name) or shown
    lines = [f"{state:<10} {count:,}" for state, count in queue.counts.items()]
    if queue.workers is not None:
        lines += ["", f"{counted(queue.workers, 'live worker')} of this queue"]
    for name, on in (("paused", queue.paused), ("throttled", queue.throttled_until is not None)):
        if on:
            lines.append(name + (f" by {queue.stopped_by}" if queue.stopped_by else ""))
    if queue.waits_for:
        lines.append(queue.waits_for)
    if queue.held_by:
        lines.append(f"held by {', '.join(queue.held_by)}")
    set_by = queue.set_by
    for name, value in limit_values(queue.limits).items():
        if value is not None:
            shown = value / 1000 if name.endswith("_for") else value
            lines.append(f"{name} {shown}, set by {set_by.get(name, 'default')}")
    return lines


def _of_worker(worker: WorkerView) -> list[str]:
    return [
        f"id {worker.id}",
        f"{worker.host}, process {worker.pid}, version {worker.version}",
        f"started {instant(worker.started_at)}, heartbeat {span(worker.silent)} ago",
        f"{worker.state}, {worker.running} of {worker.concurrency} slots busy",
        *(_held(job, worker.now) for job in worker.jobs),
        f"queues {', '.join(worker.queues)}",
        f"tasks {', '.join(worker.tasks)}",
    ]


def _held(job: Job, now: int) -> str:
    return f"  {job.queue}/{job.id}  {one_line(job.task)}  for {span(seconds(job.fetched_at, now))}"


async def _of_job(inspector: Inspector, address: str) -> list[str]:
    lines = []
    for why in await inspector.why(address):
        lines += [
            f"{address} is {why.state} since {instant(why.since)}",
            *(f"  {one.says}" for one in why.reasons),
        ]
    for job in await inspector.job(address):
        lines += ["", f"task {one_line(job.task)}, attempt {job.attempt} of {job.spec.max_attempts}"]
        payload, _ = json_or_base64(job.spec.payload)
        if payload is not None:
            lines.append(f"arguments {bytes(payload).decode()[:500]}")
        if job.errors:
            error = job.errors[-1]
            traceback = shown_text(error.traceback)[-_TRACEBACK:].rstrip()
            lines += ["", f"{error.kind}: {shown_text(error.message)}", traceback]
    return lines or [f"{address} is gone"]


# ── acts ─────────────────────────────────────────────────────────────────────────────────────────

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
            return _act_on_queue(inspector, subject)
        case WorkerView():
            return _act_on_worker(inspector, act, subject)
        case Job():
            return _act_on_job(inspector, JobAct(act), subject.ref, subject.task)
        case ErrorGroupView():
            return await _act_on_group(inspector, JobAct(act), subject)
    raise TypeError(f"nothing to {act}: {subject!r}")


def _act_on_queue(inspector: Inspector, queue: QueueView) -> PlannedAct:
    verb = "resume" if queue.paused else "pause"

    async def run() -> str:
        await (inspector.resume if queue.paused else inspector.pause)(queue.name)
        return f"{queue.name}: {verb}d"

    return PlannedAct(f"{verb} the queue {queue.name}?", run, AuditedAct(f"queue.{verb}", [queue.name]))


def _act_on_worker(inspector: Inspector, act: str, worker: WorkerView) -> PlannedAct:
    place = f"{worker.host}:{worker.pid}"

    async def run() -> str:
        (sent,) = await inspector.tell_workers([worker.id], act, by=acting_user(), timeout=_PATIENCE)
        return f"{place}: {'no answer; it may still obey' if sent.reply is None else sent.reply.text}"

    also = " and all processes of its supervisor" if worker.supervisor is not None else ""
    return PlannedAct(f"{act} the worker {place}{also}?", run, AuditedAct(f"workers.{act}", [worker.id]))


def _act_on_job(inspector: Inspector, act: JobAct, ref: Ref, task: str) -> PlannedAct:
    where = f"{ref.queue}/{ref.id}"

    async def run() -> str:
        changes: list[Change] = await inspector.act(act, [ref])
        return f"{where}: {', '.join(change.says for change in changes)}"

    return PlannedAct(f"{act} the job {where} ({task})?", run, AuditedAct(f"jobs.{act}", [where]))


async def _act_on_group(inspector: Inspector, act: JobAct, group: ErrorGroupView) -> PlannedAct:
    """All dead jobs of the task, as a bulk act: an error is not indexed, and its group has many texts."""
    filter = JobFilter((group.queue,), (State.DEAD,), group.task)
    async with aclosing(inspector.bulk.selected(filter)) as counting:
        count, again = ([(0, 0)] + [found async for found in counting])[-1]

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
    if again and act in START_AGAIN:
        question += f" {again:,} at-most-once: each starts again."
    return PlannedAct(question, run, None)
