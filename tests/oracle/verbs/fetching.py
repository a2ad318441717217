"""fetch: lease the first available jobs of some queues, up to each queue's share and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from penstock.core.job import State
from penstock.core.lifecycle import EXPIRED
from penstock.stores.contract import Fetched, Share, WorkerInfo
from tests.oracle import indexes, keys, partitions, transitions
from tests.oracle.rows import MemoryQueue, Row
from tests.oracle.state import MemoryState
from tests.oracle.verbs.leases import notice_reboot
from tests.oracle.verbs.promoting import next_due

__all__ = ["fetch"]


def fetch(
    memory: MemoryState,
    queues: Sequence[Share],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    charge: bool,
) -> Fetched:
    now = memory.clock.now()
    notice_reboot(memory)
    jobs, info = memory.under(token), memory.workers.get(worker)
    if not jobs:
        until = memory.clock.lease_now() + lease
        for row in _pick(memory, queues, limit, info, now):
            at = row.queue.rate_limiter.count_starts(1, now)
            _lease(memory, row, worker, token, until, now if at is None else at[0], charge)
            jobs.append(row.job)
    names = [share.queue for share in queues]
    known = memory.known(names)
    opens = (queue.opens_at(now, info) for queue in known)
    opens_at = min((instant for instant in opens if instant is not None), default=None)
    kept = tuple(queue.name for queue in known if queue.parked and queue.full_for(info))
    return Fetched(jobs, now, next_due(memory, names), opens_at, kept=kept)


def _pick(
    memory: MemoryState, queues: Sequence[Share], limit: int, info: WorkerInfo | None, now: int
) -> Iterator[Row]:
    """Yield the rows to lease: up to each quota, then up to each cap.

    The caller must lease each row before it takes the next one.
    """
    given = dict.fromkeys((share.queue for share in queues), 0)
    for to_cap in (False, True):
        for share in queues:
            queue = memory.queues.get(share.queue)
            if queue is None:
                continue
            most = share.cap if to_cap else min(share.quota, share.cap)
            if share.free is not None and queue.rate_limiter.limits.delay_starts:
                most = min(most, share.free)
            while limit > 0 and given[share.queue] < most:
                row = _next_ready(memory, queue, info, now)
                if row is None:
                    break
                limit -= 1
                given[share.queue] += 1
                yield row


def _next_ready(memory: MemoryState, queue: MemoryQueue, info: WorkerInfo | None, now: int) -> Row | None:
    if queue.paused or queue.room(now) == 0:
        return None
    while (first := queue.first_parked(info) or queue.ready.first()) is not None:
        row = memory.rows[first[1]]
        if row.expired(now):
            transitions.end_queued(memory, row, EXPIRED, now)
        elif row.job.state is State.PARKED and not partitions.has_room(memory, row):
            transitions.make_available(memory, row, now, row.place)
        else:
            return row
    return None


def _lease(
    memory: MemoryState, row: Row, worker: str, token: str, until: int, now: int, charge: bool
) -> None:
    terms = row.job.spec.partition
    if terms is not None:
        partitions.start(row, terms, now)
    if row.job.state is State.AVAILABLE and (fair_share := row.fair_share) is not None:
        fair_share.fetched(row.place)
    indexes.take(memory, row, starts=True)
    row.charged = charge
    row.lease_until = until
    row.job = replace(
        row.job,
        state=State.RUNNING,
        attempt=row.job.attempt + charge,
        fetched_at=now,
        token=token,
        worker=worker,
        started=False,
        progress=None,
        reason=None,
    )
    keys.shift(memory, row, State.AVAILABLE, now)
    transitions.put(memory, row)
