"""enqueue, get, cancel; and the queries of `wait_for_end` and `stream_ends` after each notification."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.flow import flow_with_end
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import first_state
from penstock.core.unique import WHILE_QUEUED
from penstock.stores.contract import Enqueued, EnqueueStatus
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.flow_session import decode_head
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.rows import Row, RowBefore, check_state, spec_blob
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import AVAILABLE, CODE, COLLECTING, QUEUED, RUNNING, STATES, SUSPENDED
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.aside import show
from penstock.stores.sqlite.verbs.batches import end_queued, entered
from penstock.stores.sqlite.verbs.keys import take_key
from penstock.stores.sqlite.verbs.limits import refusal
from penstock.stores.sqlite.verbs.replacing import conflict
from penstock.stores.text_encoding import asked_because

__all__ = [
    "all_ended",
    "cancel",
    "enqueue",
    "enqueue_one",
    "find_ended",
    "get",
    "insert_with_options",
    "is_open",
    "refused",
]

_INSERT = SQL["enqueue.insert"]
_INSERT_WITH_KEY = SQL["enqueue.insert_with_key"]
_EXISTS = SQL["enqueue.exists"]
_GET = SQL["get.one"]
_OPEN = SQL["get.open"]
_FLOW = SQL["flows.flow"]
_LOOK = SQL["cancel.look"]
_ASK = SQL["cancel.ask"]

_CHUNK = 2_000


# ── enqueue ──────────────────────────────────────────────────────────────────────────────────────


def enqueue(tx: TransactionContext, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Insert all jobs together if possible, which is the usual case; else one by one."""
    plain = len(jobs) > 0
    for job in jobs:
        queue = tx.some_queue(job.queue)
        alone = job.unique is None and job.batch_terms is None and not _may_wait(queue, job)
        if queue.closed or queue.rate_limiter is not None or not alone:
            plain = False
    if plain and _insert_all(tx, jobs):
        return [Enqueued(EnqueueStatus.NEW, job.id) for job in jobs]
    return [enqueue_one(tx, job) for job in jobs]


def _insert_all(tx: TransactionContext, jobs: Sequence[NewJob]) -> bool:
    """Store all jobs; if one of their ids is taken, store none and return False."""
    if len(jobs) == 1:
        return _insert(tx, tx.some_queue(jobs[0].queue), jobs[0])
    cx, now = tx.cx, tx.now
    cx.execute("SAVEPOINT many")
    tails: dict[str, int] = {}
    states: dict[tuple[str, int], int] = {}
    seq = tx.generation()
    for start in range(0, len(jobs), _CHUNK):
        rows: list[Row] = []
        for job in jobs[start : start + _CHUNK]:
            seq += 1
            name = job.queue
            queue = tx.some_queue(name)
            tail = tails[name] = tails.get(name, queue.tail) + 1
            first, due = first_state(job, now)
            code = CODE[first]
            states[name, code] = states.get((name, code), 0) + 1
            rows.append(_row(queue, job, seq, code, tail, due, now))
        if cx.executemany(_INSERT, rows).rowcount != len(rows):
            cx.execute("ROLLBACK TO many")
            cx.execute("RELEASE many")
            return False
    cx.execute("RELEASE many")
    for (name, state), n in states.items():
        queue = tx.some_queue(name)
        tx.tails(queue, n)
        tx.enqueued(queue, state, n)
    return True


def _insert(tx: TransactionContext, queue: QueueContext, job: NewJob) -> bool:
    state, due = first_state(job, tx.now)
    code = CODE[state]
    row = _row(queue, job, tx.generation() + 1, code, queue.tail + 1, due, tx.now)
    if tx.execute(_INSERT, row).rowcount != 1:
        return False
    tx.tails(queue, 1)
    tx.enqueued(queue, code, 1)
    return True


def _row(queue: QueueContext, job: NewJob, seq: int, code: int, place: int, due: int, now: int) -> Row:
    """Return the parameters of `enqueue.insert`."""
    expires_at = job.expires_at
    if job.expires_in is not None:
        ends = now + job.expires_in
        expires_at = ends if expires_at is None or ends < expires_at else expires_at
    return (
        seq,
        queue.qid,
        job.id,
        code,
        job.priority,
        place,
        due,
        job.task,
        now,
        expires_at,
        spec_blob(job),
    )


