"""Queues and workers for operators: listings, counts, settings, drop; which jobs are in a state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from penstock.core.job import TERMINAL, Ref, State
from penstock.core.limits import NO_LIMITS, LimitChange
from penstock.stores.contract import (
    PARTITION_SHOWN,
    DayCount,
    Finding,
    Parked,
    PartitionInfo,
    QueueInfo,
    QueueStats,
    WorkerInfo,
    unreadable_settings_of,
)
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import layers_of, limits_of, numbers, why_no_limits, worker_blob, worker_of
from penstock.stores.sql.statements import (
    AVAILABLE,
    COLLECTING,
    ENDED,
    PARKED,
    RETRYABLE,
    RUNNING,
    SCHEDULED,
    SQL,
    STATES,
    SUSPENDED,
    WAITING,
    QueueRow,
)
from penstock.stores.sql.transaction_context import TransactionContext
from penstock.stores.sql.verbs import limits
from penstock.stores.sql.verbs.aside import show
from penstock.stores.sql.verbs.keys import drop_keys

_ALL = SQL["queues.all"]
_ONE = SQL["queues.one"]
_OLDEST = SQL["queues.oldest"]
_DAYS = SQL["queues.days"]
_WITH_PARKED = SQL["parked.queues"]
_OF_TASKS = SQL["parked.of_tasks"]
_ALL_JOBS = SQL["list.all_jobs"]
_THESE = SQL["list.these"]
_QUEUE = SQL["list.queue"]
_GET = SQL["get.one"]
_PARTITION_KEY = SQL["partitions.key"]
_IN_LINE = SQL["partitions.in_line"]
_BEFORE = SQL["partitions.before"]
_ADMITTED = SQL["partitions.admitted"]
_IN_STATE = {
    **dict.fromkeys((SCHEDULED, RETRYABLE, SUSPENDED), SQL["list.due"]),
    PARKED: SQL["list.parked"],
    AVAILABLE: SQL["list.available"],
    RUNNING: SQL["list.running"],
    **dict.fromkeys(ENDED, SQL["list.ended"]),
    WAITING: SQL["list.waiting"],
    COLLECTING: SQL["batches.collecting"],
}

_DAY = 86_400_000
_DAYS_KEPT = 90
#: The number of available jobs, in the order of their queue, that are checked for the oldest one. A job after
#: these can be older only if it was enqueued with a time long past.
_LOOKED_AT = 4_000
#: Up to this number of matching jobs are always read by their index and sorted.
_FEW = 2_000


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────


def cheaper_to_gather(tx: TransactionContext, matches: int, limit: int) -> bool:
    """Return True if reading all matches by their index and sorting them is cheaper than a walk.

    A walk over all jobs in order finds one match in all/matches jobs. Gathering reads every match once.
    """
    if matches <= _FEW:
        return True
    (all_jobs,) = tx.execute(_ALL_JOBS).fetchone()
    return bool(matches * matches <= limit * all_jobs)


def gather(tx: TransactionContext, qid: int, code: int | None) -> list[int]:
    """Return the generations of a queue's jobs, all or those in one state, in any order."""
    found = tx.execute(statement_of(code), (qid,) if code is None else (qid, code))
    return [seq for (seq,) in found]


def statement_of(code: int | None) -> str:
    """The statement for the generations of a queue's jobs, in a state or any, by an index."""
    return _QUEUE if code is None else _IN_STATE[code]


def partition(tx: TransactionContext, ref: Ref) -> PartitionInfo | None:
    """Read the partition of a job, and the job's place in it."""
    row = tx.execute(_GET, (tx.namespace, ref.queue, ref.id)).fetchone()
    queue = tx.queue(ref.queue)
    job = None if row is None else show(tx, row)
    if queue is None or job is None or job.state in TERMINAL or (terms := job.spec.partition) is None:
        return None
    name = (queue.qid, terms.key)
    seqs = sorted(seq for (seq,) in tx.execute(_ADMITTED, name))[:PARTITION_SHOWN]
    before = None
    if job.state is State.WAITING:
        place = partitions.look(tx, job.generation).place
        order = (terms.rank(job.spec.priority), place)
        (before,) = tx.execute(_BEFORE, (*name, *order)).fetchone()
    _, _, due = tx.execute(_PARTITION_KEY, name).fetchone() or (None, None, None)
    (in_line,) = tx.execute(_IN_LINE, name).fetchone()
    admitted = [show(tx, row) for row in tx.execute(_THESE, (numbers(seqs),))][::-1]
    return PartitionInfo(terms.key, admitted, in_line, before, due)


# ── queues ───────────────────────────────────────────────────────────────────────────


