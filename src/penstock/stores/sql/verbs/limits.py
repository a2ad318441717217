"""The limits of a queue, for the other verbs: how many jobs it may give, and whether it takes new ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from penstock.core.job import QUEUED, Job
from penstock.core.limits import NO_LIMITS, LimitChange, OnFull
from penstock.stores.contract import Enqueued, EnqueueStatus
from penstock.stores.sql.rows import layers_blob, layers_of
from penstock.stores.sql.statements import AVAILABLE, CODE, PARKED, RUNNING, SQL
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext

_SET = SQL["limits.set"]
_LAYERS = SQL["limits.layers"]
_THROTTLE = SQL["limits.throttle"]
_COUNT_STARTS = SQL["limits.count_starts"]
_STARTS = SQL["limits.starts"]

_QUEUED = tuple(CODE[state] for state in QUEUED)
_blob = msgspec.msgpack.Encoder().encode


# ── fetch ────────────────────────────────────────────────────────────────────────────────────────


def room(tx: TransactionContext, queue: QueueContext) -> int | None:
    """Return how many jobs may be fetched from the queue now; None: any number."""
    if queue.paused:
        return 0
    return None if queue.rate_limiter is None else queue.rate_limiter.room(queue.count(RUNNING), tx.now)


def has_startable(tx: TransactionContext, queue: QueueContext, *, parked: bool = False) -> bool:
    """Return True if a fetch would get an available job now, or, with `parked`, a parked one."""
    some = queue.count(AVAILABLE) > 0 or (parked and queue.count(PARKED) > 0)
    return some and room(tx, queue) != 0


def full(queue: QueueContext) -> bool:
    """Return True if `max_running` jobs of the queue run: the next one starts when one of them ends."""
    return (
        queue.rate_limiter is not None and not queue.paused and queue.rate_limiter.full(queue.count(RUNNING))
    )


def opens_at(
    tx: TransactionContext, queues: Sequence[QueueContext], parked: Collection[int] = ()
) -> int | None:
    """Return when a rate or a throttle of these queues admits the next job that it blocks now.

    `parked`: the queues with parked jobs for the calling worker.
    """
    instants = [
        queue.rate_limiter.opens_at(queue.count(RUNNING), tx.now)
        for queue in queues
        if queue.rate_limiter is not None
        and not queue.paused
        and (queue.count(AVAILABLE) or queue.qid in parked)
        and room(tx, queue) == 0
    ]
    return min((instant for instant in instants if instant is not None), default=None)


def count_starts(tx: TransactionContext, queue: QueueContext, seqs: Sequence[int]) -> dict[int, int]:
    """Count leased jobs against the rate, in this order; return those that start later, and when."""
    rate_limiter = queue.rate_limiter
    if rate_limiter is None or not seqs:
        return {}
    starts = rate_limiter.count_starts(len(seqs), tx.now) or ()
    drain = rate_limiter.drain
    tx.execute(_COUNT_STARTS, (queue.qid, rate_limiter.next_start, drain.count, drain.at, drain.since))
    later = {seq: at for seq, at in zip(seqs, starts, strict=False) if at > tx.now}
    tx.execute_many(_STARTS, [(at, seq) for seq, at in later.items()])
    return later


def started(jobs: list[Job], starts: dict[int, int]) -> list[Job]:
    """Return the jobs with `fetched_at` set to their start, if that is later than now."""
    if not starts:
        return jobs
    return [
        msgspec.structs.replace(job, fetched_at=starts.get(job.generation, job.fetched_at)) for job in jobs
    ]


# ── enqueue, settle, settings ────────────────────────────────────────────────────────────────────


def refusal(tx: TransactionContext, queue: QueueContext, id: str, more: int = 1) -> Enqueued | None:
    """Return the FULL answer for the new job `id` if the queue has no room for `more` jobs, else None."""
    rate_limiter = queue.rate_limiter
    most = None if rate_limiter is None else rate_limiter.limits.max_size
    if rate_limiter is None or most is None:
        return None
    size = sum(queue.count(code) for code in _QUEUED)
    if size + more <= most:
        return None
    queue.refused += more
    wait = rate_limiter.drain.wait(size - most + queue.refused, tx.now)
    waits = rate_limiter.limits.on_full is OnFull.WAIT
    return Enqueued(EnqueueStatus.FULL, id, wait, size=most, waits=waits)


def throttle(tx: TransactionContext, queue: QueueContext, ms: int) -> None:
    """Throttle the queue for `ms`."""
    if queue.rate_limiter is None:
        queue.rate_limiter = tx.limiter()
    queue.rate_limiter.throttle(ms, tx.now)
    tx.execute(_THROTTLE, (queue.qid, queue.rate_limiter.throttled_until))
    tx.work.add(queue.name)  # waiting workers must learn when the throttle ends


def change(tx: TransactionContext, queue: QueueContext, wanted: LimitChange) -> bool:
    """Apply a change of limits; return True if anything has changed."""
    # a throttle that has ended is changed too: it would count again if the clock were set back
    rate_limiter = queue.rate_limiter or tx.limiter(throttled_until=queue.ended_throttle)
    throttled_until = rate_limiter.throttled_until
    (stored,) = tx.execute(_LAYERS, (queue.qid,)).fetchone()
    layers = rate_limiter.layers = layers_of(stored, rate_limiter.limits)
    changed = rate_limiter.change(wanted, tx.now)
    if not changed and (rate_limiter.throttled_until, rate_limiter.layers) == (throttled_until, layers):
        return False
    limits = None if rate_limiter.limits == NO_LIMITS else _blob(rate_limiter.limits)
    layers_now = layers_blob(rate_limiter.layers)
    tx.execute(_SET, (queue.qid, limits, rate_limiter.throttled_until, rate_limiter.next_start, layers_now))
    queue.rate_limiter = rate_limiter
    return changed
