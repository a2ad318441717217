"""The stories of jobs and flows: their enqueues, leases, runs, settlements and operations, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from penstock.core.job import TERMINAL, Ref
from penstock.core.step_names import parsed
from penstock.verify.ledger import facts

StepFact = facts.StepRan | facts.StepAnswered | facts.StepChanged | facts.StepRecorded

TERMINAL_STATES = frozenset(state.value for state in TERMINAL)
#: Answers of a store that has stored the job.
_TAKEN = ("new", "follows")


@dataclass(slots=True)
class Act:
    """A settlement: the call and its answer; None if no answer was recorded."""

    asked: facts.Settling
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
    start: facts.Started
    lease: facts.Leased | None  # None if it was not recorded
    pids: set[int] = field(default_factory=set)
    end: facts.Ended | None = None
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

    asked: facts.OperationAsked
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
    offer: facts.Offered | None = None
    offers: int = 0
    verdicts: list[facts.Answered] = field(default_factory=list)
    #: For each verdict: when its call was sent and when it was answered (mono).
    calls: list[tuple[int, int]] = field(default_factory=list)
    leases: list[facts.Leased] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    operations: list[OperatorAction] = field(default_factory=list)
    #: Runs that two processes executed: (token, pid, pid).
    shared: list[tuple[str, int, int]] = field(default_factory=list)
    #: The batches into which the job was collected; and for a batch the ids of its members.
    batches: list[Story] = field(default_factory=list)
    members: tuple[str, ...] = ()
    #: Its durable steps: how their functions ran, and what was stored. Most jobs have none.
    steps: list[StepFact] | None = None

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

    def call_of(self, lease: facts.Leased) -> tuple[int, int]:
        """The earliest and the latest moment (mono) at which the store can have leased the job.

        A process may read an answer long after the store gave it. So only what lies outside of this span is
        certain.
        """
        return min(max(lease.asked, self.began), lease.mono), lease.mono

    def step_changed(self, step: str, after: int, before: float = inf) -> bool:
        """Whether this stored step may have been removed or edited between two moments (mono)."""
        return any(
            isinstance(fact, facts.StepChanged)
            and fact.step == step
            and fact.sent <= before
            and after <= fact.until
            for fact in self.steps or ()
        )

    def operated(self, verb: str, after: int, before: int) -> bool:
        """Whether this operation may have been applied between two moments (mono)."""
        return any(op.asked.verb == verb and op.may_lie(after, before) for op in self.operations)


# ── a flow ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class FlowStory:
    """All facts about one flow, in order."""

    ref: Ref
    expected: facts.FlowExpected | None = None
    #: The nodes of all calls that stored a part of it.
    nodes: int = 0
    puts: list[facts.FlowPut] = field(default_factory=list)
    #: For each answer: when its call was sent and answered (mono), and what it says.
    answers: list[tuple[int, int, str]] = field(default_factory=list)
    changes: list[facts.FlowChanged] = field(default_factory=list)

    def add(self, fact: facts.FlowPut | facts.FlowAnswered | facts.FlowChanged) -> None:
        match fact:
            case facts.FlowPut():
                self.puts.append(fact)
                self.nodes += fact.nodes
            case facts.FlowAnswered():
                sent = next((put.mono for put in reversed(self.puts) if put.pid == fact.pid), fact.mono)
                self.answers.append((sent, fact.mono, fact.answer))
            case facts.FlowChanged():
                self.changes.append(fact)

    @property
    def acknowledged_call(self) -> tuple[int, int] | None:
        """When the call was sent and answered (mono) that started the flow; None: no answer says so."""
        if not self.puts or not self.puts[-1].start or len(self.answers) < len(self.puts):
            return None
        sent, answered, said = self.answers[-1]
        return None if said in ("refused", "unknown", "building") else (sent, answered)

    @property
    def refused(self) -> bool:
        return any(said == "refused" for _, _, said in self.answers)


# ── stored steps ─────────────────────────────────────────────────────────────────────────────────


#: Kinds in names of older releases: `sleep!`, `wait!packed`, `gather!#2`, `iterate!rows`, `add!`.
_OLDER_KINDS = {"sleep": "sleep", "wait": "wait", "gather": "gather", "iterate": "loop", "add": "add"}


class StepLabel(NamedTuple):
    """What the rules call a stored step; an older release may have stored it under another kind of name.

    - `kind`: of its operation, or `mark` of one of the library.
    - `name`: as in `charge`, `charge#2`, `a/charge=7`. `suffix`: of a helper record.
    """

    kind: str
    name: str
    suffix: str = ""

    @property
    def text(self) -> str:
        """The name by which the functions of the load record it: `undo!` stands before that of an undo."""
        return f"undo!{self.name}" if self.suffix == "undone" else self.name

    @property
    def is_step(self) -> bool:
        """Whether this is the answer of a step of the code."""
        return self.kind == "step" and not self.suffix


def label_of(stored: str) -> StepLabel:
    """What the rules call the step that is stored under this name."""
    found = parsed(stored)
    if found is not None:
        return StepLabel(found.kind, found.shown, found.suffix)
    kind, mark, rest = stored.partition("!")
    if not mark:
        return StepLabel("step", stored)
    if kind in _OLDER_KINDS:
        name, _, suffix = rest.partition("!")
        return StepLabel(_OLDER_KINDS[kind], name, suffix)
    if kind == "undo" and rest:
        return StepLabel("step", rest, "undone")
    if rest.isdecimal() and kind not in ("", "log"):  # the lines of a job's log are steps, too
        return StepLabel("step", kind, rest)
    return StepLabel("mark", stored)
