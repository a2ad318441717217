"""delete and purge; removed jobs free their unique key, their members and their place in a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.flow import NodeState
from penstock.core.job import Ref, State
from penstock.stores.contract import Enqueued, EnqueueStatus, Replacement
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import check_state, numbers
from penstock.stores.sql.statements import CODE, COLLECTING, ENDED, RUNNING, SQL, STATES
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext
from penstock.stores.sql.verbs.batches import drop_members, left
from penstock.stores.sql.verbs.keys import forget_key, free_endless_keys, free_keys
from penstock.stores.sql.verbs.operating import cheaper_to_gather, gather
from penstock.stores.sql.verbs.producing import enqueue_one
from penstock.stores.sql.verbs.stepping import drop_memory

_LOOK = SQL["operate.look"]
_DELETE = SQL["operate.delete"]
_OLDEST_JOBS = SQL["list.oldest"]
_ALONE = SQL["batches.alone"]


class _Gone(NamedTuple):
    """A removed job: the columns of `operate.delete`."""

    state: int
    id: str
    task: str
    batch_key: str | None
    batch: str | None
    was_batch: int
    seq: int
    unique_phases: int | None
    flow: int | None
    has_steps: int | None


def delete(tx: TransactionContext, refs: Sequence[Ref], running: bool, keep_keys: bool) -> list[State | None]:
    return [_delete(tx, ref, running, keep_keys) for ref in refs]


def replace_jobs(tx: TransactionContext, replacements: Sequence[Replacement]) -> list[Enqueued]:
    answers: list[Enqueued] = []
    for one in replacements:
        answers.append(enqueue_one(tx, one.new))
        if answers[-1].status is EnqueueStatus.NEW:
            _delete(tx, one.old, True, True)
    return answers


def _delete(tx: TransactionContext, ref: Ref, running: bool, keep_keys: bool) -> State | None:
    queue = tx.queue(ref.queue)
    row = None if queue is None else tx.execute(_LOOK, (queue.qid, ref.id)).fetchone()
    if queue is None or row is None:
        return None
    seq, state, _, _, batch, _ = row
    check_state(seq, state)
    if state == RUNNING and running:
        tx.count_attempts(queue, 1, 0)
        remove(tx, queue, [seq], keep_keys)
    elif state != RUNNING and not (state == COLLECTING and batch is not None):
        remove(tx, queue, [seq], keep_keys)
    return STATES[state]


def purge(tx: TransactionContext, name: str, states: Sequence[State], limit: int) -> int:
    queue = tx.queue(name)
    codes = {CODE[state] for state in states} - {RUNNING}
    matches = 0 if queue is None else sum(queue.counts[code] for code in codes)
    if queue is None or limit <= 0 or not matches:
        return 0
    if cheaper_to_gather(tx, matches, limit):
        seqs = sorted(seq for code in codes for seq in _purgeable(tx, queue.qid, code))[:limit]
    else:
        seqs = [seq for (seq,) in tx.execute(_OLDEST_JOBS, (queue.qid, numbers(codes), limit))]
    remove(tx, queue, seqs)
    return len(seqs)


def _purgeable(tx: TransactionContext, qid: int, code: int) -> list[int]:
    if code == COLLECTING:  # members of a batch are removed with it
        return [seq for (seq,) in tx.execute(_ALONE, (qid,))]
    return gather(tx, qid, code)


def remove(tx: TransactionContext, queue: QueueContext, seqs: Sequence[int], keep_keys: bool = False) -> None:
    """Remove jobs on request."""
    if queue.has_dependents:
        _remove_with_dependents(tx, queue, seqs, keep_keys)
        return
    gone = _deleted(tx, seqs)
    for one in gone:
        tx.count_move(queue, one.state, None)
    _free(tx, queue, gone, keep_keys)


def _remove_with_dependents(
    tx: TransactionContext, queue: QueueContext, seqs: Sequence[int], keep_keys: bool
) -> None:
    """Remove jobs one by one: removing one may admit another, which is to be removed next."""
    for seq in seqs:
        before = partitions.look(tx, seq)
        gone = _deleted(tx, [seq])
        tx.count_move(queue, before.state, None)
        _free(tx, queue, gone, keep_keys)
        partitions.became(tx, queue, before, None, before.place)


def _deleted(tx: TransactionContext, seqs: Sequence[int]) -> list[_Gone]:
    gone = [_Gone._make(row) for row in tx.execute(_DELETE, (numbers(seqs),)).fetchall()]
    drop_memory(tx, [one.seq for one in gone if one.has_steps])
    return gone


def _free(tx: TransactionContext, queue: QueueContext, gone: Sequence[_Gone], keep_keys: bool) -> None:
    """Free the unique keys of removed jobs, remove members of removed batches, leave collecting batches."""
    held = [one.seq for one in gone if one.unique_phases is not None]
    if keep_keys:
        free_endless_keys(tx, held)
    else:
        free_keys(tx, held)
    for one in gone:
        if one.flow is not None and one.state not in ENDED:
            tx.flow_ends.append((one.flow, NodeState.GONE, None))
        if one.has_steps and one.state not in ENDED:
            tx.parent_ended(one.seq)
    _leave_batches(tx, queue, gone, forgotten=False)


def forget(tx: TransactionContext, queue: QueueContext, state: int, seqs: Sequence[int]) -> int:
    """Remove ended jobs of one state whose retention is over; return their number."""
    if seqs:
        keys = (
            dict.fromkeys(partitions.look(tx, seq).partition for seq in seqs) if queue.has_partitions else {}
        )
        gone = _deleted(tx, seqs)
        tx.count_move(queue, state, None, len(seqs))
        for one in gone:
            if one.unique_phases is not None:
                forget_key(tx, one.seq, state, one.unique_phases)
        _leave_batches(tx, queue, gone, forgotten=True)
        for key in keys:  # `advance` admits waiting jobs that may start by now
            if key is not None:
                partitions.advance(tx, queue, key)
    return len(seqs)


def _leave_batches(
    tx: TransactionContext, queue: QueueContext, gone: Sequence[_Gone], *, forgotten: bool
) -> None:
    """Remove the members of removed batches, and take removed members out of their collecting batches."""
    waited: dict[tuple[str, str], int] = {}
    for one in gone:
        if one.was_batch:
            drop_members(tx, queue, one.id, forgotten=forgotten)
        elif one.state == COLLECTING and one.batch is None and one.batch_key is not None:
            waited[one.task, one.batch_key] = waited.get((one.task, one.batch_key), 0) + 1
    for (task, key), n in waited.items():
        left(tx, queue, task, key, n)
