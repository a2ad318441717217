"""Listings for operators: pages of jobs, queues with their counts, statistics, partitions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from penstock.core.errors import ConfigError
from penstock.core.job import TERMINAL, Job, Ref, State
from penstock.stores.contract import (
    PARTITION_SHOWN,
    DayCount,
    Finding,
    Page,
    Parked,
    PartitionInfo,
    QueueInfo,
    QueueStats,
    unreadable_settings_of,
)
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.blobs import layers_of, limits_of, why_no_limits
from penstock.stores.sqlite.columns import QueueRow
from penstock.stores.sqlite.rows import numbers
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import (
    AVAILABLE,
    CODE,
    COLLECTING,
    ENDED,
    PARKED,
    RETRYABLE,
    RUNNING,
    SCHEDULED,
    STATES,
    SUSPENDED,
    WAITING,
)
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.aside import show

__all__ = [
    "all_queues",
    "cheaper_to_gather",
    "find",
    "gather",
    "info",
    "list_jobs",
    "parked",
    "partition",
    "queues",
    "statement_of",
    "stats",
    "unreadable_settings",
]

_ALL = SQL["queues.all"]
_ONE = SQL["queues.one"]
_OLDEST = SQL["queues.oldest"]
_DAYS = SQL["queues.days"]
_WITH_PARKED = SQL["parked.queues"]
_OF_TASKS = SQL["parked.of_tasks"]
_ALL_JOBS = SQL["list.all_jobs"]
_BY_AGE = SQL["list.by_age"]
_THESE = SQL["list.these"]
_HELD = SQL["list.held"]
_QUEUE = SQL["list.queue"]
_FIND = SQL["list.find"]
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
_END = 2**63 - 1


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────


def list_jobs(
    tx: TransactionContext,
    queue: str | None,
    state: State | None,
    task: str | None,
    worker: str | None,
    after: str | None,
    limit: int,
) -> Page:
    limit = max(1, limit)
    below = _END if after is None else _cursor(after)
    few = _few(tx, queue, state, worker, limit)
    if few is None:
        jobs = _by_age(tx, queue, state, task, below, limit + 1)
    else:
        jobs = _of_few(tx, few, queue, state, task, below, limit + 1)
    more = len(jobs) > limit
    return Page(jobs[:limit], str(jobs[limit - 1].generation) if more else None)


def _cursor(after: str) -> int:
    if not after.isascii() or not after.isdigit() or len(after) > 30:
        raise ConfigError(f"after={after!r} is not a cursor: pass the `next` of the previous page")
    return min(int(after), _END)


def _by_age(
    tx: TransactionContext, queue: str | None, state: State | None, task: str | None, below: int, limit: int
) -> list[Job]:
    found = None if queue is None else tx.queue(queue)
    if queue is not None and found is None:
        return []
    qid = None if found is None else found.qid
    code = None if state is None else CODE[state]
    return [
        show(tx, row) for row in tx.execute(_BY_AGE, (below, qid, code, task, tx.namespace, limit)).fetchall()
    ]


def _few(
    tx: TransactionContext, queue: str | None, state: State | None, worker: str | None, limit: int
) -> list[int] | None:
    """Return the generations of all jobs that may match, if an index finds them cheaply; else None."""
    cx = tx.cx
    if worker is not None:
        return [seq for (seq,) in cx.execute(_HELD, (worker, tx.namespace))]
    if queue is None and state is None:
        return None
    rows = [row for row in all_queues(tx) if queue is None or row.name == queue]
    code = None if state is None else CODE[state]
    if not cheaper_to_gather(tx, sum(_matching(row, code) for row in rows), limit):
        return None
    return [seq for row in rows if _matching(row, code) for seq in gather(tx, row.qid, code)]


def cheaper_to_gather(tx: TransactionContext, matches: int, limit: int) -> bool:
    """Return True if reading all matches by their index and sorting them is cheaper than a walk.

    A walk over all jobs in order finds one match in all/matches jobs. BatchBuffer reads every match once.
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


def _matching(row: QueueRow, code: int | None) -> int:
    """Return the number of jobs in this state (None: in any) from a queue's row."""
    return sum(row.counts) if code is None else row.counts[code]


