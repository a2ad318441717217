"""What the rules judge by: the history, the store as it was found, and what is excused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.job import Job, Ref
from penstock.verify.ledger.reading.history import History
from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.rules.faults import Forgiven, Troubles
from penstock.verify.ledger.verdict import Violation

__all__ = ["Case", "broken"]


@dataclass
class Case:
    """One ledger and its store."""

    history: History
    jobs: Mapping[Ref, Job]  # of those that the ledger knows, the ones that are there
    now: int
    troubles: Troubles
    forgiven: Forgiven
    last: Mapping[Ref, Story]  # the last life of each id
    slack: int = 0
    #: Whether somebody's clock was wrong on a store that goes by the clock of whoever asks it.
    misled: bool = False

    def job(self, story: Story) -> Job | None:
        """The job as the store has it; only of the last life of its id."""
        return self.jobs.get(story.ref) if self.is_last(story) else None

    def is_last(self, story: Story) -> bool:
        return self.last[story.ref] is story

    def is_purged(self, story: Story) -> bool:
        return story.ref.queue in self.history.purged


def broken(story: Story, promise: str, says: str) -> Violation:
    """A promise that was not kept to this job."""
    return Violation(promise, says, story.ref.queue, story.ref.id)
