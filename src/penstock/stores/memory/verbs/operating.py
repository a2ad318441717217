"""What an operator does: settings of queues, and jobs that are run again, moved, deleted, or batched now."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from penstock.core.job import TERMINAL, Ref, State
from penstock.core.limits import NO_LIMITS, LimitChange
from penstock.stores.batch_buffer import Gathered
from penstock.stores.contract import QueueInfo
from penstock.stores.memory import indexes, keys, transitions
from penstock.stores.memory.rows import Row
from penstock.stores.memory.state import Shelf
from penstock.stores.memory.verbs.listing import info_of

__all__ = ["delete", "drop", "flush_group", "purge", "reschedule", "retry", "settings"]

_MOVABLE = (State.SCHEDULED, State.AVAILABLE, State.RETRYABLE, State.WAITING)


def settings(
    shelf: Shelf, name: str, paused: bool | None, closed: bool | None, limits: LimitChange | None
) -> QueueInfo:
    queue, now = shelf.queue(name), shelf.clock.now()
    before = queue.paused, queue.closed
    queue.paused = queue.paused if paused is None else paused
    queue.closed = queue.closed if closed is None else closed
    changed = limits is not None and queue.gate.change(limits, now)
    if changed or before != (queue.paused, queue.closed):
        shelf.waiters.tell_settings()
    return info_of(queue, now)


def drop(shelf: Shelf, name: str) -> bool:
    queue = shelf.queues.get(name)
    if queue is None:
        return True
    if queue.rows:
        return False
    del shelf.queues[name]
    for holder in queue.holders.values():
        del shelf.keys[holder.generation]
    if queue.paused or queue.closed or queue.entries or queue.gate.limits != NO_LIMITS:
        shelf.waiters.tell_settings()
    return True


def retry(shelf: Shelf, refs: Sequence[Ref]) -> list[State | None]:
    now = shelf.clock.now()
    return [_retry(shelf, ref, now) for ref in refs]


def _retry(shelf: Shelf, ref: Ref, now: int) -> State | None:
    row = shelf.row(ref)
    if row is None:
        return None
    before = row.job.state
    if row.job.batch in row.queue.rows:  # the members of a batch come back with it, and all together
        _retry(shelf, Ref(ref.queue, row.job.batch), now)
    elif before is not State.RUNNING:
        _run_again(shelf, row, before, now)
    return before


def _run_again(shelf: Shelf, row: Row, before: State, now: int) -> None:
    """As if it were new; a member, whose batch is no more, in a batch of its own."""
    indexes.take(shelf, row)
    row.job = replace(
        row.job,
        state=State.AVAILABLE,
        attempt=0,
        lost=0,
        run_at=now,
        ended_at=None,
        expires_at=None if row.expired(now) else row.job.expires_at,
        cancel_asked=False,
        result=None,
        reason=None,
    )
    keys.shift(shelf, row, before, now)
    if row.job.is_member:
        transitions.become_batch(shelf, row.queue, [row], now)
        return
    transitions.put_available(shelf, row, now)
    if before in TERMINAL:
        transitions.bring_back_members(shelf, row, now)


def reschedule(shelf: Shelf, refs: Sequence[Ref], delay: int, run_at: int | None) -> list[State | None]:
    now = shelf.clock.now()
    due = now + delay if run_at is None else run_at
    return [_reschedule(shelf, ref, due, now) for ref in refs]


def _reschedule(shelf: Shelf, ref: Ref, due: int, now: int) -> State | None:
    row = shelf.row(ref)
    if row is None:
        return None
    before = row.job.state
    if before in _MOVABLE or (before is State.GROUPED and not row.job.in_batch):
        indexes.take(shelf, row)
        row.job = replace(row.job, run_at=due)
        if due <= now:
            transitions.put_available(shelf, row, now)
        else:
            row.job = replace(row.job, state=State.SCHEDULED)
            transitions.put(shelf, row)
    return before


def delete(shelf: Shelf, refs: Sequence[Ref]) -> list[State | None]:
    return [_delete(shelf, ref) for ref in refs]


def _delete(shelf: Shelf, ref: Ref) -> State | None:
    row = shelf.row(ref)
    if row is None:
        return None
    if row.job.state is not State.RUNNING and not row.job.in_batch:
        transitions.drop(shelf, row)
    return row.job.state


def purge(shelf: Shelf, name: str, states: Sequence[State], limit: int) -> int:
    queue = shelf.queues.get(name)
    wanted = set(states) - {State.RUNNING}
    if queue is None or not any(queue.counts[state] for state in wanted):
        return 0
    those = (row for row in queue.rows.values() if row.job.state in wanted and not row.job.in_batch)
    rows = list(islice(those, max(0, limit)))
    for row in rows:
        transitions.drop(shelf, row)
    return len(rows)


def flush_group(shelf: Shelf, name: str, task: str, key: str) -> str | None:
    queue = shelf.queues.get(name)
    if queue is None:
        return None
    members = queue.gathering.first_of(Gathered(task, key))
    return transitions.batch(shelf, queue, members, shelf.clock.now())
