"""change_jobs: the acts of operators."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from penstock.core.changes import arguments_only, expiry_of, is_as_seen, replaced
from penstock.core.job import QUEUED, TERMINAL, Job, Ref, State
from penstock.core.lifecycle import attempts_counted, first_state
from penstock.stores.contract import (
    AnyAct,
    Changed,
    Enqueued,
    EnqueueStatus,
    JobCompletion,
    JobDiscard,
    JobEdit,
    JobMove,
    JobReschedule,
    JobRetry,
)
from penstock.stores.text_encoding import storable, storable_error
from tests.oracle import indexes, keys, transitions
from tests.oracle.flow_ends import FlowEnd
from tests.oracle.rows import Row
from tests.oracle.state import MemoryState
from tests.oracle.verbs.producing import replace_content

__all__ = ["change_jobs"]

_MOVABLE = (State.SCHEDULED, State.AVAILABLE, State.RETRYABLE, State.WAITING)


def change_jobs(memory: MemoryState, acts: Sequence[AnyAct]) -> list[Changed]:
    now = memory.clock.now()
    return [_change(memory, act, now) for act in acts]


def _change(memory: MemoryState, act: AnyAct, now: int) -> Changed:
    if isinstance(act, JobEdit):
        return _edit(memory, act, now)
    if isinstance(act, JobMove):
        return _move(memory, act, now)
    row = memory.row(act.ref)
    if row is None:
        return Changed()
    before = row.job.state
    match act:
        case JobRetry():
            return Changed(before, _retry(memory, row, act, now))
        case JobReschedule():
            return Changed(before, _reschedule(memory, row, act, now))
        case JobDiscard():
            return Changed(before, _discard(memory, row, act, now))
        case JobCompletion():
            return Changed(before, _complete(memory, row, act, now))


def _retry(memory: MemoryState, row: Row, act: JobRetry, now: int) -> bool:
    if (batch := memory.row(Ref(row.queue.name, row.job.batch or ""))) is not None:
        row = batch  # a retry of one member retries the whole batch
    if row.job.state is State.RUNNING:
        return False
    expires_at = now + act.expires_in if isinstance(act.expires_in, int) else act.expires_in
    if expires_at is UNSET:
        expires_at = None if row.expired(now) else row.job.expires_at
    _run_again(memory, row, now, attempts_counted(row.job.spec, act.attempts), expires_at)
    return True


def _run_again(memory: MemoryState, row: Row, now: int, attempt: int, expires_at: int | None) -> None:
    """Make a job available as if it were new; a member without a batch job becomes a batch of one."""
    before = row.job.state
    indexes.take(memory, row)
    row.job = replace(
        row.job,
        state=State.AVAILABLE,
        attempt=attempt,
        lost=0,
        run_at=now,
        ended_at=None,
        expires_at=expires_at,
        cancel_asked=False,
        result=None,
        reason=None,
    )
    keys.shift(memory, row, before, now)
    if row.job.is_member:
        transitions.become_batch(memory, row.queue, [row], now)
        return
    transitions.put_available(memory, row, now)
    if before in TERMINAL:
        _reopen(memory, row)
        transitions.bring_back_members(memory, row, now)


def _reopen(memory: MemoryState, row: Row) -> None:
    """Undo the end of a job in its flow."""
    if (flow := row.job.spec.flow) is not None:
        memory.flow_ends.append(FlowEnd(flow, row.job.id, None))


def _reschedule(memory: MemoryState, row: Row, act: JobReschedule, now: int) -> bool:
    before = row.job.state
    if before not in _MOVABLE and (before is not State.COLLECTING or row.job.in_batch):
        return False
    due = now + act.delay if act.run_at is None else act.run_at
    indexes.take(memory, row)
    row.job = replace(row.job, run_at=due)
    if due <= now:
        transitions.put_available(memory, row, now)
    else:
        row.job = replace(row.job, state=State.SCHEDULED)
        transitions.put(memory, row)
    return True


def _discard(memory: MemoryState, row: Row, act: JobDiscard, now: int) -> bool:
    if (row.job.state not in QUEUED and row.job.state is not State.SUSPENDED) or row.job.in_batch:
        return False
    transitions.end_queued(memory, row, storable(act.reason), now, State.DEAD)
    return True


def _complete(memory: MemoryState, row: Row, act: JobCompletion, now: int) -> bool:
    before = row.job.state
    if before in (State.RUNNING, State.COMPLETED) or row.job.in_batch:
        return False
    if before in TERMINAL:
        _reopen(memory, row)
        transitions.bring_back_members(memory, row, now, stays=State.COMPLETED)
    transitions.end_queued(memory, row, storable(act.reason), now, State.COMPLETED, act.result)
    keys.shift(memory, row, before, now)
    return True


def _edit(memory: MemoryState, edit: JobEdit, now: int) -> Changed:
    row = _as_seen(memory, edit.seen)
    job = None if row is None else replaced(row.job, arguments_only(edit.new), now)
    if row is None or job is None:
        return Changed()
    replace_content(memory, row, job, now)
    return Changed(edit.seen.state, True)


def _move(memory: MemoryState, move: JobMove, now: int) -> Changed:
    row = _as_seen(memory, move.seen)
    if row is None:
        return Changed()
    before = row.job.state
    new, queue = move.new, memory.queue(move.new.queue)
    if new.id in queue.rows:
        return Changed(before, False, Enqueued(EnqueueStatus.EXISTS, new.id))
    if queue.closed:
        return Changed(before, False, Enqueued(EnqueueStatus.CLOSED, new.id))
    if (full := queue.full(now, 0)) is not None:
        return Changed(before, False, Enqueued(EnqueueStatus.FULL, new.id, full[1], size=full[0]))
    transitions.drop(memory, row)
    state, run_at = first_state(new, now)
    job = Job(
        new,
        state,
        memory.generation + 1,
        row.job.attempt,
        row.job.lost,
        now,
        run_at,
        expires_at=expiry_of(new, now),
        errors=tuple(map(storable_error, move.errors)),
        checkpoint=move.checkpoint,
    )
    transitions.add(memory, job, queue, now)
    return Changed(before, True, Enqueued(EnqueueStatus.NEW, new.id))


def _as_seen(memory: MemoryState, seen: Job) -> Row | None:
    row = memory.row(seen.ref)
    return row if row is not None and is_as_seen(row.job, seen) else None
