"""enqueue (also replacing a queued job), get, cancel; and the queries of `wait_for_end` and `stream_ends`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.changes import moves, replaced
from penstock.core.flow import flow_with_end
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import first_state
from penstock.core.unique import QUEUED_PHASE
from penstock.stores.contract import Enqueued, EnqueueStatus
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import Row, RowBefore, check_state, decode_head, job_of, spec_blob
from penstock.stores.sql.statements import (
    AVAILABLE,
    CODE,
    COLLECTING,
    QUEUED,
    RUNNING,
    SQL,
    STATES,
    SUSPENDED,
    WAITING,
)
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext
from penstock.stores.sql.verbs.aside import show
from penstock.stores.sql.verbs.batches import end_queued, enter, entered, left, set_key
from penstock.stores.sql.verbs.keys import holder, take_key
from penstock.stores.sql.verbs.limits import refusal
from penstock.stores.sql.verbs.stepping import resume
from penstock.stores.text_encoding import asked_because

_INSERT = SQL["enqueue.insert"]
_INSERT_WITH_KEY = SQL["enqueue.insert_with_key"]
_EXISTS = SQL["enqueue.exists"]
_GET = SQL["get.one"]
_OPEN = SQL["get.open"]
_FLOW = SQL["flows.flow"]
_LOOK = SQL["cancel.look"]
_ASK = SQL["cancel.ask"]
_ASK_QUEUED = SQL["cancel.ask_queued"]

_CHUNK = 2_000


# ── enqueue ──────────────────────────────────────────────────────────────────────────────────────


def enqueue(tx: TransactionContext, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Insert all jobs together if possible, which is the usual case; else one by one."""
    plain = len(jobs) > 0
    for job in jobs:
        queue = tx.some_queue(job.queue)
        independent = job.unique is None and job.batch_terms is None and not _may_wait(queue, job)
        if queue.closed or queue.rate_limiter is not None or not independent:
            plain = False
    if plain and _insert_all(tx, jobs):
        return [Enqueued(EnqueueStatus.NEW, job.id) for job in jobs]
    return [enqueue_one(tx, job) for job in jobs]


def _insert_all(tx: TransactionContext, jobs: Sequence[NewJob]) -> bool:
    """Store all jobs; if one of their ids is taken, store none and return False."""
    if len(jobs) == 1:
        return _insert(tx, tx.some_queue(jobs[0].queue), jobs[0])
    now = tx.now
    tx.set_savepoint()
    tails: dict[str, int] = {}
    states: dict[tuple[str, int], int] = {}
    seq = tx.newest_generation()
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
        if tx.execute_many(_INSERT, rows).rowcount != len(rows):
            tx.undo_to_savepoint()
            tx.release_savepoint()
            return False
    tx.release_savepoint()
    for (name, state), n in states.items():
        queue = tx.some_queue(name)
        tx.places_at_tail(queue, n)
        tx.count_enqueued(queue, state, n)
    return True


def _insert(tx: TransactionContext, queue: QueueContext, job: NewJob) -> bool:
    state, due = first_state(job, tx.now)
    code = CODE[state]
    row = _row(queue, job, tx.newest_generation() + 1, code, queue.tail + 1, due, tx.now)
    if tx.execute(_INSERT, row).rowcount != 1:
        return False
    tx.places_at_tail(queue, 1)
    tx.count_enqueued(queue, code, 1)
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
    full = None if follows else refusal(tx, queue, job.id)
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
    return Enqueued(EnqueueStatus.CLOSED, job.id) if queue.closed else refusal(tx, queue, job.id)


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
    seq, state, place = tx.newest_generation() + 1, CODE[first], tx.places_at_tail(queue, 1) + 1
    row = _row(queue, job, seq, state, place, due, tx.now)
    tx.execute(_INSERT_WITH_KEY, (*row, None if unique is None else unique.phases))
    if unique is not None and unique.phases & QUEUED_PHASE:
        take_key(tx, queue, seq, job.id, unique, tx.now)
    if _may_wait(queue, job):
        partitions.join(tx, queue, seq, job, place)
        if state == AVAILABLE:
            partition = None if job.partition is None else job.partition.key
            before = RowBefore(seq, None, job.priority, place, partition, None, row[-1])
            state = partitions.became(tx, queue, before, state, place, at_tail=True) or state
        elif job.partition is not None:
            partitions.advance(tx, queue, job.partition.key)
    tx.count_enqueued(queue, state, 1)
    if job.batch_terms is not None:
        entered(tx, queue, seq, job, state)


# ── get ──────────────────────────────────────────────────────────────────────────────────────────


