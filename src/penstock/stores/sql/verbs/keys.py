"""Unique keys: find the holder of a key, take keys, and free them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.changes import KeyChange, key_change, outlives_its_job, until
from penstock.core.job import State
from penstock.core.unique import UniqueKey
from penstock.stores.sql.rows import numbers, spec_of
from penstock.stores.sql.statements import SQL, STATES
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext

_HOLDER = SQL["keys.holder"]
_TAKE = SQL["keys.take"]
_FREE = SQL["keys.free"]
_FREE_ENDLESS = SQL["keys.free_endless"]
_PRUNE = SQL["keys.prune"]
_DROP = SQL["keys.drop"]
_JOB = SQL["keys.job"]


def holder(tx: TransactionContext, queue: QueueContext, unique_key: str) -> tuple[str, int] | None:
    """Return the id and generation of a key's holder; a key whose period is over is freed here."""
    found = tx.execute(_HOLDER, (queue.qid, unique_key)).fetchone()
    if found is None:
        return None
    id, end, seq = found
    if end is not None and end <= tx.now:
        free_keys(tx, [seq])
        return None
    return id, seq


def take_key(
    tx: TransactionContext, queue: QueueContext, seq: int, id: str, unique: UniqueKey, enqueued_at: int
) -> None:
    """Take a key for the rest of its period, unless another job holds it."""
    end = until(unique, enqueued_at)
    if (end is None or end > tx.now) and holder(tx, queue, unique.key) is None:
        tx.execute(_TAKE, (queue.qid, unique.key, seq, id, end))


def free_keys(tx: TransactionContext, seqs: Sequence[int]) -> None:
    """Free the unique keys of these jobs."""
    if seqs:
        tx.execute(_FREE, (numbers(seqs),))


def free_endless_keys(tx: TransactionContext, seqs: Sequence[int]) -> None:
    """Free the unique keys of these jobs that have no period."""
    for seq in seqs:
        tx.execute(_FREE_ENDLESS, (seq,))


def forget_key(tx: TransactionContext, seq: int, state: int, unique_phases: int) -> None:
    """Free the key of an ended job that its retention removes; a key with a period may outlive its job."""
    if outlives_its_job(unique_phases, STATES[state]):  # in other states the job holds no key
        tx.execute(_FREE_ENDLESS, (seq,))


def shift_key(
    tx: TransactionContext,
    queue: QueueContext,
    seq: int,
    unique_phases: int,
    before: State | None,
    after: State,
) -> None:
    """Take or free the unique key of a job that changes from state `before` to `after`."""
    match key_change(unique_phases, before, after):
        case KeyChange.TAKEN:
            id, spec, enqueued_at = tx.execute(_JOB, (seq,)).fetchone()
            unique = spec_of(seq, spec).unique
            if unique is not None:
                take_key(tx, queue, seq, id, unique, enqueued_at)
        case KeyChange.FREED:
            free_keys(tx, [seq])
        case KeyChange.STAYS:
            pass


def prune_keys(tx: TransactionContext, queues: Sequence[QueueContext], limit: int) -> int:
    """Delete keys whose period is over; return their number."""
    gone = 0
    for queue in queues:
        gone += tx.execute(_PRUNE, (queue.qid, tx.now, limit - gone)).rowcount
    return gone


def drop_keys(tx: TransactionContext, queue: QueueContext) -> None:
    """Delete all keys of a queue that is dropped."""
    tx.execute(_DROP, (queue.qid,))
