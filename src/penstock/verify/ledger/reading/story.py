"""What is known of one job: what was offered, leased, run, settled and asked of it, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.job import TERMINAL, Ref
from penstock.verify.ledger.facts import Answered, Asked, Ended, Leased, Offered, Settling, Started

__all__ = ["TERMINAL_STATES", "Act", "OperatorAction", "Run", "Story"]

TERMINAL_STATES = frozenset(state.value for state in TERMINAL)
#: What a store says to a job that it has taken.
_TAKEN = ("new", "follows")


@dataclass(slots=True)
class Act:
    """A settlement: what was asked, and the answer; None where nobody wrote one down."""

    asked: Settling
    answer: str | None = None
    answered: int = 0  # mono

    @property
    def applied(self) -> bool:
        return self.answer == "applied"

    @property
    def perhaps(self) -> bool:
        """It may have been applied: the holder was killed, or the reply was lost."""
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
    lease: Leased | None  # None where nobody saw it
    pids: set[int] = field(default_factory=set)
    end: Ended | None = None
    acts: list[Act] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """When its holder asked for a job (mono), as far as anybody saw."""
        return self.start.mono if self.lease is None else self.lease.asked

    @property
    def granted(self) -> int:
        """When its holder had it (mono)."""
        return self.start.mono if self.lease is None else self.lease.mono


@dataclass(slots=True)
class OperatorAction:
    """What somebody did to a job from outside: cancel, retry, reschedule, delete."""

    asked: Asked
    answer: str | None = None
    answered: int = 0  # mono

    @property
    def accepted(self) -> bool:
        """It was done, or perhaps: nobody says that there was nothing to do."""
        return self.answer not in ("", "running")


@dataclass(slots=True)
class Story:
    """All that is known of one life of an id, in the order in which it happened; but a run that was to begin
    before another one, and whose process was stopped until that had begun, stands before it."""

    ref: Ref
    offer: Offered | None = None
    offers: int = 0
    verdicts: list[Answered] = field(default_factory=list)
    leases: list[Leased] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    operations: list[OperatorAction] = field(default_factory=list)
    #: Runs of which two processes say that they are theirs: (token, pid, pid).
    shared: list[tuple[str, int, int]] = field(default_factory=list)
    #: The batches that it was collected into, and, of a batch, the ids of its members.
    batches: list[Story] = field(default_factory=list)
    members: tuple[str, ...] = ()

    @property
    def acknowledged(self) -> bool:
        return any(v.verdict in _TAKEN for v in self.verdicts)

    @property
    def acknowledged_at(self) -> int | None:
        """When the store first said that it had it (mono); None: it never did."""
        return min((v.mono for v in self.verdicts if v.verdict in _TAKEN), default=None)

    @property
    def unknown(self) -> bool:
        """Nobody was told whether it was stored, or that it was stored where it may not stay."""
        told = {v.verdict for v in self.verdicts}
        doubtful = told & {"unknown", "unreplicated"} or len(self.verdicts) < self.offers
        return not self.acknowledged and bool(doubtful)

    @property
    def began(self) -> int:
        """When it was offered first (mono)."""
        return self.offer.mono if self.offer else 0

    def operated(self, verb: str, after: int, before: int) -> bool:
        """Whether somebody asked for this between two moments (mono), and was not refused."""
        return any(
            op.asked.verb == verb and after <= op.asked.mono <= before and op.accepted
            for op in self.operations
        )