def enqueue_one(tx: TransactionContext, job: NewJob, *, follows: bool = False) -> Enqueued:
    """Enqueue one job with any options. With `follows`, a closed or full queue takes the job, too."""
    queue = tx.some_queue(job.queue)
    if (answer := _taken(tx, queue, job)) is not None:
        return answer
    if queue.closed and not follows:
        return Enqueued(EnqueueStatus.CLOSED, job.id)
    held = None if job.unique is None else conflict(tx, queue, job)
    if held is not None:
        return held
    full = None if follows else refusal(tx, queue, job)
    if full is not None:
        return full
    if job.unique is None and job.batch_terms is None and not _may_wait(queue, job):
        _insert(tx, queue, job)
    else:
        insert_with_options(tx, queue, job)
    return Enqueued(EnqueueStatus.NEW, job.id)


def refused(tx: TransactionContext, queue: QueueContext, job: NewJob) -> Enqueued | None:
    """The answer for a job that this queue refuses, except for its unique key; None: the queue takes it."""
    if (answer := _taken(tx, queue, job)) is not None:
        return answer
    return Enqueued(EnqueueStatus.CLOSED, job.id) if queue.closed else refusal(tx, queue, job)


def _taken(tx: TransactionContext, queue: QueueContext, job: NewJob) -> Enqueued | None:
    exists = tx.execute(_EXISTS, (queue.qid, job.id)).fetchone()
    return Enqueued(EnqueueStatus.EXISTS, job.id) if exists else None


def _may_wait(queue: QueueContext, job: NewJob) -> bool:
    """Return True if a partition or a fair share determines the job's state or place."""
    return queue.fair is not None or job.partition is not None or job.tenant is not None


def insert_with_options(tx: TransactionContext, queue: QueueContext, job: NewJob) -> None:
    """Store a job with a unique key (taken if it is free), a partition, a fair share or a batch key."""
    unique = job.unique
    first, due = first_state(job, tx.now)
    seq, state, place = tx.generation() + 1, CODE[first], tx.tails(queue, 1) + 1
    row = _row(queue, job, seq, state, place, due, tx.now)
    tx.execute(_INSERT_WITH_KEY, (*row, None if unique is None else unique.states))
    if unique is not None and unique.states & WHILE_QUEUED:
        take_key(tx, queue, seq, job.id, unique, tx.now)
    if _may_wait(queue, job):
        partitions.join(tx, queue, seq, job, place)
        if state == AVAILABLE:
            partition = None if job.partition is None else job.partition.key
            before = RowBefore(seq, None, job.priority, place, partition, None, row[-1])
            state = partitions.became(tx, queue, before, state, place, at_tail=True) or state
        elif job.partition is not None:
            partitions.advance(tx, queue, job.partition.key)
    tx.enqueued(queue, state, 1)
    if job.batch_terms is not None:
        entered(tx, queue, seq, job, state)


# ── get ──────────────────────────────────────────────────────────────────────────────────────────


def get(tx: TransactionContext, refs: Sequence[Ref]) -> list[Job | None]:
    rows = [tx.execute(_GET, (tx.namespace, ref.queue, ref.id)).fetchone() for ref in refs]
    return [None if row is None else show(tx, row) for row in rows]


def all_ended(tx: TransactionContext, refs: Sequence[Ref]) -> list[Job | None] | None:
    """Return the jobs if all of them have ended or do not exist; else None."""
    if any(is_open(tx, ref) for ref in refs):
        return None
    return get(tx, refs)


def find_ended(tx: TransactionContext, refs: Sequence[Ref]) -> dict[Ref, Job | None]:
    """Return the jobs that have ended; None for those that do not exist."""
    over = [ref for ref in refs if not is_open(tx, ref)]
    return dict(zip(over, get(tx, over), strict=True))


def is_open(tx: TransactionContext, ref: Ref) -> bool:
    """Return True if the job exists and has not ended, or the flow whose end the ref stands for."""
    flow = flow_with_end(ref)
    if flow is not None:
        row = tx.execute(_FLOW, (tx.namespace, flow.queue, flow.id)).fetchone()
        return row is not None and not decode_head(row[1]).over
    return tx.execute(_OPEN, (tx.namespace, ref.queue, ref.id)).fetchone() is not None


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────


def cancel(tx: TransactionContext, refs: Sequence[Ref], reason: str) -> list[State | None]:
    return [_cancel(tx, ref, reason) for ref in refs]


def _cancel(tx: TransactionContext, ref: Ref, reason: str) -> State | None:
    queue = tx.queue(ref.queue)
    row = None if queue is None else tx.execute(_LOOK, (queue.qid, ref.id)).fetchone()
    if queue is None or row is None:
        return None
    seq, state, spec, asked, batch = row
    check_state(seq, state)
    if state == COLLECTING and batch is not None:
        return State.COLLECTING
    if state in QUEUED or state == SUSPENDED:
        end_queued(tx, queue, seq, state, spec, reason)
        return State.CANCELLED
    if state == RUNNING and not asked:
        tx.execute(_ASK, (seq, asked_because(reason)))
        tx.cancels += 1
    return STATES[state]
