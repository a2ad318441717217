"""settle: apply transitions to running jobs whose lease is still held."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.job import MAX_ERRORS, TERMINAL, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.outcomes import QueuePosition
from penstock.stores.contract import Settled, Settlement, no_outcome
from penstock.stores.text_encoding import reason_after, storable_error
from tests.oracle import indexes, keys, partitions, transitions
from tests.oracle.rows import Row
from tests.oracle.state import MemoryState
from tests.oracle.verbs.producing import enqueue_one

__all__ = ["settle"]


def settle(memory: MemoryState, settlements: Sequence[Settlement]) -> list[Settled]:
    for one in settlements:
        no_outcome(one.transition)
    now = memory.clock.now()
    heads = sum(one.transition.place is QueuePosition.HEAD for one in settlements)
    memory.head -= heads
    places = iter(range(memory.head, memory.head + heads))  # jobs at the head keep the order of the call
    return [
        _settle(memory, one, next(places) if one.transition.place is QueuePosition.HEAD else 0, now)
        for one in settlements
    ]


def _settle(memory: MemoryState, one: Settlement, head: int, now: int) -> Settled:
    row, to = memory.leased(one.lease), one.transition
    if row is None:
        there = memory.row(Ref(one.lease.queue, one.lease.id)) is not None
        return Settled.STALE if there else Settled.GONE
    row.queue.count(now, processed=int(to.charge), failed=int(to.error is not None))
    if to.throttle:
        row.queue.rate_limiter.throttle(to.throttle, now)
    partitions.throttle(row, to, now)
    indexes.take(memory, row)
    _apply(memory, row, to, one.result, head, now)
    keys.shift(memory, row, State.RUNNING, now)
    if row.job.ended and to.keep <= 0:
        transitions.end_members(memory, row)
        transitions.remove(memory, row, forgotten=True)
    else:
        transitions.put(memory, row)
    for new in one.then:
        enqueue_one(memory, new, now, follows=True)
    return Settled.APPLIED


def _apply(memory: MemoryState, row: Row, to: Transition, result: bytes | None, head: int, now: int) -> None:
    """Apply a transition to a row."""
    job, ended = row.job, to.state in TERMINAL
    if to.place is not QueuePosition.OWN:
        row.place = head if to.place is QueuePosition.HEAD else memory.next_place()
    row.at_tail = to.place is QueuePosition.TAIL
    state, run_at = to.state, job.run_at
    if state is State.SUSPENDED and (_woken(memory, row) or job.cancel_asked):
        state = State.AVAILABLE
    if state in (State.SCHEDULED, State.RETRYABLE, State.SUSPENDED):
        run_at = now + to.delay
    elif state is State.AVAILABLE and to.place is not QueuePosition.OWN:
        run_at = now
    row.over_at = now + to.keep
    row.job = replace(
        job,
        state=state,
        attempt=job.attempt - (row.charged and not to.charge),
        lost=job.lost + to.lost,
        run_at=run_at,
        ended_at=now if ended else None,
        expires_at=None if to.state is State.SUSPENDED else job.expires_at,  # it has started in time
        token=None,
        worker=None,
        started=False,
        errors=job.errors if to.error is None else (*job.errors, storable_error(to.error))[-MAX_ERRORS:],
        result=result if ended else None,
        reason=reason_after(to, job.cancel_asked, row.cancel_reason),
    )


def _woken(memory: MemoryState, row: Row) -> bool:
    """Whether a signal has come for this job while it ran; forgets that it has."""
    steps = memory.steps.get(row.generation)
    if steps is None or not steps.woken:
        return False
    steps.woken = False
    return True
