"""Jobs as operators see them: plain structs that can be encoded as JSON.

Instants are ISO 8601 in UTC to the millisecond, durations are seconds; lease tokens are never shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.formats import instant, iso, json_or_base64, seconds, shown_text
from penstock.core.job import AttemptError, Job, Progress
from penstock.core.retry import DEFAULT, DURATIONS, RetryPolicy
from penstock.core.unique import UniqueKey
from penstock.core.unique_rules import until
from penstock.inspector.audit import ShownEntry
from penstock.inspector.job_edits import version_of
from penstock.stores.contract import PartitionInfo, StoredStep
from penstock.stores.job_log import is_log, lines_of

__all__ = [
    "ActView",
    "AttemptView",
    "ErrorView",
    "JobRow",
    "JobView",
    "LogLineView",
    "PartitionView",
    "ProgressView",
    "UniqueView",
    "job_row",
    "job_view",
    "progress_view",
]


class ErrorView(msgspec.Struct, frozen=True):
    """The error of one attempt. `worker`: which worker had the job, since `fetched_at`; `ran`: seconds."""

    attempt: int
    at: str
    kind: str
    message: str
    traceback: str
    worker: str | None = None
    fetched_at: str | None = None
    ran: float | None = None


class AttemptView(msgspec.Struct, frozen=True):
    """One attempt. `outcome`: failed, running, or the state in which it left the job; `error`: in a line.

    `worker` is None where it is not kept: of attempts that did not fail.
    """

    attempt: int
    worker: str | None
    fetched_at: str | None
    ended_at: str | None
    ran: float | None
    outcome: str
    error: str | None


class LogLineView(msgspec.Struct, frozen=True):
    """A line that the job's function has logged."""

    at: str
    text: str


class ActView(msgspec.Struct, frozen=True):
    """What an operator did to a job: when, who, the act (e.g. jobs.retry), and its arguments."""

    at: str
    who: str
    act: str
    facts: dict[str, str]