def get(tx: TransactionContext, refs: Sequence[Ref]) -> list[Job | None]:
    rows = [tx.execute(_GET, (tx.namespace, ref.queue, ref.id)).fetchone() for ref in refs]
    return [None if row is None else show(tx, row) for row in rows]


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
    seq, state, spec, asked, batch, has_undo = row
    check_state(seq, state)
    if state == COLLECTING and batch is not None:
        return State.COLLECTING
    if state in QUEUED or state == SUSPENDED:
        if has_undo:
            if not asked:
                _ask_to_undo(tx, queue, seq, state, asked_because(reason))
            return State.RUNNING
        end_queued(tx, queue, seq, state, spec, reason)
        return State.CANCELLED
    if state == RUNNING and not asked:
        tx.execute(_ASK, (seq, asked_because(reason)))
        tx.cancels += 1
    return STATES[state]


def _ask_to_undo(
    tx: TransactionContext, queue: QueueContext, seq: int, state: int, reason: str | None
) -> None:
    """Ask a job that is not running to stop: the worker that takes it undoes its steps."""
    tx.execute(_ASK_QUEUED, (seq, reason))
    if state not in (AVAILABLE, WAITING):
        resume(tx, queue, seq, state)


# ── conflicts of unique keys ─────────────────────────────────────────────────────────────────────

# A new job whose unique key is held is a DUPLICATE, or replaces the holder's content.


_HOLDERS_JOB = SQL["keys.look"]
_REPLACE = SQL["keys.replace"]


def conflict(tx: TransactionContext, queue: QueueContext, new: NewJob) -> Enqueued | None:
    """Resolve the conflict of a new job with the holder of its unique key; None if the key is free."""
    assert new.unique is not None
    found = holder(tx, queue, new.unique.key)
    if found is None:
        return None
    id, seq = found
    if new.unique.replace and replace_content(tx, queue, seq, new):
        return Enqueued(EnqueueStatus.REPLACED, id)
    return Enqueued(EnqueueStatus.DUPLICATE, id)


def replace_content(tx: TransactionContext, queue: QueueContext, seq: int, new: NewJob) -> bool:
    """Replace the content of a queued job by that of a call; False if the call does not replace it."""
    row = tx.execute(_HOLDERS_JOB, (seq,)).fetchone()
    if row is None:  # the key has outlived its job
        return False
    before = job_of(row)
    job = replaced(before, new, tx.now)
    if job is None:
        return False
    if moves(before.spec, job.spec):
        _move(tx, queue, seq, before, job)
        return True
    code, old = CODE[job.state], CODE[before.state]
    place = tx.places_at_tail(queue, 1) + 1 if code == AVAILABLE != old else None
    row_before = partitions.look(tx, seq) if queue.has_dependents and code != old else None
    tx.execute(_REPLACE, (seq, code, job.run_at, job.expires_at, spec_blob(job.spec), place))
    after: int | None = code
    if row_before is not None:
        stands = row_before.place if place is None else place
        after = partitions.became(tx, queue, row_before, code, stands, at_tail=place is not None)
    tx.count_move(queue, old, after)
    if code != old and job.is_member:
        _change_batch(tx, queue, seq, job, old)
    return True


def _move(tx: TransactionContext, queue: QueueContext, seq: int, before: Job, job: Job) -> None:
    """Replace a queued job by one with another partition, tenant or batch key."""
    row_before = partitions.leave(tx, queue, seq)
    code, old = CODE[job.state], CODE[before.state]
    if code == WAITING:
        code = AVAILABLE
    tail = tx.places_at_tail(queue, 1) + 1
    place = tail if code == AVAILABLE else None
    tx.execute(_REPLACE, (seq, code, job.run_at, job.expires_at, spec_blob(job.spec), place))
    partitions.join(tx, queue, seq, job.spec, tail)
    after: int | None = code
    if queue.has_dependents and code == AVAILABLE:
        after = partitions.became(
            tx, queue, partitions.look(tx, seq)._replace(state=None), code, tail, at_tail=True
        )
    tx.count_move(queue, old, after)
    if job.is_member:
        _change_key(tx, queue, seq, before, job)
    if row_before.partition is not None:
        partitions.advance(tx, queue, row_before.partition)


def _change_key(tx: TransactionContext, queue: QueueContext, seq: int, before: Job, job: Job) -> None:
    assert before.spec.batch_terms is not None
    assert job.spec.batch_terms is not None
    if before.state is State.COLLECTING:
        left(tx, queue, job.task, before.spec.batch_terms.key)
    set_key(tx, seq, job.spec.batch_terms.key)
    if job.state is State.COLLECTING:
        enter(tx, queue, seq, job.spec)


def _change_batch(tx: TransactionContext, queue: QueueContext, seq: int, job: Job, old: int) -> None:
    """Let a replaced member leave its collecting batch (now scheduled), or join it (now due)."""
    assert job.spec.batch_terms is not None
    if old == COLLECTING:
        left(tx, queue, job.task, job.spec.batch_terms.key)
    elif job.state is STATES[COLLECTING]:
        enter(tx, queue, seq, job.spec)