def queue_rows(tx: TransactionContext, names: Sequence[str] | None = None) -> list[QueueRow]:
    """Return the queues of the namespace, by name: all, or those with these names."""
    if names is None:
        rows = tx.execute(_ALL, (tx.namespace,)).fetchall()
    else:
        rows = [tx.execute(_ONE, (tx.namespace, name)).fetchone() for name in sorted(set(names))]
    return [QueueRow._make(row) for row in rows if row is not None]


def queues(tx: TransactionContext, names: Sequence[str] | None) -> list[QueueInfo]:
    return [_info(tx, row) for row in queue_rows(tx, names)]


def unreadable_settings(tx: TransactionContext) -> list[Finding]:
    found = [(row.name, why_no_limits(row.limits)) for row in queue_rows(tx)]
    return [unreadable_settings_of(name, why) for name, why in found if why is not None]


def info(tx: TransactionContext, name: str) -> QueueInfo:
    """Return one queue, which must exist."""
    return _info(tx, QueueRow._make(tx.execute(_ONE, (tx.namespace, name)).fetchone()))


def _info(tx: TransactionContext, row: QueueRow) -> QueueInfo:
    counts = {state: n for state, n in zip(STATES, row.counts, strict=True) if n}
    oldest = None
    if State.AVAILABLE in counts:
        (oldest,) = tx.execute(_OLDEST, (row.qid, _LOOKED_AT)).fetchone()
    throttled_until = row.throttled_until if row.throttled_until > tx.now else None
    limits = limits_of(row.limits)
    layers = layers_of(row.limit_layers, limits)
    paused, closed = row.paused == 1, row.closed == 1
    opens = None
    queue = None if limits.rate is None and throttled_until is None else tx.queue(row.name)
    if queue is not None and queue.rate_limiter is not None:
        opens = queue.rate_limiter.opens_at(counts.get(State.RUNNING, 0), tx.now)
    return QueueInfo(
        row.name, counts, paused, closed, oldest, limits, throttled_until, layers=layers, opens_at=opens
    )


def parked(tx: TransactionContext) -> list[Parked]:
    return [
        Parked(name, task, n)
        for qid, name in tx.execute(_WITH_PARKED, (tx.namespace,)).fetchall()
        for task, n in tx.execute(_OF_TASKS, (qid,)).fetchall()
    ]


def stats(tx: TransactionContext, days: int) -> list[QueueStats]:
    newer_than = tx.now // _DAY - min(days, _DAYS_KEPT)
    return [
        QueueStats(row.name, row.enqueued, row.processed, row.failed, _days(tx, row.qid, newer_than))
        for row in queue_rows(tx)
    ]


def _days(tx: TransactionContext, qid: int, newer_than: int) -> list[DayCount]:
    rows = tx.execute(_DAYS, (qid, newer_than))
    return [DayCount(_day_name(day), processed, failed) for day, processed, failed in rows]


def _day_name(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


# ── settings, drop ───────────────────────────────────────────────────────────────────────────────


_SWITCH = SQL["queues.switch"]
_ANY_JOB = SQL["queues.any_job"]
_DROPS = (
    *(SQL["queues.drop"], SQL["queues.drop_days"], SQL["depths.drop"]),
    *(SQL["measuring.drop_periods"], SQL["measuring.drop_reports"], SQL["measuring.drop_errors"]),
)
_DROP_ENTRIES = SQL["entries.drop"]


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
    for statement in _DROPS:
        tx.execute(statement, (queue.qid,))
    drop_keys(tx, queue)
    partitions.drop(tx, queue)
    entries = tx.execute(_DROP_ENTRIES, (queue.qid,)).rowcount
    if (
        queue.paused
        or queue.closed
        or entries
        or (queue.rate_limiter and queue.rate_limiter.limits != NO_LIMITS)
    ):
        tx.changes += 1
    return True


# ── workers ──────────────────────────────────────────────────────────────────────────────────────


_ANNOUNCE = SQL["queues.announce"]
_FORGET_WORKER = SQL["prune.worker"]
_WORKERS = SQL["queues.workers"]

#: A worker that has not announced itself for this long (ms) counts as stopped.
SILENT = 60_000


def announce(tx: TransactionContext, worker: WorkerInfo) -> None:
    seen = msgspec.structs.replace(worker, seen_at=tx.now)
    tx.execute(_ANNOUNCE, (tx.namespace, worker.id, tx.now, worker_blob(seen)))


def retire(tx: TransactionContext, worker: str) -> None:
    tx.execute(_FORGET_WORKER, (tx.namespace, worker))


def workers(tx: TransactionContext) -> list[WorkerInfo]:
    rows = tx.execute(_WORKERS, (tx.namespace, tx.now - SILENT))
    return sorted((worker_of(*row) for row in rows), key=lambda w: (w.started_at, w.id))
