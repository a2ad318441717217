"""change_jobs: the acts of operators, each as `core/changes.py` decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from penstock.core.changes import JobChange, arguments_only, change_of, is_as_seen
from penstock.core.job import TERMINAL, Job, NewJob, Ref, State
from penstock.core.lifecycle import attempts_counted
from penstock.core.outcomes import QueuePosition
from penstock.stores.contract import (
    AnyAct,
    Changed,
    Enqueued,
    EnqueueStatus,
    JobCompletion,
    JobDiscard,
    JobEdit,
    JobMove,
    JobRetry,
    StateAct,
)
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import check_state, errors_blob, job_of, spec_of
from penstock.stores.sql.statements import CODE, COLLECTING, ENDED, SQL, STATES
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext
from penstock.stores.sql.verbs.batches import batch_alone, end_queued, enter, left
from penstock.stores.sql.verbs.keys import shift_key
from penstock.stores.sql.verbs.producing import insert_with_options, refused, replace_content
from penstock.stores.sql.verbs.removing import remove

_LOOK = SQL["operate.look"]
_RETRY = SQL["operate.retry"]
_RESCHEDULE = SQL["operate.reschedule"]
_ENDED_MEMBERS = SQL["batches.ended"]
_REVIVE = SQL["batches.revive"]
_GET = SQL["keys.look"]
_CARRY = SQL["operate.carry"]


class _FoundJob(NamedTuple):
    """A job: its queue, and the columns of `operate.look`."""

    queue: QueueContext
    seq: int
    state: int
    spec: bytes
    expires_at: int | None
    batch: str | None
    is_batch: int


def change_jobs(tx: TransactionContext, acts: Sequence[AnyAct]) -> list[Changed]:
    return [_change(tx, act) for act in acts]


def _change(tx: TransactionContext, act: AnyAct) -> Changed:
    if isinstance(act, JobEdit):
        return _edit(tx, act)
    return _move(tx, act) if isinstance(act, JobMove) else _change_state(tx, act)


def _look(tx: TransactionContext, ref: Ref) -> _FoundJob | None:
    queue = tx.queue(ref.queue)
    row = None if queue is None else tx.execute(_LOOK, (queue.qid, ref.id)).fetchone()
    if queue is None or row is None:
        return None
    check_state(row[0], row[1])
    return _FoundJob(queue, *row)


# ── acts that change the state ───────────────────────────────────────────────────────────────────


def _change_state(tx: TransactionContext, act: StateAct) -> Changed:
    found = _look(tx, act.ref)
    if found is None:
        return Changed()
    state = STATES[found.state]
    change = change_of(act.verb, state, later=act.due(tx.now) > tx.now)
    if change is not None and found.batch is not None:
        if change.anew:
            whole = _change_state(tx, replace(act, ref=Ref(act.ref.queue, found.batch)))
            if whole.before is not None:
                return Changed(state, whole.changed)
        elif found.state == COLLECTING:
            return Changed(state)
    if change is None or (job := spec_of(found.seq, found.spec)).unreadable:
        return Changed(state)
    (_end if change.state in TERMINAL else _queue_again)(tx, found, job, act, change)
    return Changed(state, True)


def _end(tx: TransactionContext, found: _FoundJob, job: NewJob, act: StateAct, change: JobChange) -> None:
    """End a job that is not running; one that had ended otherwise is undone first."""
    assert isinstance(act, JobDiscard | JobCompletion)
    queue, seq, state, *_ = found
    if state in ENDED:
        if job.flow is not None:
            tx.note_flow_end(seq, None)
        if found.is_batch:
            _bring_back(tx, queue, job.id, stays=CODE[change.state])
    result = act.result if isinstance(act, JobCompletion) else None
    end_queued(tx, queue, seq, state, job, act.reason, change.state, result)
    if change.state is State.COMPLETED and job.unique is not None:
        shift_key(tx, queue, seq, job.unique.phases, STATES[state], change.state)


def _queue_again(
    tx: TransactionContext, found: _FoundJob, job: NewJob, act: StateAct, change: JobChange
) -> None:
    """Make a job available or scheduled."""
    queue, seq, state, *_ = found
    at_tail = change.place is QueuePosition.TAIL
    place = tx.places_at_tail(queue, 1) + 1 if at_tail else None
    before = partitions.look(tx, seq) if queue.has_dependents else None
    after: int | None = CODE[change.state]
    if change.anew:
        _start_anew(tx, found, job, act, place)
    else:
        tx.execute(_RESCHEDULE, (seq, after, act.due(tx.now), place))
    if job.batch_terms is not None and not found.is_batch:
        _queue_member_again(tx, found, job, change)
        return
    if before is not None:
        stands = before.place if place is None else place
        after = partitions.became(tx, queue, before, after, stands, at_tail=at_tail)
    tx.count_move(queue, state, after)
    if found.is_batch and state in ENDED:
        _bring_back(tx, queue, job.id)


def _start_anew(
    tx: TransactionContext, found: _FoundJob, job: NewJob, act: StateAct, place: int | None
) -> None:
    """Make the row of a job available as if it were new."""
    assert isinstance(act, JobRetry)
    expires_at = found.expires_at
    if act.expires_in is not UNSET:
        expires_at = None if act.expires_in is None else tx.now + act.expires_in
    elif expires_at is not None and expires_at <= tx.now:
        expires_at = None
    counted = attempts_counted(job, act.attempts)
    tx.execute(_RETRY, (found.seq, place, act.due(tx.now), expires_at, counted))
    if found.state not in ENDED:
        return
    if job.flow is not None:
        tx.note_flow_end(found.seq, None)
    if job.unique is not None:
        shift_key(tx, found.queue, found.seq, job.unique.phases, STATES[found.state], State.AVAILABLE)


def _queue_member_again(tx: TransactionContext, found: _FoundJob, job: NewJob, change: JobChange) -> None:
    """Let a member whose row has changed leave its collecting batch, and join one if it is due."""
    assert job.batch_terms is not None
    queue = found.queue
    if found.state == COLLECTING and found.batch is None:
        left(tx, queue, job.task, job.batch_terms.key)
    later = change.state is State.SCHEDULED
    tx.count_move(queue, found.state, CODE[change.state] if later else COLLECTING)
    if change.anew:
        batch_alone(tx, queue, found.seq, job)
    elif not later:
        enter(tx, queue, found.seq, job)


def _bring_back(tx: TransactionContext, queue: QueueContext, batch: str, stays: int | None = None) -> None:
    """Make the members of an ended batch COLLECTING again, except those in the state `stays`."""
    for seq, state, spec in tx.execute(_ENDED_MEMBERS, (queue.qid, batch)).fetchall():
        if state == stays:
            continue
        tx.execute(_REVIVE, (seq,))
        unique = spec_of(seq, spec).unique
        if unique is not None:
            shift_key(tx, queue, seq, unique.phases, STATES[state], State.COLLECTING)
        tx.count_move(queue, state, COLLECTING)


# ── edit and move ────────────────────────────────────────────────────────────────────────────────


def _edit(tx: TransactionContext, edit: JobEdit) -> Changed:
    found = _as_seen(tx, edit.seen)
    if found is None or not replace_content(tx, *found, arguments_only(edit.new)):
        return Changed()
    return Changed(edit.seen.state, True)


def _move(tx: TransactionContext, move: JobMove) -> Changed:
    found = _as_seen(tx, move.seen)
    if found is None:
        return Changed()
    new, to = move.new, tx.some_queue(move.new.queue)
    refusal = refused(tx, to, new)
    if refusal is not None:
        return Changed(move.seen.state, False, refusal)
    queue, seq = found
    remove(tx, queue, [seq])
    insert_with_options(tx, to, new)
    errors = errors_blob(move.errors) if move.errors else None
    tx.execute(_CARRY, (to.qid, new.id, move.seen.attempt, move.seen.lost, errors, move.checkpoint))
    return Changed(move.seen.state, True, Enqueued(EnqueueStatus.NEW, new.id))


def _as_seen(tx: TransactionContext, seen: Job) -> tuple[QueueContext, int] | None:
    """The queue and generation of a job that is still as it was seen; None if it is not."""
    found = _look(tx, seen.ref)
    if found is None:
        return None
    job = job_of(tx.execute(_GET, (found.seq,)).fetchone())
    return (found.queue, found.seq) if is_as_seen(job, seen) else None
