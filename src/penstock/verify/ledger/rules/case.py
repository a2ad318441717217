"""The input of the rules: the history, the contents of the store, and the excused spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.flow import FlowInfo, FlowNode
from penstock.core.job import Job, Ref
from penstock.stores.contract import StoredStep
from penstock.verify.ledger.reading.history import History
from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.rules.faults import FaultIndex, ForgivenSpans
from penstock.verify.ledger.verdict import Violation

__all__ = ["Case", "StoredFlow", "broken"]


class StoredFlow(NamedTuple):
    """A flow in the store, with its nodes by number."""

    info: FlowInfo
    nodes: dict[int, FlowNode]


@dataclass
class Case:
    """A ledger and its store, as the rules see them."""

    history: History
    jobs: Mapping[Ref, Job]  # the jobs of the ledger that exist in the store
    now: int
    faults_by_target: FaultIndex
    forgiven: ForgivenSpans
    last: Mapping[Ref, Story]  # the latest story of each id
    slack: int = 0
    #: Whether a process had a wrong clock, on a store that takes the time from its callers.
    clock_skewed: bool = False
    flows: Mapping[Ref, StoredFlow] = field(default_factory=dict[Ref, StoredFlow])
    #: What jobs remember, in the order in which it was stored.
    steps: Mapping[Ref, list[StoredStep]] = field(default_factory=dict[Ref, list[StoredStep]])
    #: The node of each job of a flow that is in the store.
    nodes: Mapping[Ref, FlowNode] = field(default_factory=dict[Ref, FlowNode])

    def job(self, story: Story) -> Job | None:
        """The job in the store; None for all but the latest story of an id."""
        return self.jobs.get(story.ref) if self.is_last(story) else None

    def is_last(self, story: Story) -> bool:
        return self.last[story.ref] is story

    def is_purged(self, story: Story) -> bool:
        return story.ref.queue in self.history.purged


def broken(story: Story, promise: str, says: str) -> Violation:
    """A finding about this job."""
    return Violation(promise, says, story.ref.queue, story.ref.id)
