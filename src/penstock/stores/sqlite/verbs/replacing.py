"""Enqueue conflicts: a new job whose unique key is held is a DUPLICATE, or replaces the holder's content."""

from __future__ import annotations

from penstock.core.job import Job, NewJob, State
from penstock.core.unique_rules import moves, replaced
from penstock.stores.contract import Enqueued, EnqueueStatus
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.rows import job_of, spec_blob
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import AVAILABLE, CODE, COLLECTING, STATES, WAITING
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.batches import enter, left, set_key
from penstock.stores.sqlite.verbs.keys import holder

__all__ = ["conflict", "replace_content"]

_LOOK = SQL["keys.look"]
_REPLACE = SQL["keys.replace"]


def conflict(tx: TransactionContext, queue: QueueContext, new: NewJob) -> Enqueued | None:
    """Resolve the conflict of a new job with the holder of its unique key; None if the key is free."""
    assert new.unique is not None
    found = holder(tx, queue, new.unique.key)
    if found is None:
        return None
    id, seq = found
    if new.unique.replace and replace_content(tx, queue, seq, new):
        return Enqueued(EnqueueStatus.REPLACED, id)
    return Enqueued(EnqueueStatus.DUPLICATE, id)


def replace_content(tx: TransactionContext, queue: QueueContext, seq: int, new: NewJob) -> bool:
    """Replace the content of a queued job by that of a call; False if the call does not replace it."""
    row = tx.execute(_LOOK, (seq,)).fetchone()
    if row is None:  # the key has outlived its job
        return False
    before = job_of(row)
    job = replaced(before, new, tx.now)
    if job is None:
        return False
    if moves(before.spec, job.spec):
        _move(tx, queue, seq, before, job)
        return True
    code, old = CODE[job.state], CODE[before.state]
    place = tx.tails(queue, 1) + 1 if code == AVAILABLE != old else None
    row_before = partitions.look(tx, seq) if queue.has_dependents and code != old else None
    tx.execute(_REPLACE, (seq, code, job.run_at, job.expires_at, spec_blob(job.spec), place))
    after: int | None = code
    if row_before is not None:
        stands = row_before.place if place is None else place
        after = partitions.became(tx, queue, row_before, code, stands, at_tail=place is not None)
    tx.move(queue, old, after)
    if code != old and job.is_member:
        _change_batch(tx, queue, seq, job, old)
    return True


def _move(tx: TransactionContext, queue: QueueContext, seq: int, before: Job, job: Job) -> None:
    """Replace a queued job by one with another partition, tenant or batch key."""
    row_before = partitions.leave(tx, queue, seq)
    code, old = CODE[job.state], CODE[before.state]
    if code == WAITING:
        code = AVAILABLE
    tail = tx.tails(queue, 1) + 1
    place = tail if code == AVAILABLE else None
    tx.execute(_REPLACE, (seq, code, job.run_at, job.expires_at, spec_blob(job.spec), place))
    partitions.join(tx, queue, seq, job.spec, tail)
    after: int | None = code
    if queue.has_dependents and code == AVAILABLE:
        after = partitions.became(
            tx, queue, partitions.look(tx, seq)._replace(state=None), code, tail, at_tail=True
        )
    tx.move(queue, old, after)
    if job.is_member:
        _change_key(tx, queue, seq, before, job)
    if row_before.partition is not None:
        partitions.advance(tx, queue, row_before.partition)


def _change_key(tx: TransactionContext, queue: QueueContext, seq: int, before: Job, job: Job) -> None:
    assert before.spec.batch_terms is not None
    assert job.spec.batch_terms is not None
    if before.state is State.COLLECTING:
        left(tx, queue, job.task, before.spec.batch_terms.key)
    set_key(tx, seq, job.spec.batch_terms.key)
    if job.state is State.COLLECTING:
        enter(tx, queue, seq, job.spec)


def _change_batch(tx: TransactionContext, queue: QueueContext, seq: int, job: Job, old: int) -> None:
    """Let a replaced member leave its collecting batch (now scheduled), or join it (now due)."""
    assert job.spec.batch_terms is not None
    if old == COLLECTING:
        left(tx, queue, job.task, job.spec.batch_terms.key)
    elif job.state is STATES[COLLECTING]:
        enter(tx, queue, seq, job.spec)
