"""A part of the graph of a flow as operators see it: a range of its nodes, their jobs, and what follows them.

The reads are bounded, whatever the size of the flow: at most `MOST_NODES` nodes and `MOST_JOBS` jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from penstock.core.flow import FlowNode, NodeState
from penstock.core.job import Job, Ref, State
from penstock.inspector.flow_views import FlowView, flow_view
from penstock.inspector.job_views import JobRow, job_row
from penstock.stores.contract import JobFilter, Store

__all__ = [
    "MOST_NODES",
    "FlowGraphView",
    "GraphNodeView",
    "MemberView",
    "MembersView",
    "members",
    "read_graph",
]

#: The most nodes of one part, further nodes that follow them, and jobs of both that are read.
MOST_NODES, MOST_BEHIND, MOST_JOBS = 500, 40, 100
#: A join, its body and what follows that are shown with the members, however large their numbers are.
_STEPS_BEHIND = 3
#: Steps of the search for members in a state.
_SEARCHES = 4
_WITH_JOBS = (NodeState.ACTIVE, NodeState.DEAD, NodeState.CANCELLED)


class GraphNodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a graph. `id` and `queue`: of its job; None for a join. `job`: the job, if it was read.

    `inputs`: how many values it takes. `next`: the nodes that follow.
    """

    node: int
    state: str
    when: str
    task: str
    queue: str | None
    id: str | None
    inputs: int
    next: tuple[int, ...]
    job: JobRow | None


class FlowGraphView(msgspec.Struct, frozen=True):
    """Some nodes of a flow: those with numbers from `first` on, and `behind`: a few that follow these."""

    flow: FlowView
    first: int
    nodes: list[GraphNodeView]
    behind: list[GraphNodeView]


class MemberView(msgspec.Struct, frozen=True):
    """A job of a flow, and the number of its node."""

    node: int
    job: JobRow


class MembersView(msgspec.Struct, frozen=True):
    """Jobs of a flow in some states. `complete`: whether all of them are among `members`."""

    members: list[MemberView]
    complete: bool


async def read_graph(store: Store, ref: Ref, first: int, limit: int) -> FlowGraphView | None:
    """Read the nodes `first` to `first + limit - 1`, and what follows them; None if there is no flow."""
    (info,) = await store.get_flows([ref])
    if info is None:
        return None
    last = min(info.total, first + min(limit, MOST_NODES))
    wanted = range(first, max(first, last))
    nodes = await _nodes(store, ref, wanted)
    behind = await _behind(store, ref, nodes)
    jobs = await _jobs(store, [*nodes, *behind])
    return FlowGraphView(
        flow_view(info),
        first,
        [_view(node, jobs) for node in nodes],
        [_view(node, jobs) for node in behind],
    )


async def members(store: Store, ref: Ref, states: Sequence[State], limit: int) -> MembersView:
    """Up to `limit` jobs of a flow that are in these states, from a bounded search."""
    found: list[MemberView] = []
    after: str | None = None
    filter = JobFilter(states=tuple(states), flow=ref)
    for _ in range(_SEARCHES):
        page = await store.search_jobs(filter, after=after, limit=limit - len(found))
        found += [_member(job) for job in page.jobs]
        after = page.next
        if after is None or len(found) >= limit:
            break
    return MembersView(found, after is None)


def _member(job: Job) -> MemberView:
    return MemberView(-1 if job.spec.flow is None else job.spec.flow.node, job_row(job))


async def _nodes(store: Store, ref: Ref, indexes: Sequence[int]) -> list[FlowNode]:
    if not indexes:
        return []
    found = await store.flow_nodes(ref, indexes, results=False)
    return [node for node in found if node is not None]


async def _behind(store: Store, ref: Ref, nodes: Sequence[FlowNode]) -> list[FlowNode]:
    """Nodes that follow these; those with the most predecessors among them first."""
    known = {node.index for node in nodes}
    found: list[FlowNode] = []
    latest = nodes
    for _ in range(_STEPS_BEHIND):
        counted = Counter(one for node in latest for one in node.next if one not in known)
        wanted = [one for one, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))]
        latest = await _nodes(store, ref, wanted[: MOST_BEHIND - len(found)])
        found += latest
        known.update(node.index for node in latest)
        if not latest or len(found) >= MOST_BEHIND:
            break
    return sorted(found, key=lambda node: node.index)


async def _jobs(store: Store, nodes: Sequence[FlowNode]) -> dict[Ref, Job]:
    """The jobs of the nodes whose state alone does not say enough: active ones first."""
    open_ = sorted(
        (node for node in nodes if node.job is not None and node.state in _WITH_JOBS),
        key=lambda node: _WITH_JOBS.index(node.state),
    )
    refs = [node.job for node in open_[:MOST_JOBS] if node.job is not None]
    jobs = await store.get(refs) if refs else []
    return {job.ref: job for job in jobs if job is not None}


def _view(node: FlowNode, jobs: dict[Ref, Job]) -> GraphNodeView:
    ref = node.job
    job = None if ref is None else jobs.get(ref)
    return GraphNodeView(
        node=node.index,
        state=node.state.value,
        when=node.when.value,
        task=node.task,
        queue=None if ref is None else ref.queue,
        id=None if ref is None else ref.id,
        inputs=len(node.inputs),
        next=node.next,
        job=None if job is None else job_row(job),
    )
