"""A job is put where its state calls for, or goes: what this means for its partition, batch and members."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from msgspec.structs import replace

from penstock.core.batch import batch_id
from penstock.core.job import Job, State
from penstock.core.lifecycle import EXPIRED, batch_of, kept
from penstock.stores.memory import indexes, keys, partitions
from penstock.stores.memory.rows import MemoryQueue, Row
from penstock.stores.memory.state import MemoryState

__all__ = [
    "batch",
    "batch_if_due",
    "become_batch",
    "bring_back_members",
    "drop",
    "end_queued",
    "make_available",
    "move",
    "put",
    "put_available",
    "remove",
]


# ── one job ──


def put(memory: MemoryState, row: Row) -> None:
    """Into every order that its state calls for; a partition may make it wait, and may admit others."""
    terms, partition = row.job.spec.partition, None
    if terms is not None:
        partition = row.queue.partition(terms.key)
        partitions.enter(memory, row, terms, partition)
    indexes.put(memory, row)
    if row.job.members and row.job.ended:
        _end_members(memory, row)
    if partition is not None:
        partitions.advance(memory, row.queue, partition, memory.clock.now())


def put_available(memory: MemoryState, row: Row, now: int, place: int | None = None) -> None:
    """To the tail, unless there is a place; a member joins its batch instead."""
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


def move(memory: MemoryState, row: Row, job: Job, now: int) -> None:
    """A queued job becomes this one, of another partition, fair share or batch."""
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


def end_queued(memory: MemoryState, row: Row, reason: str, now: int) -> None:
    """A job that was not running is cancelled."""
    indexes.take(memory, row)
    row.over_at = now + kept(row.job.spec, State.CANCELLED)
    row.job = replace(row.job, state=State.CANCELLED, ended_at=now, reason=reason)
    put(memory, row)


def drop(memory: MemoryState, row: Row, *, forgotten: bool = False) -> None:
    """It goes, wherever it lies. Forgotten: nobody has asked for that."""
    indexes.take(memory, row)
    remove(memory, row, forgotten=forgotten)


def remove(memory: MemoryState, row: Row, *, forgotten: bool = False) -> None:
    """A row that was taken out does not come back; the members of a batch go with it."""
    for member in row.members:
        drop(memory, member, forgotten=forgotten)
    keys.leave(memory, row, forgotten=forgotten)
    if (terms := row.job.spec.partition) is not None and terms.key in row.queue.partitions:
        partition = row.queue.partitions[terms.key]
        partitions.leave(row, partition)
        partitions.advance(memory, row.queue, partition, memory.clock.now())
    memory.discard(row)
    if memory.waiters.end_watches:
        memory.waiters.tell_ended(row.job, gone=True)


# ── batches ──


def batch_if_due(memory: MemoryState, row: Row, now: int) -> None:
    """Start the batch that this row has joined if it is full or due now."""
    if row.job.state is not State.COLLECTING:
        return
    name, batch_buffer = row.batch_name, row.queue.batch_buffer
    while due := batch_buffer.due(name, now):
        batch(memory, row.queue, due, now)


def batch(memory: MemoryState, queue: MemoryQueue, generations: Sequence[int], now: int) -> str | None:
    """Start a batch of these members and return its id; expired members are cancelled."""
    members: list[Row] = []
    for row in [memory.rows[generation] for generation in generations]:
        if row.expired(now):
            end_queued(memory, row, EXPIRED, now)
        else:
            indexes.take(memory, row)
            members.append(row)
    return become_batch(memory, queue, members, now) if members else None


def become_batch(memory: MemoryState, queue: MemoryQueue, members: list[Row], now: int) -> str:
    """Members that were taken out of where they lay."""
    spec = batch_of(_free_id(queue, members[0]), [row.job.spec for row in members])
    for row in members:
        row.job = replace(row.job, state=State.COLLECTING, batch=spec.id, expires_at=None)
        put(memory, row)
    ids = tuple(row.job.id for row in members)
    number = memory.generation + 1
    job = Job(spec, State.AVAILABLE, number, enqueued_at=now, run_at=now, members=ids)
    put(memory, memory.add(job, queue))
    return spec.id


def bring_back_members(memory: MemoryState, row: Row, now: int) -> None:
    """A batch that had ended runs again, and its members are its members again."""
    for member in row.members:
        indexes.take(memory, member)
        before = member.job.state
        member.job = replace(member.job, state=State.COLLECTING, ended_at=None, reason=None)
        keys.shift(memory, member, before, now)
        put(memory, member)


def _end_members(memory: MemoryState, row: Row) -> None:
    """A batch has ended, and its members end with it."""
    batch, ended_at = row.job, row.job.ended_at
    for member in row.members:
        indexes.take(memory, member)
        member.over_at = row.over_at
        member.job = replace(member.job, state=batch.state, ended_at=ended_at, reason=batch.reason)
        keys.shift(memory, member, State.COLLECTING, ended_at or 0)
        put(memory, member)


def _free_id(queue: MemoryQueue, first: Row) -> str:
    return next(id for n in count(1) if (id := batch_id(first.job.id, n)) not in queue.rows)
