"""One job per periodic tick: no instant of an entry was dealt with twice, and none was left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock.verify.ledger.facts import Ticked, Ticking
from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.verdict import Violation

__all__ = ["periods"]

#: To what, by whom and from where: who repeats a step that went wrong is told from the one before.
_Question = tuple[int, int, int]


class _Step(NamedTuple):
    """A tick that was applied, or perhaps: the entry went from one watermark to another."""

    revision: int
    watermark: int
    to: int
    mono: int  # of the answer
    certain: bool


def periods(case: Case) -> Iterator[Violation]:
    for (queue, name), ticks in _by_entry(case.history.ticks).items():
        for says in _broken_chain(_steps(ticks), case):
            yield Violation("periodic", f"of entry {name!r} {says}", queue)
    for story in case.history.stories:
        if story.offer is not None and story.offer.entry:
            yield from _enqueued_once(story, case)


def _by_entry(
    ticks: Iterable[Ticking | Ticked],
) -> dict[tuple[str, str], list[Ticking | Ticked]]:
    found: dict[tuple[str, str], list[Ticking | Ticked]] = defaultdict(list)
    for tick in ticks:
        found[tick.queue, tick.name].append(tick)
    return found


def _steps(ticks: Iterable[Ticking | Ticked]) -> list[_Step]:
    """What was asked and perhaps done, by watermark. Who is told that it was stale may have been first: its
    reply was lost, and it asked again."""
    asked: dict[_Question, Ticking] = {}
    steps: list[_Step] = []
    for tick in ticks:
        question = (tick.pid, tick.revision, tick.watermark)
        if isinstance(tick, Ticking):
            if question in asked:
                steps.append(_step(asked[question], asked[question].mono, certain=False))
            asked[question] = tick
            continue
        asking = asked.pop(question, None)
        if asking is not None and tick.answer in ("applied", "unknown", "stale"):
            steps.append(_step(asking, tick.mono, certain=tick.answer == "applied"))
    steps += [_step(asking, asking.mono, certain=False) for asking in asked.values()]
    return sorted(steps, key=lambda step: (step.watermark, step.mono))


def _step(asking: Ticking, mono: int, *, certain: bool) -> _Step:
    return _Step(asking.revision, asking.watermark, asking.to, mono, certain)


def _broken_chain(steps: list[_Step], case: Case) -> Iterator[str]:
    certain = [step for step in steps if step.certain and not case.forgiven(step.mono)]
    doubtful = {step.watermark for step in steps if not step.certain or case.forgiven(step.mono)}
    for before, after in pairwise(certain):
        if after.watermark < before.to:
            yield (
                f"what lies before {before.to} was dealt with twice, "
                f"from {before.watermark} and {after.watermark}"
            )
        elif after.watermark > before.to and after.revision == before.revision and before.to not in doubtful:
            yield f"what lies between {before.to} and {after.watermark} was left out"


def _enqueued_once(story: Story, case: Case) -> Iterator[Violation]:
    """Lives of one id are stories of their own: each but the first would be a second job of its instant."""
    if any(op.asked.verb in ("delete", "retry") for op in story.operations) or case.is_purged(story):
        return
    if not case.is_last(story) and not any(case.forgiven(v.mono) for v in story.verdicts):
        yield broken(story, "periodic", "its instant brought another job later")
