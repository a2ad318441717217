"""The retries that follow from a retry: flows run other jobs again, which no process has recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from penstock.verify.ledger.facts import OperationAsked
from penstock.verify.ledger.reading.flow_story import FlowStory
from penstock.verify.ledger.reading.story import OperatorAction, Story

__all__ = ["add_flow_retries"]


def add_flow_retries(stories: Sequence[Story], flows: Iterable[FlowStory]) -> None:
    """Add to each job the retries that its flow, or the job that waits for it, may have made.

    The retry of a job, or of a flow, also runs the jobs again that its flow had cancelled, and a job that
    runs again does so with the jobs of its gathers. When, and whether, is unknown.
    """
    members: dict[str, list[Story]] = defaultdict(list)
    waited_for: dict[str, list[Story]] = defaultdict(list)
    for story in stories:
        if story.offer is not None and story.offer.flow:
            members[story.offer.flow].append(story)
            waited_for[story.ref.id.rpartition(".")[0]].append(story)
    added: list[tuple[Story, OperationAsked]] = []
    for flow in flows:
        for change in flow.changes:
            if change.change == "retry" and change.answer is None:
                asked = OperationAsked(change.at, change.mono, change.pid, "", "", "retry")
                added += [(one, asked) for one in _with_gathers(members[flow.ref.id], waited_for)]
    for story in stories:
        for op in story.accepted("retry"):
            family = members[story.offer.flow] if story.offer is not None and story.offer.flow else [story]
            added += [(one, op.asked) for one in _with_gathers(family, waited_for) if one is not story]
    for story, asked in added:
        own = replace(asked, queue=story.ref.queue, id=story.ref.id)
        story.operations.append(OperatorAction(own))
        story.operations.sort(key=lambda op: op.asked.mono)


def _with_gathers(jobs: Sequence[Story], waited_for: dict[str, list[Story]]) -> Iterator[Story]:
    """These jobs, and those of their gathers."""
    for job in jobs:
        yield job
        yield from waited_for.get(job.ref.id, ())
