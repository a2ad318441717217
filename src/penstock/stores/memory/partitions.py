"""Partitions: which jobs of a key are admitted, and which is next. Jobs without one never come here."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.core.partition import Partition
from penstock.stores.memory import indexes
from penstock.stores.memory.rows import MemoryQueue, OpenPartition, Row
from penstock.stores.memory.state import MemoryState

__all__ = ["advance", "enter", "forget_idle", "has_room", "leave", "start", "throttle"]


def has_room(memory: MemoryState, row: Row) -> bool:
    """Whether its partition lets this parked job start at once."""
    terms = row.job.spec.partition
    if terms is None or row.admitted:
        return True
    return _may_enter(memory, row, terms, row.queue.partition(terms.key))


def enter(memory: MemoryState, row: Row, terms: Partition, partition: OpenPartition) -> None:
    """What the job's new state means for its partition; a job that finds no room waits."""
    match row.job.state:
        case State.AVAILABLE:
            if row.admitted or _may_enter(memory, row, terms, partition):
                _admit(row, terms, partition)
            else:
                row.job = replace(row.job, state=State.WAITING)
        case State.RUNNING:
            row.admitted = True  # a parked one may not have been
            partition.admitted[row.generation] = row
        case State.SCHEDULED | State.RETRYABLE | State.PARKED if terms.ordered:
            partition.ready.discard(row.generation)
        case _:
            leave(row, partition)


def leave(row: Row, partition: OpenPartition) -> None:
    """It is none of those that may run; `advance` lets others in."""
    row.admitted = False
    partition.admitted.pop(row.generation, None)
    partition.ready.discard(row.generation)


def start(row: Row, terms: Partition, now: int) -> None:
    """It is fetched: a start, if the partition has a rate."""
    if terms.rate is not None:
        partition = row.queue.partition(terms.key)
        partition.ready.discard(row.generation)
        partition.spent = terms.after_start(partition.spent, now)


def throttle(row: Row, to: Transition, now: int) -> None:
    """Nothing of the partition is admitted for as long as this transition says."""
    if to.throttle_partition > 0 and (terms := row.job.spec.partition) is not None:
        partition = row.queue.partition(terms.key)
        partition.throttled_until = max(partition.throttled_until, now + to.throttle_partition)
        if to.state is State.AVAILABLE:  # else it would keep its room
            leave(row, partition)


def advance(memory: MemoryState, queue: MemoryQueue, partition: OpenPartition, now: int) -> int:
    """Admit the jobs that may be; how many. Then note when the next one may, or forget the partition."""
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
    """The partitions of which nothing is left but a rate that is as it was."""
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
