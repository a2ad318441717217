"""Finds the cause of each second run; after a crash also the fault and the lost lease."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock.verify.ledger.facts import Fault
from penstock.verify.ledger.reading.history import History
from penstock.verify.ledger.reading.story import Act, Run, Story
from penstock.verify.ledger.rules.faults import FaultIndex, ForgivenSpans, LostLease, fault_index_of, word_of
from penstock.verify.ledger.verdict import Duplicate, Violation

__all__ = ["SecondRun", "cause_of", "effective", "reruns", "was_read_late"]

#: Errors that mean the death of a process, not a failure of the function.
_CRASH_ERRORS = {"WorkerLost", "LeaseLost", "ChildDied"}
#: Causes of intended runs: the lifecycle or an operator wanted them.
_WANTED = frozenset({"operator", "failure", "timeout", "snooze", "release", "resume"})


class SecondRun(NamedTuple):
    """A second run: its cause, its description if it was unwanted, its finding if it broke a guarantee."""

    cause: str
    duplicate: Duplicate | None = None
    finding: Violation | None = None


class _Cause(NamedTuple):
    word: str
    fault: Fault | None = None


def reruns(
    story: Story, history: History, faults_by_target: FaultIndex, forgiven: ForgivenSpans
) -> Iterator[SecondRun]:
    """Describe each run after the first."""
    for before, after in pairwise(story.runs):
        cause = _cause_of(story, before, after, faults_by_target, forgiven)
        if cause.word in _WANTED:
            yield SecondRun(cause.word)
            continue
        ended = cause.word.startswith("ended ")
        word = "unexplained" if ended else cause.word
        duplicate = _duplicate(story, before, after, word, cause.fault, history)
        if word != "unexplained":
            yield SecondRun(word, duplicate)
            continue
        why = f"the job had {cause.word}" if ended else "no recorded fact explains it"
        says = f"the job ran again (attempt {after.attempt} after {before.attempt}): {why}"
        yield SecondRun(word, duplicate, Violation("cause", says, story.ref.queue, story.ref.id))


def cause_of(story: Story, before: Run, after: Run, history: History) -> str:
    """The cause of the run `after`, in a word."""
    nothing = ForgivenSpans((), history)
    return _cause_of(story, before, after, fault_index_of(history), nothing).word


def _cause_of(
    story: Story, before: Run, after: Run, faults_by_target: FaultIndex, forgiven: ForgivenSpans
) -> _Cause:
    """The cause of the run `after`.

    One of: failure, timeout, crash (of the process of the run), snooze, resume, release, operator, undone
    (the store may have lost the job's end, or the lease of this run), or the type of the fault (kill, stop,
    store …) that cost the lease.
    """
    if story.operated("retry", before.granted, after.start.mono):
        return _Cause("operator")
    own = effective(before)
    fault = faults_by_target.cause(_lost_lease(story, before, after))
    if was_read_late(story, before, after, forgiven):
        return _Cause("undone", fault)
    if own is not None and own.applied and own.asked.mono <= after.start.mono:
        if own.terminal:
            undone = forgiven(*own.call)
            return _Cause("undone", fault) if undone else _Cause(f"ended as {own.asked.state}")
        word = _of_outcome(own)
        return _Cause(word, fault if word == "crash" else None)
    if fault is not None:
        return _Cause(word_of(fault), fault)
    return _Cause(_of_outcome(own) if own is not None and not own.terminal else "unexplained")


def effective(run: Run) -> Act | None:
    """The settlement of a run that was applied, else one that may have been."""
    for act in run.acts:
        if act.applied:
            return act
    return next((act for act in run.acts if act.perhaps), None)


def was_read_late(story: Story, before: Run, after: Run, forgiven: ForgivenSpans) -> bool:
    """Whether the store may have granted the lease of `after` before that of `before`, and then lost it.

    The worker of `after` read the answer late and does not know that: its run proves nothing about what came
    in between.
    """
    if after.lease is None:
        return False
    sent, received = story.call_of(after.lease)
    return sent < before.granted and forgiven(sent, received)


def _of_outcome(act: Act) -> str:
    if act.asked.state == "scheduled":
        return "snooze"
    if act.asked.state == "suspended":
        return "resume"
    if not act.asked.error:
        return "release"
    if act.asked.error == "Timeout":
        return "timeout"
    return "crash" if act.asked.error in _CRASH_ERRORS else "failure"


def _lost_lease(story: Story, before: Run, after: Run) -> LostLease:
    """The lease of the run `before`, as far as recorded, until the next lease of the job."""
    # a lease that was requested before this one arrived may be older, even if its reply came later
    newer = (lease.mono for lease in story.leases if lease.asked > before.granted)
    end = min([*newer, after.start.mono])
    given = 0 if before.lease is None else before.lease.lease * 1_000_000
    return LostLease(before.pids, before.asked, before.start.mono, end, given, story.ref.queue)


def _duplicate(
    story: Story, before: Run, after: Run, cause: str, fault: Fault | None, history: History
) -> Duplicate:
    lost = _lost_lease(story, before, after)
    return Duplicate(
        story.ref.queue,
        story.ref.id,
        story.offer.task if story.offer else "",
        attempt_before=before.attempt,
        attempt=after.attempt,
        cause=cause,
        fault_at=None if fault is None else history.at(fault),
        fault_target=0 if fault is None else fault.target,
        leased_from=history.wall(lost.begin) or before.start.at,
        leased_until=history.wall(lost.end) or after.start.at,
    )
