"""Rules about durable steps: a stored step stays, its function runs no more, and what failed is undone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from penstock.app.undoing import can_be_undone
from penstock.core.job import State
from penstock.stores.contract import StoredStep
from penstock.verify.ledger.facts import StepRan, StepRecorded
from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.verdict import Violation

__all__ = ["steps"]

#: Steps by which a job marks that it has undo functions, and that they are called (workflows/flow_memory.py).
_UNDO, _FAILED = "undo!", "failed!"


def steps(case: Case) -> Iterator[Violation]:
    """Check the durable steps of each job."""
    for story in case.history.stories:
        if story.steps is None:
            continue
        stored = _certainly_stored(story, case)
        yield from _stored_once(story, stored, case)
        yield from _ran_once(story, stored)
        if case.is_last(story) and case.job(story) is not None:
            kept = case.steps.get(story.ref, [])
            yield from _kept(story, stored, kept, case)
            yield from _undone(story, kept, case)


def _certainly_stored(story: Story, case: Case) -> dict[str, StepRecorded]:
    """The first certain answer for each step that says it was stored by this call."""
    found: dict[str, StepRecorded] = {}
    for fact in _records(story):
        if fact.status == "stored" and fact.value is not None and not case.forgiven(fact.sent, fact.mono):
            found.setdefault(fact.step, fact)
    return found


def _records(story: Story) -> Iterator[StepRecorded]:
    return (fact for fact in story.steps or () if isinstance(fact, StepRecorded))


def _stored_once(story: Story, stored: Mapping[str, StepRecorded], case: Case) -> Iterator[Violation]:
    """Check that the first value of a step stays."""
    for fact in _records(story):
        first = stored.get(fact.step)
        if first is None or fact is first or fact.value is None or case.forgiven(fact.sent, fact.mono):
            continue
        if fact.status == "stored":
            yield broken(story, "steps", f"the step {fact.step!r} was stored twice")
        elif fact.status == "exists" and fact.sent > first.mono and fact.value != first.value:
            says = f"the step {fact.step!r} was stored as {first.value}, and then had the value {fact.value}"
            yield broken(story, "steps", says)


def _ran_once(story: Story, stored: Mapping[str, StepRecorded]) -> Iterator[Violation]:
    """Check that no function runs again after its step was stored, or twice in an attempt that it did not
    fail.

    An attempt that has lost its lease may run a function that its successor has stored already.
    """
    granted = {lease.token: lease.asked for lease in story.leases}
    over: set[tuple[str, str]] = set()
    for fact in story.steps or ():
        if not isinstance(fact, StepRan):
            continue
        if fact.over:
            over.add((fact.token, fact.step))
            continue
        first = stored.get(fact.step)
        if (fact.token, fact.step) in over:
            yield broken(story, "steps", f"the function of {fact.step!r} ran twice in one attempt")
        elif first is not None and fact.mono > first.mono and granted.get(fact.token, 0) > first.mono:
            yield broken(story, "steps", f"the function of {fact.step!r} ran again after its step was stored")


def _kept(
    story: Story, stored: Mapping[str, StepRecorded], kept: Sequence[StoredStep], case: Case
) -> Iterator[Violation]:
    """Check that the store still has each step."""
    names = {step.name for step in kept}
    lost = [name for name in stored if name not in names and _is_step(name)]
    if lost:
        yield broken(story, "steps", f"the step {lost[0]!r} was stored, and is not in the store")


def _is_step(name: str) -> bool:
    """Whether this is a step of the task's code, not of the library."""
    return "!" not in name


def _undone(story: Story, kept: Sequence[StoredStep], case: Case) -> Iterator[Violation]:
    """Check that a job with undo functions that has died has undone each step, the last one first, and that
    one that has completed has undone none.

    In the load of a run, every step of such a job has an undo function.
    """
    job, names = case.job(story), [step.name for step in kept if step.value is not None]
    begun = any(name.startswith(_UNDO) for name in names)
    if job is None or not (begun or can_be_undone(job.checkpoint)):
        return
    undone = [name.removeprefix(_UNDO) for name in names if name.startswith(_UNDO) and name != _UNDO]
    if job.state is State.COMPLETED and (undone or _FAILED in names):
        yield broken(story, "steps", f"the job has completed, and {', '.join(undone) or 'it'} was undone")
    if job.state is not State.DEAD or any(story.accepted("discard")):  # a discarded job runs no undo
        return
    done = [name for name in names if _is_step(name)]
    # an attempt that outlives a loss goes on with what it remembers: it has called what the store has lost
    lost = [fact.step for fact in _records(story) if case.forgiven(fact.sent, fact.mono)]
    unsaid = set(done) - set(undone) - {name.removeprefix(_UNDO) for name in lost if name.startswith(_UNDO)}
    if unsaid if lost else undone != done[::-1]:
        says = f"the job has died with the steps {', '.join(done)}, and undone were: {', '.join(undone)}"
        yield broken(story, "steps", says)
    ran: dict[str, int] = defaultdict(int)
    for fact in story.steps or ():
        if isinstance(fact, StepRan) and fact.over:
            ran[fact.step] += 1
    for name in undone:
        if not ran[f"{_UNDO}{name}"]:
            yield broken(story, "steps", f"the undo of {name!r} is stored, and its function did not run")
