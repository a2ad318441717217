"""What is certain of a job from when to when: that it had not ended, that somebody had it on loan.

Each is a span on the monotonic clock that is no longer than the truth: what a rule forbids within it was
really broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

from penstock.verify.ledger.facts import Leased
from penstock.verify.ledger.reading.story import Run, Story
from penstock.verify.ledger.rules.case import Case

__all__ = ["FOR_EVER", "Span", "leases_of", "open_until"]

FOR_EVER = 1 << 62


class Span(NamedTuple):
    """From when to when, and what it is about; it was `asked` for then, at the earliest."""

    begin: int
    end: int
    asked: int
    story: Story


def open_until(story: Story, case: Case) -> int:
    """Until when the job had certainly not ended, since it was acknowledged."""
    retried = min((op.asked.mono for op in story.operations if op.asked.verb == "retry"), default=FOR_EVER)
    leases = [lease for lease in story.leases if lease.mono < retried]
    leased = max((lease.asked for lease in leases), default=story.began)
    # its producer may hear last that it was taken, when it has ended already
    seen = max(story.acknowledged_at or story.began, leased)
    if case.is_purged(story):
        return min(seen, retried)
    ends = [
        act.asked.mono
        for act in story.acts
        if act.terminal and act.answer not in ("stale", "gone") and act.asked.mono >= leased
    ]
    ends += [op.asked.mono for op in story.operations if _may_end(op.asked.verb) and op.accepted]
    ends += [max(seen, mono) for mono in (_expiry(story, case), retried) if mono is not None]
    ends += _unseen(story, leases, seen, case)
    return min((mono for mono in ends if mono >= leased), default=FOR_EVER)


def _may_end(verb: str) -> bool:
    return verb in ("cancel", "delete")


def _expiry(story: Story, case: Case) -> int | None:
    expires = None if story.offer is None else story.offer.expires
    return None if expires is None else case.history.mono(expires)


def _unseen(story: Story, leases: list[Leased], seen: int, case: Case) -> Iterator[int]:
    """When somebody may have ended it who writes no ledger: a supervisor, after its holder was harmed."""
    if story.batches:  # it ends with its batch
        yield seen
    if not leases and (story.runs or story.acts):
        yield seen
    if not leases:
        return
    last = leases[-1]
    harm = case.troubles.next([last.pid], seen, story.ref.queue)
    if harm is not None:
        yield harm
    elif not any(act.asked.token == last.token for act in story.acts):
        run = next((run for run in story.runs if run.token == last.token), None)
        yield last.mono if run is None else run.start.mono if run.end is None else run.end.mono


def leases_of(story: Story, case: Case) -> Iterator[Span]:
    """When it was certainly on loan, and its holder alive and well: from when he knew of it until he said how
    it ended, or harm came to him, or somebody else asked for it. One that may be undone is not certain."""
    first: dict[str, Leased] = {}
    for lease in story.leases:
        first.setdefault(lease.token, lease)
    # where two hold themselves for the master, each keeps the limits by itself
    known = [lease for lease in first.values() if not case.forgiven(lease.mono)]
    said = {act.asked.token: act.asked.mono for act in reversed(story.acts)}
    runs = {run.token: run for run in story.runs}
    for lease in known:
        run = runs.get(lease.token)
        harm = _lost_at(lease, {lease.pid} if run is None else {lease.pid, *run.pids}, case)
        ends = [_let_go(lease, run, said), harm]
        for other in known:
            if other.mono > lease.mono:
                ends.append(other.since or (lease.mono if other.mono < ends[0] else ends[0]))
        if min(ends) > lease.mono:
            yield Span(lease.mono, min(ends), lease.asked, story)


def _lost_at(lease: Leased, pids: Set[int], case: Case) -> int:
    """Until when it was certainly not lost, whatever was done to its holder or to the store."""
    troubles, mono, queue = case.troubles, lease.mono, lease.queue
    asked = lease.asked
    if troubles.blows.within(pids, mono, queue):
        return mono
    harms = [
        troubles.blows.next(pids, asked, queue),
        mono if troubles.within(pids, mono, queue) else troubles.next(pids, mono, queue),
    ]
    if lease.sent and lease.lease:
        if mono - asked > lease.lease * 500_000:
            return mono  # half of its time had passed before its holder knew of it, or perhaps all
        if harms[1] is not None:  # who cannot prolong it has it for its time all the same
            harms[1] = max(harms[1], asked + lease.lease * 1_000_000)
    return min((harm for harm in harms if harm is not None), default=FOR_EVER)


def _let_go(lease: Leased, run: Run | None, said: dict[str, int]) -> int:
    """When its holder had certainly not let go of it yet."""
    if lease.token in said:
        return said[lease.token]
    if run is None:
        return lease.mono
    return run.start.mono if run.end is None else run.end.mono
