"""Facts as operators see them: plain structs that are JSON as they stand.

Instants are ISO 8601 in UTC to the millisecond, durations are seconds; a lease's token is never shown.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.ids import check_id, check_queue
from penstock.core.job import Job, Progress, Ref, State
from penstock.core.lifecycle import UNREADABLE
from penstock.core.retry import DEFAULT, DURATIONS, RetryPolicy
from penstock.core.schedule import Entry
from penstock.core.unique import UniqueKey
from penstock.core.unique_rules import until
from penstock.encryption import shown_text
from penstock.stores.contract import GroupInfo, LaneInfo, QueueInfo, QueueStats, WorkerInfo

__all__ = [
    "Bulk",
    "Change",
    "EntryView",
    "ErrorView",
    "Filter",
    "JobPage",
    "JobRow",
    "JobView",
    "LaneView",
    "LimitsView",
    "ParkedView",
    "QueueStatsView",
    "QueueView",
    "RunningView",
    "UniqueView",
    "WorkerView",
    "entry_view",
    "iso",
    "job_row",
    "job_view",
    "parse_address",
    "parse_state",
    "queue_view",
    "stats_view",
    "worker_view",
]


class Filter(msgspec.Struct, frozen=True):
    """Which jobs; what is None does not matter."""

    queue: str | None = None
    state: State | None = None
    task: str | None = None
    worker: str | None = None


class ErrorView(msgspec.Struct, frozen=True):
    """Why one attempt failed."""

    attempt: int
    at: str
    kind: str
    message: str
    traceback: str


class ProgressView(msgspec.Struct, frozen=True):
    """How far a running attempt says that it is."""

    done: float
    of: float | None
    note: str


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a listing: without its payload, result and tracebacks."""

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
    """A job's unique key: while it is in one of these states it holds it, `until` then at most. Another may
    have it, if that came first."""

    key: str
    states: tuple[str, ...]
    until: str | None


class LaneView(msgspec.Struct, frozen=True):
    """A job's lane: its key, how many wait there, how many of them before the job (None: it does not wait),
    when the first of them may start if it waits for an instant alone, and who may run: "id state"."""

    key: str
    ordered: bool
    most: int
    waiting: int
    before: int | None
    due_at: str | None
    admitted: list[str]


class JobView(JobRow, frozen=True, kw_only=True):
    """All that is known of one job. `payload` and `result` are JSON where they are that, else `…_base64`
    holds the bytes. `waited` and `ran` are seconds: of the last attempt, from due to fetched to ended."""

    started: bool
    lost: int
    delivery: str
    expires_at: str | None
    deadline: str | None
    timeout: float | None
    retention: float
    keep_dead: float | None  # None: as its worker says
    retry: dict[str, Any]
    unique: UniqueView | None
    lane: LaneView | None
    turn: str | None
    group: str | None
    batch: str | None  # the id of the batch that it is or was a member of
    members: list[str]  # of a batch: their ids
    waited: float | None
    ran: float | None
    headers: dict[str, str]
    payload_size: int
    payload: msgspec.Raw | None
    payload_base64: str | None
    closed: str | None  # why the payload cannot be read here: it is sealed with a key that is not
    result: msgspec.Raw | None
    result_base64: str | None
    errors: list[ErrorView]


class JobPage(msgspec.Struct, frozen=True):
    """A part of a listing, newest first; `next` goes into `after` for the following part."""

    jobs: list[JobRow]
    next: str | None


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group that is not a batch yet; `due_at` None: not before it is full."""

    queue: str
    task: str
    key: str
    size: int
    oldest_at: str
    due_at: str | None


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic entry. `next_at` is its next instant that has no job yet, without the jitter; `by` is code
    or operator; `jitter` is seconds; `last` is the id of its newest job."""

    queue: str
    name: str
    task: str
    schedule: str
    tz: str
    paused: bool
    by: str
    next_at: str | None
    misfire: str
    catch_up: int
    overlap: str
    jitter: float
    last: str | None
    enqueued: int
    skipped: int
    payload: msgspec.Raw | None
    payload_base64: str | None


class Change(msgspec.Struct, frozen=True):
    """What became of one job that was to be changed. `outcome`: done, asked (a running job that shall
    stop), refused, or missing; `says` is that in words."""

    queue: str
    id: str
    outcome: str
    says: str


class Bulk(msgspec.Struct, frozen=True):
    """What became of all jobs that a filter found. `limited`: there may be more, the limit was reached."""

    done: int
    asked: int
    refused: int
    limited: bool


class LimitsView(msgspec.Struct, frozen=True):
    """What was set for a queue; None: no limit. `rate` as it may be written, ages in seconds."""

    max_size: int | None
    on_full: str
    max_running: int | None
    rate: str | None
    burst: int | None
    keep_finished: int | None
    keep_dead: int | None
    keep_finished_for: float | None
    keep_dead_for: float | None


