"""Listings for operators: queues with their counts, partitions, and batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from penstock.core.job import Ref, State
from penstock.stores.contract import (
    PARTITION_SHOWN,
    BatchInfo,
    DayCount,
    Parked,
    PartitionInfo,
    QueueInfo,
    QueueStats,
)
from tests.oracle.rows import DAY, MemoryQueue
from tests.oracle.state import MemoryState
from tests.oracle.verbs.pruning import DAYS_KEPT

__all__ = ["batches", "info_of", "parked", "partition", "queues", "stats"]


def queues(memory: MemoryState, names: Sequence[str] | None) -> list[QueueInfo]:
    now = memory.clock.now()
    wanted = None if names is None else sorted(set(names))
    return [info_of(queue, now) for queue in memory.known(wanted)]


def info_of(queue: MemoryQueue, now: int) -> QueueInfo:
    counts = {state: n for state, n in queue.counts.items() if n}
    oldest, rate_limiter = queue.oldest.first(), queue.rate_limiter
    return QueueInfo(
        queue.name,
        counts,
        queue.paused,
        queue.closed,
        oldest and oldest[0],
        rate_limiter.limits,
        rate_limiter.throttled(now),
        layers=rate_limiter.layers,
        opens_at=rate_limiter.opens_at(counts.get(State.RUNNING, 0), now),
    )


def parked(memory: MemoryState) -> list[Parked]:
    return [
        Parked(queue.name, task, len(queue.parked[task]))
        for queue in memory.known(None)
        for task in sorted(queue.parked)
    ]


def stats(memory: MemoryState, days: int) -> list[QueueStats]:
    oldest = memory.clock.now() // DAY - min(days, DAYS_KEPT)
    return [_stats_of(queue, oldest) for queue in memory.known(None)]


def _stats_of(queue: MemoryQueue, oldest: int) -> QueueStats:
    days = [day for day in sorted(queue.days, reverse=True) if day > oldest]
    counts = [DayCount(_day_name(day), *queue.days[day]) for day in days]
    return QueueStats(queue.name, queue.enqueued, queue.processed, queue.failed, counts)


def _day_name(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


def partition(memory: MemoryState, ref: Ref) -> PartitionInfo | None:
    row = memory.row(ref)
    if row is None or row.job.ended or (terms := row.job.spec.partition) is None:
        return None
    partition = row.queue.partitions.get(terms.key)
    if partition is None:
        return PartitionInfo(terms.key, [], 0)
    before = partition.waiting.rank(row.generation) if row.job.state is State.WAITING else None
    admitted = [
        partition.admitted[generation].job for generation in sorted(partition.admitted)[:PARTITION_SHOWN]
    ]
    return PartitionInfo(terms.key, admitted, len(partition.waiting), before, partition.due)


def batches(memory: MemoryState, name: str | None, limit: int) -> list[BatchInfo]:
    found = [
        BatchInfo(queue.name, *batch_name, size, oldest, due)
        for queue in memory.known(None if name is None else [name])
        for batch_name, size, oldest, due in queue.batch_buffer.batches()
    ]
    return sorted(found, key=BatchInfo.order)[: max(0, limit)]
