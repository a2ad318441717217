"""Batches: members join and leave a collecting batch, a batch job is made of them, and they end with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import msgspec

from penstock.core.job import NewJob, State
from penstock.core.lifecycle import EXPIRED, batch_of, kept
from penstock.core.relations import BatchTerms, batch_id
from penstock.stores.contract import BatchInfo
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import Row, RowBefore, numbers, spec_blob, spec_of, specs_of
from penstock.stores.sql.statements import AVAILABLE, CODE, COLLECTING, SQL, STATES
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext
from penstock.stores.sql.verbs.keys import forget_key, free_keys, shift_key
from penstock.stores.text_encoding import storable

_KEY = SQL["batches.key"]
_ENTER = SQL["batches.enter"]
_JOIN = SQL["batches.join"]
_SET_DUE = SQL["batches.set_due"]
_ONE = SQL["batches.one"]
_FIRST = SQL["batches.first"]
_SHRINK = SQL["batches.shrink"]
_EMPTY = SQL["batches.empty"]
_DUE = SQL["batches.due"]
_NEXT = SQL["batches.next"]
_MEMBERS = SQL["batches.members"]
_INSERT = SQL["batches.insert_batch"]
_ASSIGN = SQL["batches.assign"]
_END = SQL["batches.end"]
_REMOVE = SQL["batches.remove"]
_SHOW = SQL["batches.show"]

_ids_blob = msgspec.msgpack.Encoder().encode

#: A member of a collecting batch: its generation, and its job.
_Member = tuple[int, NewJob]


# ── joining and leaving ──────────────────────────────────────────────────────────────────────────


def entered(tx: TransactionContext, queue: QueueContext, seq: int, job: NewJob, state: int) -> None:
    """Store the batch key of a new job with this state, and let a COLLECTING one join its batch."""
    assert job.batch_terms is not None
    tx.execute(_KEY, (seq, job.batch_terms.key))
    if state == COLLECTING:
        _join(tx, queue, job.task, job.batch_terms)


def set_key(tx: TransactionContext, seq: int, key: str) -> None:
    """Store the batch key of a member."""
    tx.execute(_KEY, (seq, key))


def enter(tx: TransactionContext, queue: QueueContext, seq: int, job: NewJob) -> None:
    """Let an existing job join its collecting batch, after it was counted out of its old state."""
    assert job.batch_terms is not None
    tx.execute(_ENTER, (seq, tx.places_at_tail(queue, 1) + 1, tx.now))
    _join(tx, queue, job.task, job.batch_terms)


def _join(tx: TransactionContext, queue: QueueContext, task: str, terms: BatchTerms) -> None:
    """Count a member whose row is already stored; make the batch job if the batch is now full or due."""
    name, now = (queue.qid, task, terms.key), tx.now
    rules = (terms.size, terms.wait, terms.grace, now, terms.due(now, now))
    n, first = tx.execute(_JOIN, (*name, *rules)).fetchone()
    due = terms.due(first, now)
    if n > 1:
        tx.execute(_SET_DUE, (*name, due))
    if n >= terms.size or (due is not None and due <= now):
        while is_due(tx, queue, task, terms.key):
            flush(tx, queue, task, terms.key)


def left(tx: TransactionContext, queue: QueueContext, task: str, key: str, n: int = 1) -> None:
    """Remove n members from the counts of their collecting batch."""
    name = (queue.qid, task, key)
    size, wait, grace, before, last, _ = tx.execute(_ONE, name).fetchone()
    if before <= n:
        tx.execute(_EMPTY, name)
        return
    (first,) = tx.execute(_FIRST, name).fetchone()
    tx.execute(_SHRINK, (*name, before - n, first, BatchTerms(key, size, wait, grace).due(first, last)))


def is_due(tx: TransactionContext, queue: QueueContext, task: str, key: str, *, full: bool = True) -> bool:
    """Return True if the collecting batch is due or, with `full`, has enough members."""
    found = tx.execute(_ONE, (queue.qid, task, key)).fetchone()
    if found is None:
        return False
    size, _, _, n, _, due = found
    return (full and n >= size) or (due is not None and due <= tx.now)


# ── making the batch job ─────────────────────────────────────────────────────────────────────────


def flush(tx: TransactionContext, queue: QueueContext, task: str, key: str) -> tuple[str | None, int]:
    """Make a batch job of the first members; return its id (None if all had expired) and their number."""
    name = (queue.qid, task, key)
    size, *_ = tx.execute(_ONE, name).fetchone()
    members: list[_Member] = []
    rows = tx.execute(_MEMBERS, (*name, size)).fetchall()
    specs = specs_of((seq, spec) for seq, _, spec in rows)
    for (seq, expires_at, _), spec in zip(rows, specs, strict=True):
        if expires_at is not None and expires_at <= tx.now:
            tx.end_queued(queue, seq, COLLECTING, spec, EXPIRED)
        else:
            members.append((seq, spec))
    made = _make_batch(tx, queue, members) if members else None
    left(tx, queue, task, key, len(rows))
    return made, len(rows)


def batch_alone(tx: TransactionContext, queue: QueueContext, seq: int, spec: NewJob) -> None:
    """Make a batch job of one member that is in no collecting batch."""
    _make_batch(tx, queue, [(seq, spec)])


def _make_batch(tx: TransactionContext, queue: QueueContext, members: Sequence[_Member]) -> str:
    _, first = members[0]
    ids = _ids_blob([spec.id for _, spec in members])
    seq, place = tx.new_generation(), tx.places_at_tail(queue, 1) + 1
    tried = (batch_of(batch_id(first.id, n), [spec for _, spec in members]) for n in count(1))
    spec = next(batch for batch in tried if _insert(tx, queue, seq, place, batch, ids))
    tx.execute(_ASSIGN, (numbers(seq for seq, _ in members), spec.id))
    if queue.has_dependents:
        before = RowBefore(seq, None, spec.priority, place, None, None, spec_blob(spec))
        partitions.became(tx, queue, before, AVAILABLE, place, at_tail=True)
    tx.count_move(queue, None, AVAILABLE)
    return spec.id


def _insert(
    tx: TransactionContext, queue: QueueContext, seq: int, place: int, spec: NewJob, ids: bytes
) -> bool:
    """Store a batch job; return False if its id is taken."""
    row = (seq, queue.qid, spec.id, spec.priority, place, tx.now, spec.task, spec_blob(spec), ids)
    return tx.execute(_INSERT, row).rowcount == 1


# ── the end of members ───────────────────────────────────────────────────────────────────────────


def end_queued(
    tx: TransactionContext,
    queue: QueueContext,
    seq: int,
    state: int,
    spec: NewJob | bytes,
    reason: str,
    to: State = State.CANCELLED,
    result: bytes | None = None,
) -> None:
    """Cancel a job that is not running, make it dead, or complete it.

    A member leaves its collecting batch, a batch ends its members.
    """
    if isinstance(spec, bytes):
        spec = spec_of(seq, spec)
    partitions.end_queued(tx, queue, seq, state, spec, reason, to, result)
    if spec.batch_terms is None:
        return
    if state == COLLECTING:
        left(tx, queue, spec.task, spec.batch_terms.key)
    else:
        end_members(tx, queue, spec.id, CODE[to], tx.now + kept(spec, to), reason)


def end_members(
    tx: TransactionContext, queue: QueueContext, batch: str, state: int, until: int, reason: str | None
) -> None:
    """End the members of a batch that has ended in this state; `until`: the end of its retention."""
    terms = (queue.qid, batch, state, tx.now, until, reason and storable(reason))
    rows = tx.execute(_END, terms).fetchall()
    for seq, unique_phases in rows:
        if unique_phases is not None:
            shift_key(tx, queue, seq, unique_phases, State.COLLECTING, STATES[state])
    if rows:
        tx.count_move(queue, COLLECTING, state, len(rows))


def drop_members(tx: TransactionContext, queue: QueueContext, batch: str, *, forgotten: bool) -> None:
    """Remove the members of a removed batch. `forgotten`: it was removed by its retention, not on request."""
    for state, seq, unique_phases in tx.execute(_REMOVE, (queue.qid, batch)).fetchall():
        tx.count_move(queue, state, None)
        if unique_phases is not None and forgotten:
            forget_key(tx, seq, state, unique_phases)
        elif unique_phases is not None:
            free_keys(tx, [seq])


# ── queries ──────────────────────────────────────────────────────────────────────────────────────


def next_due(tx: TransactionContext, queue: QueueContext) -> int | None:
    """Return when the first collecting batch of a queue is due; None if there is none."""
    if not queue.count(COLLECTING):
        return None
    due: int | None
    (due,) = tx.execute(_NEXT, (queue.qid,)).fetchone()
    return due


def due_batches(tx: TransactionContext, queue: QueueContext, limit: int) -> list[Row]:
    """Return the collecting batches that are due: (instant, task, key)."""
    if not queue.count(COLLECTING):
        return []
    return tx.execute(_DUE, (queue.qid, tx.now, limit)).fetchall()


def batches(tx: TransactionContext, queue: str | None, limit: int) -> list[BatchInfo]:
    return [BatchInfo(*row) for row in tx.execute(_SHOW, (tx.namespace, queue, max(0, limit)))]


def flush_batch(tx: TransactionContext, name: str, task: str, key: str) -> str | None:
    queue = tx.queue(name)
    if queue is None or tx.execute(_ONE, (queue.qid, task, key)).fetchone() is None:
        return None
    made, _ = flush(tx, queue, task, key)
    return made
