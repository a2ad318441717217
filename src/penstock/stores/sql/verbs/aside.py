"""Set aside jobs that cannot be read, and show them as stand-ins; used by all verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.core.flow import NodeState
from penstock.core.job import UNREADABLE_TASK, Job, Ref, stand_in
from penstock.core.lifecycle import set_aside
from penstock.stores.contract import SetAside
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import Row, UnreadableRow, job_of, numbers, spec_blob, unreadable_job
from penstock.stores.sql.statements import COLLECTING, DEAD, ENDED, SQL, STATES, StoredJobRow
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext
from penstock.stores.sql.verbs.batches import end_members, left

_LOOK = SQL["aside.look"]
_END = SQL["aside.end"]
_UNLINK = SQL["aside.unlink"]
_FREE = SQL["keys.free"]


class _Looked(NamedTuple):
    """The columns of a job whose spec may be unreadable: those of `aside.look`."""

    queue: str
    id: str
    state: int
    spec: bytes
    task: str
    partition: str | None
    batch_key: str | None
    batch: str | None
    is_batch: int
    flow: int | None


def put_aside(tx: TransactionContext, causes: Mapping[int, str]) -> None:
    """Set jobs aside, given as generation → cause: each becomes a dead, readable stand-in without keys."""
    partitions_left: dict[tuple[str, str], None] = {}
    for seq, cause in causes.items():
        row = _looked(tx, seq)
        if row is not None:
            _put_aside(tx, seq, cause, row)
            if row.partition is not None:
                partitions_left[row.queue, row.partition] = None
    for name, key in partitions_left:  # after all of them have left their partitions
        partitions.advance(tx, tx.some_queue(name), key)


def show(tx: TransactionContext, row: Row) -> Job:
    """Decode a row with the columns of StoredJobRow; return a stand-in for a job that cannot be read."""
    try:
        return job_of(row)
    except UnreadableRow as error:
        seq = StoredJobRow._make(row).seq
        found = _looked(tx, seq)
        assert found is not None
        return unreadable_job(row, Ref(found.queue, found.id), error.causes[seq])


def _looked(tx: TransactionContext, seq: int) -> _Looked | None:
    row = tx.execute(_LOOK, (seq,)).fetchone()
    return None if row is None else _Looked._make(row)


def _put_aside(tx: TransactionContext, seq: int, cause: str, row: _Looked) -> None:
    queue, to = tx.some_queue(row.queue), set_aside(cause)
    until = tx.now + to.keep
    if row.is_batch:
        end_members(tx, queue, row.id, DEAD, until, to.reason)
        tx.execute(_UNLINK, (queue.qid, row.id))
    raw = spec_blob(stand_in(Ref(row.queue, row.id), row.spec))
    tx.execute(_END, (seq, tx.now, until, to.reason, raw, UNREADABLE_TASK))
    tx.execute(_FREE, (numbers([seq]),))
    if row.flow is not None and row.state not in ENDED:
        tx.flow_ends.append((row.flow, NodeState.DEAD, None))
    tx.parent_ended(seq)
    _count(tx, queue, row.state)
    if row.state == COLLECTING and row.batch is None and row.batch_key is not None:
        left(tx, queue, row.task, row.batch_key)
    tx.set_aside.append(SetAside("job", row.queue, row.id, cause))


def _count(tx: TransactionContext, queue: QueueContext, state: int) -> None:
    """Count a job that was set aside as dead, and as settled unless it had ended before."""
    tx.count_move(queue, state if 0 <= state < len(STATES) else None, DEAD)
    if state not in ENDED:
        tx.count_attempts(queue, 1, 1)
