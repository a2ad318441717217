"""Change queues and jobs: settings, drop, delete, purge, flush_batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from penstock.core.job import Ref, State
from penstock.core.limits import NO_LIMITS, LimitChange
from penstock.stores.contract import Enqueued, EnqueueStatus, QueueInfo, Replacement
from tests.oracle import transitions
from tests.oracle.batch_buffer import BatchName
from tests.oracle.state import MemoryState
from tests.oracle.verbs.listing import info_of
from tests.oracle.verbs.producing import enqueue_one

__all__ = [
    "delete",
    "drop",
    "flush_batch",
    "purge",
    "replace_jobs",
    "settings",
]


def settings(
    memory: MemoryState, name: str, paused: bool | None, closed: bool | None, limits: LimitChange | None
) -> QueueInfo:
    queue, now = memory.queue(name), memory.clock.now()
    before = queue.paused, queue.closed
    queue.paused = queue.paused if paused is None else paused
    queue.closed = queue.closed if closed is None else closed
    changed = limits is not None and queue.rate_limiter.change(limits, now)
    if changed or before != (queue.paused, queue.closed):
        memory.waiters.notify_settings()
    return info_of(queue, now)


def drop(memory: MemoryState, name: str) -> bool:
    queue = memory.queues.get(name)
    if queue is None:
        return True
    if queue.rows:
        return False
    del memory.queues[name]
    for holder in queue.holders.values():
        del memory.unique_keys[holder.generation]
    if queue.paused or queue.closed or queue.entries or queue.rate_limiter.limits != NO_LIMITS:
        memory.waiters.notify_settings()
    return True


def delete(memory: MemoryState, refs: Sequence[Ref], running: bool, keep_keys: bool) -> list[State | None]:
    now = memory.clock.now()
    return [_delete(memory, ref, running, keep_keys, now) for ref in refs]


def replace_jobs(memory: MemoryState, replacements: Sequence[Replacement]) -> list[Enqueued]:
    now = memory.clock.now()
    answers: list[Enqueued] = []
    for one in replacements:
        answers.append(enqueue_one(memory, one.new, now))
        if answers[-1].status is EnqueueStatus.NEW:
            _delete(memory, one.old, True, True, now)
    return answers


def _delete(memory: MemoryState, ref: Ref, running: bool, keep_keys: bool, now: int) -> State | None:
    row = memory.row(ref)
    if row is None:
        return None
    runs = row.job.state is State.RUNNING
    if not row.job.in_batch and (running or not runs):
        row.queue.count(now, processed=int(runs), failed=0)
        transitions.drop(memory, row, keeps_key=keep_keys)
    return row.job.state


def purge(memory: MemoryState, name: str, states: Sequence[State], limit: int) -> int:
    queue = memory.queues.get(name)
    wanted = set(states) - {State.RUNNING}
    if queue is None or not any(queue.counts[state] for state in wanted):
        return 0
    those = (row for row in queue.rows.values() if row.job.state in wanted and not row.job.in_batch)
    rows = list(islice(those, max(0, limit)))
    for row in rows:
        transitions.drop(memory, row)
    return len(rows)


def flush_batch(memory: MemoryState, name: str, task: str, key: str) -> str | None:
    queue = memory.queues.get(name)
    if queue is None:
        return None
    members = queue.batch_buffer.first_of(BatchName(task, key))
    return transitions.batch(memory, queue, members, memory.clock.now())
