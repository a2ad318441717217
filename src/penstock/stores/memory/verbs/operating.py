"""Change queues and jobs: settings, drop, retry, reschedule, delete, purge, flush_batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from penstock.core.flow_ends import FlowEnd
from penstock.core.job import TERMINAL, Ref, State
from penstock.core.lifecycle import attempts_counted
from penstock.core.limits import NO_LIMITS, LimitChange
from penstock.stores.batch_buffer import BatchName
from penstock.stores.contract import Enqueued, EnqueueStatus, QueueInfo, Replacement
from penstock.stores.memory import indexes, keys, transitions
from penstock.stores.memory.rows import Row
from penstock.stores.memory.state import MemoryState
from penstock.stores.memory.verbs.listing import info_of
from penstock.stores.memory.verbs.producing import enqueue_one

__all__ = [
    "delete",
    "drop",
    "flush_batch",
    "purge",
    "replace_jobs",
    "reschedule",
    "retry",
    "settings",
]

_MOVABLE = (State.SCHEDULED, State.AVAILABLE, State.RETRYABLE, State.WAITING)


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


def retry(
    memory: MemoryState, refs: Sequence[Ref], attempts: int | None, expires_in: int | UnsetType | None
) -> list[State | None]:
    now = memory.clock.now()
    expires_at = now + expires_in if isinstance(expires_in, int) else expires_in
    return [_retry(memory, ref, now, attempts, expires_at) for ref in refs]


def _retry(
    memory: MemoryState, ref: Ref, now: int, attempts: int | None, expires_at: int | UnsetType | None
) -> State | None:
    row = memory.row(ref)
    if row is None:
        return None
    before = row.job.state
    if row.job.batch in row.queue.rows:  # a retry of one member retries the whole batch
        _retry(memory, Ref(ref.queue, row.job.batch), now, attempts, expires_at)
    elif before is not State.RUNNING:
        if expires_at is UNSET:
            expires_at = None if row.expired(now) else row.job.expires_at
        _run_again(memory, row, now, attempts_counted(row.job.spec, attempts), expires_at)
    return before


def _run_again(memory: MemoryState, row: Row, now: int, attempt: int, expires_at: int | None) -> None:
    """Make a job available as if it were new; a member without a batch job becomes a batch of one."""
    before = row.job.state
    indexes.take(memory, row)
    row.job = replace(
        row.job,
        state=State.AVAILABLE,
        attempt=attempt,
        lost=0,
        run_at=now,
        ended_at=None,
        expires_at=expires_at,
        cancel_asked=False,
        result=None,
        reason=None,
    )
    keys.shift(memory, row, before, now)
    if row.job.is_member:
        transitions.become_batch(memory, row.queue, [row], now)
        return
    transitions.put_available(memory, row, now)
    if (flow := row.job.spec.flow) is not None and before in TERMINAL:
        memory.flow_ends.append(FlowEnd(flow, row.job.id, None))
    if before in TERMINAL:
        transitions.bring_back_members(memory, row, now)


def reschedule(
    memory: MemoryState, refs: Sequence[Ref], delay: int, run_at: int | None
) -> list[State | None]:
    now = memory.clock.now()
    due = now + delay if run_at is None else run_at
    return [_reschedule(memory, ref, due, now) for ref in refs]


def _reschedule(memory: MemoryState, ref: Ref, due: int, now: int) -> State | None:
    row = memory.row(ref)
    if row is None:
        return None
    before = row.job.state
    if before in _MOVABLE or (before is State.COLLECTING and not row.job.in_batch):
        indexes.take(memory, row)
        row.job = replace(row.job, run_at=due)
        if due <= now:
            transitions.put_available(memory, row, now)
        else:
            row.job = replace(row.job, state=State.SCHEDULED)
            transitions.put(memory, row)
    return before


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
