"""prune: remove old jobs, unique keys, daily counts and workers; cancel expired jobs."""

from __future__ import annotations

from math import inf

from penstock.core.job import State
from penstock.core.lifecycle import EXPIRED
from penstock.stores.contract import Pruned
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.blobs import limits_of
from penstock.stores.sqlite.columns import QueueRow
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.rows import Row, specs_of
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import ENDED, QUEUED, STATES
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.batches import end_queued
from penstock.stores.sqlite.verbs.keys import prune_keys
from penstock.stores.sqlite.verbs.listing import all_queues
from penstock.stores.sqlite.verbs.needs_write import NEEDS_WRITE, NeedsWrite
from penstock.stores.sqlite.verbs.removing import forget
from penstock.stores.sqlite.verbs.workers import SILENT

__all__ = ["probe_prune", "prune"]

_MISCOUNTED = SQL["counters.miscounted"]
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
    tx: TransactionContext, limit: int, keep_finished: int, keep_dead: int
) -> Pruned | NeedsWrite:
    """Answer by reading alone if there is nothing to prune, which is the usual case on every worker."""
    if any(_has_something_to_prune(tx, row, keep_finished, keep_dead) for row in all_queues(tx)):
        return NEEDS_WRITE
    silent = tx.execute(_SILENT, (tx.namespace, tx.now - SILENT, 1)).fetchone()
    return NEEDS_WRITE if silent else Pruned(0, 0, 0, set_aside=tx.take_set_aside())


def _has_something_to_prune(
    tx: TransactionContext, row: QueueRow, keep_finished: int, keep_dead: int
) -> bool:
    cx, now, qid, counts = tx.cx, tx.now, row.qid, row.counts
    if any(
        counts[state] and _beyond(tx, qid, state, counts[state], row.limits, keep_finished, keep_dead, 1)
        for state in ENDED
    ):
        return True
    if any(counts[state] for state in ENDED) and cx.execute(_OVER, (qid, now, 1)).fetchone():
        return True
    if any(counts[state] for state in QUEUED) and cx.execute(_EXPIRED, (qid, now, 1)).fetchone():
        return True
    if cx.execute(_OLD_DAYS, (qid, now // _DAY - _DAYS_KEPT)).fetchone():
        return True
    if cx.execute(_KEYS_OVER, (qid, now)).fetchone() or cx.execute(_MISCOUNTED, (qid,)).fetchone():
        return True
    queue = tx.queue(row.name)
    return queue is not None and queue.has_dependents and partitions.has_idle(tx, queue)


def prune(tx: TransactionContext, limit: int, keep_finished: int, keep_dead: int) -> Pruned:
    rows = {row.qid: row for row in all_queues(tx)}
    queues = {queue.qid: queue for queue in tx.known([row.name for row in rows.values()])}
    limit = max(0, limit)
    for queue in queues.values():
        queue.miscounted = tx.execute(_MISCOUNTED, (queue.qid,)).fetchone() is not None
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
    return Pruned(finished, expired, workers, keys, tx.take_set_aside())


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
