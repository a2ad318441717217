"""Settling: a transition is applied to a running job, if it is the one that its lease was for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.job import MAX_ERRORS, TERMINAL, Ref, State
from penstock.core.lifecycle import Place, Transition
from penstock.stores.contract import Settled, Settlement, no_outcome
from penstock.stores.memory import indexes, keys, partitions, transitions
from penstock.stores.memory.rows import Row
from penstock.stores.memory.state import Shelf
from penstock.stores.memory.verbs.producing import enqueue_one
from penstock.stores.text_encoding import reason_after, storable_error

__all__ = ["settle"]


def settle(shelf: Shelf, settlements: Sequence[Settlement]) -> list[Settled]:
    for one in settlements:
        no_outcome(one.transition)
    now = shelf.clock.now()
    heads = sum(one.transition.place is Place.HEAD for one in settlements)
    shelf.head -= heads
    places = iter(range(shelf.head, shelf.head + heads))  # the first of them is the first out
    return [
        _settle(shelf, one, next(places) if one.transition.place is Place.HEAD else 0, now)
        for one in settlements
    ]


def _settle(shelf: Shelf, one: Settlement, head: int, now: int) -> Settled:
    row, to = shelf.leased(one.lease), one.transition
    if row is None:
        there = shelf.row(Ref(one.lease.queue, one.lease.id)) is not None
        return Settled.STALE if there else Settled.GONE
    row.queue.count(now, processed=int(to.charge), failed=int(to.error is not None))
    if to.hold:
        row.queue.gate.hold(to.hold, now)
    partitions.hold(row, to, now)
    indexes.take(shelf, row)
    _apply(shelf, row, to, one.result, head, now)
    keys.shift(shelf, row, State.RUNNING, now)
    if row.job.ended and to.keep <= 0:
        transitions.remove(shelf, row, forgotten=True)
    else:
        transitions.put(shelf, row)
    for new in one.then:
        enqueue_one(shelf, new, now, follows=True)
    return Settled.APPLIED


def _apply(shelf: Shelf, row: Row, to: Transition, result: bytes | None, head: int, now: int) -> None:
    """The facts after this transition."""
    job, ended = row.job, to.state in TERMINAL
    if to.place is not Place.OWN:
        row.place = head if to.place is Place.HEAD else shelf.next_place()
    row.at_tail = to.place is Place.TAIL
    run_at = job.run_at
    if to.state in (State.SCHEDULED, State.RETRYABLE):
        run_at = now + to.delay
    elif to.state is State.AVAILABLE and to.place is not Place.OWN:
        run_at = now
    row.over_at = now + to.keep
    row.job = replace(
        job,
        state=to.state,
        attempt=job.attempt - (row.charged and not to.charge),
        lost=job.lost + to.lost,
        run_at=run_at,
        ended_at=now if ended else None,
        token=None,
        worker=None,
        started=False,
        errors=job.errors if to.error is None else (*job.errors, storable_error(to.error))[-MAX_ERRORS:],
        result=result if ended else None,
        reason=reason_after(to, job.cancel_asked, row.cancel_reason),
    )