def _of_few(
    tx: TransactionContext,
    few: list[int],
    queue: str | None,
    state: State | None,
    task: str | None,
    below: int,
    limit: int,
) -> list[Job]:
    seqs = sorted((seq for seq in few if seq < below), reverse=True)
    found: list[Job] = []
    size = limit if task is None and queue is None and state is None else max(limit, 500)
    for start in range(0, len(seqs), size):
        for row in tx.execute(_THESE, (numbers(seqs[start : start + size]),)):
            job = show(tx, row)
            if (
                (queue is None or job.queue == queue)
                and (state is None or job.state is state)
                and (task is None or job.task == task)
            ):
                found.append(job)
                if len(found) == limit:
                    return found
    return found


def find(tx: TransactionContext, id: str) -> list[Job]:
    return [show(tx, row) for row in tx.execute(_FIND, (tx.namespace, id))]


def partition(tx: TransactionContext, ref: Ref) -> PartitionInfo | None:
    """Read the partition of a job, and the job's place in it."""
    cx = tx.cx
    row = cx.execute(_GET, (tx.namespace, ref.queue, ref.id)).fetchone()
    queue = tx.queue(ref.queue)
    job = None if row is None else show(tx, row)
    if queue is None or job is None or job.state in TERMINAL or (terms := job.spec.partition) is None:
        return None
    name = (queue.qid, terms.key)
    seqs = sorted(seq for (seq,) in cx.execute(_ADMITTED, name))[:PARTITION_SHOWN]
    before = None
    if job.state is State.WAITING:
        place = partitions.look(tx, job.generation).place
        order = (terms.rank(job.spec.priority), place)
        (before,) = cx.execute(_BEFORE, (*name, *order)).fetchone()
    _, _, due = cx.execute(_PARTITION_KEY, name).fetchone() or (None, None, None)
    (in_line,) = cx.execute(_IN_LINE, name).fetchone()
    admitted = [show(tx, row) for row in cx.execute(_THESE, (numbers(seqs),))][::-1]
    return PartitionInfo(terms.key, admitted, in_line, before, due)


# ── queues ───────────────────────────────────────────────────────────────────────────


def all_queues(tx: TransactionContext) -> list[QueueRow]:
    """Return every queue of the namespace, by name."""
    return [QueueRow._make(row) for row in tx.execute(_ALL, (tx.namespace,)).fetchall()]


def queues(tx: TransactionContext, names: Sequence[str] | None) -> list[QueueInfo]:
    if names is None:
        return [_info(tx, row) for row in all_queues(tx)]
    rows = [tx.execute(_ONE, (tx.namespace, name)).fetchone() for name in sorted(set(names))]
    return [_info(tx, QueueRow._make(row)) for row in rows if row is not None]


def unreadable_settings(tx: TransactionContext) -> list[Finding]:
    found = [(row.name, why_no_limits(row.limits)) for row in all_queues(tx)]
    return [unreadable_settings_of(name, why) for name, why in found if why is not None]


def info(tx: TransactionContext, name: str) -> QueueInfo:
    """Return one queue, which must exist."""
    return _info(tx, QueueRow._make(tx.execute(_ONE, (tx.namespace, name)).fetchone()))


def _info(tx: TransactionContext, row: QueueRow) -> QueueInfo:
    counts = {state: n for state, n in zip(STATES, row.counts, strict=True) if n}
    oldest = None
    if State.AVAILABLE in counts:
        (oldest,) = tx.execute(_OLDEST, (row.qid, _LOOKED_AT)).fetchone()
    held = row.throttled_until if row.throttled_until > tx.now else None
    limits = limits_of(row.limits)
    layers = layers_of(row.limit_layers, limits)
    paused, closed = row.paused == 1, row.closed == 1
    opens = held
    queue = tx.queue(row.name) if limits.rate is not None else None
    if queue is not None and queue.rate_limiter is not None:
        opens = queue.rate_limiter.opens(counts.get(State.RUNNING, 0), tx.now)
    return QueueInfo(row.name, counts, paused, closed, oldest, limits, held, layers=layers, opens=opens)


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
        for row in all_queues(tx)
    ]


def _days(tx: TransactionContext, qid: int, newer_than: int) -> list[DayCount]:
    rows = tx.execute(_DAYS, (qid, newer_than))
    return [DayCount(_day_name(day), processed, failed) for day, processed, failed in rows]


def _day_name(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