class QueueView(msgspec.Struct, frozen=True):
    """A queue: how many jobs in each state, its switches and limits, since when its oldest ready job waits,
    and until when it is held, if it is."""

    name: str
    counts: dict[str, int]
    paused: bool
    closed: bool
    oldest_available_at: str | None
    limits: LimitsView
    held_until: str | None
    waits_for: str | None  # why nothing that is ready starts, in words
    away: str = ""  # why nothing can be said of it now


class ParkedView(msgspec.Struct, frozen=True):
    """How many jobs of a task are parked in a queue; `known_to`: the workers of that queue that know the task
    (by their ids), which take them as they have room."""

    queue: str
    task: str
    jobs: int
    known_to: list[str]


class DayView(msgspec.Struct, frozen=True):
    """What ended on one UTC day."""

    day: str
    processed: int
    failed: int


class QueueStatsView(msgspec.Struct, frozen=True):
    """A queue's totals since its first job, and its last days, newest first."""

    name: str
    enqueued: int
    processed: int
    failed: int
    days: list[DayView]


class RunningView(msgspec.Struct, frozen=True):
    """A job that a worker holds: `since` is when it was leased, `started` whether its function is known
    to have begun."""

    queue: str
    id: str
    task: str
    attempt: int
    since: str | None
    started: bool
    progress: ProgressView | None


class WorkerView(msgspec.Struct, frozen=True):
    """A worker process and what it holds. `more`: it holds more than `jobs` shows, and then `running`, the
    number of them, is as the worker said it last."""

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
    jobs: list[RunningView]
    more: bool


def iso(ms: int | None) -> str | None:
    """An instant in the form of RFC 3339: `2026-11-20T08:30:00.250Z`."""
    return None if ms is None else _iso(ms)


def parse_state(text: str) -> State:
    """A state by its name."""
    try:
        return State(text.lower())
    except ValueError:
        known = [s.value for s in State]
        near = did_you_mean(text.lower(), known)
        raise ConfigError(f"{text!r} is not a state{near}: one of {', '.join(known)}") from None


def parse_address(text: str) -> Ref | str:
    """`"queue/id"` is a Ref; a bare id, which has to be searched, stays one."""
    queue, slash, id = text.rpartition("/")
    return Ref(check_queue(queue), check_id(id)) if slash else check_id(text)


# ── from facts to views ──────────────────────────────────────────────────────────────────────────


def job_row(job: Job) -> JobRow:
    """A job in a listing."""
    return JobRow(**_row(job))


def job_view(job: Job, lane: LaneInfo | None = None, closed: str | None = None) -> JobView:
    """All that is known of a job, of the lane that it is in, and why its payload is closed, if it is."""
    spec = job.spec
    payload, payload_base64 = _json_or_base64(spec.payload)
    result, result_base64 = _json_or_base64(job.result)
    ended = job.ended_at if job.ended_at is not None else None
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
        lane=_lane(job, lane),
        turn=None if spec.turn is None else spec.turn.key,
        group=None if spec.group is None else spec.group.key,
        batch=job.batch,
        members=list(job.members),
        waited=_seconds(job.run_at, job.fetched_at),
        ran=_seconds(job.fetched_at, ended),
        headers=dict(spec.headers or {}),
        payload_size=len(spec.payload),
        payload=payload,
        payload_base64=payload_base64,
        closed=closed,
        result=result,
        result_base64=result_base64,
        errors=[
            ErrorView(e.attempt, _iso(e.at), e.kind, shown_text(e.message), shown_text(e.traceback))
            for e in job.errors
        ],
    )


def _unique_view(job: Job, unique: UniqueKey) -> UniqueView:
    return UniqueView(unique.key, unique.held_in, iso(until(unique, job.enqueued_at)))


def _retry_view(policy: RetryPolicy) -> dict[str, Any]:
    """The policy as data; what is a duration in it, in seconds."""
    shown = {}
    for name, value in msgspec.to_builtins(policy).items():
        if name in DURATIONS:
            value = value / 1000 if isinstance(value, int) else [one / 1000 for one in value]
        shown[name] = value
    return shown


def queue_view(info: QueueInfo) -> QueueView:
    """A queue's counts in the order of the lifecycle, and its switches."""
    counts = {state.value: info.counts[state] for state in State if info.counts.get(state)}
    limits = info.limits
    rate = limits.rate
    return QueueView(
        info.name,
        counts,
        info.paused,
        info.closed,
        iso(info.oldest_available),
        LimitsView(
            limits.max_size,
            limits.on_full.value,
            limits.max_running,
            None if rate is None else str(rate),
            None if rate is None else rate.burst,
            limits.keep_finished,
            limits.keep_dead,
            None if limits.keep_finished_for is None else limits.keep_finished_for / 1000,
            None if limits.keep_dead_for is None else limits.keep_dead_for / 1000,
        ),
        iso(info.held_until),
        _waits_for(info),
        info.away,
    )