class ProgressView(msgspec.Struct, frozen=True):
    """The progress that a running attempt has reported."""

    done: int | float
    of: int | float | None
    note: str


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a list: without its payload, result and tracebacks."""

    def to_dict(self) -> dict[str, Any]:
        """The view as a dict for JSON, with the names of docs/job.md."""
        shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return shown

    queue: str
    id: str
    task: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    enqueued_at: str
    due_at: str
    fetched_at: str | None
    ended_at: str | None
    worker: str | None
    cancel_asked: bool
    progress: ProgressView | None
    reason: str | None
    error: str | None  # the last attempt's, in a line


class UniqueView(msgspec.Struct, frozen=True):
    """A job's unique key. The job holds it while in one of these states, at most until `until`. If another
    job took the key first, that job holds it."""

    key: str
    states: tuple[str, ...]
    until: str | None


class PartitionView(msgspec.Struct, frozen=True):
    """A job's partition: its key, how many jobs wait in it, how many of them before this job (None: it does
    not wait), when the first may start if it waits only for the rate, and the admitted jobs as "id state"."""

    key: str
    ordered: bool
    most: int
    waiting: int
    before: int | None
    due_at: str | None
    admitted: list[str]


class StepView(msgspec.Struct, frozen=True):
    """A step that a job remembers: when it was stored, the size of its value, and the signal it waits for."""

    name: str
    at: str
    size: int | None  # None: it waits
    signal: str | None
    key: str | None


class JobView(JobRow, frozen=True, kw_only=True):
    """All facts of one job. `payload` and `result` are JSON if possible, else `…_base64` has the bytes.

    `version` changes with the arguments; an edit may name it.
    `waited` and `ran` are seconds of the last attempt: from due to fetched, and from fetched to ended.
    """

    started: bool
    lost: int
    delivery: str
    expires_at: str | None
    deadline: str | None
    timeout: float | None
    retention: float
    keep_dead: float | None  # None: the worker's default
    retry: dict[str, Any]
    unique: UniqueView | None
    partition: PartitionView | None
    tenant: str | None
    batch_key: str | None
    batch: str | None  # the id of the batch that it is or was a member of
    members: list[str]  # for a batch: the ids of its jobs
    flow: dict[str, str] | None  # id and queue of the flow that it is a node of
    waited: float | None
    ran: float | None
    headers: dict[str, str]
    version: str
    payload_size: int
    payload: msgspec.Raw | None
    payload_base64: str | None
    closed: str | None  # why the payload cannot be decrypted here
    result: msgspec.Raw | None
    result_base64: str | None
    errors: list[ErrorView]
    attempts: list[AttemptView]  # those with a kept error, and the last one
    acts: list[ActView]  # of operators, newest first
    log: list[LogLineView]  # oldest first
    steps: list[StepView] = []


def job_row(job: Job) -> JobRow:
    """A job for a list."""
    return JobRow(**_row(job))


def job_view(
    job: Job,
    partition: PartitionInfo | None = None,
    closed: str | None = None,
    steps: Sequence[StoredStep] = (),
    acts: Sequence[ShownEntry] = (),
) -> JobView:
    """All facts of a job, and what other verbs say of it.

    `closed`: why its payload cannot be decrypted, if so. `acts`: what operators did to it.
    """
    spec = job.spec
    payload, payload_base64 = json_or_base64(spec.payload)
    result, result_base64 = json_or_base64(job.result)
    return JobView(
        **_row(job),
        started=job.started,
        lost=job.lost,
        delivery="at-most-once" if spec.at_most_once else "at-least-once",
        expires_at=iso(job.expires_at),
        deadline=iso(spec.deadline),
        timeout=None if spec.timeout is None else spec.timeout / 1000,
        retention=spec.retention / 1000,
        keep_dead=None if spec.keep_dead is None else spec.keep_dead / 1000,
        retry=_retry_view(spec.retry or DEFAULT),
        unique=None if spec.unique is None else _unique_view(job, spec.unique),
        partition=_partition(job, partition),
        tenant=None if spec.tenant is None else spec.tenant.key,
        batch_key=None if spec.batch_terms is None else spec.batch_terms.key,
        batch=job.batch,
        members=list(job.members),
        flow=None if spec.flow is None else {"id": spec.flow.id, "queue": spec.flow.queue},
        waited=seconds(job.run_at, job.fetched_at),
        ran=seconds(job.fetched_at, job.ended_at),
        headers=dict(spec.headers or {}),
        version=version_of(job),
        payload_size=len(spec.payload),
        payload=payload,
        payload_base64=payload_base64,
        closed=closed,
        result=result,
        result_base64=result_base64,
        errors=[_error_view(error) for error in job.errors],
        attempts=_attempts(job),
        acts=[ActView(instant(act.at), act.entry.who, act.entry.act, act.entry.facts) for act in acts],
        steps=[_step_view(step) for step in steps if not is_log(step)],
        log=[LogLineView(instant(line.at), line.text) for line in lines_of(steps)],
    )


def progress_view(progress: Progress | None) -> ProgressView | None:
    """The progress that a running attempt has reported; None if it has not."""
    return None if progress is None else ProgressView(progress.done, progress.of, shown_text(progress.note))


def _row(job: Job) -> dict[str, Any]:
    last = job.errors[-1] if job.errors else None
    return {
        "queue": job.queue,
        "id": job.id,
        "task": job.task,
        "state": job.state.value,
        "priority": job.spec.priority,
        "attempt": job.attempt,
        "max_attempts": job.spec.max_attempts,
        "enqueued_at": instant(job.enqueued_at),
        "due_at": instant(job.run_at),
        "fetched_at": iso(job.fetched_at),
        "ended_at": iso(job.ended_at),
        "worker": job.worker,
        "cancel_asked": job.cancel_asked,
        "progress": progress_view(job.progress),
        "reason": job.reason and shown_text(job.reason),
        "error": None if last is None else _in_a_line(last),
    }


def _error_view(error: AttemptError) -> ErrorView:
    return ErrorView(
        error.attempt,
        instant(error.at),
        error.kind,
        shown_text(error.message),
        shown_text(error.traceback),
        error.worker or None,
        iso(error.fetched_at),
        seconds(error.fetched_at, error.at),
    )


def _attempts(job: Job) -> list[AttemptView]:
    """The attempts whose errors are kept, and the last one, from the job's own facts."""
    found = [
        AttemptView(
            error.attempt,
            error.worker or None,
            iso(error.fetched_at),
            instant(error.at),
            seconds(error.fetched_at, error.at),
            "failed",
            _in_a_line(error),
        )
        for error in job.errors
    ]
    since = job.fetched_at
    if since is not None and all(error.fetched_at != since for error in job.errors):
        ran, ended = seconds(since, job.ended_at), iso(job.ended_at)
        found.append(AttemptView(job.attempt, job.worker, iso(since), ended, ran, job.state.value, None))
    return found


def _in_a_line(error: AttemptError) -> str:
    return f"{error.kind}: {shown_text(error.message)}".partition("\n")[0]


def _step_view(step: StoredStep) -> StepView:
    signal, key = step.signal or (None, None)
    size = None if step.value is None else step.size
    return StepView(shown_text(step.name), instant(step.at), size, signal, key)


def _unique_view(job: Job, unique: UniqueKey) -> UniqueView:
    return UniqueView(unique.key, unique.held_in, iso(until(unique, job.enqueued_at)))


def _retry_view(policy: RetryPolicy) -> dict[str, Any]:
    """The policy as data, with durations in seconds."""
    shown = {}
    for name, value in msgspec.to_builtins(policy).items():
        if name in DURATIONS:
            value = value / 1000 if isinstance(value, int) else [one / 1000 for one in value]
        shown[name] = value
    return shown


def _partition(job: Job, info: PartitionInfo | None) -> PartitionView | None:
    terms = job.spec.partition
    if terms is None:
        return None
    info = info or PartitionInfo(terms.key, [], 0)
    admitted = [f"{one.id} {one.state}" for one in info.admitted]
    return PartitionView(
        terms.key, terms.ordered, terms.most, info.waiting, info.before, iso(info.due), admitted
    )
