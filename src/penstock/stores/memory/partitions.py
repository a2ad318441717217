"""Lanes: which jobs of a key are admitted, and who comes next. Jobs without a lane never come here."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.core.partition import Lane
from penstock.stores.memory import indexes
from penstock.stores.memory.rows import OpenLane, Queue, Row
from penstock.stores.memory.state import MemoryState

__all__ = ["advance", "enter", "forget_idle", "has_room", "hold", "leave", "start"]


def has_room(memory: MemoryState, row: Row) -> bool:
    """Whether its lane lets this parked job start at once."""
    terms = row.job.spec.lane
    if terms is None or row.admitted:
        return True
    return _may_enter(memory, row, terms, row.queue.lane(terms.key))


def enter(memory: MemoryState, row: Row, terms: Lane, lane: OpenLane) -> None:
    """What the job's new state means for its lane; one that finds no room shall wait."""
    match row.job.state:
        case State.AVAILABLE:
            if row.admitted or _may_enter(memory, row, terms, lane):
                _admit(row, terms, lane)
            else:
                row.job = replace(row.job, state=State.WAITING)
        case State.RUNNING:
            row.admitted = True  # a parked one may not have been
            lane.admitted[row.generation] = row
        case State.SCHEDULED | State.RETRYABLE | State.PARKED if terms.ordered:
            lane.ready.discard(row.generation)
        case _:
            leave(row, lane)


def leave(row: Row, lane: OpenLane) -> None:
    """It is none of those that may run; `advance` lets others in."""
    row.admitted = False
    lane.admitted.pop(row.generation, None)
    lane.ready.discard(row.generation)


def start(row: Row, terms: Lane, now: int) -> None:
    """It is fetched: a start, where the lane has a rate."""
    if terms.rate is not None:
        lane = row.queue.lane(terms.key)
        lane.ready.discard(row.generation)
        lane.spent = terms.after_start(lane.spent, now)


def hold(row: Row, to: Transition, now: int) -> None:
    """Nothing of the lane is admitted for as long as this transition says."""
    if to.hold_lane > 0 and (terms := row.job.spec.lane) is not None:
        lane = row.queue.lane(terms.key)
        lane.held = max(lane.held, now + to.hold_lane)
        if to.state is State.AVAILABLE:  # else it would keep its room
            leave(row, lane)


def advance(memory: MemoryState, queue: Queue, lane: OpenLane, now: int) -> int:
    """Admit who may be; how many they were. Then note when the next one may, or forget the lane."""
    lane.due, admitted = None, 0
    while (first := lane.waiting.first()) is not None:
        row = memory.rows[first[1]]
        terms = row.job.spec.lane
        assert terms is not None
        at = lane.allowed_at(terms, now)
        if at is None or at > now:
            lane.due = at
            break
        indexes.take(memory, row)
        _admit(row, terms, lane)
        row.job, row.at_tail = replace(row.job, state=State.AVAILABLE), True
        indexes.put(memory, row)
        admitted += 1
    queue.lane_due.drop(lane.key)
    if lane.due is not None:
        queue.lane_due.put(lane.key, lane.due)
    _forget_if_idle(queue, lane, now)
    return admitted


def forget_idle(queue: Queue, now: int) -> None:
    """The lanes of which nothing is left but a rate that is as it was."""
    for lane in list(queue.lanes.values()):
        _forget_if_idle(queue, lane, now)


def _forget_if_idle(queue: Queue, lane: OpenLane, now: int) -> None:
    if not lane.admitted and not lane.waiting and max(lane.spent, lane.held) <= now:
        queue.lanes.pop(lane.key, None)


def _may_enter(memory: MemoryState, row: Row, terms: Lane, lane: OpenLane) -> bool:
    first, order = lane.waiting.first(), (terms.rank(row.job.spec.priority), row.place)
    if first is not None and first[0] < order:
        return False
    now = memory.clock.now()
    at = lane.allowed_at(terms, now)
    return at is not None and at <= now


def _admit(row: Row, terms: Lane, lane: OpenLane) -> None:
    row.admitted = True
    lane.admitted[row.generation] = row
    if terms.rate is not None:
        lane.ready.add(row.generation)
