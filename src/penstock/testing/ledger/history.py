"""Reads a ledger and sorts it into one story per job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.job import TERMINAL, Ref
from penstock.testing.ledger.facts import (
    Answered,
    Asked,
    Ended,
    Fact,
    Fault,
    JobFact,
    Leased,
    Offered,
    Opened,
    Settled,
    Settling,
    Started,
    Told,
    decoder,
)

__all__ = ["TERMINAL_STATES", "Act", "History", "Operation", "Run", "Story", "read"]

TERMINAL_STATES = frozenset(state.value for state in TERMINAL)
#: What a store says to a job that it has taken.
_TAKEN = ("new", "follows")


@dataclass
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


@dataclass
class Run:
    """One run of the function, under one lease."""

    token: str
    attempt: int
    worker: str
    start: Started
    pids: set[int] = field(default_factory=set)
    end: Ended | None = None
    acts: list[Act] = field(default_factory=list)


@dataclass
class Operation:
    """What somebody did to a job from outside: cancel, retry, reschedule, delete."""

    asked: Asked
    answer: str | None = None


@dataclass
class Story:
    """All that is known of one life of an id, in the order in which it happened."""

    ref: Ref
    offer: Offered | None = None
    offers: int = 0
    verdicts: list[Answered] = field(default_factory=list)
    leases: list[Leased] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    #: Runs of which two processes say that they are theirs: (token, pid, pid).
    shared: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def acknowledged(self) -> bool:
        return any(v.verdict in _TAKEN for v in self.verdicts)

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
            op.asked.verb == verb and after <= op.asked.mono <= before and op.answer not in ("", "running")
            for op in self.operations
        )


@dataclass
class History:
    """A ledger, read."""

    stories: list[Story]
    faults: list[Fault]
    parents: dict[int, int]  # process → the one that started it
    purged: set[str]  # queues of which a purge took away jobs
    torn: int  # lines that a full disk cut off

    def by_ref(self) -> dict[Ref, Story]:
        """The last life of each id."""
        return {story.ref: story for story in self.stories}


def read(directory: str | Path) -> History:
    """The history in this directory; of files that are still written, what is there now."""
    facts: list[Fact] = []
    torn = 0
    for path in sorted(Path(directory).glob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")
        lines.pop()  # empty, or what a process wrote in its last instant: it cannot have acted on it
        for line in lines:
            try:
                facts.append(decoder.decode(line))
            except msgspec.DecodeError:
                torn += 1
    facts.sort(key=lambda fact: fact.mono)
    return tell(facts, torn)


def tell(facts: Iterable[Fact], torn: int = 0) -> History:
    """The history that these facts, in the order of time, make up."""
    faults: list[Fault] = []
    parents: dict[int, int] = {}
    purged: set[str] = set()
    of_job: dict[Ref, list[JobFact]] = defaultdict(list)
    for fact in facts:
        match fact:
            case Opened():
                parents[fact.pid] = fact.parent
            case Fault():
                faults.append(fact)
            case Told(verb="purge"):
                purged.add(fact.queue)
            case JobFact() if fact.id != "*":
                of_job[Ref(fact.queue, fact.id)].append(fact)
    stories = [_story(ref, life) for ref, of in of_job.items() for life in _lives(of)]
    return History(stories, faults, parents, purged, torn)


def _lives(facts: list[JobFact]) -> Iterator[list[JobFact]]:
    """An id may be used again when its job is gone; each use is a life. A token stays with its own life."""
    offers = [i for i, fact in enumerate(facts) if isinstance(fact, Offered)]
    taken = [i for i, fact in enumerate(facts) if isinstance(fact, Answered) and fact.verdict == "new"]
    if len(taken) < 2:
        yield facts
        return
    cuts = [max((i for i in offers if i < answer), default=answer) for answer in taken[1:]]
    life_of_token: dict[str, int] = {}
    lives: list[list[JobFact]] = [[] for _ in range(len(cuts) + 1)]
    for i, fact in enumerate(facts):
        token = getattr(fact, "token", "")
        now = sum(1 for cut in cuts if cut <= i)
        lives[life_of_token.setdefault(token, now) if token else now].append(fact)
    yield from lives


def _story(ref: Ref, facts: list[JobFact]) -> Story:
    story = Story(ref)
    runs: dict[str, Run] = {}
    for fact in facts:
        match fact:
            case Offered():
                story.offers += 1
                story.offer = story.offer or fact
            case Answered():
                story.verdicts.append(fact)
            case Leased():
                story.leases.append(fact)
            case Started():
                _add_start(story, runs, fact)
            case Ended():
                if (run := runs.get(fact.token)) and run.end is None:
                    run.end = fact
            case Settling():
                act = Act(fact)
                story.acts.append(act)
                if fact.token in runs:
                    runs[fact.token].acts.append(act)
            case Settled():
                _add_answer(story, fact)
            case Asked():
                story.operations.append(Operation(fact))
            case Told():
                for op in story.operations:
                    if op.answer is None and op.asked.verb == fact.verb and op.asked.pid == fact.pid:
                        op.answer = fact.answer
    return story


def _add_start(story: Story, runs: dict[str, Run], fact: Started) -> None:
    run = runs.get(fact.token)
    if run is None:
        run = runs[fact.token] = Run(fact.token, fact.attempt, fact.worker, fact)
        story.runs.append(run)
    elif run.start.inside == fact.inside:
        story.shared.append((fact.token, run.start.pid, fact.pid))
    run.pids.add(fact.pid)


def _add_answer(story: Story, fact: Settled) -> None:
    for act in story.acts:
        if act.answer is None and act.asked.token == fact.token and act.asked.pid == fact.pid:
            act.answer, act.answered = fact.answer, fact.mono
            return
