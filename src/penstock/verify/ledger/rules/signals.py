"""Rules about signals: each is consumed at most once, only what was sent is received, and none is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from penstock.core.job import Ref
from penstock.verify.ledger.facts import SignalSent, StepRecorded
from penstock.verify.ledger.rules.case import Case
from penstock.verify.ledger.verdict import Violation

__all__ = ["signals"]

#: Signals are recorded up to this length, in the ledger and here.
_MOST = 80


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
                data = step.value[:_MOST].decode(errors="replace")
                found[_Content(*step.signal, data)].add((ref, step.name))
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
