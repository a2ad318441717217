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
from penstock.stores.sqlite.rows import (
    AVAILABLE,
    CODE,
    ENDED,
    GROUPED,
    PARKED,
    RUNNING,
    STATES,
    Row,
    is_queued,
    numbers,
    spec_of,
    specs_of,
)
from penstock.stores.sqlite.transaction_context import SQL, Queue, Step
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
from penstock.stores.sqlite.verbs.needs_write import ACT, Act

__all__ = [
    "announce",
    "delete",
    "drop",
    "peek_prune",
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
_ALONE = SQL["groups.alone"]
_ENDED_MEMBERS = SQL["groups.ended"]
_REVIVE = SQL["groups.revive"]
_SWITCH = SQL["queues.switch"]
_ANY_JOB = SQL["queues.any_job"]
_DROP = SQL["queues.drop"]
_DROP_DAYS = SQL["queues.drop_days"]
_DROP_ENTRIES = SQL["entries.drop"]
_ANNOUNCE = SQL["queues.announce"]
_ALL = SQL["queues.all"]
_MISCOUNTED = SQL["book.miscounted"]
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


def _look(step: Step, ref: Ref) -> tuple[Queue, Row] | None:
    queue = step.queue(ref.queue)
    row = None if queue is None else step.cx.execute(_LOOK, (queue.qid, ref.id)).fetchone()
    return None if queue is None or row is None else (queue, row)


def retry(step: Step, refs: Sequence[Ref]) -> list[State | None]:
    return [_retry(step, ref) for ref in refs]


def _retry(step: Step, ref: Ref) -> State | None:
    found = _look(step, ref)
    if found is None:
        return None
    queue, (seq, state, spec, expires_at, batch, is_batch) = found
    if batch is not None and _retry(step, Ref(ref.queue, batch)) is not None:
        return STATES[state]  # the members of a batch come back with it, and all together
    if state == RUNNING or (job := spec_of(seq, spec)).unreadable:
        return STATES[state]
    if expires_at is not None and expires_at <= step.now:
        expires_at = None
    place = step.tails(queue, 1) + 1
    terms = (seq, place, step.now, expires_at)
    tie = partitions.look(step, seq) if queue.tied else None
    if is_queued(state):
        step.cx.execute(_RETRY_QUEUED, terms)
    else:
        unique = job.unique
        tied = None if unique is None else unique.states
        step.cx.execute(_RETRY, (*terms, tied))
        if tied is not None:
            shift_key(step, queue, seq, tied, STATES[state], State.AVAILABLE)
    if job.group is None or is_batch:
        after = (
            AVAILABLE if tie is None else partitions.became(step, queue, tie, AVAILABLE, place, at_tail=True)
        )
        step.move(queue, state, after)
        if is_batch and state in ENDED:
            _bring_back(step, queue, job.id)
    else:
        step.move(queue, state, GROUPED)
        if state == GROUPED:
            left(step, queue, job.task, job.group.key)
        batch_alone(step, queue, seq, job)
    return STATES[state]


def _bring_back(step: Step, queue: Queue, batch: str) -> None:
    """A batch that had ended runs again, and its members are its members again."""
    for seq, state, spec in step.cx.execute(_ENDED_MEMBERS, (queue.qid, batch)).fetchall():
        step.cx.execute(_REVIVE, (seq,))
        unique = spec_of(seq, spec).unique
        if unique is not None:
            shift_key(step, queue, seq, unique.states, STATES[state], State.GROUPED)
        step.move(queue, state, GROUPED)


def reschedule(step: Step, refs: Sequence[Ref], delay: int, run_at: int | None) -> list[State | None]:
    due = step.now + delay if run_at is None else run_at
    return [_reschedule(step, ref, due) for ref in refs]


def _reschedule(step: Step, ref: Ref, due: int) -> State | None:
    found = _look(step, ref)
    if found is None:
        return None
    queue, (seq, state, spec, _, batch, is_batch) = found
    if is_queued(state) and state != PARKED and not (state == GROUPED and batch is not None):
        job = spec_of(seq, spec)
        if job.group is not None and not is_batch:
            _reschedule_member(step, queue, seq, state, job, due)
            return STATES[state]
        tie = partitions.look(step, seq) if queue.tied else None
        now = due <= step.now
        place = step.tails(queue, 1) + 1 if now else None
        after: int | None = AVAILABLE if now else CODE[State.SCHEDULED]
        step.cx.execute(_RESCHEDULE, (seq, after, due, place))
        if tie is not None:
            after = partitions.became(step, queue, tie, after, place or tie.place, at_tail=now)
        step.move(queue, state, after)
    return STATES[state]


def _reschedule_member(step: Step, queue: Queue, seq: int, state: int, job: NewJob, due: int) -> None:
    assert job.group is not None
    scheduled = CODE[State.SCHEDULED]
    step.cx.execute(_RESCHEDULE, (seq, scheduled, due, None))
    if state == GROUPED:
        left(step, queue, job.task, job.group.key)
    if due <= step.now:
        step.move(queue, state, GROUPED)
        enter(step, queue, seq, job)
    else:
        step.move(queue, state, scheduled)


def delete(step: Step, refs: Sequence[Ref]) -> list[State | None]:
    return [_delete(step, ref) for ref in refs]


def _delete(step: Step, ref: Ref) -> State | None:
    found = _look(step, ref)
    if found is None:
        return None
    queue, (seq, state, _, _, batch, _) = found
    if state != RUNNING and not (state == GROUPED and batch is not None):
        _remove(step, queue, state, [seq])
    return STATES[state]


def _remove(step: Step, queue: Queue, state: int, seqs: Sequence[int]) -> int:
    """Because somebody asks for it."""
    if queue.tied:
        _remove_tied(step, queue, seqs)
    elif seqs:
        gone = step.cx.execute(_DELETE, (numbers(seqs),)).fetchall()
        step.move(queue, state, None, len(seqs))
        _gone(step, queue, gone)
    return len(seqs)


def _remove_tied(step: Step, queue: Queue, seqs: Sequence[int]) -> None:
    """One by one: who gets room by it may be the next that is removed."""
    for seq in seqs:
        tie = partitions.look(step, seq)
        gone = step.cx.execute(_DELETE, (numbers([seq]),)).fetchall()
        step.move(queue, tie.state, None)
        _gone(step, queue, gone)
        partitions.became(step, queue, tie, None, tie.place)


def _gone(step: Step, queue: Queue, rows: Sequence[Row]) -> None:
    """What these jobs, which somebody has removed, leave behind: keys, groups, members."""
    free_keys(step, [seq for *_, seq, tied in rows if tied is not None])
    removed(step, queue, [row[:6] for row in rows])


def _forget(step: Step, queue: Queue, state: int, seqs: Sequence[int]) -> int:
    """Because these ended jobs have been kept for long enough."""
    if seqs:
        lanes = dict.fromkeys(partitions.look(step, seq).lane for seq in seqs) if queue.laned else {}
        rows = step.cx.execute(_DELETE, (numbers(seqs),)).fetchall()
        step.move(queue, state, None, len(seqs))
        for *_, seq, tied in rows:
            if tied is not None:
                forget_key(step, seq, state, tied)
        removed(step, queue, [row[:6] for row in rows], forgotten=True)
        for lane in lanes:  # whoever looks at a key lets in whom its time lets in
            if lane is not None:
                partitions.advance(step, queue, lane)
    return len(seqs)


# ── queues ───────────────────────────────────────────────────────────────────────────────────────


def purge(step: Step, name: str, states: Sequence[State], limit: int) -> int:
    queue = step.queue(name)
    codes = {CODE[state] for state in states} - {RUNNING}
    matches = 0 if queue is None else sum(queue.counts[code] for code in codes)
    if queue is None or limit <= 0 or not matches:
        return 0
    if cheaper_to_gather(step, matches, limit):
        seqs = sorted(seq for code in codes for seq in _purgeable(step, queue.qid, code))[:limit]
    else:
        seqs = [seq for (seq,) in step.cx.execute(_OLDEST_JOBS, (queue.qid, numbers(codes), limit))]
    if queue.tied:
        _remove_tied(step, queue, seqs)
        return len(seqs)
    gone = step.cx.execute(_DELETE, (numbers(seqs),)).fetchall()
    for row in gone:
        step.move(queue, row[0], None)
    _gone(step, queue, gone)
    return len(seqs)


def _purgeable(step: Step, qid: int, code: int) -> list[int]:
    if code == GROUPED:  # those in a batch go with it
        return [seq for (seq,) in step.cx.execute(_ALONE, (qid,))]
    return gather(step, qid, code)


def settings(
    step: Step, name: str, paused: bool | None, closed: bool | None, change: LimitChange | None
) -> QueueInfo:
    queue = step.some_queue(name)
    before = queue.paused, queue.closed
    queue.paused = queue.paused if paused is None else paused
    queue.closed = queue.closed if closed is None else closed
    if before != (queue.paused, queue.closed):
        step.cx.execute(_SWITCH, (queue.qid, int(queue.paused), int(queue.closed)))
        step.changes += 1
    if change is not None and limits.change(step, queue, change):
        step.changes += 1
    return info(step, name)


def drop(step: Step, name: str) -> bool:
    queue = step.queue(name)
    if queue is None:
        return True
    if step.cx.execute(_ANY_JOB, (queue.qid,)).fetchone():
        return False
    step.cx.execute(_DROP, (queue.qid,))
    step.cx.execute(_DROP_DAYS, (queue.qid,))
    drop_keys(step, queue)
    partitions.drop(step, queue)
    entries = step.cx.execute(_DROP_ENTRIES, (queue.qid,)).rowcount
    if queue.paused or queue.closed or entries or (queue.gate and queue.gate.limits != NO_LIMITS):
        step.changes += 1
    return True


# ── prune ────────────────────────────────────────────────────────────────────────────────────────


def peek_prune(step: Step, limit: int, keep_finished: int, keep_dead: int) -> Pruned | Act:
    """Upkeep runs everywhere and mostly finds nothing: then it must not take the write lock."""
    cx, now = step.cx, step.now
    for row in cx.execute(_ALL, (step.namespace,)).fetchall():
        qid, counts = row[0], row[4 : 4 + len(STATES)]
        if any(
            counts[state] and _beyond(step, qid, state, counts[state], row[-2], keep_finished, keep_dead, 1)
            for state in ENDED
        ):
            return ACT
        if any(counts[state] for state in ENDED) and cx.execute(_OVER, (qid, now, 1)).fetchone():
            return ACT
        if (
            any(n for state, n in enumerate(counts) if is_queued(state))
            and cx.execute(_EXPIRED, (qid, now, 1)).fetchone()
        ):
            return ACT
        if cx.execute(_OLD_DAYS, (qid, now // _DAY - _DAYS_KEPT)).fetchone():
            return ACT
        if cx.execute(_KEYS_OVER, (qid, now)).fetchone():
            return ACT
        if cx.execute(_MISCOUNTED, (qid,)).fetchone():
            return ACT
        queue = step.queue(row[1])
        if queue is not None and queue.tied and partitions.has_idle(step, queue):
            return ACT
    silent = cx.execute(_SILENT, (step.namespace, now - SILENT, 1)).fetchone()
    return ACT if silent else Pruned(0, 0, 0, set_aside=step.told())


def prune(step: Step, limit: int, keep_finished: int, keep_dead: int) -> Pruned:
    rows = {row[0]: row for row in step.cx.execute(_ALL, (step.namespace,))}
    queues = {queue.qid: queue for queue in step.known([row[1] for row in rows.values()])}
    limit = max(0, limit)
    for queue in queues.values():
        queue.miscounted = step.cx.execute(_MISCOUNTED, (queue.qid,)).fetchone() is not None
        if queue.tied:
            partitions.prune(step, queue)
    finished = _prune_over(step, queues, limit)
    for queue in queues.values():
        for state in ENDED:
            bounds = keep_finished, keep_dead, limit - finished
            seqs = _beyond(step, queue.qid, state, queue.count(state), rows[queue.qid][-2], *bounds)
            finished += _forget(step, queue, state, seqs)
    expired = _prune_expired(step, queues, limit - finished)
    workers = _prune_workers(step, limit - finished - expired)
    for qid in queues:
        step.cx.execute(_DAYS, (qid, step.now // _DAY - _DAYS_KEPT))
    keys = prune_keys(step, list(queues.values()), limit)
    return Pruned(finished, expired, workers, keys, step.told())


def _beyond(
    step: Step,
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
    newest, until = limits_of(limits_blob).kept(dead, keep_dead if dead else keep_finished, step.now)
    beyond = min(limit, count - newest)
    rows = step.cx.execute(_OLDEST_ENDED, (qid, state, beyond)).fetchall() if beyond > 0 else []
    if len(rows) < limit and until > -inf:
        aged = step.cx.execute(_AGED, (qid, state, int(until), limit)).fetchall()
        rows = max(rows, aged, key=len)  # both are the first ones of the same order
    return [seq for (seq,) in rows]


def _prune_over(step: Step, queues: dict[int, Queue], limit: int) -> int:
    over: list[Row] = []
    for qid in queues:
        over += step.cx.execute(_OVER, (qid, step.now, limit)).fetchall()
    over.sort()
    gone: dict[tuple[int, int], list[int]] = {}
    for _, seq, qid, state in over[:limit]:
        gone.setdefault((qid, state), []).append(seq)
    return sum(_forget(step, queues[qid], state, seqs) for (qid, state), seqs in gone.items())


def _prune_expired(step: Step, queues: dict[int, Queue], limit: int) -> int:
    expired: list[Row] = []
    for qid in queues:
        expired += step.cx.execute(_EXPIRED, (qid, step.now, limit)).fetchall()
    expired.sort()
    expired = expired[:limit]
    specs = specs_of((row[1], row[4]) for row in expired)
    for (_, seq, qid, state, _), spec in zip(expired, specs, strict=True):
        end_queued(step, queues[qid], seq, state, spec, EXPIRED)
    return len(expired)


def _prune_workers(step: Step, limit: int) -> int:
    silent = step.cx.execute(_SILENT, (step.namespace, step.now - SILENT, limit)).fetchall()
    for (id,) in silent:
        step.cx.execute(_FORGET_WORKER, (step.namespace, id))
    return len(silent)


# ── workers ──────────────────────────────────────────────────────────────────────────────────────


def announce(step: Step, worker: WorkerInfo) -> None:
    seen = msgspec.structs.replace(worker, seen_at=step.now)
    step.cx.execute(_ANNOUNCE, (step.namespace, worker.id, step.now, worker_blob(seen)))


def retire(step: Step, worker: str) -> None:
    step.cx.execute(_FORGET_WORKER, (step.namespace, worker))
