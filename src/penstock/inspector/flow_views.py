"""Flows as operators see them. Instants are ISO 8601 in UTC to the millisecond."""

from __future__ import annotations

import msgspec

from penstock.core.flow import FlowInfo, FlowNode
from penstock.core.formats import instant, iso

__all__ = ["FlowPageView", "FlowView", "NodeView", "flow_view", "node_view"]


class FlowView(msgspec.Struct, frozen=True):
    """A flow; `counts`: its nodes by state; `wakes`: the job of its queue that waits for it, if one does."""

    id: str
    queue: str
    name: str
    state: str
    policy: str
    created_at: str
    ended_at: str | None
    nodes: int
    counts: dict[str, int]
    wakes: str | None = None


class NodeView(msgspec.Struct, frozen=True):
    """A node of a flow. `job` is None for a join; `next`: the nodes that follow."""

    node: int
    state: str
    when: str
    task: str
    queue: str | None
    job: str | None
    next: list[int]


class FlowPageView(msgspec.Struct, frozen=True):
    """A page of flows; `next` is the `after` of the next page."""

    flows: list[FlowView]
    next: str | None


def flow_view(info: FlowInfo) -> FlowView:
    spec = info.spec
    return FlowView(
        spec.id,
        spec.queue,
        spec.name,
        info.state.value,
        spec.policy.value,
        instant(info.created_at),
        iso(info.ended_at),
        info.total,
        {state.value: n for state, n in info.counts.items()},
        spec.wakes or None,
    )


def node_view(node: FlowNode) -> NodeView:
    job = node.job
    where, id = (None, None) if job is None else (job.queue, job.id)
    return NodeView(node.index, node.state.value, node.when.value, node.task, where, id, list(node.next))
