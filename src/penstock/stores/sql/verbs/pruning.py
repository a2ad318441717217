"""prune: remove old jobs, unique keys, daily counts and workers; cancel expired jobs."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from penstock.core.job import State
from penstock.core.lifecycle import EXPIRED
from penstock.stores.contract import MOST_PRUNED, Pruned
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import Row, limits_of, specs_of
from penstock.stores.sql.statements import ENDED, QUEUED, RUNNING, SQL, STATES, QueueRow
from penstock.stores.sql.transaction_context import NEEDS_WRITE, NeedsWrite, QueueContext, TransactionContext
from penstock.stores.sql.verbs.batches import end_queued
from penstock.stores.sql.verbs.keys import prune_keys
from penstock.stores.sql.verbs.operating import SILENT
from penstock.stores.sql.verbs.removing import forget

_SOME = SQL["queues.some"]
_MISCOUNTED = SQL["counters.miscounted"]
_WITH_RUNNING = SQL["counters.with_running"]
_OVER = SQL["prune.over"]
_OLDEST_ENDED = SQL["prune.oldest"]
_AGED = SQL["limits.aged"]
_EXPIRED = SQL["prune.expired"]
_SILENT = SQL["prune.silent"]
_FORGET_WORKER = SQL["prune.worker"]
_DAYS = SQL["prune.days"]
_OLD_DAYS = SQL["prune.old_days"]
_KEYS_OVER = SQL["keys.over"]
_DAY = 86_400_000
_DAYS_KEPT = 90


def probe_prune(
    tx: TransactionContext, limit: int, keep_finished: int, keep_dead: int, after: str
) -> Pruned | NeedsWrite:
    """Answer by reading alone if there is nothing to prune, which is the usual case on every worker."""
    rows, following = _some_queues(tx, after)
    uncounted = _uncounted(tx, rows)
    if uncounted or any(_has_something_to_prune(tx, row, keep_finished, keep_dead) for row in rows):
        return NEEDS_WRITE
    silent = tx.execute(_SILENT, (tx.namespace, tx.now - SILENT, 1)).fetchone()
    return NEEDS_WRITE if silent else Pruned(0, 0, 0, 0, tx.take_set_aside(), following)


def _some_queues(tx: TransactionContext, after: str) -> tuple[list[QueueRow], str | None]:
    """Return the first queues behind this name, and the last of them if others follow."""
    rows = [QueueRow._make(row) for row in tx.execute(_SOME, (tx.namespace, after, MOST_PRUNED + 1))]
    return rows[:MOST_PRUNED], rows[MOST_PRUNED - 1].name if len(rows) > MOST_PRUNED else None


def _uncounted(tx: TransactionContext, rows: Sequence[QueueRow]) -> set[int]:
    """Return those of these queues that have running jobs, but count none."""
    with_running = {qid for (qid,) in tx.execute(_WITH_RUNNING)}
    return {row.qid for row in rows if row.counts[RUNNING] <= 0 and row.qid in with_running}


def _has_something_to_prune(
    tx: TransactionContext, row: QueueRow, keep_finished: int, keep_dead: int
) -> bool:
    now, qid, counts = tx.now, row.qid, row.counts
    if any(
        counts[state] and _beyond(tx, qid, state, counts[state], row.limits, keep_finished, keep_dead, 1)
        for state in ENDED
    ):
        return True
    if any(counts[state] for state in ENDED) and tx.execute(_OVER, (qid, now, 1)).fetchone():
        return True
    if any(counts[state] for state in QUEUED) and tx.execute(_EXPIRED, (qid, now, 1)).fetchone():
        return True
    if tx.execute(_OLD_DAYS, (qid, now // _DAY - _DAYS_KEPT)).fetchone():
        return True
    if tx.execute(_KEYS_OVER, (qid, now)).fetchone() or tx.execute(_MISCOUNTED, (qid,)).fetchone():
        return True
    queue = tx.queue(row.name)
    return queue is not None and queue.has_dependents and partitions.has_idle(tx, queue)


def prune(tx: TransactionContext, limit: int, keep_finished: int, keep_dead: int, after: str) -> Pruned:
    some, following = _some_queues(tx, after)
    uncounted = _uncounted(tx, some)
    rows = {row.qid: row for row in some}
    queues = {queue.qid: queue for queue in tx.known([row.name for row in rows.values()])}
    limit = max(0, limit)
    for queue in queues.values():
        wrong = queue.qid in uncounted or tx.execute(_MISCOUNTED, (queue.qid,)).fetchone()
        queue.miscounted = bool(wrong)
        if queue.has_dependents:
            partitions.prune(tx, queue)
    finished = _prune_over(tx, queues, limit)
    for queue in queues.values():
        for state in ENDED:
            bounds = keep_finished, keep_dead, limit - finished
            seqs = _beyond(tx, queue.qid, state, queue.count(state), rows[queue.qid].limits, *bounds)
            finished += forget(tx, queue, state, seqs)
    expired = _prune_expired(tx, queues, limit - finished)
    workers = _prune_workers(tx, limit - finished - expired)
    for qid in queues:
        tx.execute(_DAYS, (qid, tx.now // _DAY - _DAYS_KEPT))
    keys = prune_keys(tx, list(queues.values()), limit)
    return Pruned(finished, expired, workers, keys, tx.take_set_aside(), following)


def _beyond(
    tx: TransactionContext,
    qid: int,
    state: int,
    count: int,
    limits_blob: bytes | None,
    keep_finished: int,
    keep_dead: int,
    limit: int,
) -> list[int]:
    """Return the ended jobs of one state beyond the count or age limits, oldest end first, up to `limit`.

    `count`: the number of ended jobs in this state.
    """
    dead = STATES[state] is State.DEAD
    newest, until = limits_of(limits_blob).kept(dead, keep_dead if dead else keep_finished, tx.now)
    beyond = min(limit, count - newest)
    rows = tx.execute(_OLDEST_ENDED, (qid, state, beyond)).fetchall() if beyond > 0 else []
    if len(rows) < limit and until > -inf:
        aged = tx.execute(_AGED, (qid, state, int(until), limit)).fetchall()
        rows = max(rows, aged, key=len)  # both lists are prefixes of the same order
    return [seq for (seq,) in rows]


def _prune_over(tx: TransactionContext, queues: dict[int, QueueContext], limit: int) -> int:
    over: list[Row] = []
    for qid in queues:
        over += tx.execute(_OVER, (qid, tx.now, limit)).fetchall()
    over.sort()
    gone: dict[tuple[int, int], list[int]] = {}
    for _, seq, qid, state in over[:limit]:
        gone.setdefault((qid, state), []).append(seq)
    return sum(forget(tx, queues[qid], state, seqs) for (qid, state), seqs in gone.items())


def _prune_expired(tx: TransactionContext, queues: dict[int, QueueContext], limit: int) -> int:
    expired: list[Row] = []
    for qid in queues:
        expired += tx.execute(_EXPIRED, (qid, tx.now, limit)).fetchall()
    expired.sort()
    expired = expired[:limit]
    specs = specs_of((seq, spec) for _, seq, _, _, spec in expired)
    for (_, seq, qid, state, _), spec in zip(expired, specs, strict=True):
        end_queued(tx, queues[qid], seq, state, spec, EXPIRED)
    return len(expired)


def _prune_workers(tx: TransactionContext, limit: int) -> int:
    silent = tx.execute(_SILENT, (tx.namespace, tx.now - SILENT, limit)).fetchall()
    for (id,) in silent:
        tx.execute(_FORGET_WORKER, (tx.namespace, id))
    return len(silent)
