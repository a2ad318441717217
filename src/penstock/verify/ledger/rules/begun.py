"""Rules about attempts whose functions record themselves: no outcome without a begin, no begin afterwards.

Calls of such tasks lie ready in a child before they begin. Until then the worker may take them back, and the
death of the child costs them nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.verify.ledger.reading.story import Act, Run, Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.verdict import Violation

__all__ = ["begun"]

#: Errors of a call whose child died, or was killed for it.
_KILLED = ("ChildDied", "Timeout")
#: A process may run for this long (ns) after SIGKILL was sent to it.
_DIES_WITHIN = 5_000_000


def begun(case: Case) -> Iterator[Violation]:
    """Check the settlements of attempts against the starts and ends that their functions recorded."""
    charged: dict[int, list[tuple[Story, Act]]] = defaultdict(list)  # by worker: attempts that never began
    for story in case.history.stories:
        if story.offer is None or not story.offer.self_recorded:
            continue
        runs = {run.token: run for run in story.runs}
        for act in story.acts:
            run = runs.get(act.asked.token)
            if run is None and act.asked.error in _KILLED and act.asked.charge and act.asked.token:
                charged[act.asked.pid].append((story, act))
            elif act.asked.state == "completed":
                yield from _completed(story, act, run)
            elif run is not None and not act.asked.charge and not act.asked.error:
                yield from _given_back(story, act, run)
    for worker, found in charged.items():
        for story, act in found[_deaths_at_begin(case, worker) :]:
            says = f"an attempt was charged with {act.asked.error}, and its function had not begun"
            yield broken(story, "attempts", says)


def _completed(story: Story, act: Act, run: Run | None) -> Iterator[Violation]:
    """A finding for a completed attempt whose function had not returned."""
    if run is None:
        yield broken(story, "attempts", "the job was completed, and its function never began")
    elif run.end is None or run.end.outcome != "returned" or run.end.mono > act.asked.mono:
        yield broken(story, "attempts", "the job was completed, and its function had not returned")


def _given_back(story: Story, act: Act, run: Run) -> Iterator[Violation]:
    """A finding for a function that begins or ends after its worker had released the job."""
    last = run.start.mono if run.end is None else run.end.mono
    if act.asked.state == "available" and last > act.asked.mono + _DIES_WITHIN:
        yield broken(story, "fencing", "the function ran although its worker had released the job")


def _deaths_at_begin(case: Case, worker: int) -> int:
    """How many attempts of this worker may have died after their begin and before their function's record.

    One for each child that did not die in a recorded attempt.
    """
    children = {pid for pid, parent in case.history.parents.items() if parent == worker}
    died = {run.start.pid for story in case.history.stories for run in story.runs if run.end is None}
    return len(children - died)
