"""Change queued jobs: discard, edit_jobs, move_jobs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.job import QUEUED, Job, Ref, State
from penstock.core.job_changes import arguments_only, is_as_seen
from penstock.core.lifecycle import first_state
from penstock.core.unique_rules import expiry_of, replaced
from penstock.stores.contract import Enqueued, EnqueueStatus, JobEdit, JobMove
from penstock.stores.memory import transitions
from penstock.stores.memory.rows import Row
from penstock.stores.memory.state import MemoryState
from penstock.stores.memory.verbs.producing import replace_content
from penstock.stores.text_encoding import storable, storable_error

__all__ = ["discard", "edit_jobs", "move_jobs"]


def discard(memory: MemoryState, refs: Sequence[Ref], reason: str) -> list[State | None]:
    now = memory.clock.now()
    return [_discard(memory, ref, storable(reason), now) for ref in refs]


def _discard(memory: MemoryState, ref: Ref, reason: str, now: int) -> State | None:
    row = memory.row(ref)
    if row is None:
        return None
    before = row.job.state
    if (before in QUEUED or before is State.SUSPENDED) and not row.job.in_batch:
        transitions.end_queued(memory, row, reason, now, State.DEAD)
    return before


def edit_jobs(memory: MemoryState, edits: Sequence[JobEdit]) -> list[bool]:
    now = memory.clock.now()
    return [_edit(memory, edit, now) for edit in edits]


def _edit(memory: MemoryState, edit: JobEdit, now: int) -> bool:
    row = _as_seen(memory, edit.seen)
    job = None if row is None else replaced(row.job, arguments_only(edit.new), now)
    if row is None or job is None:
        return False
    replace_content(memory, row, job, now)
    return True


def move_jobs(memory: MemoryState, moves: Sequence[JobMove]) -> list[Enqueued | None]:
    now = memory.clock.now()
    return [_move(memory, move, now) for move in moves]


def _move(memory: MemoryState, move: JobMove, now: int) -> Enqueued | None:
    row = _as_seen(memory, move.seen)
    if row is None:
        return None
    new, queue = move.new, memory.queue(move.new.queue)
    if new.id in queue.rows:
        return Enqueued(EnqueueStatus.EXISTS, new.id)
    if queue.closed:
        return Enqueued(EnqueueStatus.CLOSED, new.id)
    if (full := queue.full(now, 0)) is not None:
        return Enqueued(EnqueueStatus.FULL, new.id, full[1], size=full[0])
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
    return Enqueued(EnqueueStatus.NEW, new.id)


def _as_seen(memory: MemoryState, seen: Job) -> Row | None:
    row = memory.row(seen.ref)
    return row if row is not None and is_as_seen(row.job, seen) else None
