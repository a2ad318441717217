"""Random graphs with failures, cancels, retries and lost leases, against a reference evaluator."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.core.flow import FlowPolicy, FlowState, NewFlow, NewNode, NodeState, When
from penstock.core.flow_member import FlowMember
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import QueuePosition, Transition
from penstock.stores.contract import FlowChange, Settlement, Share, Store
from penstock.stores.memory import MemoryStore
from penstock.stores.sqlite import SqliteStore

#: Number of graphs on the memory store; the file store gets a tenth. More: PENSTOCK_GRAPHS=2000.
GRAPHS = int(os.environ.get("PENSTOCK_GRAPHS", "300"))

_KEPT = 3_600_000
_GOOD = (NodeState.COMPLETED, NodeState.UNUSED)


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """A graph: predecessors by node, joins, conditions, what fails, and what happens to it."""
    n = draw(st.integers(1, 12))
    before = [
        draw(st.lists(st.integers(0, i - 1), max_size=min(i, 4), unique=True)) if i else [] for i in range(n)
    ]
    return {
        "before": before,
        "joins": [bool(before[i]) and draw(st.integers(0, 3)) == 0 for i in range(n)],
        "when": [draw(st.sampled_from(list(When))) if before[i] else When.SUCCESS for i in range(n)],
        "fails": [draw(st.integers(0, 4)) == 0 for _ in range(n)],
        "policy": draw(st.sampled_from(list(FlowPolicy))),
        "order": draw(st.integers(0, 2**16)),
        "cancelled": draw(st.integers(0, 9)) == 0,
        "queues": draw(st.integers(1, 3)),
    }


def expected(graph: dict[str, Any]) -> list[NodeState]:
    """The ends of all nodes under the policies that do not depend on the order of ends."""
    ends: list[NodeState] = []
    ignore = graph["policy"] is FlowPolicy.IGNORE
    for i, before in enumerate(graph["before"]):
        failed = any(not ignore and ends[one] not in _GOOD for one in before)
        when = graph["when"][i]
        if when is When.SUCCESS and failed:
            ends.append(NodeState.SKIPPED)
        elif when is When.FAILURE and not failed:
            ends.append(NodeState.UNUSED if before else NodeState.COMPLETED)
        elif graph["fails"][i] and not graph["joins"][i]:
            ends.append(NodeState.DEAD)
        else:
            ends.append(NodeState.COMPLETED)
    return ends


def nodes_of(flow: NewFlow, graph: dict[str, Any]) -> list[NewNode]:
    nodes = []
    for i, before in enumerate(graph["before"]):
        next_nodes = tuple(k for k, those in enumerate(graph["before"]) if i in those)
        job = None
        if not graph["joins"][i]:
            queue = f"q{i % graph['queues']}"
            job = NewJob(f"{flow.id}.{i}", "t", queue=queue, flow=FlowMember(flow.queue, flow.id, i))
        nodes.append(NewNode(i, job, next_nodes, len(before), graph["when"][i], tuple(before)))
    return nodes


async def run(store: Store, graph: dict[str, Any], number: int) -> None:
    """Store the graph and run its jobs in a random order, with lost leases; then compare."""
    luck = random.Random(graph["order"])
    flow = NewFlow(f"flow-{number}", "q0", policy=graph["policy"], key="k")
    await store.put_flow(flow, nodes_of(flow, graph))
    starts: dict[int, int] = {}
    queues = [Share(f"q{n}", 9, 9) for n in range(3)]
    for step in range(400):
        while await store.advance_flows():
            pass
        if graph["cancelled"] and step == 2:
            await store.change_flow(flow.ref, FlowChange.CANCEL)
        fetched = await store.fetch(queues, limit=3, lease=1_000, worker="w", token=f"{number}.{step}")
        if not fetched.jobs:
            (info,) = await store.get_flows([flow.ref])
            assert info is not None
            if info.ended:
                break
            continue
        for job in luck.sample(fetched.jobs, len(fetched.jobs)):
            index = int(job.id.rpartition(".")[2])
            again = Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False, lost=True)
            if luck.random() < 0.2:  # the lease is lost: the job starts once more
                await store.settle([Settlement(job.lease, again)])
                continue
            starts[index] = starts.get(index, 0) + 1
            to = Transition(State.COMPLETED, keep=luck.choice([0, _KEPT]))
            if job.cancel_asked:
                to = Transition(State.CANCELLED, keep=_KEPT)
            elif graph["fails"][index]:
                to = Transition(State.DEAD, keep=_KEPT)
            end = Settlement(job.lease, to, str(index).encode())
            await store.settle([end] * luck.choice([1, 2]))
    await compare(store, flow, graph, starts)


async def compare(store: Store, flow: NewFlow, graph: dict[str, Any], starts: dict[int, int]) -> None:
    (info,) = await store.get_flows([flow.ref])
    assert info is not None
    assert info.ended, "the flow hangs"
    total = len(graph["before"])
    found = [node for node in await store.flow_nodes(flow.ref, range(total)) if node is not None]
    assert len(found) == total
    assert sum(info.counts.values()) == total
    assert set(starts.values()) <= {1}, "a job was run to its end twice"
    for node in found:
        if node.state is NodeState.COMPLETED and node.job is not None:
            assert node.result == str(node.index).encode()
    if not graph["cancelled"] and graph["policy"] is not FlowPolicy.STOP:
        assert [node.state for node in found] == expected(graph)
    if not graph["cancelled"]:
        bad = any(state not in _GOOD for state in expected(graph))
        fails = bad and graph["policy"] is not FlowPolicy.IGNORE
        assert info.state is (FlowState.FAILED if fails else FlowState.COMPLETED)
    if info.state is FlowState.FAILED:
        await retried(store, flow, graph)


async def retried(store: Store, flow: NewFlow, graph: dict[str, Any]) -> None:
    """After a retry in which nothing fails, every node has ended well."""
    await store.change_flow(flow.ref, FlowChange.RETRY)
    queues = [Share(f"q{n}", 9, 9) for n in range(3)]
    for step in range(200):
        while await store.advance_flows():
            pass
        fetched = await store.fetch(queues, limit=3, lease=1_000, worker="w", token=f"again {flow.id} {step}")
        for job in fetched.jobs:
            await store.settle([Settlement(job.lease, Transition(State.COMPLETED), b"1")])
        (info,) = await store.get_flows([flow.ref])
        assert info is not None
        if info.ended:
            break
    assert info.state is FlowState.COMPLETED


_numbers = iter(range(10**9))


@settings(max_examples=GRAPHS, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_random_graphs_end_as_the_reference_says(graph: dict[str, Any]) -> None:
    async def main() -> None:
        store = MemoryStore(clock=ManualClock())
        await run(store, graph, next(_numbers))
        store.close()

    asyncio.run(main())


@pytest.fixture(scope="module")
def file_store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = SqliteStore(tmp_path_factory.mktemp("graphs") / "jobs.db", clock=ManualClock())
    yield store
    store.close()


@settings(max_examples=max(20, GRAPHS // 10), deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_random_graphs_end_so_in_a_file(file_store: Store, graph: dict[str, Any]) -> None:
    asyncio.run(run(file_store, graph, next(_numbers)))
