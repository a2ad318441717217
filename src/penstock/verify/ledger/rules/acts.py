"""Rules about acts of an operator: what the store says that it did is done, and done once."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.job import QUEUED, TERMINAL, State
from penstock.verify.ledger.reading.story import OperatorAction, Story
from penstock.verify.ledger.recording.change_calls import value_of
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.verdict import Violation

__all__ = ["acts"]

#: The operations that remove a job from its queue, and the states of jobs that they remove. A collecting job
#: may be in a batch, and then it stays.
_REMOVES = {"delete": "deleted", "move": "moved"}
_REMOVED = {state.value for state in (*QUEUED, *TERMINAL, State.SUSPENDED)} - {State.COLLECTING.value}


def acts(case: Case) -> Iterator[Violation]:
    """Check that a deleted or moved job is gone, and that an edited job has its new arguments.

    What becomes of jobs that were retried, rescheduled, cancelled or discarded is checked by the rules about
    ends, attempts and times; of copies, and of jobs in their new queue, as of any other job.
    """
    for story in case.history.stories:
        for op in story.operations:
            certain = op.answer in _REMOVED and not case.forgiven(*op.call)
            if op.asked.verb in _REMOVES and certain and story.offers < 2:
                yield from _came_back(story, op, case)
        yield from _edited(story, case)


def _came_back(story: Story, op: OperatorAction, case: Case) -> Iterator[Violation]:
    did = _REMOVES[op.asked.verb]
    if case.job(story) is not None:
        yield broken(story, "acts", f"the job was {did} (it was {op.answer}), and is in the store")
    if any(lease.asked > op.answered and not case.forgiven(*story.call_of(lease)) for lease in story.leases):
        yield broken(story, "acts", f"the job was leased after it was {did} (it was {op.answer})")


def _edited(story: Story, case: Case) -> Iterator[Violation]:
    """Check that a job has the arguments of its last edit, unless another one may have been applied."""
    edits, job = list(story.accepted("edit")), case.job(story)
    if job is None or not edits or any(case.forgiven(*op.call) or not op.certain for op in edits):
        return
    if value_of(job.spec.payload) != edits[-1].asked.value:
        yield broken(story, "acts", f"the job was edited, and its arguments are not {edits[-1].asked.value}")
