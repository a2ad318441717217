"""The jobs that a job has to do with: before and after it in its flow, its batch, the members of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.job import Ref
from penstock.inspector import JobView, NodeView
from penstock.web.dashboard.view import View

__all__ = ["RelatedJob", "related_jobs"]

#: Jobs that are named of each kind, and nodes that are read of a flow.
_MOST, _NODES = 8, 200


@dataclass(frozen=True)
class RelatedJob:
    """A job, and what it is to the job of the page."""

    relation: str
    queue: str
    id: str
    task: str
    state: str = ""


async def related_jobs(view: View, job: JobView) -> list[RelatedJob]:
    """The nearest jobs of the flow, the batch and the partition, also those that the visitor may not read:
    the answer is shared with other visitors."""
    found = [RelatedJob("member", job.queue, id, "") for id in job.members[:_MOST]]
    if job.batch is not None:
        found.append(RelatedJob("in the batch", job.queue, job.batch, ""))
    if job.flow is not None:
        nodes = await view.inspector.flows.flow_nodes(f"{job.flow['queue']}/{job.flow['id']}", limit=_NODES)
        found += _neighbours(nodes, Ref(job.queue, job.id))
    if job.partition is not None:
        for text in job.partition.admitted[:_MOST]:
            id, _, state = text.rpartition(" ")
            if id != job.id:
                found.append(RelatedJob("holds its partition", job.queue, id, job.task, state))
    return found


def _neighbours(nodes: list[NodeView], of: Ref) -> list[RelatedJob]:
    """The nodes before and after a job. A join between them has no job, and is passed over."""
    me = next((node for node in nodes if (node.queue, node.job) == (of.queue, of.id)), None)
    if me is None:
        return []
    before = [node for node in nodes if me.node in node.next]
    after = [node for node in nodes if node.node in me.next]
    pairs = [("before it in the flow", one) for one in before[:_MOST]]
    pairs += [("after it in the flow", one) for one in after[:_MOST]]
    return [
        RelatedJob(relation, node.queue, node.job, node.task, node.state)
        for relation, node in pairs
        if node.queue is not None and node.job is not None
    ]
