"""Unique keys: find the holder of a key, take keys, and free them."""

from __future__ import annotations

from penstock.core.changes import KeyChange, key_change, outlives_its_job, until
from penstock.core.job import State
from penstock.core.unique import UniqueKey
from tests.oracle.rows import Holder, MemoryQueue, Row
from tests.oracle.state import MemoryState

__all__ = ["end", "free", "holder_of", "leave", "shift"]


def holder_of(memory: MemoryState, queue: MemoryQueue, unique_key: str, now: int) -> Holder | None:
    """Return the holder of this unique key; a key whose period is over is freed here."""
    holder = queue.holders.get(unique_key)
    if holder is not None and holder.until is not None and holder.until <= now:
        free(memory, holder.generation)
        return None
    return holder


def shift(memory: MemoryState, row: Row, before: State | None, now: int) -> None:
    """Take or free the unique key of a job that has changed its state from `before`."""
    unique = row.job.spec.unique
    if unique is None:
        return
    match key_change(unique.phases, before, row.job.state):
        case KeyChange.TAKEN:
            end = until(unique, row.job.enqueued_at)
            if (end is None or end > now) and holder_of(memory, row.queue, unique.key, now) is None:
                row.queue.holders[unique.key] = Holder(row.generation, row.job.id, end)
                memory.unique_keys[row.generation] = row.queue, unique.key
                if end is not None:
                    row.queue.key_ends.put(row.generation, end)
        case KeyChange.FREED:
            free(memory, row.generation)
        case KeyChange.STAYS:
            pass


def end(memory: MemoryState, row: Row, unique: UniqueKey) -> None:
    """Free the unique key of a job that has ended, unless its rule holds the key longer."""
    if not outlives_its_job(unique.phases, row.job.state):
        free(memory, row.generation)


def leave(memory: MemoryState, row: Row, *, forgotten: bool, keeps_key: bool) -> None:
    """Free the unique key of a removed job.

    `forgotten`: removed by its retention, not on request. Then a key with a period may outlive its job.
    `keeps_key`: such a key stays held.
    """
    unique = row.job.spec.unique
    stays = keeps_key or (forgotten and unique is not None and outlives_its_job(unique.phases, row.job.state))
    if unique is None or unique.period is None or not stays:
        free(memory, row.generation)


def free(memory: MemoryState, generation: int) -> None:
    """Free the unique key of this job, if it holds one."""
    if (held := memory.unique_keys.pop(generation, None)) is not None:
        queue, key = held
        del queue.holders[key]
        queue.key_ends.drop(generation)
