"""The verbs by which operators change jobs and queues: retry, reschedule, settings, drop."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from penstock.core.job import NewJob, Ref, State
from penstock.core.lifecycle import attempts_counted
from penstock.core.limits import NO_LIMITS, LimitChange
from penstock.stores.contract import QueueInfo
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.rows import Row, check_state, spec_of
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import (
    AVAILABLE,
    CODE,
    COLLECTING,
    ENDED,
    PARKED,
    QUEUED,
    RUNNING,
    STATES,
    SUSPENDED,
)
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs import limits
from penstock.stores.sqlite.verbs.batches import batch_alone, enter, left
from penstock.stores.sqlite.verbs.keys import (
    drop_keys,
    shift_key,
)
from penstock.stores.sqlite.verbs.listing import info
from penstock.stores.sqlite.verbs.measuring import drop_stats

__all__ = ["drop", "look", "reschedule", "retry", "settings"]

_LOOK = SQL["operate.look"]
_RETRY = SQL["operate.retry"]
_RETRY_QUEUED = SQL["operate.retry_queued"]
_RESCHEDULE = SQL["operate.reschedule"]
_ENDED_MEMBERS = SQL["batches.ended"]
_REVIVE = SQL["batches.revive"]
_SWITCH = SQL["queues.switch"]
_ANY_JOB = SQL["queues.any_job"]
_DROP = SQL["queues.drop"]
_DROP_DAYS = SQL["queues.drop_days"]
_DROP_ENTRIES = SQL["entries.drop"]


# ── single jobs ──────────────────────────────────────────────────────────────────────────────────


def look(tx: TransactionContext, ref: Ref) -> tuple[QueueContext, Row] | None:
    """Find a job and return its queue and the columns of `operate.look`; None if it does not exist."""
    queue = tx.queue(ref.queue)
    row = None if queue is None else tx.execute(_LOOK, (queue.qid, ref.id)).fetchone()
    if queue is None or row is None:
        return None
    check_state(row[0], row[1])
    return queue, row


def retry(
    tx: TransactionContext, refs: Sequence[Ref], attempts: int | None, expires_in: int | UnsetType | None
) -> list[State | None]:
    expires_at = tx.now + expires_in if isinstance(expires_in, int) else expires_in
    return [_retry(tx, ref, attempts, expires_at) for ref in refs]


def _retry(
    tx: TransactionContext, ref: Ref, attempts: int | None, new_expiry: int | UnsetType | None
) -> State | None:
    found = look(tx, ref)
    if found is None:
        return None
    queue, (seq, state, spec, expires_at, batch, is_batch) = found
    if batch is not None and _retry(tx, Ref(ref.queue, batch), attempts, new_expiry) is not None:
        return STATES[state]  # a running batch: its members are retried only together with it
    if state == RUNNING or (job := spec_of(seq, spec)).unreadable:
        return STATES[state]
    if new_expiry is not UNSET:
        expires_at = new_expiry
    elif expires_at is not None and expires_at <= tx.now:
        expires_at = None
    place = tx.tails(queue, 1) + 1
    before = partitions.look(tx, seq) if queue.has_dependents else None
    _restart(tx, queue, state, job, (seq, place, tx.now, expires_at, attempts_counted(job, attempts)))
    if job.batch_terms is None or is_batch:
        after = (
            AVAILABLE
            if before is None
            else partitions.became(tx, queue, before, AVAILABLE, place, at_tail=True)
        )
        tx.move(queue, state, after)
        if is_batch and state in ENDED:
            _bring_back(tx, queue, job.id)
    else:
        tx.move(queue, state, COLLECTING)
        if state == COLLECTING:
            left(tx, queue, job.task, job.batch_terms.key)
        batch_alone(tx, queue, seq, job)
    return STATES[state]


def _restart(tx: TransactionContext, queue: QueueContext, state: int, job: NewJob, terms: Row) -> None:
    """Make the row of a job available as if it were new; `terms`: the arguments of `operate.retry_queued`."""
    if state in QUEUED or state == SUSPENDED:
        tx.execute(_RETRY_QUEUED, terms)
        return
    unique_phases = None if job.unique is None else job.unique.states
    if job.flow is not None:
        unique_phases = unique_phases or 0
        tx.note_flow_end(terms[0], None)
    tx.execute(_RETRY, (*terms, unique_phases))
    if unique_phases is not None:
        shift_key(tx, queue, terms[0], unique_phases, STATES[state], State.AVAILABLE)


def _bring_back(tx: TransactionContext, queue: QueueContext, batch: str) -> None:
    """Make the members of a retried batch COLLECTING again."""
    for seq, state, spec in tx.execute(_ENDED_MEMBERS, (queue.qid, batch)).fetchall():
        tx.execute(_REVIVE, (seq,))
        unique = spec_of(seq, spec).unique
        if unique is not None:
            shift_key(tx, queue, seq, unique.states, STATES[state], State.COLLECTING)
        tx.move(queue, state, COLLECTING)


def reschedule(
    tx: TransactionContext, refs: Sequence[Ref], delay: int, run_at: int | None
) -> list[State | None]:
    due = tx.now + delay if run_at is None else run_at
    return [_reschedule(tx, ref, due) for ref in refs]


def _reschedule(tx: TransactionContext, ref: Ref, due: int) -> State | None:
    found = look(tx, ref)
    if found is None:
        return None
    queue, (seq, state, spec, _, batch, is_batch) = found
    if state in QUEUED and state != PARKED and not (state == COLLECTING and batch is not None):
        job = spec_of(seq, spec)
        if job.batch_terms is not None and not is_batch:
            _reschedule_member(tx, queue, seq, state, job, due)
            return STATES[state]
        before = partitions.look(tx, seq) if queue.has_dependents else None
        now = due <= tx.now
        place = tx.tails(queue, 1) + 1 if now else None
        after: int | None = AVAILABLE if now else CODE[State.SCHEDULED]
        tx.execute(_RESCHEDULE, (seq, after, due, place))
        if before is not None:
            after = partitions.became(tx, queue, before, after, place or before.place, at_tail=now)
        tx.move(queue, state, after)
    return STATES[state]


def _reschedule_member(
    tx: TransactionContext, queue: QueueContext, seq: int, state: int, job: NewJob, due: int
) -> None:
    assert job.batch_terms is not None
    scheduled = CODE[State.SCHEDULED]
    tx.execute(_RESCHEDULE, (seq, scheduled, due, None))
    if state == COLLECTING:
        left(tx, queue, job.task, job.batch_terms.key)
    if due <= tx.now:
        tx.move(queue, state, COLLECTING)
        enter(tx, queue, seq, job)
    else:
        tx.move(queue, state, scheduled)


# ── queues ───────────────────────────────────────────────────────────────────────────────────────


def settings(
    tx: TransactionContext, name: str, paused: bool | None, closed: bool | None, change: LimitChange | None
) -> QueueInfo:
    queue = tx.some_queue(name)
    before = queue.paused, queue.closed
    queue.paused = queue.paused if paused is None else paused
    queue.closed = queue.closed if closed is None else closed
    if before != (queue.paused, queue.closed):
        tx.execute(_SWITCH, (queue.qid, int(queue.paused), int(queue.closed)))
        tx.changes += 1
    if change is not None and limits.change(tx, queue, change):
        tx.changes += 1
    return info(tx, name)


def drop(tx: TransactionContext, name: str) -> bool:
    queue = tx.queue(name)
    if queue is None:
        return True
    if tx.execute(_ANY_JOB, (queue.qid,)).fetchone():
        return False
    tx.execute(_DROP, (queue.qid,))
    tx.execute(_DROP_DAYS, (queue.qid,))
    drop_stats(tx, queue.qid)
    drop_keys(tx, queue)
    partitions.drop(tx, queue)
    entries = tx.execute(_DROP_ENTRIES, (queue.qid,)).rowcount
    if (
        queue.paused
        or queue.closed
        or entries
        or (queue.rate_limiter and queue.rate_limiter.limits != NO_LIMITS)
    ):
        tx.changes += 1
    return True