def _waits_for(info: QueueInfo) -> str | None:
    if not info.counts.get(State.AVAILABLE):
        return None
    if info.paused:
        return "the queue is paused"
    if info.held_until is not None:
        return f"the queue is held until {iso(info.held_until)}"
    most, running = info.limits.max_running, info.counts.get(State.RUNNING, 0)
    if most is not None and running >= most:
        return f"{running} of its jobs run, as many as its max_running allows"
    return None if info.limits.rate is None else f"its rate is {info.limits.rate}"


def group_view(info: GroupInfo) -> GroupView:
    """A group, with its instants in words."""
    return GroupView(
        queue=info.queue,
        task=info.task,
        key=info.key,
        size=info.size,
        oldest_at=_iso(info.oldest),
        due_at=iso(info.due),
    )


def entry_view(entry: Entry, now: int) -> EntryView:
    """A periodic entry, as it stands at this instant."""
    spec = entry.spec
    payload, base64 = _json_or_base64(spec.job.payload)
    try:
        coming = None if entry.paused else spec.schedule.next(max(entry.watermark, now))
    except ConfigError:  # a time zone that this machine does not know
        coming = None
    return EntryView(
        queue=spec.job.queue,
        name=spec.name,
        task=spec.job.task,
        schedule=spec.schedule.text if entry.unreadable is None else UNREADABLE + entry.unreadable,
        tz=spec.schedule.tz,
        paused=entry.paused,
        by="code" if spec.by_code else "operator",
        next_at=iso(coming),
        misfire=spec.misfire,
        catch_up=spec.catch_up,
        overlap=spec.overlap,
        jitter=spec.jitter / 1000,
        last=entry.last,
        enqueued=entry.enqueued,
        skipped=entry.skipped,
        payload=payload,
        payload_base64=base64,
    )


def stats_view(stats: QueueStats) -> QueueStatsView:
    """A queue's totals and days."""
    days = [DayView(d.day, d.processed, d.failed) for d in stats.days]
    return QueueStatsView(stats.name, stats.enqueued, stats.processed, stats.failed, days)


def worker_view(info: WorkerInfo, jobs: list[Job], *, more: bool) -> WorkerView:
    """A worker and the jobs that it holds."""
    return WorkerView(
        id=info.id,
        host=info.host,
        pid=info.pid,
        supervisor=info.supervisor,
        state=info.state,
        started_at=_iso(info.started_at),
        seen_at=_iso(info.seen_at),
        queues=list(info.queues),
        tasks=list(info.tasks),
        concurrency=info.concurrency,
        # the store knows now what the worker said some seconds ago
        running=max(info.running, len(jobs)) if more else len(jobs),
        version=info.version,
        jobs=[_running(job) for job in jobs],
        more=more,
    )


# ── private ──────────────────────────────────────────────────────────────────────────────────────


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
        "enqueued_at": _iso(job.enqueued_at),
        "due_at": _iso(job.run_at),
        "fetched_at": iso(job.fetched_at),
        "ended_at": iso(job.ended_at),
        "worker": job.worker,
        "cancel_asked": job.cancel_asked,
        "progress": _progress(job.progress),
        "reason": job.reason and shown_text(job.reason),
        "error": None if last is None else f"{last.kind}: {shown_text(last.message)}".partition("\n")[0],
    }


def _running(job: Job) -> RunningView:
    return RunningView(
        job.queue,
        job.id,
        job.task,
        job.attempt,
        iso(job.fetched_at),
        job.started,
        _progress(job.progress),
    )


def _lane(job: Job, info: LaneInfo | None) -> LaneView | None:
    terms = job.spec.lane
    if terms is None:
        return None
    info = info or LaneInfo(terms.key, [], 0)
    admitted = [f"{one.id} {one.state}" for one in info.admitted]
    return LaneView(terms.key, terms.ordered, terms.most, info.waiting, info.before, iso(info.due), admitted)


def _progress(progress: Progress | None) -> ProgressView | None:
    return None if progress is None else ProgressView(progress.done, progress.of, shown_text(progress.note))


def _iso(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"
    except (ValueError, OverflowError, OSError):  # a foreign producer may have stored any number
        return f"{ms} ms since 1970"


def _seconds(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None else max(0, end - begin) / 1000


def _json_or_base64(data: bytes | None) -> tuple[msgspec.Raw | None, str | None]:
    """The bytes as JSON without line breaks, so that they fit into a JSON line; else as base64."""
    if data is None:
        return None, None
    try:
        text = data.decode("utf-8")
        return msgspec.Raw(msgspec.json.format(text, indent=-1).encode()), None
    except (UnicodeDecodeError, msgspec.DecodeError):
        return None, b64encode(data).decode()
