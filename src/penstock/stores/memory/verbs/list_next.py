"""list_next: the jobs of a queue in one state, in the order in which they leave it."""

from __future__ import annotations

from penstock.core.job import Job, State
from penstock.stores.contract import Page, page_size
from penstock.stores.cursors import numbers_of
from penstock.stores.memory.rows import MemoryQueue
from penstock.stores.memory.state import MemoryState

__all__ = ["list_next"]


def list_next(memory: MemoryState, name: str, state: State, after: str | None, limit: int) -> Page:
    limit = page_size(state, limit)
    queue = memory.queues.get(name)
    if state is State.AVAILABLE:
        return _available(memory, queue, after, limit)
    cursor = None if after is None else _pair(numbers_of(after, 2))
    if queue is None:
        return Page([], None)
    index = queue.ended.get(state, queue.due)
    found: list[tuple[int, Job]] = []
    while len(found) <= limit and (entries := index.after(cursor, limit + 1)):
        cursor = entries[-1]
        jobs = ((instant, memory.rows[generation].job) for instant, generation in entries)
        found += [one for one in jobs if one[1].state is state]
    more = len(found) > limit
    found = found[:limit]
    last = f"{found[-1][0]}:{found[-1][1].generation}" if more else None
    return Page([job for _, job in found], last)


def _available(memory: MemoryState, queue: MemoryQueue | None, after: str | None, limit: int) -> Page:
    cursor = None
    if after is not None:
        rank, place, generation = numbers_of(after, 3)
        cursor = (rank, place), generation
    entries = [] if queue is None else queue.ready.after(cursor, limit + 1)
    more = len(entries) > limit
    entries = entries[:limit]
    jobs = [memory.rows[generation].job for _, generation in entries]
    if not more:
        return Page(jobs, None)
    (rank, place), generation = entries[-1]
    return Page(jobs, f"{rank}:{place}:{generation}")


def _pair(numbers: tuple[int, ...]) -> tuple[int, int]:
    first, second = numbers
    return first, second
