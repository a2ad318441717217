"""promote: make due jobs and batches available, and let partitions admit waiting jobs that are due."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from penstock.core.lifecycle import EXPIRED
from penstock.stores.contract import Due
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import Row, numbers, spec_of
from penstock.stores.sql.statements import AVAILABLE, COLLECTING, RETRYABLE, SCHEDULED, SQL, SUSPENDED
from penstock.stores.sql.transaction_context import NEEDS_WRITE, NeedsWrite, QueueContext, TransactionContext
from penstock.stores.sql.verbs import batches

_DUE = SQL["promote.due"]
_TO_TAIL = SQL["promote.move"]
_NEXT = SQL["promote.next"]

#: One promotion processes at most about this number of batch members.
_MOST_MEMBERS = 5_000


class _Due(NamedTuple):
    """A due job, or a due partition: the columns of `promote.due`.

    A partition has the generation 0, so it is sorted before the jobs with the same due time.
    """

    due: int
    seq: int  # 0: a partition
    qid: int
    state: int | None
    expires_at: int | None
    spec: bytes | None
    batch_key: str | None
    partition: str | None


class _DueBatch(NamedTuple):
    """A collecting batch that is due."""

    queue: QueueContext
    task: str
    key: str


#: Rows of `_Due` are read as plain tuples, for speed.
_BATCH_KEY = _Due._fields.index("batch_key")


def probe_promote(tx: TransactionContext, queues: Sequence[str], limit: int) -> Due | NeedsWrite:
    due = next_due(tx, tx.known(queues))
    if limit > 0 and due is not None and due <= tx.now:
        return NEEDS_WRITE
    return Due(0, due, tx.now, tx.take_set_aside())


def promote(tx: TransactionContext, queues: Sequence[str], limit: int) -> Due:
    found = {queue.qid: queue for queue in tx.known(queues)}
    limit = max(0, limit)
    due = _due(tx, found, limit)
    if any(queue.count(COLLECTING) for queue in found.values()) or any(
        row[_BATCH_KEY] is not None for row in due
    ):
        n = _promote_with_batches(tx, found, due, limit)
    else:
        n = _promote_jobs(tx, found, due[:limit])
    return Due(n, next_due(tx, list(found.values())), tx.now, tx.take_set_aside())


def _due(tx: TransactionContext, queues: dict[int, QueueContext], limit: int) -> list[Row]:
    """Return the jobs and partitions that are due, by instant, then by generation."""
    due: list[Row] = []
    for qid, queue in queues.items():
        due += tx.execute(_DUE, (qid, tx.now, limit)).fetchall()
        for at, key in partitions.all_due(tx, queue, limit):
            due.append(_Due(at, 0, qid, None, None, None, None, key))
    due.sort()
    return due


def _promote_jobs(tx: TransactionContext, queues: dict[int, QueueContext], due: Sequence[Row]) -> int:
    """Promote due jobs, the plain jobs of a queue together; return how many became available."""
    moved: dict[int, list[int]] = {}
    n = 0
    for row in due:
        _, seq, qid, state, expires_at, *_ = row
        if queues[qid].has_dependents or (expires_at is not None and expires_at <= tx.now):
            n += _promote_one(tx, queues[qid], _Due._make(row))
        else:
            moved.setdefault(qid, []).append(seq)
            tx.count_move(queues[qid], state, AVAILABLE)
    for qid, seqs in moved.items():
        tx.execute(_TO_TAIL, (tx.places_at_tail(queues[qid], len(seqs)), numbers(seqs)))
        n += len(seqs)
    return n


def _promote_with_batches(
    tx: TransactionContext, queues: dict[int, QueueContext], due: Sequence[Row], limit: int
) -> int:
    """Promote one by one, by instant: a joining member may change its batch's due time, or complete it."""
    items: list[tuple[tuple[int, int, int, str, str, str], _Due | _DueBatch]] = [
        ((one.due, 0, one.seq, "", "", ""), one) for one in map(_Due._make, due)
    ]
    for queue in queues.values():
        # twice the limit: members that join during this promotion may make some batches due later
        for at, task, key in batches.due_batches(tx, queue, 2 * limit):
            items.append(((at, 1, 0, task, key, queue.name), _DueBatch(queue, task, key)))
    moved, members = 0, 0
    for _, one in sorted(items, key=itemgetter(0)):
        if limit <= 0 or members >= _MOST_MEMBERS:
            break
        if isinstance(one, _Due):
            moved += _promote_one(tx, queues[one.qid], one)
        elif batches.is_due(tx, *one, full=False):
            made, n = batches.flush(tx, *one)
            members += n
            moved += made is not None
        else:
            continue
        limit -= 1
    return moved


def _promote_one(tx: TransactionContext, queue: QueueContext, one: _Due) -> int:
    """Promote one item; return how many jobs moved: several for a partition, 0 for an expired job."""
    if one.partition is not None:
        return partitions.advance(tx, queue, one.partition)
    assert one.state is not None
    assert one.spec is not None
    if one.expires_at is not None and one.expires_at <= tx.now:
        batches.end_queued(tx, queue, one.seq, one.state, one.spec, EXPIRED)
        return 0
    if one.batch_key is None and queue.has_dependents:
        partitions.to_tail(tx, queue, one.seq)
    elif one.batch_key is None:
        tx.execute(_TO_TAIL, (tx.places_at_tail(queue, 1), numbers([one.seq])))
        tx.count_move(queue, one.state, AVAILABLE)
    else:
        tx.count_move(queue, one.state, COLLECTING)
        batches.enter(tx, queue, one.seq, spec_of(one.seq, one.spec))
    return 1


def next_due(tx: TransactionContext, queues: Sequence[QueueContext]) -> int | None:
    """Return when the next promotion of these queues is due; None if nothing has a due time."""
    least: int | None = None
    for queue in queues:
        if queue.count(SCHEDULED) or queue.count(RETRYABLE) or queue.count(SUSPENDED):
            (due,) = tx.execute(_NEXT, (queue.qid,)).fetchone()
            if due is not None and (least is None or due < least):
                least = due
        for due in (partitions.next_due(tx, queue), batches.next_due(tx, queue)):
            if due is not None and (least is None or due < least):
                least = due
    return least
