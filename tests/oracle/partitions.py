"""Partitions: which jobs of a concurrency key are admitted, and which job is next."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.core.relations import Partition
from tests.oracle import indexes
from tests.oracle.rows import MemoryQueue, OpenPartition, Row
from tests.oracle.state import MemoryState

__all__ = ["advance", "enter", "forget_idle", "has_room", "leave", "start", "throttle"]


def has_room(memory: MemoryState, row: Row) -> bool:
    """Return True if the partition of a parked job, if it has one, lets it start now."""
    terms = row.job.spec.partition
    if terms is None or row.admitted:
        return True
    return _may_enter(memory, row, terms, row.queue.partition(terms.key))


def enter(memory: MemoryState, row: Row, terms: Partition, partition: OpenPartition) -> None:
    """Admit a job, or release its admission, as its new state requires; a full partition makes it wait."""
    match row.job.state:
        case State.AVAILABLE:
            if row.admitted or _may_enter(memory, row, terms, partition):
                _admit(row, terms, partition)
            else:
                row.job = replace(row.job, state=State.WAITING)
        case State.RUNNING:
            row.admitted = True  # a parked job may not have been admitted
            partition.admitted[row.generation] = row
        case State.SCHEDULED | State.RETRYABLE | State.PARKED | State.SUSPENDED if terms.ordered:
            partition.ready.discard(row.generation)
        case _:
            leave(row, partition)


def leave(row: Row, partition: OpenPartition) -> None:
    """Release the admission of a job; `advance` then admits others."""
    row.admitted = False
    partition.admitted.pop(row.generation, None)
    partition.ready.discard(row.generation)


def start(row: Row, terms: Partition, now: int) -> None:
    """Count the start of a fetched job, if its partition has a rate."""
    if terms.rate is not None:
        partition = row.queue.partition(terms.key)
        partition.ready.discard(row.generation)
        partition.spent = terms.after_start(partition.spent, now)


def throttle(row: Row, to: Transition, now: int) -> None:
    """Throttle the job's partition for the time that this transition gives."""
    if to.throttle_partition > 0 and (terms := row.job.spec.partition) is not None:
        partition = row.queue.partition(terms.key)
        partition.throttled_until = max(partition.throttled_until, now + to.throttle_partition)
        if to.state is State.AVAILABLE:  # the job is throttled, too: it must not keep its admission
            leave(row, partition)


def advance(memory: MemoryState, queue: MemoryQueue, partition: OpenPartition, now: int) -> int:
    """Admit waiting jobs while there is room; return their number.

    Then store when the next job may be admitted, or delete the partition if it is unused.
    """
    partition.due, admitted = None, 0
    while (first := partition.waiting.first()) is not None:
        row = memory.rows[first[1]]
        terms = row.job.spec.partition
        assert terms is not None
        at = partition.allowed_at(terms, now)
        if at is None or at > now:
            partition.due = at
            break
        indexes.take(memory, row)
        _admit(row, terms, partition)
        row.job, row.at_tail = replace(row.job, state=State.AVAILABLE), True
        indexes.put(memory, row)
        admitted += 1
    queue.partition_due.drop(partition.key)
    if partition.due is not None:
        queue.partition_due.put(partition.key, partition.due)
    _forget_if_idle(queue, partition, now)
    return admitted


def forget_idle(queue: MemoryQueue, now: int) -> None:
    """Delete unused partitions: no jobs, no throttle, and no recent starts that count against a rate."""
    for partition in list(queue.partitions.values()):
        _forget_if_idle(queue, partition, now)


def _forget_if_idle(queue: MemoryQueue, partition: OpenPartition, now: int) -> None:
    if (
        not partition.admitted
        and not partition.waiting
        and max(partition.spent, partition.throttled_until) <= now
    ):
        queue.partitions.pop(partition.key, None)


def _may_enter(memory: MemoryState, row: Row, terms: Partition, partition: OpenPartition) -> bool:
    first, order = partition.waiting.first(), (terms.rank(row.job.spec.priority), row.place)
    if first is not None and first[0] < order:
        return False
    now = memory.clock.now()
    at = partition.allowed_at(terms, now)
    return at is not None and at <= now


def _admit(row: Row, terms: Partition, partition: OpenPartition) -> None:
    row.admitted = True
    partition.admitted[row.generation] = row
    if terms.rate is not None:
        partition.ready.add(row.generation)
