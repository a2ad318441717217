"""The verbs by which operators change queued jobs: discard, edit_jobs, move_jobs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.job import Job, Ref, State
from penstock.core.job_changes import arguments_only, is_as_seen
from penstock.stores.contract import Enqueued, EnqueueStatus, JobEdit, JobMove
from penstock.stores.sqlite.blobs import errors_blob
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.rows import job_of
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import COLLECTING, QUEUED, STATES, SUSPENDED
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.batches import end_queued
from penstock.stores.sqlite.verbs.operating import look
from penstock.stores.sqlite.verbs.producing import insert_with_options, refused
from penstock.stores.sqlite.verbs.removing import remove
from penstock.stores.sqlite.verbs.replacing import replace_content

__all__ = ["discard", "edit_jobs", "move_jobs"]

_GET = SQL["keys.look"]
_CARRY = SQL["operate.carry"]


def discard(tx: TransactionContext, refs: Sequence[Ref], reason: str) -> list[State | None]:
    return [_discard(tx, ref, reason) for ref in refs]


def _discard(tx: TransactionContext, ref: Ref, reason: str) -> State | None:
    found = look(tx, ref)
    if found is None:
        return None
    queue, (seq, state, spec, _, batch, _) = found
    is_member = state == COLLECTING and batch is not None
    if (state in QUEUED or state == SUSPENDED) and not is_member:
        end_queued(tx, queue, seq, state, spec, reason, State.DEAD)
    return STATES[state]


def edit_jobs(tx: TransactionContext, edits: Sequence[JobEdit]) -> list[bool]:
    return [_edit(tx, edit) for edit in edits]


def _edit(tx: TransactionContext, edit: JobEdit) -> bool:
    found = _as_seen(tx, edit.seen)
    return found is not None and replace_content(tx, *found, arguments_only(edit.new))


def move_jobs(tx: TransactionContext, moves: Sequence[JobMove]) -> list[Enqueued | None]:
    return [_move(tx, move) for move in moves]


def _move(tx: TransactionContext, move: JobMove) -> Enqueued | None:
    found = _as_seen(tx, move.seen)
    if found is None:
        return None
    new, to = move.new, tx.some_queue(move.new.queue)
    refusal = refused(tx, to, new)
    if refusal is not None:
        return refusal
    queue, seq = found
    remove(tx, queue, [seq])
    insert_with_options(tx, to, new)
    errors = errors_blob(move.errors) if move.errors else None
    tx.execute(_CARRY, (to.qid, new.id, move.seen.attempt, move.seen.lost, errors, move.checkpoint))
    return Enqueued(EnqueueStatus.NEW, new.id)


def _as_seen(tx: TransactionContext, seen: Job) -> tuple[QueueContext, int] | None:
    """The queue and generation of a job that is still as it was seen; None if it is not."""
    found = look(tx, seen.ref)
    if found is None:
        return None
    queue, (seq, *_) = found
    job = job_of(tx.execute(_GET, (seq,)).fetchone())
    return (queue, seq) if is_as_seen(job, seen) else None
