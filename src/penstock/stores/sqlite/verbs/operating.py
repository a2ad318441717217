"""What operators do to jobs and queues: retry, reschedule, delete, purge, settings, drop; and prune."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from penstock.core.job import NewJob, Ref, State
from penstock.core.lifecycle import EXPIRED
from penstock.core.limits import NO_LIMITS, LimitChange
from penstock.stores.contract import Pruned, QueueInfo, WorkerInfo
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.blobs import limits_of, worker_blob
from penstock.stores.sqlite.rows import Row, numbers, spec_of, specs_of
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import AVAILABLE, CODE, ENDED, GROUPED, PARKED, QUEUED, RUNNING, STATES
from penstock.stores.sqlite.transaction_context import QueueContext, TransactionContext
from penstock.stores.sqlite.verbs import limits
from penstock.stores.sqlite.verbs.batches import batch_alone, end_queued, enter, left, removed
from penstock.stores.sqlite.verbs.keys import (
    drop_keys,
    forget_key,
    free_keys,
    prune_keys,
    shift_key,
)
from penstock.stores.sqlite.verbs.listing import SILENT, cheaper_to_gather, gather, info
from penstock.stores.sqlite.verbs.needs_write import NEEDS_WRITE, NeedsWrite

__all__ = [
    "announce",
    "delete",
    "drop",
    "probe_prune",
    "prune",
    "purge",
    "reschedule",
    "retire",
    "retry",
    "settings",
]

_LOOK = SQL["operate.look"]
_RETRY = SQL["operate.retry"]
_RETRY_QUEUED = SQL["operate.retry_queued"]
_RESCHEDULE = SQL["operate.reschedule"]
_DELETE = SQL["operate.delete"]
_OLDEST_JOBS = SQL["list.oldest"]
_ALONE = SQL["batches.alone"]
_ENDED_MEMBERS = SQL["batches.ended"]
_REVIVE = SQL["batches.revive"]
_SWITCH = SQL["queues.switch"]
_ANY_JOB = SQL["queues.any_job"]
_DROP = SQL["queues.drop"]
_DROP_DAYS = SQL["queues.drop_days"]
_DROP_ENTRIES = SQL["entries.drop"]
_ANNOUNCE = SQL["queues.announce"]
_ALL = SQL["queues.all"]
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


# ── single jobs ──────────────────────────────────────────────────────────────────────────────────


def _look(tx: TransactionContext, ref: Ref) -> tuple[QueueContext, Row] | None:
    queue = tx.queue(ref.queue)
    row = None if queue is None else tx.execute(_LOOK, (queue.qid, ref.id)).fetchone()
    return None if queue is None or row is None else (queue, row)


def retry(tx: TransactionContext, refs: Sequence[Ref]) -> list[State | None]:
    return [_retry(tx, ref) for ref in refs]


def _retry(tx: TransactionContext, ref: Ref) -> State | None:
    found = _look(tx, ref)
    if found is None:
        return None
    queue, (seq, state, spec, expires_at, batch, is_batch) = found
    if batch is not None and _retry(tx, Ref(ref.queue, batch)) is not None:
        return STATES[state]  # the members of a batch come back with it, and all together
    if state == RUNNING or (job := spec_of(seq, spec)).unreadable:
        return STATES[state]
    if expires_at is not None and expires_at <= tx.now:
        expires_at = None
    place = tx.tails(queue, 1) + 1
    terms = (seq, place, tx.now, expires_at)
    before = partitions.look(tx, seq) if queue.has_dependents else None
    if state in QUEUED:
        tx.execute(_RETRY_QUEUED, terms)
    else:
        unique = job.unique
        tied = None if unique is None else unique.states
        tx.execute(_RETRY, (*terms, tied))
        if tied is not None:
            shift_key(tx, queue, seq, tied, STATES[state], State.AVAILABLE)
    if job.group is None or is_batch:
        after = (
            AVAILABLE
            if before is None
            else partitions.became(tx, queue, before, AVAILABLE, place, at_tail=True)
        )
        tx.move(queue, state, after)
        if is_batch and state in ENDED:
            _bring_back(tx, queue, job.id)
    else:
        tx.move(queue, state, GROUPED)
        if state == GROUPED:
            left(tx, queue, job.task, job.group.key)
        batch_alone(tx, queue, seq, job)
    return STATES[state]


def _bring_back(tx: TransactionContext, queue: QueueContext, batch: str) -> None:
    """A batch that had ended runs again, and its members are its members again."""
    for seq, state, spec in tx.execute(_ENDED_MEMBERS, (queue.qid, batch)).fetchall():
        tx.execute(_REVIVE, (seq,))
        unique = spec_of(seq, spec).unique
        if unique is not None:
            shift_key(tx, queue, seq, unique.states, STATES[state], State.GROUPED)
        tx.move(queue, state, GROUPED)


def reschedule(
    tx: TransactionContext, refs: Sequence[Ref], delay: int, run_at: int | None
) -> list[State | None]:
    due = tx.now + delay if run_at is None else run_at
    return [_reschedule(tx, ref, due) for ref in refs]


def _reschedule(tx: TransactionContext, ref: Ref, due: int) -> State | None:
    found = _look(tx, ref)
    if found is None:
        return None
    queue, (seq, state, spec, _, batch, is_batch) = found
    if state in QUEUED and state != PARKED and not (state == GROUPED and batch is not None):
        job = spec_of(seq, spec)
        if job.group is not None and not is_batch:
            _reschedule_member(tx, queue, seq, state, job, due)
            return STATES[state]
        before = partitions.look(tx, seq) if queue.has_dependents else None
        now = due <= tx.now
        place = tx.tails(queue, 1) + 1 if now else None
        after: int | None = AVAILABLE if now else CODE[State.SCHEDULED]
        tx.execute(_RESCHEDULE, (seq, after, due, place))
        if before is not None:
            after = partitions.became(tx, queue, before, after, place or before.place, at_tail=now)
        tx.move(queue, state, after)
    return STATES[state]


def _reschedule_member(
    tx: TransactionContext, queue: QueueContext, seq: int, state: int, job: NewJob, due: int
) -> None:
    assert job.group is not None
    scheduled = CODE[State.SCHEDULED]
    tx.execute(_RESCHEDULE, (seq, scheduled, due, None))
    if state == GROUPED:
        left(tx, queue, job.task, job.group.key)
    if due <= tx.now:
        tx.move(queue, state, GROUPED)
        enter(tx, queue, seq, job)
    else:
        tx.move(queue, state, scheduled)


def delete(tx: TransactionContext, refs: Sequence[Ref]) -> list[State | None]:
    return [_delete(tx, ref) for ref in refs]


def _delete(tx: TransactionContext, ref: Ref) -> State | None:
    found = _look(tx, ref)
    if found is None:
        return None
    queue, (seq, state, _, _, batch, _) = found
    if state != RUNNING and not (state == GROUPED and batch is not None):
        _remove(tx, queue, state, [seq])
    return STATES[state]


def _remove(tx: TransactionContext, queue: QueueContext, state: int, seqs: Sequence[int]) -> int:
    """Because somebody asks for it."""
    if queue.has_dependents:
        _remove_tied(tx, queue, seqs)
    elif seqs:
        gone = tx.execute(_DELETE, (numbers(seqs),)).fetchall()
        tx.move(queue, state, None, len(seqs))
        _gone(tx, queue, gone)
    return len(seqs)


def _remove_tied(tx: TransactionContext, queue: QueueContext, seqs: Sequence[int]) -> None:
    """One by one: who gets room by it may be the next that is removed."""
    for seq in seqs:
        before = partitions.look(tx, seq)
        gone = tx.execute(_DELETE, (numbers([seq]),)).fetchall()
        tx.move(queue, before.state, None)
        _gone(tx, queue, gone)
        partitions.became(tx, queue, before, None, before.place)


def _gone(tx: TransactionContext, queue: QueueContext, rows: Sequence[Row]) -> None:
    """What these jobs, which somebody has removed, leave behind: keys, groups, members."""
    free_keys(tx, [seq for *_, seq, tied in rows if tied is not None])
    removed(tx, queue, [row[:6] for row in rows])


def _forget(tx: TransactionContext, queue: QueueContext, state: int, seqs: Sequence[int]) -> int:
    """Because these ended jobs have been kept for long enough."""
    if seqs:
        lanes = dict.fromkeys(partitions.look(tx, seq).lane for seq in seqs) if queue.laned else {}
        rows = tx.execute(_DELETE, (numbers(seqs),)).fetchall()
        tx.move(queue, state, None, len(seqs))
        for *_, seq, tied in rows:
            if tied is not None:
                forget_key(tx, seq, state, tied)
        removed(tx, queue, [row[:6] for row in rows], forgotten=True)
        for lane in lanes:  # whoever looks at a key lets in whom its time lets in
            if lane is not None:
                partitions.advance(tx, queue, lane)
    return len(seqs)


# ── queues ───────────────────────────────────────────────────────────────────────────────────────


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
    if queue.has_dependents:
        _remove_tied(tx, queue, seqs)
        return len(seqs)
    gone = tx.execute(_DELETE, (numbers(seqs),)).fetchall()
    for row in gone:
        tx.move(queue, row[0], None)
    _gone(tx, queue, gone)
    return len(seqs)


def _purgeable(tx: TransactionContext, qid: int, code: int) -> list[int]:
    if code == GROUPED:  # those in a batch go with it
        return [seq for (seq,) in tx.execute(_ALONE, (qid,))]
    return gather(tx, qid, code)


def settings(
    tx: TransactionContext, name: str, paused: bool | None, closed: bool | None, change: LimitChange | None
) -> QueueInfo:
    queue = tx.some_queue(name)
    before = queue.paused, queue.closed
    queue.paused = queue.paused if paused is None else paused
    queue.closed = queue.closed if closed is None else closed
    if before != (queue.paused, queue.closed):
        tx.execute(_SWITCH, (queue.qid, int(queue.paused), int(queue.closed)))
        tx.changes += 1
    if change is not None and limits.change(tx, queue, change):
        tx.changes += 1
    return info(tx, name)


def drop(tx: TransactionContext, name: str) -> bool:
    queue = tx.queue(name)
    if queue is None:
        return True
    if tx.execute(_ANY_JOB, (queue.qid,)).fetchone():
        return False
    tx.execute(_DROP, (queue.qid,))
    tx.execute(_DROP_DAYS, (queue.qid,))
    drop_keys(tx, queue)
    partitions.drop(tx, queue)
    entries = tx.execute(_DROP_ENTRIES, (queue.qid,)).rowcount
    if queue.paused or queue.closed or entries or (queue.gate and queue.gate.limits != NO_LIMITS):
        tx.changes += 1
    return True


# ── prune ────────────────────────────────────────────────────────────────────────────────────────


def probe_prune(
    tx: TransactionContext, limit: int, keep_finished: int, keep_dead: int
) -> Pruned | NeedsWrite:
    """Upkeep runs everywhere and mostly finds nothing: then it must not take the write lock."""
    cx, now = tx.cx, tx.now
    for row in cx.execute(_ALL, (tx.namespace,)).fetchall():
        qid, counts = row[0], row[4 : 4 + len(STATES)]
        if any(
            counts[state] and _beyond(tx, qid, state, counts[state], row[-2], keep_finished, keep_dead, 1)
            for state in ENDED
        ):
            return NEEDS_WRITE
        if any(counts[state] for state in ENDED) and cx.execute(_OVER, (qid, now, 1)).fetchone():
            return NEEDS_WRITE
        if (
            any(n for state, n in enumerate(counts) if state in QUEUED)
            and cx.execute(_EXPIRED, (qid, now, 1)).fetchone()
        ):
            return NEEDS_WRITE
        if cx.execute(_OLD_DAYS, (qid, now // _DAY - _DAYS_KEPT)).fetchone():
            return NEEDS_WRITE
        if cx.execute(_KEYS_OVER, (qid, now)).fetchone():
            return NEEDS_WRITE
        if cx.execute(_MISCOUNTED, (qid,)).fetchone():
            return NEEDS_WRITE
        queue = tx.queue(row[1])
        if queue is not None and queue.has_dependents and partitions.has_idle(tx, queue):
            return NEEDS_WRITE
    silent = cx.execute(_SILENT, (tx.namespace, now - SILENT, 1)).fetchone()
    return NEEDS_WRITE if silent else Pruned(0, 0, 0, set_aside=tx.told())


def prune(tx: TransactionContext, limit: int, keep_finished: int, keep_dead: int) -> Pruned:
    rows = {row[0]: row for row in tx.execute(_ALL, (tx.namespace,))}
    queues = {queue.qid: queue for queue in tx.known([row[1] for row in rows.values()])}
    limit = max(0, limit)
    for queue in queues.values():
        queue.miscounted = tx.execute(_MISCOUNTED, (queue.qid,)).fetchone() is not None
        if queue.has_dependents:
            partitions.prune(tx, queue)
    finished = _prune_over(tx, queues, limit)
    for queue in queues.values():
        for state in ENDED:
            bounds = keep_finished, keep_dead, limit - finished
            seqs = _beyond(tx, queue.qid, state, queue.count(state), rows[queue.qid][-2], *bounds)
            finished += _forget(tx, queue, state, seqs)
    expired = _prune_expired(tx, queues, limit - finished)
    workers = _prune_workers(tx, limit - finished - expired)
    for qid in queues:
        tx.execute(_DAYS, (qid, tx.now // _DAY - _DAYS_KEPT))
    keys = prune_keys(tx, list(queues.values()), limit)
    return Pruned(finished, expired, workers, keys, tx.told())


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
    """Of `count` ended jobs those that are one too many or too old, the oldest end first, up to `limit`."""
    dead = STATES[state] is State.DEAD
    newest, until = limits_of(limits_blob).kept(dead, keep_dead if dead else keep_finished, tx.now)
    beyond = min(limit, count - newest)
    rows = tx.execute(_OLDEST_ENDED, (qid, state, beyond)).fetchall() if beyond > 0 else []
    if len(rows) < limit and until > -inf:
        aged = tx.execute(_AGED, (qid, state, int(until), limit)).fetchall()
        rows = max(rows, aged, key=len)  # both are the first ones of the same order
    return [seq for (seq,) in rows]


def _prune_over(tx: TransactionContext, queues: dict[int, QueueContext], limit: int) -> int:
    over: list[Row] = []
    for qid in queues:
        over += tx.execute(_OVER, (qid, tx.now, limit)).fetchall()
    over.sort()
    gone: dict[tuple[int, int], list[int]] = {}
    for _, seq, qid, state in over[:limit]:
        gone.setdefault((qid, state), []).append(seq)
    return sum(_forget(tx, queues[qid], state, seqs) for (qid, state), seqs in gone.items())


def _prune_expired(tx: TransactionContext, queues: dict[int, QueueContext], limit: int) -> int:
    expired: list[Row] = []
    for qid in queues:
        expired += tx.execute(_EXPIRED, (qid, tx.now, limit)).fetchall()
    expired.sort()
    expired = expired[:limit]
    specs = specs_of((row[1], row[4]) for row in expired)
    for (_, seq, qid, state, _), spec in zip(expired, specs, strict=True):
        end_queued(tx, queues[qid], seq, state, spec, EXPIRED)
    return len(expired)


def _prune_workers(tx: TransactionContext, limit: int) -> int:
    silent = tx.execute(_SILENT, (tx.namespace, tx.now - SILENT, limit)).fetchall()
    for (id,) in silent:
        tx.execute(_FORGET_WORKER, (tx.namespace, id))
    return len(silent)


# ── workers ──────────────────────────────────────────────────────────────────────────────────────


def announce(tx: TransactionContext, worker: WorkerInfo) -> None:
    seen = msgspec.structs.replace(worker, seen_at=tx.now)
    tx.execute(_ANNOUNCE, (tx.namespace, worker.id, tx.now, worker_blob(seen)))


def retire(tx: TransactionContext, worker: str) -> None:
    tx.execute(_FORGET_WORKER, (tx.namespace, worker))
