"""Move a job to another state, or remove it, and update its partition, its batch and its members."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from msgspec.structs import replace

from penstock.core.job import Job, State
from penstock.core.lifecycle import EXPIRED, batch_of, kept
from penstock.core.relations import batch_id
from tests.oracle import indexes, keys, partitions
from tests.oracle.flow_ends import end_of
from tests.oracle.rows import MemoryQueue, Row
from tests.oracle.state import MemoryState

__all__ = [
    "add",
    "batch",
    "batch_if_due",
    "become_batch",
    "bring_back_members",
    "drop",
    "end_members",
    "end_queued",
    "make_available",
    "move",
    "put",
    "put_available",
    "remove",
    "wake",
]


# ── one job ──


def add(memory: MemoryState, job: Job, queue: MemoryQueue, now: int) -> None:
    """Add a new job to its queue, and to all indexes; it takes its unique key if that is free."""
    row = memory.add(job, queue)
    if job.spec.tenant is not None and queue.fair is None:
        queue.fair = row.place
    queue.enqueued += 1
    keys.shift(memory, row, None, now)
    put(memory, row)
    batch_if_due(memory, row, now)


def put(memory: MemoryState, row: Row) -> None:
    """Put a job into all indexes of its state; its partition may make it wait, and may admit others."""
    terms, partition = row.job.spec.partition, None
    if terms is not None:
        partition = row.queue.partition(terms.key)
        partitions.enter(memory, row, terms, partition)
    indexes.put(memory, row)
    if row.job.members and row.job.ended:
        end_members(memory, row)
    if row.job.ended:
        if (flow := row.job.spec.flow) is not None:
            memory.flow_ends.append(end_of(flow, row.job))
        memory.flows.parent_ended(row.job.ref, completed=row.job.state is State.COMPLETED)
    if partition is not None:
        partitions.advance(memory, row.queue, partition, memory.clock.now())


def put_available(memory: MemoryState, row: Row, now: int, place: int | None = None) -> None:
    """Make a job available, at `place` or the tail; a member joins its collecting batch instead."""
    row.place, row.at_tail = memory.next_place() if place is None else place, True
    if row.job.is_member:
        row.job = replace(row.job, state=State.COLLECTING, run_at=now)
    else:
        row.job = replace(row.job, state=State.AVAILABLE)
    put(memory, row)
    batch_if_due(memory, row, now)


def make_available(memory: MemoryState, row: Row, now: int, place: int | None = None) -> None:
    indexes.take(memory, row)
    put_available(memory, row, now, place)


def wake(memory: MemoryState, row: Row, now: int) -> None:
    """Make a job available before it is due: its signal has come, or it is to be undone."""
    indexes.take(memory, row)
    row.job = replace(row.job, run_at=now)
    put_available(memory, row, now)


def move(memory: MemoryState, row: Row, job: Job, now: int) -> None:
    """Replace a queued job by one with another partition, tenant or batch key."""
    before, queue = row.job, row.queue
    indexes.take(memory, row)
    left = None if before.spec.partition is None else queue.partition(before.spec.partition.key)
    if left is not None:
        partitions.leave(row, left)
    row.job = job
    if job.spec.tenant is not None and queue.fair is None:
        queue.fair = memory.next_place()
    if job.state in (State.AVAILABLE, State.WAITING, State.COLLECTING):
        put_available(memory, row, now)
    else:
        put(memory, row)
    if left is not None:
        partitions.advance(memory, queue, left, now)


def end_queued(
    memory: MemoryState,
    row: Row,
    reason: str,
    now: int,
    state: State = State.CANCELLED,
    result: bytes | None = None,
) -> None:
    """Cancel a job that is not running, make it dead, or complete it."""
    indexes.take(memory, row)
    row.over_at = now + kept(row.job.spec, state)
    row.job = replace(row.job, state=state, ended_at=now, reason=reason, result=result)
    put(memory, row)


def drop(memory: MemoryState, row: Row, *, forgotten: bool = False, keeps_key: bool = False) -> None:
    """Remove a job from all indexes and from the store.

    `forgotten`: by its retention, not on request; `keeps_key`: its unique key stays held for its period.
    """
    indexes.take(memory, row)
    remove(memory, row, forgotten=forgotten, keeps_key=keeps_key)


def remove(memory: MemoryState, row: Row, *, forgotten: bool = False, keeps_key: bool = False) -> None:
    """Remove a row that was taken out of all indexes, with the members of a batch."""
    for member in row.members:
        drop(memory, member, forgotten=forgotten)
    keys.leave(memory, row, forgotten=forgotten, keeps_key=keeps_key)
    if (terms := row.job.spec.partition) is not None and terms.key in row.queue.partitions:
        partition = row.queue.partitions[terms.key]
        partitions.leave(row, partition)
        partitions.advance(memory, row.queue, partition, memory.clock.now())
    memory.discard(row)
    if (flow := row.job.spec.flow) is not None:
        memory.flow_ends.append(end_of(flow, row.job))
    memory.flows.parent_ended(row.job.ref, completed=row.job.state is State.COMPLETED)
    if memory.waiters.end_watches:
        memory.waiters.notify_ended(row.job, gone=True)


# ── batches ──


def batch_if_due(memory: MemoryState, row: Row, now: int) -> None:
    """Make a batch job of the collecting batch that this row has joined, if it is full or due now."""
    if row.job.state is not State.COLLECTING:
        return
    name, batch_buffer = row.batch_name, row.queue.batch_buffer
    while due := batch_buffer.due(name, now):
        batch(memory, row.queue, due, now)


def batch(memory: MemoryState, queue: MemoryQueue, generations: Sequence[int], now: int) -> str | None:
    """Make a batch job of these members and return its id; cancel expired members."""
    members: list[Row] = []
    for row in [memory.rows[generation] for generation in generations]:
        if row.expired(now):
            end_queued(memory, row, EXPIRED, now)
        else:
            indexes.take(memory, row)
            members.append(row)
    return become_batch(memory, queue, members, now) if members else None


def become_batch(memory: MemoryState, queue: MemoryQueue, members: list[Row], now: int) -> str:
    """Make a batch job of members that were taken out of all indexes; return its id."""
    spec = batch_of(_free_id(queue, members[0]), [row.job.spec for row in members])
    for row in members:
        row.job = replace(row.job, state=State.COLLECTING, batch=spec.id, expires_at=None)
        put(memory, row)
    ids = tuple(row.job.id for row in members)
    number = memory.generation + 1
    job = Job(spec, State.AVAILABLE, number, enqueued_at=now, run_at=now, members=ids)
    put(memory, memory.add(job, queue))
    return spec.id


def bring_back_members(memory: MemoryState, row: Row, now: int, stays: State | None = None) -> None:
    """Make the members of an ended batch COLLECTING again, except those in the state `stays`."""
    for member in [one for one in row.members if one.job.state is not stays]:
        indexes.take(memory, member)
        before = member.job.state
        member.job = replace(member.job, state=State.COLLECTING, ended_at=None, reason=None)
        keys.shift(memory, member, before, now)
        put(memory, member)


def end_members(memory: MemoryState, row: Row) -> None:
    """End the members of a batch that has ended."""
    batch, ended_at = row.job, row.job.ended_at
    for member in [one for one in row.members if one.job.state is State.COLLECTING]:
        indexes.take(memory, member)
        member.over_at = row.over_at
        member.job = replace(member.job, state=batch.state, ended_at=ended_at, reason=batch.reason)
        keys.shift(memory, member, State.COLLECTING, ended_at or 0)
        put(memory, member)


def _free_id(queue: MemoryQueue, first: Row) -> str:
    return next(id for n in count(1) if (id := batch_id(first.job.id, n)) not in queue.rows)
