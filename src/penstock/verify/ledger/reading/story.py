"""The story of one job: its enqueues, leases, runs, settlements and operations, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from penstock.core.job import TERMINAL, Ref
from penstock.verify.ledger.facts import (
    Answered,
    Ended,
    Leased,
    Offered,
    OperationAsked,
    Settling,
    Started,
    StepRan,
    StepRecorded,
)

__all__ = ["TERMINAL_STATES", "Act", "OperatorAction", "Run", "Story"]

TERMINAL_STATES = frozenset(state.value for state in TERMINAL)
#: Answers of a store that has stored the job.
_TAKEN = ("new", "follows")


@dataclass(slots=True)
class Act:
    """A settlement: the call and its answer; None if no answer was recorded."""

    asked: Settling
    answer: str | None = None
    answered: int = 0  # mono

    @property
    def applied(self) -> bool:
        return self.answer == "applied"

    @property
    def call(self) -> tuple[int, int]:
        """When the call was sent and when it was answered (mono): the store executed it in between."""
        return self.asked.mono, self.answered

    @property
    def perhaps(self) -> bool:
        """Whether it may have been applied: the worker was killed, or the reply was lost."""
        return self.answer in (None, "unknown")

    @property
    def terminal(self) -> bool:
        return self.asked.state in TERMINAL_STATES


@dataclass(slots=True)
class Run:
    """One run of the function, under one lease."""

    token: str
    attempt: int
    worker: str
    start: Started
    lease: Leased | None  # None if it was not recorded
    pids: set[int] = field(default_factory=set)
    end: Ended | None = None
    acts: list[Act] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """The earliest moment (mono) at which the store can have leased the job, as far as recorded."""
        return self.start.mono if self.lease is None else self.lease.asked

    @property
    def processes(self) -> set[int]:
        """The worker that leased the job, and the processes that recorded a start."""
        return self.pids if self.lease is None else {self.lease.pid, *self.pids}

    @property
    def granted(self) -> int:
        """When its worker received the job (mono)."""
        return self.start.mono if self.lease is None else self.lease.mono


@dataclass(slots=True)
class OperatorAction:
    """An operation on a job: cancel, retry, reschedule or delete."""

    asked: OperationAsked
    answer: str | None = None
    answered: int = 0  # mono

    @property
    def call(self) -> tuple[int, int]:
        """When the call was sent and when it was answered (mono)."""
        return self.asked.mono, self.answered

    @property
    def accepted(self) -> bool:
        """Whether it was applied, or may have been: the answer does not say that there was nothing to do."""
        return self.answer not in ("", "running")

    @property
    def certain(self) -> bool:
        """Whether its answer says that it was applied."""
        return self.answer is not None and self.answer not in ("", "running", "unknown")

    @property
    def changes(self) -> bool:
        """Whether it may have changed how the job ends: a running job may obey a request to stop, or not."""
        return self.accepted or (self.asked.verb == "cancel" and self.answer == "running")

    @property
    def until(self) -> float:
        """When it was applied at the latest (mono), if it was: infinite without an answer."""
        return self.answered if self.answer is not None else inf

    def may_lie(self, after: int, before: int) -> bool:
        """Whether the store may have applied it between these moments (mono); without an answer at any time
        since the call."""
        answered = before if self.answer is None else self.answered
        return self.accepted and self.asked.mono <= before and after <= max(answered, self.asked.mono)


@dataclass(slots=True)
class Story:
    """All facts about one job of an id, in order.

    A run that was leased before another one stands before it, even if its process was stopped and it began
    later.
    """

    ref: Ref
    offer: Offered | None = None
    offers: int = 0
    verdicts: list[Answered] = field(default_factory=list)
    #: For each verdict: when its call was sent and when it was answered (mono).
    calls: list[tuple[int, int]] = field(default_factory=list)
    leases: list[Leased] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    operations: list[OperatorAction] = field(default_factory=list)
    #: Runs that two processes executed: (token, pid, pid).
    shared: list[tuple[str, int, int]] = field(default_factory=list)
    #: The batches into which the job was collected; and for a batch the ids of its members.
    batches: list[Story] = field(default_factory=list)
    members: tuple[str, ...] = ()
    #: Its durable steps: how their functions ran, and what was stored. Most jobs have none.
    steps: list[StepRan | StepRecorded] | None = None

    @property
    def of_flow(self) -> bool:
        """Whether the store enqueues the job, when its node in a flow starts."""
        return self.offer is not None and bool(self.offer.flow)

    @property
    def acknowledged(self) -> bool:
        return any(v.verdict in _TAKEN for v in self.verdicts)

    @property
    def acknowledged_at(self) -> int | None:
        """When the store first acknowledged the job (mono); None: never."""
        call = self.acknowledged_call
        return None if call is None else call[1]

    @property
    def acknowledged_call(self) -> tuple[int, int] | None:
        """When the call was sent and answered (mono) by which the store first acknowledged the job."""
        taken = [call for v, call in zip(self.verdicts, self.calls, strict=True) if v.verdict in _TAKEN]
        return min(taken, key=lambda call: call[1], default=None)

    @property
    def unknown(self) -> bool:
        """Whether it is unknown if the job was stored, or it was stored without the required replicas."""
        told = {v.verdict for v in self.verdicts}
        uncertain = told & {"unknown", "unreplicated"} or len(self.verdicts) < self.offers
        return not self.acknowledged and bool(uncertain)

    @property
    def began(self) -> int:
        """When the first enqueue call began (mono)."""
        return self.offer.mono if self.offer else 0

    def accepted(self, verb: str) -> Iterator[OperatorAction]:
        """The operations of this kind that were applied, or may have been."""
        return (op for op in self.operations if op.asked.verb == verb and op.accepted)

    def call_of(self, lease: Leased) -> tuple[int, int]:
        """The earliest and the latest moment (mono) at which the store can have leased the job.

        A process may read an answer long after the store gave it. So only what lies outside of this span is
        certain.
        """
        return min(max(lease.asked, self.began), lease.mono), lease.mono

    def operated(self, verb: str, after: int, before: int) -> bool:
        """Whether this operation may have been applied between two moments (mono)."""
        return any(op.asked.verb == verb and op.may_lie(after, before) for op in self.operations)
