"""Sample flows for the store tests, and short forms of the verbs of flows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from penstock.core.flow import FlowInfo, FlowNode, FlowPolicy, NewFlow, NewNode, NodeState, When
from penstock.core.job import Ref
from penstock.core.lifecycle import Transition
from penstock.core.relations import FlowMember
from penstock.stores.contract import FLOW_STEP, Share, Store
from tests.store.facts import COMPLETED, LEASE, end, new, next_jobs, token

_numbers = itertools.count(1)

#: What a node of a test is: the number of its node's predecessors, and whether it has a job.
Edges = Sequence[tuple[int, int]]


def flow_of(**facts: Any) -> NewFlow:
    """A flow with an id of its own."""
    n = next(_numbers)
    facts.setdefault("id", f"flow-{n}")
    facts.setdefault("key", f"key-{n}")
    return NewFlow(**facts)


def nodes_of(
    flow: NewFlow,
    count: int,
    edges: Edges = (),
    *,
    joins: Sequence[int] = (),
    when: dict[int, When] | None = None,
    queues: dict[int, str] | None = None,
    first: int = 0,
    **facts: Any,
) -> list[NewNode]:
    """The nodes of a flow: `joins` have no job, the others one in the queue of the flow or in `queues`."""
    nodes: list[NewNode] = []
    for index in range(first, count):
        after = tuple(a for a, b in edges if b == index)
        job = None
        if index not in joins:
            queue = (queues or {}).get(index, flow.queue)
            member = FlowMember(flow.queue, flow.id, index)
            job = new(f"{flow.id}.{index}", queue=queue, flow=member, **facts)
        nodes.append(
            NewNode(
                index,
                job,
                tuple(b for a, b in edges if a == index),
                len(after),
                (when or {}).get(index, When.SUCCESS),
                after if job is None else (),
            )
        )
    return nodes


async def put(store: Store, flow: NewFlow, nodes: Sequence[NewNode]) -> FlowInfo:
    """Store a flow, in steps if it is large, and start it."""
    info = None
    for at in range(0, max(1, len(nodes)), FLOW_STEP):
        part = nodes[at : at + FLOW_STEP]
        info = await store.put_flow(flow, part, start=at + FLOW_STEP >= len(nodes))
        assert info is not None
    await advance(store)
    assert info is not None
    return info


async def advance(store: Store) -> None:
    """Do what is left over."""
    for _ in range(1_000):
        if not await store.advance_flows():
            return
    raise AssertionError("there is always something left over")


async def started(
    store: Store, count: int, edges: Edges = (), policy: FlowPolicy = FlowPolicy.STOP, **facts: Any
) -> NewFlow:
    """A flow that has started."""
    queue = facts.pop("queue", "default")
    flow = flow_of(queue=queue, policy=policy)
    await put(store, flow, nodes_of(flow, count, edges, **facts))
    return flow


async def the_flow(store: Store, flow: NewFlow) -> FlowInfo:
    (info,) = await store.get_flows([flow.ref])
    assert info is not None
    return info


async def nodes_in(store: Store, flow: NewFlow) -> list[FlowNode]:
    total = (await the_flow(store, flow)).total
    found: list[FlowNode] = []
    for at in range(0, total, FLOW_STEP):
        part = await store.flow_nodes(flow.ref, range(at, min(total, at + FLOW_STEP)))
        found += [node for node in part if node is not None]
    assert len(found) == total
    return found


async def states(store: Store, flow: NewFlow) -> list[NodeState]:
    return [node.state for node in await nodes_in(store, flow)]


async def run_one(
    store: Store, flow: NewFlow, index: int, to: Transition = COMPLETED, *, queue: str = "", **facts: Any
) -> None:
    """Run the job of this node, which must be the next in its queue."""
    queue = queue or flow.queue
    share = [Share(queue, 1, 1)]
    fetched = await store.fetch(share, limit=1, lease=LEASE, worker="w1", token=token())
    assert [job.id for job in fetched.jobs] == [f"{flow.id}.{index}"]
    await end(store, fetched.jobs[0], to, **facts)


async def ready(store: Store, flow: NewFlow, queue: str = "") -> list[int]:
    """The numbers of the nodes whose jobs can start now, in order; they are put back."""
    queue = queue or flow.queue
    page = await next_jobs(store, queue)
    return [int(job.id.rpartition(".")[2]) for job in page.jobs]


def ref_of(flow: NewFlow, index: int, queue: str = "") -> Ref:
    return Ref(queue or flow.queue, f"{flow.id}.{index}")
