"""A job is put where its state calls for, or goes: what this means for its lane, group and members."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from msgspec.structs import replace

from penstock.core.batch import batch_id
from penstock.core.job import Job, State
from penstock.core.lifecycle import EXPIRED, batch_of, kept
from penstock.stores.memory import indexes, keys, partitions
from penstock.stores.memory.rows import Queue, Row
from penstock.stores.memory.state import Shelf

__all__ = [
    "batch",
    "batch_if_ripe",
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


def put(shelf: Shelf, row: Row) -> None:
    """Into every order that its state calls for; a lane may make it wait, and may let others in."""
    terms, lane = row.job.spec.lane, None
    if terms is not None:
        lane = row.queue.lane(terms.key)
        partitions.enter(shelf, row, terms, lane)
    indexes.put(shelf, row)
    if row.job.members and row.job.ended:
        _end_members(shelf, row)
    if lane is not None:
        partitions.advance(shelf, row.queue, lane, shelf.clock.now())


def put_available(shelf: Shelf, row: Row, now: int, place: int | None = None) -> None:
    """To the tail, unless there is a place; a member joins its group instead."""
    row.place, row.at_tail = shelf.next_place() if place is None else place, True
    if row.job.is_member:
        row.job = replace(row.job, state=State.GROUPED, run_at=now)
    else:
        row.job = replace(row.job, state=State.AVAILABLE)
    put(shelf, row)
    batch_if_ripe(shelf, row, now)


def make_available(shelf: Shelf, row: Row, now: int, place: int | None = None) -> None:
    indexes.take(shelf, row)
    put_available(shelf, row, now, place)


def move(shelf: Shelf, row: Row, job: Job, now: int) -> None:
    """A queued job becomes this one, of another lane, turn or group."""
    before, queue = row.job, row.queue
    indexes.take(shelf, row)
    left = None if before.spec.lane is None else queue.lane(before.spec.lane.key)
    if left is not None:
        partitions.leave(row, left)
    row.job = job
    if job.spec.turn is not None and queue.fair is None:
        queue.fair = shelf.next_place()
    if job.state in (State.AVAILABLE, State.WAITING, State.GROUPED):
        put_available(shelf, row, now)
    else:
        put(shelf, row)
    if left is not None:
        partitions.advance(shelf, queue, left, now)


def end_queued(shelf: Shelf, row: Row, reason: str, now: int) -> None:
    """A job that was not running is cancelled."""
    indexes.take(shelf, row)
    row.over_at = now + kept(row.job.spec, State.CANCELLED)
    row.job = replace(row.job, state=State.CANCELLED, ended_at=now, reason=reason)
    put(shelf, row)


def drop(shelf: Shelf, row: Row, *, forgotten: bool = False) -> None:
    """It goes, wherever it lies. Forgotten: nobody has asked for that."""
    indexes.take(shelf, row)
    remove(shelf, row, forgotten=forgotten)


def remove(shelf: Shelf, row: Row, *, forgotten: bool = False) -> None:
    """A row that was taken out does not come back; the members of a batch go with it."""
    for member in row.members:
        drop(shelf, member, forgotten=forgotten)
    keys.leave(shelf, row, forgotten=forgotten)
    if (terms := row.job.spec.lane) is not None and terms.key in row.queue.lanes:
        lane = row.queue.lanes[terms.key]
        partitions.leave(row, lane)
        partitions.advance(shelf, row.queue, lane, shelf.clock.now())
    shelf.discard(row)
    if shelf.waiters.end_watches:
        shelf.waiters.tell_ended(row.job, gone=True)


# ── a group, and the batch that it becomes ──


def batch_if_ripe(shelf: Shelf, row: Row, now: int) -> None:
    """A row that has joined its group may make it full; or its terms are shorter than those before."""
    if row.job.state is not State.GROUPED:
        return
    name, gathering = row.gathered, row.queue.gathering
    while ripe := gathering.ripe(name, now):
        batch(shelf, row.queue, ripe, now)


def batch(shelf: Shelf, queue: Queue, generations: Sequence[int], now: int) -> str | None:
    """The id of the batch that these members of one group become; the expired ones are cancelled."""
    members: list[Row] = []
    for row in [shelf.rows[generation] for generation in generations]:
        if row.expired(now):
            end_queued(shelf, row, EXPIRED, now)
        else:
            indexes.take(shelf, row)
            members.append(row)
    return become_batch(shelf, queue, members, now) if members else None


def become_batch(shelf: Shelf, queue: Queue, members: list[Row], now: int) -> str:
    """Members that were taken out of where they lay."""
    spec = batch_of(_free_id(queue, members[0]), [row.job.spec for row in members])
    for row in members:
        row.job = replace(row.job, state=State.GROUPED, batch=spec.id, expires_at=None)
        put(shelf, row)
    ids = tuple(row.job.id for row in members)
    number = shelf.generation + 1
    job = Job(spec, State.AVAILABLE, number, enqueued_at=now, run_at=now, members=ids)
    put(shelf, shelf.add(job, queue))
    return spec.id


def bring_back_members(shelf: Shelf, row: Row, now: int) -> None:
    """A batch that had ended runs again, and its members are its members again."""
    for member in row.members:
        indexes.take(shelf, member)
        before = member.job.state
        member.job = replace(member.job, state=State.GROUPED, ended_at=None, reason=None)
        keys.shift(shelf, member, before, now)
        put(shelf, member)


def _end_members(shelf: Shelf, row: Row) -> None:
    """A batch has ended, and its members end with it."""
    batch, ended_at = row.job, row.job.ended_at
    for member in row.members:
        indexes.take(shelf, member)
        member.over_at = row.over_at
        member.job = replace(member.job, state=batch.state, ended_at=ended_at, reason=batch.reason)
        keys.shift(shelf, member, State.GROUPED, ended_at or 0)
        put(shelf, member)


def _free_id(queue: Queue, first: Row) -> str:
    return next(id for n in count(1) if (id := batch_id(first.job.id, n)) not in queue.rows)
