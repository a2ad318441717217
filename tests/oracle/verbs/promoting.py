"""promote: make due jobs and batches available, and let partitions admit waiting jobs that are due."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from penstock.core.lifecycle import EXPIRED
from penstock.stores.contract import Due
from tests.oracle import partitions, transitions
from tests.oracle.batch_buffer import BatchName
from tests.oracle.state import MemoryState

__all__ = ["next_due", "promote"]


class _NextDue(NamedTuple):
    """The next item of a promotion: a job by its generation, a partition, or a collecting batch."""

    at: int
    generation: int | None
    task: str | None  # None: the item is a job or a partition
    key: str
    queue: str

    def order(self) -> tuple[Any, ...]:
        """The sort key: by instant; with the same instant partitions, then jobs, then collecting batches."""
        kind = 1 if self.generation is not None else 0 if self.task is None else 2
        return self.at, kind, self.generation or 0, self.task or "", self.key, self.queue


def promote(memory: MemoryState, queues: Sequence[str], limit: int) -> Due:
    now, moved = memory.clock.now(), 0
    while limit > 0 and (first := _first_due(memory, queues)) is not None and first.at <= now:
        limit -= 1
        moved += _promote(memory, first, now)
    return Due(moved, next_due(memory, queues), now)


def next_due(memory: MemoryState, queues: Iterable[str]) -> int | None:
    """Return when the next promotion of these queues is due; None if nothing has a due time."""
    first = _first_due(memory, queues)
    return None if first is None else first.at


def _first_due(memory: MemoryState, queues: Iterable[str]) -> _NextDue | None:
    found: list[_NextDue] = []
    for queue in memory.known(queues):
        if (job := queue.due.first()) is not None:
            at, generation = job
            found.append(_NextDue(at, generation, None, "", queue.name))
        if (partition := queue.partition_due.first()) is not None:
            at, key = partition
            found.append(_NextDue(at, None, None, key, queue.name))
        if (batch := queue.batch_buffer.next()) is not None:
            at, batch_name = batch
            found.append(_NextDue(at, None, *batch_name, queue.name))
    return min(found, key=_NextDue.order, default=None)


def _promote(memory: MemoryState, due: _NextDue, now: int) -> int:
    """Promote one item; return how many jobs moved."""
    queue = memory.queues[due.queue]
    if due.generation is not None:
        row = memory.rows[due.generation]
        if row.expired(now):
            transitions.end_queued(memory, row, EXPIRED, now)
            return 0
        transitions.make_available(memory, row, now)
        return 1
    if due.task is None:
        return partitions.advance(memory, queue, queue.partitions[due.key], now)
    members = queue.batch_buffer.first_of(BatchName(due.task, due.key))
    return int(transitions.batch(memory, queue, members, now) is not None)
