"""Why a job ran again: each second run has a cause, and one after a crash names the harm and the lease."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock.verify.ledger.facts import Fault
from penstock.verify.ledger.reading.history import History
from penstock.verify.ledger.reading.story import Act, Run, Story
from penstock.verify.ledger.rules.faults import Forgiven, Loan, Troubles, troubles_of, word_of
from penstock.verify.ledger.verdict import Duplicate, Violation

__all__ = ["Again", "cause_of", "effective", "reruns"]

#: Errors that say that a process died, not that the function failed.
_CRASHES = {"WorkerLost", "LeaseLost", "ChildDied"}
#: A run after one of these was wanted: by the lifecycle, or by somebody.
_WANTED = frozenset({"operator", "failure", "timeout", "snooze", "release"})


class Again(NamedTuple):
    """A second run: its cause, what it was if nobody wanted it, and what is wrong with it."""

    cause: str
    duplicate: Duplicate | None = None
    finding: Violation | None = None


class _Cause(NamedTuple):
    word: str
    fault: Fault | None = None


def reruns(story: Story, history: History, troubles: Troubles, forgiven: Forgiven) -> Iterator[Again]:
    """What to say of each run after the first."""
    for before, after in pairwise(story.runs):
        cause = _cause_of(story, before, after, troubles, forgiven)
        if cause.word in _WANTED:
            yield Again(cause.word)
            continue
        ended = cause.word.startswith("ended ")
        word = "unexplained" if ended else cause.word
        duplicate = _duplicate(story, before, after, word, cause.fault, history)
        if word != "unexplained":
            yield Again(word, duplicate)
            continue
        why = f"it had {cause.word}" if ended else "nothing that is written down explains it"
        says = f"it ran again (attempt {after.attempt} after {before.attempt}): {why}"
        yield Again(word, duplicate, Violation("cause", says, story.ref.queue, story.ref.id))


def cause_of(story: Story, before: Run, after: Run, history: History) -> str:
    """The cause of the second of these runs, in a word."""
    nothing = Forgiven((), history)
    return _cause_of(story, before, after, troubles_of(history), nothing).word


def _cause_of(story: Story, before: Run, after: Run, troubles: Troubles, forgiven: Forgiven) -> _Cause:
    """Failure, timeout, crash (of its own process), snooze, release, operator, undone (the store may forget
    the end that it had), or the kind of the fault (kill, stop, store …) that cost its lease."""
    if story.operated("retry", before.granted, after.start.mono):
        return _Cause("operator")
    own = effective(before)
    fault = troubles.cause(_loan(story, before, after))
    if own is not None and own.applied and own.asked.mono <= after.start.mono:
        if own.terminal:
            undone = forgiven(own.answered)
            return _Cause("undone", fault) if undone else _Cause(f"ended as {own.asked.state}")
        word = _of_outcome(own)
        return _Cause(word, fault if word == "crash" else None)
    if fault is not None:
        return _Cause(word_of(fault), fault)
    return _Cause(_of_outcome(own) if own is not None and not own.terminal else "unexplained")


def effective(run: Run) -> Act | None:
    """What its holder settled and the store took, or perhaps took."""
    for act in run.acts:
        if act.applied:
            return act
    return next((act for act in run.acts if act.perhaps), None)


def _of_outcome(act: Act) -> str:
    if act.asked.state == "scheduled":
        return "snooze"
    if not act.asked.error:
        return "release"
    if act.asked.error == "Timeout":
        return "timeout"
    return "crash" if act.asked.error in _CRASHES else "failure"


def _loan(story: Story, before: Run, after: Run) -> Loan:
    """The lease of the first of two runs, as far as anybody saw: until somebody else got one."""
    # one that was asked for before this one had come may be older, though the news of it came later
    newer = (lease.mono for lease in story.leases if lease.asked > before.granted)
    end = min([*newer, after.start.mono])
    given = 0 if before.lease is None else before.lease.lease * 1_000_000
    return Loan(before.pids, before.asked, before.start.mono, end, given, story.ref.queue)


def _duplicate(
    story: Story, before: Run, after: Run, cause: str, fault: Fault | None, history: History
) -> Duplicate:
    loan = _loan(story, before, after)
    return Duplicate(
        story.ref.queue,
        story.ref.id,
        story.offer.task if story.offer else "",
        attempt_before=before.attempt,
        attempt=after.attempt,
        cause=cause,
        fault_at=None if fault is None else history.at(fault),
        fault_target=0 if fault is None else fault.target,
        leased_from=history.wall(loan.begin) or before.start.at,
        leased_until=history.wall(loan.end) or after.start.at,
    )
