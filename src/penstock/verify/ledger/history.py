"""Reads a ledger and sorts its facts into one story per job."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import median_low

import msgspec
from msgspec.structs import force_setattr as share
from msgspec.structs import replace

from penstock.core.job import Ref
from penstock.verify.effects import StepEffect, StepEffects
from penstock.verify.ledger import facts
from penstock.verify.ledger.story import Act, FlowStory, OperatorAction, Run, Story

#: A wall clock that differs by more than this (ms) from the majority is corrected.
_ODD = 1_000

_by_mono = attrgetter("mono")


@dataclass(eq=False)
class History:
    """The facts of a ledger, sorted: one story per job, and the facts that concern no single job."""

    stories: list[Story]
    faults: list[facts.Fault]  # by time, with their durations
    parents: dict[int, int]  # process → its parent process
    purged: set[str]  # queues from which a purge removed jobs
    torn: int  # lines that a full disk cut off
    limits: dict[str, list[facts.Limited]] = field(default_factory=dict)  # by queue
    ticks: list[facts.Ticking | facts.TickAnswered] = field(default_factory=list)
    stalls: list[facts.Stalled] = field(default_factory=list)
    flows: dict[Ref, FlowStory] = field(default_factory=dict)
    signals: list[facts.SignalSent] = field(default_factory=list)
    #: What the functions of durable steps did outside of the store, by job and step.
    effects: dict[Ref, dict[str, list[StepEffect]]] = field(default_factory=dict)
    #: Difference between the monotonic clock and the wall clock of most processes (ns).
    offset: int | None = None

    def by_ref(self) -> dict[Ref, Story]:
        """The latest story of each id."""
        return {story.ref: story for story in self.stories}

    def at(self, fact: facts.Fact) -> int:
        """When the fact was written, on the correct wall clock (ms)."""
        right = self.wall(fact.mono)
        return fact.at if right is None or abs(fact.at - right) <= _ODD else right

    def wall(self, mono: int) -> int | None:
        """A monotonic instant on the correct wall clock (ms); None if unknown."""
        return None if self.offset is None else (mono + self.offset) // 1_000_000

    def mono(self, at: int) -> int | None:
        """An instant of the wall clock (ms) on the monotonic clock; None if unknown."""
        return None if self.offset is None else at * 1_000_000 - self.offset


def read(directory: str | Path) -> History:
    """Read the ledger in this directory. Files that are still being written are read as they are now."""
    torn: list[str] = []
    files = sorted(Path(directory).glob("*.jsonl"))
    with uncollected():
        history = build_history((fact for path in files for fact in _facts(path, torn)), _in_order=False)
    history.torn = len(torn)
    history.effects = StepEffects(directory).read()
    return history


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch off the garbage collector for the block.

    It would scan the ledger's millions of values (in no cycle) again and again, and dominate the run time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _facts(path: Path, torn: list[str]) -> Iterator[facts.Fact]:
    """Decode the facts line by line, because a ledger is large."""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return  # an incomplete last line: the process died before it could act on it
            try:
                yield facts.decoder.decode(line)
            except msgspec.DecodeError:
                torn.append(path.name)


def build_history(written: Iterable[facts.Fact], torn: int = 0, *, _in_order: bool = True) -> History:
    """Build the history from these facts, which are in the order of time."""
    history = History([], [], {}, set(), torn)
    outside: list[facts.Fact] = []
    of_job: dict[tuple[str, str], list[facts.JobFact]] = defaultdict(list)
    for fact in written:
        if not isinstance(fact, facts.JobFact):
            outside.append(fact)
        elif fact.id != "*":
            about = of_job[fact.queue, fact.id]
            if about:  # share the strings among the facts of a job, which halves the memory
                share(fact, "queue", about[0].queue)
                share(fact, "id", about[0].id)
            about.append(fact)
        elif isinstance(fact, facts.OperationAnswered) and fact.verb == "purge":
            history.purged.add(fact.queue)
    if not _in_order:
        outside.sort(key=_by_mono)
        for about in of_job.values():
            about.sort(key=_by_mono)
    _add_outside_facts(history, outside)
    addresses = list(of_job) if _in_order else sorted(of_job, key=lambda key: of_job[key][0].mono)
    for address in addresses:
        ref = Ref(*address)
        # pop frees the facts that have been processed
        history.stories += [_story(ref, life) for life in _lives(of_job.pop(address))]
    for story in history.stories:
        _correct_due(history, story.offer)
    _bind_batches(history)
    add_flow_retries(history.stories, history.flows.values())
    return history


def _add_outside_facts(history: History, outside: Iterable[facts.Fact]) -> None:
    offsets: dict[int, int] = {}
    expected: dict[str, facts.FlowExpected] = {}
    for fact in outside:
        match fact:
            case facts.Opened():
                history.parents[fact.pid] = fact.parent
                offsets.setdefault(fact.pid, fact.at * 1_000_000 - fact.mono)
            case facts.Fault():
                history.faults.append(fact)
            case facts.Healed():
                _heal(history.faults, fact)
            case facts.Stalled():
                history.stalls.append(fact)
            case facts.Limited():
                history.limits.setdefault(fact.queue, []).append(fact)
            case facts.Ticking() | facts.TickAnswered():
                history.ticks.append(fact)
            case facts.FlowExpected():
                expected[fact.id] = fact
            case facts.FlowPut() | facts.FlowAnswered() | facts.FlowChanged():
                ref = Ref(fact.queue, fact.id)
                flow = history.flows.get(ref)
                if flow is None:
                    flow = history.flows[ref] = FlowStory(ref, expected.get(fact.id))
                flow.add(fact)
            case facts.SignalSent():
                history.signals.append(fact)
    history.offset = median_low(offsets.values()) if offsets else None


def _correct_due(history: History, offer: facts.Offered | None) -> None:
    """Correct the due time of a job that a process with a clock ahead of time has enqueued."""
    if offer is not None and history.at(offer) < offer.at:
        share(offer, "due", offer.due - offer.at + history.at(offer))


def _heal(faults: list[facts.Fault], healed: facts.Healed) -> None:
    """Set the duration of the last fault of this kind and target."""
    for i in range(len(faults) - 1, -1, -1):
        fault = faults[i]
        if (fault.kind, fault.target) == (healed.kind, healed.target):
            lasted = (healed.mono - fault.mono) / 1e9
            faults[i] = msgspec.structs.replace(fault, seconds=lasted)
            return


def _bind_batches(history: History) -> None:
    """Connect each batch with the stories of its members."""
    batches = [story for story in history.stories if any(lease.members for lease in story.leases)]
    if not batches:
        return
    last = history.by_ref()
    for batch in batches:
        # the members of the last lease: a store that loses writes may build the batch again, with others
        batch.members = next(lease.members for lease in reversed(batch.leases) if lease.members)
        for id in dict.fromkeys(id for lease in batch.leases for id in lease.members):
            member = last.get(Ref(batch.ref.queue, id))
            if member is not None:
                member.batches.append(batch)


def _lives(about: list[facts.JobFact]) -> Iterator[list[facts.JobFact]]:
    """Split the facts of an id into the lives of its jobs: an id may be used again after its job is gone.

    Facts with a lease token stay with the life of that token.
    """
    taken = [i for i, fact in enumerate(about) if isinstance(fact, facts.Answered) and fact.verdict == "new"]
    if len(taken) < 2:
        yield about
        return
    offers = [i for i, fact in enumerate(about) if isinstance(fact, facts.Offered)]
    cuts = [max((i for i in offers if i < answer), default=answer) for answer in taken[1:]]
    life_of_token: dict[str, int] = {}
    lives: list[list[facts.JobFact]] = [[] for _ in range(len(cuts) + 1)]
    for i, fact in enumerate(about):
        token = getattr(fact, "token", "")
        now = bisect_right(cuts, i)
        lives[life_of_token.setdefault(token, now) if token else now].append(fact)
    yield from lives


def _story(ref: Ref, life: list[facts.JobFact]) -> Story:
    story = Story(ref)
    runs: dict[str, Run] = {}
    unanswered: dict[int, list[int]] = defaultdict(list)
    for fact in life:
        match fact:
            case facts.Offered():
                story.offers += 1
                story.offer = story.offer or fact
                unanswered[fact.pid].append(fact.mono)
            case facts.Answered():
                sent = unanswered[fact.pid]
                story.verdicts.append(fact)
                story.calls.append((sent.pop(0) if sent else story.began or fact.mono, fact.mono))
            case facts.Leased():
                story.leases.append(fact)
            case facts.StepRan() | facts.StepAnswered() | facts.StepChanged() | facts.StepRecorded():
                story.steps = story.steps or []
                story.steps.append(fact)
            case facts.Started():
                _add_start(story, runs, fact)
            case facts.Ended():
                if (run := runs.get(fact.token)) and run.end is None:
                    run.end = fact
            case facts.Settling():
                act = Act(fact)
                story.acts.append(act)
                if fact.token in runs:
                    runs[fact.token].acts.append(act)
            case facts.SettleAnswered():
                _add_answer(story, fact)
            case facts.OperationAsked():
                story.operations.append(OperatorAction(fact))
            case facts.OperationAnswered():
                for op in story.operations:
                    if op.answer is None and op.asked.verb == fact.verb and op.asked.pid == fact.pid:
                        op.answer, op.answered = fact.answer, fact.mono
    return story


def _add_start(story: Story, runs: dict[str, Run], fact: facts.Started) -> None:
    run = runs.get(fact.token)
    if run is None:
        lease = next((one for one in story.leases if one.token == fact.token), None)
        run = runs[fact.token] = Run(fact.token, fact.attempt, fact.worker, fact, lease)
        story.runs.insert(_place(story, run), run)
    elif run.start.inside == fact.inside:
        story.shared.append((fact.token, run.start.pid, fact.pid))
    run.pids.add(fact.pid)


def _place(story: Story, late: Run) -> int:
    """The index of a run among the runs that began before it."""
    place = len(story.runs)
    while place and _was_first(late, story.runs[place - 1], story):
        place -= 1
    return place


def _was_first(late: Run, other: Run, story: Story) -> bool:
    """Whether `late`, which began after `other`, was leased before it.

    It was if its worker received it first; or if it may have been leased first and its attempt number is
    lower. The time of the request alone proves nothing: all requests wait together for a store that is away.
    An operator's retry in between explains a lower number.
    """
    if late.granted < other.granted:
        return late.attempt <= other.attempt or story.operated("retry", late.granted, other.start.mono)
    if story.operated("retry", other.granted, late.start.mono):
        return False
    return late.asked < other.asked and late.attempt < other.attempt


def _add_answer(story: Story, fact: facts.SettleAnswered) -> None:
    for act in story.acts:
        if act.answer is None and act.asked.token == fact.token and act.asked.pid == fact.pid:
            act.answer, act.answered = fact.answer, fact.mono
            return


# ── retries of flows ─────────────────────────────────────────────────────────────────────────────


def add_flow_retries(stories: Sequence[Story], flows: Iterable[FlowStory]) -> None:
    """Add to each job the retries that its flow, or the job that waits for it, may have made.

    The retry of a job, or of a flow, also runs the jobs again that its flow had cancelled, and a job that
    runs again does so with the jobs of its gathers. When, and whether, is unknown.
    """
    members: dict[str, list[Story]] = defaultdict(list)
    waited_for: dict[str, list[Story]] = defaultdict(list)
    for story in stories:
        if story.offer is not None and story.offer.flow:
            members[story.offer.flow].append(story)
            waited_for[story.ref.id.rpartition(".")[0]].append(story)
    added: list[tuple[Story, facts.OperationAsked]] = []
    for flow in flows:
        for change in flow.changes:
            if change.change == "retry" and change.answer is None:
                asked = facts.OperationAsked(change.at, change.mono, change.pid, "", "", "retry")
                added += [(one, asked) for one in _with_gathers(members[flow.ref.id], waited_for)]
    for story in stories:
        for op in story.accepted("retry"):
            family = members[story.offer.flow] if story.offer is not None and story.offer.flow else [story]
            added += [(one, op.asked) for one in _with_gathers(family, waited_for) if one is not story]
    for story, asked in added:
        own = replace(asked, queue=story.ref.queue, id=story.ref.id)
        story.operations.append(OperatorAction(own))
        story.operations.sort(key=lambda op: op.asked.mono)


def _with_gathers(jobs: Sequence[Story], waited_for: dict[str, list[Story]]) -> Iterator[Story]:
    """These jobs, and those of their gathers."""
    for job in jobs:
        yield job
        yield from waited_for.get(job.ref.id, ())
