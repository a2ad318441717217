"""Partitions: update the other jobs of a concurrency key when one job changes.

Only queues with partitions or a fair share use this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.core.job import NewJob, State
from penstock.core.relations import Partition
from penstock.stores.sql import fair_share
from penstock.stores.sql.rows import Row, RowBefore, numbers, spec_of
from penstock.stores.sql.statements import (
    ADMITTED,
    ADMITTED_UNSTARTED,
    AVAILABLE,
    CODE,
    PARKED,
    RETRYABLE,
    RUNNING,
    SCHEDULED,
    SQL,
    SUSPENDED,
    WAITING,
    LeasedRow,
)
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext

_LOOK = SQL["partitions.look"]
_BEGIN = SQL["partitions.begin"]
_JOIN = SQL["partitions.join"]
_ADMIT = SQL["partitions.admit"]
_AVAILABLE = SQL["partitions.available"]
_WAIT = SQL["partitions.wait"]
_TO_PLACE = SQL["partitions.to_place"]
_PROMOTE = SQL["partitions.promote"]
_FIRST = SQL["partitions.first"]
_COUNT = SQL["partitions.count"]
_UNSTARTED = SQL["partitions.unstarted"]
_RATES = SQL["partitions.rates"]
_KEY = SQL["partitions.key"]
_REMEMBER = SQL["partitions.remember"]
_DUE = SQL["partitions.due"]
_NOT_DUE = SQL["partitions.not_due"]
_ALL_DUE = SQL["partitions.all_due"]
_NEXT_DUE = SQL["partitions.next_due"]
_OVER = SQL["partitions.over"]
_FORGET = SQL["partitions.forget"]
_DROP = SQL["partitions.drop"]

#: Ordered jobs keep their room in the partition through these states.
_COMES_BACK = (SCHEDULED, RETRYABLE, PARKED, SUSPENDED)


def look(tx: TransactionContext, seq: int) -> RowBefore:
    """Read the row of an existing job."""
    return RowBefore._make(tx.execute(_LOOK, (seq,)).fetchone())


def join(tx: TransactionContext, queue: QueueContext, seq: int, job: NewJob, place: int) -> None:
    """Store the partition and the fair share of a new job."""
    if job.tenant is not None:
        fair_share.begin(tx, queue, place)
    if job.partition is not None:
        if not queue.has_partitions:
            queue.has_partitions = True
            tx.execute(_BEGIN, (queue.qid,))
        tx.execute(_JOIN, (seq, job.partition.key, job.partition.rank(job.priority)))


def leave(tx: TransactionContext, queue: QueueContext, seq: int) -> RowBefore:
    """Take a queued job out of its partition and give its place back; return its row from before.

    The caller must call `advance` for that partition afterwards.
    """
    before = look(tx, seq)
    if before.state == AVAILABLE:
        fair_share.give_back(tx, queue, before)
    if before.partition is not None:
        tx.execute(_JOIN, (seq, None, None))
        tx.execute(_ADMIT, (seq, None))
    return before


def became(
    tx: TransactionContext,
    queue: QueueContext,
    before: RowBefore,
    code: int | None,
    place: int,
    *,
    at_tail: bool = False,
) -> int | None:
    """Update the partition and the fair share after a job's row was changed.

    `code`: the new state (None: the job was removed); `place`: the new place. Returns the final state: a job
    becomes WAITING if its partition is full. Waiting jobs are admitted if there is room now.
    """
    if before.state == AVAILABLE and code != RUNNING:
        fair_share.give_back(tx, queue, before)
    if before.partition is not None:
        code = _entered(tx, queue, before, code, place)
    if code == AVAILABLE and at_tail and queue.fair is not None:
        tx.execute(_TO_PLACE, (before.seq, fair_share.draw(tx, queue, before)))
    if before.partition is not None:
        advance(tx, queue, before.partition)
    return code


def to_tail(tx: TransactionContext, queue: QueueContext, seq: int) -> None:
    """Make a due job available, at the tail of its queue."""
    before = look(tx, seq)
    place = tx.places_at_tail(queue, 1) + 1
    tx.execute(_PROMOTE, (seq, place))
    tx.count_move(queue, before.state, became(tx, queue, before, AVAILABLE, place, at_tail=True))


def wait_in_line(tx: TransactionContext, queue: QueueContext, seq: int) -> None:
    """Make a parked job WAITING, at its own place, because its partition is full."""
    before = look(tx, seq)
    tx.execute(_PROMOTE, (seq, before.place))
    tx.count_move(queue, before.state, became(tx, queue, before, AVAILABLE, before.place, at_tail=True))


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
    """As `TransactionContext.end_queued`, in a queue with or without partitions."""
    if not queue.has_dependents:
        tx.end_queued(queue, seq, state, spec, reason, to, result)
        return
    before = look(tx, seq)
    assert before.state is not None
    tx.end_queued(queue, seq, before.state, spec, reason, to, result)
    became(tx, queue, before, CODE[to], before.place)


# ── admission ────────────────────────────────────────────────────────────────────────────────────


def _entered(
    tx: TransactionContext, queue: QueueContext, before: RowBefore, code: int | None, place: int
) -> int | None:
    """Admit the job to its partition, or release its admission, as its new state requires."""
    if code == AVAILABLE:
        if not before.admitted and not _may_enter(tx, queue, before, place):
            tx.execute(_WAIT, (before.seq,))
            return WAITING
        _admit(tx, before.seq, before.terms)
    elif before.admitted and code is not None:
        stays = code in _COMES_BACK and before.terms.ordered
        tx.execute(_ADMIT, (before.seq, ADMITTED if stays else None))
    return code


def _may_enter(tx: TransactionContext, queue: QueueContext, before: RowBefore, place: int) -> bool:
    terms = before.terms
    waiting = _first_waiting(tx, queue, terms.key)
    if waiting is not None:
        first, rank = waiting
        if (rank, first.place) < (terms.rank(before.priority), place):
            return False
    at = _allowed_at(tx, queue, terms)
    return at is not None and at <= tx.now


def _first_waiting(
    tx: TransactionContext, queue: QueueContext, concurrency_key: str
) -> tuple[RowBefore, int] | None:
    """Return the waiting job that the partition admits next, and its rank; None if none waits."""
    found = tx.execute(_FIRST, (queue.qid, concurrency_key)).fetchone()
    if found is None:
        return None
    *row, rank = found
    return RowBefore._make(row), rank


def _allowed_at(tx: TransactionContext, queue: QueueContext, terms: Partition) -> int | None:
    """Return when the partition may admit one more job; None: only after another job leaves or starts."""
    name = (queue.qid, terms.key)
    (admitted,) = tx.execute(_COUNT, name).fetchone()
    if admitted >= terms.most:
        return None
    spent, throttled_until, _ = tx.execute(_KEY, name).fetchone() or (0.0, 0, None)
    (unstarted,) = (0,) if terms.rate is None else tx.execute(_UNSTARTED, name).fetchone()
    return terms.allowed_at(unstarted, spent, throttled_until, tx.now)


def _admit(tx: TransactionContext, seq: int, terms: Partition) -> None:
    tx.execute(_ADMIT, (seq, _admitted(terms)))


def _admitted(terms: Partition) -> int:
    return ADMITTED if terms.rate is None else ADMITTED_UNSTARTED


def has_room(tx: TransactionContext, queue: QueueContext, seq: int) -> bool:
    """Admit a parked job to its partition, if it has one; return False if the partition is full."""
    before = look(tx, seq)
    if before.partition is None:
        return True
    if not before.admitted and not _may_enter(tx, queue, before, before.place):
        return False
    _admit(tx, seq, before.terms)
    if not before.admitted:  # there is less room for those that wait
        advance(tx, queue, before.partition)
    return True


def advance(tx: TransactionContext, queue: QueueContext, concurrency_key: str) -> int:
    """Admit waiting jobs while there is room, and store when the next one may be; return how many were."""
    name, admitted, due = (queue.qid, concurrency_key), 0, None
    while (waiting := _first_waiting(tx, queue, concurrency_key)) is not None:
        before, _ = waiting
        terms = before.terms
        due = _allowed_at(tx, queue, terms)
        if due is None or due > tx.now:
            break
        due = None
        tx.execute(_AVAILABLE, (before.seq, _admitted(terms)))
        if queue.fair is not None:
            tx.execute(_TO_PLACE, (before.seq, fair_share.draw(tx, queue, before)))
        tx.count_move(queue, WAITING, AVAILABLE)
        admitted += 1
    if due is None:
        tx.execute(_NOT_DUE, name)
    else:
        tx.execute(_DUE, (*name, due))
        tx.work.add(queue.name)
    return admitted


def throttle(
    tx: TransactionContext,
    queue: QueueContext,
    before: RowBefore,
    concurrency_key: str,
    until: int,
    *,
    back: bool,
) -> RowBefore:
    """Throttle the partition until this instant. With `back`, this job loses its admission, too."""
    spent, throttled_until, _ = tx.execute(_KEY, (queue.qid, concurrency_key)).fetchone() or (0.0, 0, None)
    _remember(tx, queue, concurrency_key, spent, max(throttled_until, until))
    if not back:
        return before
    tx.execute(_ADMIT, (before.seq, None))
    return before._replace(admitted=None)


def _remember(
    tx: TransactionContext, queue: QueueContext, concurrency_key: str, spent: float, throttled_until: int
) -> None:
    tx.execute(
        _REMEMBER,
        (queue.qid, concurrency_key, spent, throttled_until, max(math.ceil(spent), throttled_until)),
    )


def all_due(tx: TransactionContext, queue: QueueContext, limit: int) -> list[Row]:
    """Return the partitions that may admit their first waiting job by now: (instant, key)."""
    return tx.execute(_ALL_DUE, (queue.qid, tx.now, limit)).fetchall() if queue.has_partitions else []


def next_due(tx: TransactionContext, queue: QueueContext) -> int | None:
    if not queue.has_partitions:
        return None
    due: int | None
    (due,) = tx.execute(_NEXT_DUE, (queue.qid,)).fetchone()
    return due


def fetched(tx: TransactionContext, queue: QueueContext, rows: Sequence[Row]) -> None:
    """Update partitions and fair share after jobs were leased; `rows` have the columns of LeasedRow."""
    leased = [LeasedRow._make(row) for row in rows]
    if queue.has_partitions and leased:
        _started(tx, queue, [row.seq for row in leased])
    if queue.fair is not None:
        fair_share.fetched(tx, queue, leased)


def _started(tx: TransactionContext, queue: QueueContext, seqs: list[int]) -> None:
    """Count the start of jobs whose partition has a rate."""
    found = {seq: (key, spec) for seq, key, spec in tx.execute(_RATES, (numbers(seqs),)).fetchall()}
    for seq, (key, spec) in [(seq, found[seq]) for seq in seqs if seq in found]:
        terms = spec_of(seq, spec).partition
        assert terms is not None
        spent, throttled_until, _ = tx.execute(_KEY, (queue.qid, key)).fetchone() or (0.0, 0, None)
        _remember(tx, queue, key, terms.after_start(spent, tx.now), throttled_until)
    for seq in found:
        tx.execute(_ADMIT, (seq, ADMITTED))
    for key in dict.fromkeys(key for key, _ in found.values()):
        advance(tx, queue, key)


# ── removing unused keys ─────────────────────────────────────────────────────────────────────────


def has_idle(tx: TransactionContext, queue: QueueContext) -> bool:
    if queue.has_partitions and tx.execute(_OVER, (queue.qid, tx.now)).fetchone():
        return True
    return fair_share.is_idle(tx, queue)


def prune(tx: TransactionContext, queue: QueueContext) -> None:
    """Delete unused partition keys, and the tenants' places if no job of the queue is available."""
    if queue.has_partitions:
        tx.execute(_FORGET, (queue.qid, tx.now))
    fair_share.prune(tx, queue)


def drop(tx: TransactionContext, queue: QueueContext) -> None:
    """Delete all partitions and fair shares of a queue."""
    if queue.has_dependents:
        tx.execute(_DROP, (queue.qid,))
        fair_share.drop(tx, queue)
