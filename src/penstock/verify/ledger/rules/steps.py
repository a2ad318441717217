"""Rules about durable steps, their effects, and signals.

- A stored step stays, its function runs no more, and what failed is undone.
- What a step does outside happens once, and once more for each run that was lost in it. The functions of the
  load write each effect to a file (`verify/effects.py`), which is compared with the store and the ledger.
- A signal is consumed at most once, only what was sent is received, and none is lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.app.deciding import STEP_FAILED, can_be_undone
from penstock.core.job import Ref, State
from penstock.stores.contract import STEP_UNDO, StoredStep
from penstock.verify.effects import StepEffect
from penstock.verify.ledger.facts import SignalSent, StepAnswered, StepRan, StepRecorded
from penstock.verify.ledger.rules.attempts import end_of_run
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.store_calls import value_text
from penstock.verify.ledger.story import Story, label_of
from penstock.verify.ledger.verdict import Violation

# ── steps ────────────────────────────────────────────────────────────────────────────────────────


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
            yield from _kept(story, stored, kept)
            yield from _undone(story, kept, case)


def _certainly_stored(story: Story, case: Case) -> dict[str, StepRecorded]:
    """For each step the first certain answer that this call has stored it, since its last change."""
    found: dict[str, StepRecorded] = {}
    for fact in _records(story):
        if fact.status != "stored" or fact.value is None or case.forgiven(fact.sent, fact.mono):
            continue
        before = found.get(fact.step)
        if before is None or story.step_changed(fact.step, before.sent, fact.mono):
            found[fact.step] = fact
    return found


def _records(story: Story) -> Iterator[StepRecorded]:
    return (fact for fact in story.steps or () if isinstance(fact, StepRecorded))


def _stored_once(story: Story, stored: Mapping[str, StepRecorded], case: Case) -> Iterator[Violation]:
    """Check that the value of a step stays until the step is forgotten, or edited by an operator."""
    for fact in _records(story):
        first = stored.get(fact.step)
        if first is None or fact is first or fact.value is None or case.forgiven(fact.sent, fact.mono):
            continue
        if story.step_changed(fact.step, min(first.sent, fact.sent), max(first.mono, fact.mono)):
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
    ends = {label_of(name).text: fact for name, fact in stored.items() if _is_end(name)}
    over: set[tuple[str, str]] = set()
    for fact in story.steps or ():
        if not isinstance(fact, StepRan):
            continue
        if fact.over:
            if not fact.error:
                over.add((fact.token, fact.step))
            continue
        first = ends.get(fact.step)
        if (fact.token, fact.step) in over:
            yield broken(story, "steps", f"the function of {fact.step!r} ran twice in one attempt")
        elif first is None or story.step_changed(first.step, first.sent, fact.mono):
            continue
        elif fact.mono > first.mono and granted.get(fact.token, 0) > first.mono:
            yield broken(story, "steps", f"the function of {fact.step!r} ran again after its step was stored")


def _is_end(name: str) -> bool:
    """Whether the function runs no more once this is stored: it has an answer, failed, or was cut off."""
    label = label_of(name)
    return label.kind == "step" and label.suffix in ("", "failed", "cut", "undone")


def _kept(
    story: Story, stored: Mapping[str, StepRecorded], kept: Sequence[StoredStep]
) -> Iterator[Violation]:
    """Check that the store still has each step."""
    names = {step.name for step in kept}
    lost = [
        name
        for name, fact in stored.items()
        if name not in names and label_of(name).is_step and not story.step_changed(name, fact.sent)
    ]
    if lost:
        yield broken(story, "steps", f"the step {lost[0]!r} was stored, and is not in the store")


def _undone(story: Story, kept: Sequence[StoredStep], case: Case) -> Iterator[Violation]:
    """Check that a job with undo functions that has failed has undone each step, the last one first, and that
    one that has completed has undone none.

    In the load of a run, every step of such a job has an undo function.
    """
    job, names = case.job(story), [step.name for step in kept if step.value is not None]
    labels = [label_of(name) for name in names]
    undone = [one.name for one in labels if one.suffix == "undone"]
    if job is None or not (undone or STEP_UNDO in names or can_be_undone(job.checkpoint)):
        return
    by_hand = any(story.accepted("complete"))
    if job.state is State.COMPLETED and (undone or STEP_FAILED in names) and not by_hand:
        yield broken(story, "steps", f"the job has completed, and {', '.join(undone) or 'it'} was undone")
    # a discarded job runs no undo; a cancelled one does if it has the step that says so
    failed = job.state is State.DEAD or (job.state is State.CANCELLED and STEP_UNDO in names)
    if not failed or any(story.accepted("discard")):
        return
    done = [one.name for one in labels if one.is_step]
    # an attempt that outlives a loss goes on with what it remembers: it has called what the store has lost
    lost = [label_of(fact.step) for fact in _records(story) if case.forgiven(fact.sent, fact.mono)]
    not_undone = set(done) - set(undone) - {one.name for one in lost if one.suffix == "undone"}
    if not_undone if lost else undone != done[::-1]:
        what = "died" if job.state is State.DEAD else "been cancelled"
        says = f"the job has {what} with the steps {', '.join(done)}, and undone were: {', '.join(undone)}"
        yield broken(story, "steps", says)
    ran: dict[str, int] = defaultdict(int)
    for fact in story.steps or ():
        if isinstance(fact, StepRan) and fact.over and not fact.error:
            ran[fact.step] += 1
    for name in undone:
        if not ran[f"undo!{name}"]:
            yield broken(story, "steps", f"the undo of {name!r} is stored, and its function did not run")


# ── effects ──────────────────────────────────────────────────────────────────────────────────────


_UNDO = "undo!"
#: Records that store how a step has ended: its answer, its failure, that it was cut off, its undo.
_ENDS = ("", "failed", "cut", "undone")
#: Ends of a run that wait for the functions of its steps.
_COMPLETE = ("resume", "snooze")
#: Ends of a run by its worker. A function that has returned before was stored before.
_OF_WORKERS = ("failure", "timeout", "release", "ended as dead", "ended as cancelled")


def effects(case: Case) -> Iterator[Violation]:
    """Check the effects of each job."""
    for ref, by_step in case.history.effects.items():
        story = case.last.get(ref)
        if story is None:
            yield Violation("effects", f"effects of an unknown job: {', '.join(by_step)}", ref.queue, ref.id)
            continue
        for step, found in by_step.items():
            yield from _once(story, step, found, case)
            yield from _own_arguments(story, step, found, by_step)
        yield from _own_answers(story, by_step)
    for story in case.history.stories:
        if case.is_last(story) and any(isinstance(fact, StepRan) for fact in story.steps or ()):
            yield from _none_missing(story, case.history.effects.get(story.ref, {}), case)


# ── once ─────────────────────────────────────────────────────────────────────────────────────────


def _once(story: Story, step: str, found: Sequence[StepEffect], case: Case) -> Iterator[Violation]:
    """Check that a step has one effect, and one more for each run that was lost while the step ran."""
    by_token = Counter(effect.token for effect in found)
    lost = [token for token in by_token if _was_lost_in(story, step, token, case)]
    if len(found) <= 1 + len(lost) and len(by_token) == len(found):
        return
    runs = ", ".join(f"{n} in the run {token}" for token, n in by_token.items())
    says = f"the step {step!r} had {len(found)} effects ({runs}), and {len(lost)} run(s) were lost in it"
    yield broken(story, "effects", says)


def _was_lost_in(story: Story, step: str, token: str, case: Case) -> bool:
    """Whether the run with this token may have ended after the effect of a step and before it was stored."""
    answers = [fact for fact in _end_records(story, step) if fact.token == token]
    if any(fact.status in ("lost", "unknown") or case.forgiven(fact.sent, fact.mono) for fact in answers):
        return True
    if any(not _was_forgotten(story, fact) for fact in answers):
        return False
    for before, after in pairwise(story.runs):
        if before.token == token:
            end = end_of_run(story, before, after, case)
            if end in _COMPLETE:
                return False
            return end not in _OF_WORKERS or bool(answers) or not _has_returned(story, step, token)
    return False


def _end_records(story: Story, step: str) -> Iterator[StepRecorded]:
    """The answers to calls that store how this step has ended."""
    for fact in story.steps or ():
        if isinstance(fact, StepRecorded):
            label = label_of(fact.step)
            if label.kind == "step" and label.suffix in _ENDS and label.text == step:
                yield fact


def _was_forgotten(story: Story, record: StepRecorded) -> bool:
    """Whether the failure of a step was forgotten, because the attempt failed with it: it runs again."""
    return label_of(record.step).suffix in ("failed", "cut") and story.step_changed(record.step, record.sent)


def _has_returned(story: Story, step: str, token: str) -> bool:
    """Whether the function of the step ran to its end in this run: its answer had to be stored."""
    return any(
        isinstance(fact, StepRan)
        and fact.over
        and not fact.error
        and (fact.token, fact.step) == (token, step)
        for fact in story.steps or ()
    )


# ── of this job ──────────────────────────────────────────────────────────────────────────────────


def _own_arguments(
    story: Story, step: str, found: Sequence[StepEffect], by_step: Mapping[str, Sequence[StepEffect]]
) -> Iterator[Violation]:
    """Check that each step got arguments of its job, and each undo an answer of its step.

    In the load of a run, the arguments of each step have the id of the job, and its answer has a mark.
    """
    known = [story.ref.id]
    if step.startswith(_UNDO):
        known = [effect.mark for effect in by_step.get(step.removeprefix(_UNDO), ())]
    for effect in found:
        if not any(f'"{one}"' in effect.given for one in known):
            yield broken(story, "effects", f"the step {step!r} was called for another job: {effect.given}")


def _own_answers(story: Story, by_step: Mapping[str, Sequence[StepEffect]]) -> Iterator[Violation]:
    """Check that the code got answers of its own steps only."""
    for fact in story.steps or ():
        if not isinstance(fact, StepAnswered):
            continue
        if fact.mark not in {effect.mark for effect in by_step.get(fact.step, ())}:
            says = f"the code got the answer {fact.mark} for {fact.step!r}, which is not from this step"
            yield broken(story, "effects", says)


# ── none missing ─────────────────────────────────────────────────────────────────────────────────


def _none_missing(
    story: Story, by_step: Mapping[str, Sequence[StepEffect]], case: Case
) -> Iterator[Violation]:
    """Check that what the store has as done was done: each step, and each undo."""
    job = case.job(story)
    if job is None:
        return
    for one in case.steps.get(Ref(job.queue, job.id), ()):
        label = label_of(one.name)
        done = one.value is not None and label.kind == "step" and label.suffix in ("", "undone")
        if done and not by_step.get(label.text):
            yield broken(story, "effects", f"{label.text!r} is stored as done, and had no effect")
    if any(story.accepted("complete")):
        return  # an operator has completed what had failed, and was undone
    if job.state is State.COMPLETED and (undone := [step for step in by_step if step.startswith(_UNDO)]):
        yield broken(story, "effects", f"the job has completed, and had the effects {', '.join(undone)}")


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


class _Content(NamedTuple):
    """What tells a signal from another."""

    name: str
    key: str
    data: str


def signals(case: Case) -> Iterator[Violation]:
    """Check that a signal was received at most as often as it was sent and may have been accepted, and that
    no job has waited in vain for one."""
    received = _received(case)
    sends = _sends(case)
    yield from _lost(sends, case)
    for content, steps in received.items():
        calls = sends.get(content, [])
        if any(case.forgiven(*call) for call in calls):
            continue  # a lost write may have been repeated
        if len(steps) > len(calls):
            jobs = ", ".join(sorted(ref.id for ref, _ in steps))
            says = f"a signal for {content.key!r} was sent {len(calls)} time(s), and received by: {jobs}"
            yield Violation("signals", says, next(iter(steps))[0].queue)


def _lost(sends: dict[_Content, list[tuple[int, int]]], case: Case) -> Iterator[Violation]:
    """Check the waits of jobs that were cancelled because nothing else was left to do."""
    for ref, kept in case.steps.items():
        story = case.last.get(ref)
        if story is None or not any(op.asked.verb == "cancel" and op.accepted for op in story.operations):
            continue
        for wait in (step for step in kept if step.value is None and step.signal is not None):
            of_key = [call for one, calls in sends.items() if one[:2] == wait.signal for call in calls]
            if of_key and not any(case.forgiven(*call) for call in of_key):
                says = f"the job waited in vain for {wait.signal}, which was sent {len(of_key)} time(s)"
                yield Violation("signals", says, ref.queue, ref.id)


def _received(case: Case) -> dict[_Content, set[tuple[Ref, str]]]:
    """The steps that have received each signal; those whose answer may be lost only if they are stored."""
    found: dict[_Content, set[tuple[Ref, str]]] = defaultdict(set)
    for story in case.history.stories:
        for fact in story.steps or ():
            if not isinstance(fact, StepRecorded) or case.forgiven(fact.sent, fact.mono):
                continue
            if fact.signal is not None and fact.value is not None:
                found[_Content(*fact.signal, fact.value)].add((story.ref, fact.step))
    for ref, kept in case.steps.items():
        for step in kept:
            if step.signal is not None and step.value is not None:
                found[_Content(*step.signal, value_text(step.value))].add((ref, step.name))
    return found


def _sends(case: Case) -> dict[_Content, list[tuple[int, int]]]:
    """For each signal the calls (sent, answered, in mono) that may have been accepted."""
    asked: dict[tuple[int, _Content], SignalSent] = {}
    found: dict[_Content, list[tuple[int, int]]] = defaultdict(list)
    for fact in case.history.signals:
        content = _Content(fact.name, fact.key, fact.data)
        if not fact.answer:
            before = asked.get((fact.pid, content))
            if before is not None:  # two threads of a process
                found[content].append((before.mono, fact.mono))
            asked[fact.pid, content] = fact
            continue
        call = asked.pop((fact.pid, content), fact)
        if fact.answer in ("exists", "full"):
            continue
        else:
            found[content].append((call.mono, fact.mono))
    for (_, content), fact in asked.items():
        found[content].append((fact.mono, fact.mono))
    return found
