"""Rules about acts of an operator: what the store says that it did is done, and done once."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.job import QUEUED, TERMINAL, State
from penstock.verify.ledger.reading.story import OperatorAction, Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.verdict import Violation

__all__ = ["acts"]

#: The states of jobs that a delete removes. A collecting job may be in a batch, and then it stays.
_REMOVED = {state.value for state in (*QUEUED, *TERMINAL, State.SUSPENDED)} - {State.COLLECTING.value}


def acts(case: Case) -> Iterator[Violation]:
    """Check that a deleted job is gone. What becomes of jobs that were retried, rescheduled or cancelled is
    checked by the rules about ends, attempts and times; of copies, as of any other job."""
    for story in case.history.stories:
        for op in story.accepted("delete"):
            if op.answer in _REMOVED and not case.forgiven(*op.call) and story.offers < 2:
                yield from _came_back(story, op, case)


def _came_back(story: Story, op: OperatorAction, case: Case) -> Iterator[Violation]:
    if case.job(story) is not None:
        yield broken(story, "acts", f"the job was deleted (it was {op.answer}), and is in the store")
    if any(lease.asked > op.answered and not case.forgiven(*story.call_of(lease)) for lease in story.leases):
        yield broken(story, "acts", f"the job was leased after it was deleted (it was {op.answer})")
