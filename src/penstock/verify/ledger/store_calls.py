"""Converts calls of a store and their answers into facts."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from msgspec.structs import replace

from penstock.core.changes import expiry_of
from penstock.core.flow import FlowInfo
from penstock.core.job import Job, Lease, NewJob, Ref
from penstock.core.lifecycle import Transition, first_state
from penstock.stores.contract import (
    AnyAct,
    Changed,
    Enqueued,
    EnqueueStatus,
    JobEdit,
    JobMove,
    JobReschedule,
    RecordedStep,
    Settlement,
    Signal,
    SignalWait,
    StateAct,
    StepEdit,
    StepRecord,
    Tick,
    TickResult,
    TickStatus,
)
from penstock.stores.contract import Settled as Answer
from penstock.verify.ledger import facts
from penstock.verify.ledger.facts import Fact, Now, timestamp

#: Arguments of jobs, and values of steps and signals, are recorded up to these lengths.
_MOST_OF_ARGUMENTS, _MOST_OF_A_VALUE = 200, 80


# ── enqueues ─────────────────────────────────────────────────────────────────────────────────────


def offered(
    job: NewJob, self_recorded: Container[str], *, follows: bool = False, entry: str = ""
) -> facts.Offered:
    """The fact of this enqueue. `due` is a lower bound: the store reads its clock later.

    `self_recorded`: the tasks that record their attempts themselves.
    """
    at, mono, pid = timestamp()
    _, due = first_state(job, at)
    unique, partition = job.unique, job.partition
    period = None if unique is None else unique.period
    return facts.Offered(
        at,
        mono,
        pid,
        job.queue,
        job.id,
        task=job.task,
        due=due,
        delayed=due > at,
        max_attempts=job.max_attempts,
        at_most_once=job.at_most_once,
        expires=expiry_of(job, at),
        retention=job.retention,
        unique=None if unique is None else unique.key,
        unique_until=None if period is None else at + period,
        follows=follows,
        unique_states=3 if unique is None else unique.phases,
        partition=None if partition is None else partition.key,
        partition_most=1 if partition is None else partition.most,
        ordered=partition is not None and partition.ordered,
        collected=job.batch_terms is not None,
        entry=entry,
        timeout=job.timeout or 0,
        self_recorded=job.task in self_recorded,
        flow="" if job.flow is None else job.flow.id,
    )


def answered(now: Now, job: NewJob, answer: Enqueued) -> facts.Answered:
    holder = "" if answer.id == job.id else answer.id
    return facts.Answered(*now, job.queue, job.id, answer.status.value, holder)


def replaced(before: Now, now: Now, job: NewJob, answer: Enqueued) -> Iterator[Fact]:
    """The reschedule of the queued job that this enqueue has replaced, if it has."""
    if answer.status is EnqueueStatus.REPLACED and job.unique and job.unique.replaces_run_at:
        _, due = first_state(job, before[0])
        yield facts.OperationAsked(*before, job.queue, answer.id, "reschedule", due)
        yield facts.OperationAnswered(*now, job.queue, answer.id, "reschedule", "queued")


def ticking(now: Now, tick: Tick, self_recorded: Container[str]) -> Iterator[Fact]:
    ids = tuple(job.id for job in tick.jobs)
    yield facts.Ticking(*now, tick.ref.queue, tick.ref.id, tick.revision, tick.watermark, tick.to, ids)
    yield from (offered(job, self_recorded, entry=tick.ref.id) for job in tick.jobs)


def ticked(now: Now, tick: Tick, answer: TickResult | None) -> Iterator[Fact]:
    """The answer to a tick; None if the reply was lost.

    A store client may lose a reply, repeat the call, and then be told that the entry has already advanced. So
    STALE does not prove that this tick was not applied.
    """
    said = "unknown" if answer is None else answer.status.value
    new = () if answer is None else answer.enqueued
    otherwise = (
        "unknown" if answer is None or answer.status in (TickStatus.STALE, TickStatus.UNKNOWN) else "skipped"
    )
    yield facts.TickAnswered(*now, tick.ref.queue, tick.ref.id, tick.revision, tick.watermark, said, new)
    for job in tick.jobs:
        yield facts.Answered(*now, job.queue, job.id, "new" if job.id in new else otherwise)


# ── leases and settlements ───────────────────────────────────────────────────────────────────────


def leased(now: Now, job: Job, by: str, sent: int, lease: int, offered: int = 0) -> facts.Leased:
    token, worker, place = job.token or "", job.worker or "", job.spec.flow
    return facts.Leased(
        *now,
        job.queue,
        job.id,
        token,
        worker,
        job.attempt,
        by,
        sent,
        lease,
        members=job.members,
        offered=offered,
        flow=None if place is None else (place.queue, place.id, place.node),
    )


def settling(now: Now, lease: Lease | Ref, to: Transition) -> facts.Settling:
    return facts.Settling(
        *now,
        lease.queue,
        lease.id,
        token=_token(lease),
        state=to.state.value,
        delay=to.delay,
        charge=to.charge,
        lost=to.lost,
        keep=to.keep,
        error="" if to.error is None else to.error.kind,
    )


def settled(settlements: Sequence[Settlement], answers: Sequence[Answer] | None) -> Iterator[Fact]:
    """The answers to these settlements; `answers` is None if the reply was lost."""
    now = timestamp()
    for i, one in enumerate(settlements):
        lease = one.lease
        answer = "unknown" if answers is None else answers[i].value
        yield facts.SettleAnswered(*now, lease.queue, lease.id, _token(lease), answer)
        if answer == "applied":
            yield from (facts.Answered(*now, job.queue, job.id, "follows") for job in one.then)


def _token(lease: Lease | Ref) -> str:
    return lease.token if isinstance(lease, Lease) else ""


# ── acts of an operator ──────────────────────────────────────────────────────────────────────────


def changing(now: Now, act: AnyAct, self_recorded: Container[str]) -> Iterator[Fact]:
    """An act that changes a job is an operation on it, and a move the enqueue of another one, too."""
    ref, verb = _target(act)
    due = act.due(now[0]) if isinstance(act, JobReschedule) else 0
    value = arguments_text(act.new.payload) if isinstance(act, JobEdit) else ""
    yield facts.OperationAsked(*now, ref.queue, ref.id, verb, due, value)
    if isinstance(act, JobMove):
        yield offered(_as_enqueued(act.new), self_recorded)


def changed(now: Now, act: AnyAct, answer: Changed | None) -> Iterator[Fact]:
    """The answer to an act; None if the reply was lost."""
    ref, verb = _target(act)
    state = "unknown" if answer is None else str(answer.before or "")
    if isinstance(act, JobMove):
        yield _moved(now, act.new, answer)
        if answer is not None:
            state = _left(act, answer.moved)
    yield facts.OperationAnswered(*now, ref.queue, ref.id, verb, state)


def _target(act: AnyAct) -> tuple[Ref, str]:
    """The job of an act, and its verb in the ledger."""
    if isinstance(act, StateAct):
        return act.ref, act.verb
    return act.seen.ref, "edit" if isinstance(act, JobEdit) else "move"


def _moved(now: Now, job: NewJob, answer: Changed | None) -> facts.Answered:
    if answer is not None and answer.moved is not None:
        return answered(now, job, answer.moved)
    # without an enqueue, the old job has changed and stays
    return facts.Answered(*now, job.queue, job.id, "unknown" if answer is None else "skipped")


def _left(move: JobMove, answer: Enqueued | None) -> str:
    """The state of the job that has left its queue; empty: it stays. Without replicas that is not certain."""
    if answer is not None and answer.status is EnqueueStatus.UNREPLICATED:
        return "unknown"
    moved = answer is not None and answer.status is EnqueueStatus.NEW
    return move.seen.state.value if moved else ""


def _as_enqueued(job: NewJob) -> NewJob:
    """The job without what is uncertain of it: whether it gets its unique key, and its place in an order."""
    partition = job.partition
    return replace(
        job, unique=None, partition=None if partition is None else replace(partition, ordered=False)
    )


def arguments_text(payload: bytes) -> str:
    """Arguments as they are recorded."""
    return payload[:_MOST_OF_ARGUMENTS].decode(errors="replace")


# ── flows, durable steps and signals ─────────────────────────────────────────────────────────────


def flow_state(given: Sequence[FlowInfo | None], none: str) -> str:
    """The state of the flow in an answer; `none` if there is no such flow; unknown if there is no answer."""
    return "unknown" if not given else none if given[0] is None else given[0].state.value


def step_recorded(
    now: Now, sent: int, record: StepRecord | SignalWait, answer: RecordedStep | None
) -> facts.StepRecorded:
    lease, name = record.lease, record.name if isinstance(record, StepRecord) else record.step
    status = "unknown" if answer is None else answer.status.value
    value = answer.value if answer is not None else None
    if status == "stored" and isinstance(record, StepRecord):
        value = record.value
    signal = None if answer is None else answer.signal
    text = None if value is None else value_text(value)
    return facts.StepRecorded(*now, lease.queue, lease.id, lease.token, name, status, sent, text, signal)


def step_edited(now: Now, sent: int, ref: Ref, edit: StepEdit, said: str) -> facts.StepChanged:
    value = None if edit.value is None else value_text(edit.value)
    return facts.StepChanged(*now, ref.queue, ref.id, "", edit.name, said, sent, value)


def signal_sent(signal: Signal, answer: str) -> facts.SignalSent:
    data = value_text(signal.data)
    return facts.SignalSent(*timestamp(), signal.name, signal.key, data, signal.flow or "", answer)


def value_text(value: bytes) -> str:
    """The value of a step or signal as it is recorded."""
    return value[:_MOST_OF_A_VALUE].decode(errors="replace")
