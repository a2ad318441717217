"""The input of the rules: the history, the contents of the store, the excused spans; and what is certain.

A fact about a job is certain in a span: it had not ended, or a worker held its lease. Spans are on the
monotonic clock and never too long. So a rule that is broken within a span was really broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.flow import FlowInfo, FlowNode
from penstock.core.job import Job, Ref
from penstock.stores.contract import StoredStep
from penstock.verify.ledger.facts import Leased
from penstock.verify.ledger.history import History
from penstock.verify.ledger.rules.faults import FaultIndex, ForgivenSpans
from penstock.verify.ledger.story import Run, Story
from penstock.verify.ledger.verdict import Violation


class StoredFlow(NamedTuple):
    """A flow in the store, with its nodes by number."""

    info: FlowInfo
    nodes: dict[int, FlowNode]


@dataclass
class Case:
    """A ledger and its store, as the rules see them."""

    history: History
    jobs: Mapping[Ref, Job]  # the jobs of the ledger that exist in the store
    now: int
    faults_by_target: FaultIndex
    forgiven: ForgivenSpans
    last: Mapping[Ref, Story]  # the latest story of each id
    slack: int = 0
    #: Whether a process had a wrong clock, on a store that takes the time from its callers.
    clock_skewed: bool = False
    #: Whether the store tells what became of a job. If not, no job is in `jobs`.
    followed: bool = True
    #: If not followed: the dead jobs of each queue that the store counts, and whose end is in no ledger.
    unseen_dead: Counter[str] = field(default_factory=Counter[str])
    flows: Mapping[Ref, StoredFlow] = field(default_factory=dict[Ref, StoredFlow])
    #: What jobs remember, in the order in which it was stored.
    steps: Mapping[Ref, list[StoredStep]] = field(default_factory=dict[Ref, list[StoredStep]])
    #: The node of each job of a flow that is in the store.
    nodes: Mapping[Ref, FlowNode] = field(default_factory=dict[Ref, FlowNode])

    def job(self, story: Story) -> Job | None:
        """The job in the store; None for all but the latest story of an id."""
        return self.jobs.get(story.ref) if self.is_last(story) else None

    def is_last(self, story: Story) -> bool:
        return self.last[story.ref] is story

    def is_purged(self, story: Story) -> bool:
        return story.ref.queue in self.history.purged


def broken(story: Story, promise: str, says: str) -> Violation:
    """A finding about this job."""
    return Violation(promise, says, story.ref.queue, story.ref.id)


# ── certain spans ────────────────────────────────────────────────────────────────────────────────


FOR_EVER = 1 << 62


class Span(NamedTuple):
    """Begin and end of a span, its job, and the earliest moment at which the job was `asked` for."""

    begin: int
    end: int
    asked: int
    story: Story


def open_until(story: Story, case: Case) -> int:
    """Until when the job had certainly not ended."""
    retried = min((op.asked.mono for op in story.operations if op.asked.verb == "retry"), default=FOR_EVER)
    leases = [lease for lease in story.leases if lease.mono < retried]
    leased = max((story.call_of(lease)[0] for lease in leases), default=story.began)
    # the enqueue may be acknowledged after the job has ended
    seen = max(story.acknowledged_at or story.began, leased)
    if case.is_purged(story):
        return min(seen, retried)
    ends = [
        act.asked.mono
        for act in story.acts
        if act.terminal and act.answer not in ("stale", "gone") and act.asked.mono >= leased
    ]
    ends += [
        max(op.asked.mono, leased)
        for op in story.operations
        if _may_end(op.asked.verb) and op.may_lie(leased, FOR_EVER)
    ]
    ends += [max(seen, mono) for mono in (_expiry(story, case), retried) if mono is not None]
    ends += _unrecorded_ends(story, leases, seen, case)
    return min((mono for mono in ends if mono >= leased), default=FOR_EVER)


def _may_end(verb: str) -> bool:
    return verb in ("cancel", "complete", "delete", "discard", "move")


def _expiry(story: Story, case: Case) -> int | None:
    expires = None if story.offer is None else story.offer.expires
    return None if expires is None else case.history.mono(expires)


def _unrecorded_ends(story: Story, leases: list[Leased], seen: int, case: Case) -> Iterator[int]:
    """When a process without a ledger may have ended the job: a supervisor, after a fault of the worker."""
    if story.batches:  # the job ends with its batch
        yield seen
    if not leases and (story.runs or story.acts):
        yield seen
    if not leases:
        return
    last = leases[-1]
    fault_at = case.faults_by_target.next([last.pid], seen, story.ref.queue)
    if fault_at is not None:
        yield fault_at
    elif not any(act.asked.token == last.token for act in story.acts):
        run = next((run for run in story.runs if run.token == last.token), None)
        yield last.mono if run is None else run.start.mono if run.end is None else run.end.mono


def leases_of(story: Story, case: Case) -> Iterator[Span]:
    """The spans in which a healthy worker certainly held the job's lease.

    A span begins when the worker received the lease. It ends when the worker settled the job, when a fault
    hit, or when another worker asked for a job. Leases that the store may have lost are left out.
    """
    first: dict[str, Leased] = {}
    for lease in story.leases:
        first.setdefault(lease.token, lease)
    # with two masters at a time, each one enforces the limits by itself
    known = [lease for lease in first.values() if not case.forgiven(*story.call_of(lease))]
    said = {act.asked.token: act.asked.mono for act in reversed(story.acts)}
    runs = {run.token: run for run in story.runs}
    for lease in known:
        run = runs.get(lease.token)
        asked = story.call_of(lease)[0]
        limit = _safe_until(lease, asked, {lease.pid} if run is None else {lease.pid, *run.pids}, case)
        ends = [_held_at_least_until(lease, run, said), limit]
        for other in known:
            if other.mono > lease.mono:
                # an offer of slots is long before a dispatch: it would end every span
                since = 0 if other.by == "wait" else other.since
                ends.append(since or (lease.mono if other.mono < ends[0] else ends[0]))
        if min(ends) > lease.mono:
            yield Span(lease.mono, min(ends), asked, story)


def _safe_until(lease: Leased, asked: int, pids: Set[int], case: Case) -> int:
    """Until when the lease, granted at `asked` or later, was certainly not lost by a fault."""
    faults_by_target, mono, queue = case.faults_by_target, lease.mono, lease.queue
    if faults_by_target.immediate.within(pids, mono, queue):
        return mono
    limits = [
        faults_by_target.immediate.next(pids, asked, queue),
        mono if faults_by_target.within(pids, mono, queue) else faults_by_target.next(pids, mono, queue),
    ]
    if lease.since and lease.lease:
        if mono - asked > lease.lease * 500_000:
            return mono  # at least half of the lease had passed before its worker received it
        if limits[1] is not None:  # a worker that cannot extend its lease holds it until it expires
            limits[1] = max(limits[1], asked + lease.lease * 1_000_000)
    return min((limit for limit in limits if limit is not None), default=FOR_EVER)


def _held_at_least_until(lease: Leased, run: Run | None, said: dict[str, int]) -> int:
    """Until when the worker certainly had not settled or dropped the lease."""
    if lease.token in said:
        return said[lease.token]
    if run is None:
        return lease.mono
    return run.start.mono if run.end is None else run.end.mono
