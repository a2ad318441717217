"""Random graphs with failures, cancels, retries, removals and killed workers, against a reference evaluator.

Where the end of a graph depends on the order of things (a flow that stops or was cancelled, an operator who
cancels, removes or retries a member), the rules are checked that hold in every order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.core.flow import FlowInfo, FlowNode, FlowPolicy, FlowState, NewFlow, NewNode, NodeState, When
from penstock.core.job import Job, Lease, NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.outcomes import QueuePosition
from penstock.core.relations import FlowMember
from penstock.stores.contract import FlowChange, Settled, Settlement, Share, Store
from penstock.stores.memory import MemoryStore
from penstock.stores.sqlite import SqliteStore
from tests import servers

#: Number of graphs on the memory store; the others get a tenth. A long run: PENSTOCK_GRAPHS=10000.
GRAPHS = int(os.environ.get("PENSTOCK_GRAPHS", "300"))

_KEPT = 3_600_000
_LEASE = 1_000
_GOOD = (NodeState.COMPLETED, NodeState.UNUSED)
_QUEUES = [Share(f"q{n}", 9, 9) for n in range(3)]
_AGAIN = Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False, lost=True)


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """A graph: predecessors by node, joins, conditions, what fails, and what happens to it."""
    n = draw(st.integers(1, 12))
    before = [
        draw(st.lists(st.integers(0, i - 1), max_size=min(i, 4), unique=True)) if i else [] for i in range(n)
    ]
    acts = st.tuples(st.integers(0, 6), st.sampled_from(["cancel", "delete", "retry"]), st.integers(0, n - 1))
    return {
        "before": before,
        "joins": [bool(before[i]) and draw(st.integers(0, 3)) == 0 for i in range(n)],
        "when": [draw(st.sampled_from(list(When))) if before[i] else When.SUCCESS for i in range(n)],
        "fails": [draw(st.integers(0, 4)) == 0 for _ in range(n)],
        "policy": draw(st.sampled_from(list(FlowPolicy))),
        "order": draw(st.integers(0, 2**16)),
        "cancelled": draw(st.integers(0, 9)) == 0,
        "acts": draw(st.lists(acts, max_size=3)) if draw(st.integers(0, 2)) == 0 else [],
        "queues": draw(st.integers(1, 3)),
    }


# ── what must come of a graph ────────────────────────────────────────────────────────────────────


def expected(graph: dict[str, Any]) -> list[NodeState]:
    """The ends of all nodes, where they do not depend on the order of ends."""
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


def value_of(graph: dict[str, Any], i: int, ends: list[NodeState]) -> int:
    """The value of a node: 1, and the values of its predecessors, as far as they have any.

    A node for failures starts when the others may still run: it takes none.
    """
    if graph["when"][i] is When.FAILURE:
        return int(not graph["joins"][i])
    of = sum(value_of(graph, one, ends) for one in graph["before"][i] if ends[one] is NodeState.COMPLETED)
    return of if graph["joins"][i] else of + 1


def is_allowed(graph: dict[str, Any], i: int, ends: list[NodeState]) -> bool:
    """Whether this end of a node agrees with the others, in whatever order they came."""
    before, when, end = graph["before"][i], graph["when"][i], ends[i]
    acts = {act for _, act, of in graph["acts"] if of == i}
    ignore = graph["policy"] is FlowPolicy.IGNORE
    bad = [not ignore and one not in _GOOD for one in ends]
    failed, stopped = any(bad[one] for one in before), graph["policy"] is FlowPolicy.STOP and any(bad)
    retried = any(act == "retry" for _, act, _ in graph["acts"])
    if end is NodeState.SKIPPED:
        return (graph["cancelled"] and when is not When.END) or (when is When.SUCCESS and (failed or stopped))
    if end is NodeState.UNUSED:
        return when is When.FAILURE and not failed
    if end is NodeState.GONE and "delete" not in acts:
        return False
    by_its_flow = graph["cancelled"] or stopped
    if end is NodeState.CANCELLED and "cancel" not in acts and (when is When.END or not by_its_flow):
        return False
    has_run = end in (NodeState.COMPLETED, NodeState.DEAD) and not graph["joins"][i]
    if has_run and graph["fails"][i] is not (end is NodeState.DEAD):
        return False
    if when is When.SUCCESS:
        return not failed or retried  # it may have run before its predecessor was retried, and failed
    return when is When.END or failed or retried


# ── one run ──────────────────────────────────────────────────────────────────────────────────────


class Run:
    """One graph in a store, and what has happened to its jobs."""

    def __init__(self, store: Store, clock: ManualClock, graph: dict[str, Any]) -> None:
        self.store, self.clock, self.graph = store, clock, graph
        self.luck = random.Random(graph["order"])
        self.flow = NewFlow(f"flow-{uuid4().hex[:8]}", "q0", policy=graph["policy"], key="k")
        self.fetched: Counter[int] = Counter()
        self.allowed: Counter[int] = Counter()  # how often a job may start again
        self.retried: Counter[int] = Counter()
        self.completed: Counter[int] = Counter()
        self.killed: list[Lease] = []
        self._tokens = iter(range(10**6))

    def ref(self, i: int) -> Ref:
        return Ref(f"q{i % self.graph['queues']}", f"{self.flow.id}.{i}")

    def nodes(self) -> list[NewNode]:
        graph, nodes = self.graph, []
        for i, before in enumerate(graph["before"]):
            next_nodes = tuple(k for k, those in enumerate(graph["before"]) if i in those)
            member, ref = FlowMember("q0", self.flow.id, i), self.ref(i)
            job = None if graph["joins"][i] else NewJob(ref.id, "t", queue=ref.queue, flow=member)
            nodes.append(NewNode(i, job, next_nodes, len(before), graph["when"][i], tuple(before)))
        return nodes

    async def go(self) -> None:
        await self.store.put_flow(self.flow, self.nodes())
        await self.to_the_end(self.graph["fails"])
        info, ends = await self.info(), [node.state for node in await self.found()]
        self.compare(info, ends, await self.found())
        removed = any(act == "delete" for _, act, _ in self.graph["acts"])
        if info.state in (FlowState.FAILED, FlowState.CANCELLED) and not removed:
            await self.store.change_flow(self.flow.ref, FlowChange.RETRY)
            self.allowed.update(range(len(ends)))
            await self.to_the_end([False] * len(ends))
            assert (await self.info()).state is FlowState.COMPLETED
            assert {node.state for node in await self.found()} <= set(_GOOD)
        again = {i: n for i, n in self.completed.items() if n > 1 + self.retried[i]}
        assert not again, f"completed more than once: {again}"

    async def to_the_end(self, fails: list[bool]) -> None:
        for step in range(200):
            await self.advance()
            if fails is self.graph["fails"]:
                await self.act(step)
            jobs = await self.take()
            if not jobs and (await self.info()).ended:
                return
            self.luck.shuffle(jobs)
            done = [self.ended(job, fails[self.index(job)], await self.value(job)) for job in jobs]
            for end in done if self.luck.random() < 0.5 else ():
                await self.settle(end)
            await asyncio.gather(*(self.settle(end) for end in done))  # also those that were settled
        raise AssertionError(f"the flow hangs: {await self.info()}")

    async def advance(self) -> None:
        while any(await asyncio.gather(*(self.store.advance_flows() for _ in range(2)))):
            pass

    async def act(self, step: int) -> None:
        """What operators do in this step."""
        if self.graph["cancelled"] and step == 2:
            await self.store.change_flow(self.flow.ref, FlowChange.CANCEL)
        for at, act, i in self.graph["acts"]:
            if at != step:
                continue
            if act == "retry":  # also those run again that the flow has cancelled
                self.allowed.update(range(len(self.graph["before"])))
                self.retried[i] += 1
            verbs: dict[str, Callable[[list[Ref]], Awaitable[Any]]] = {
                "cancel": self.store.cancel,
                "delete": self.store.delete,
                "retry": self.store.retry,
            }
            await verbs[act]([self.ref(i)])

    async def take(self) -> list[Job]:
        """Jobs to run: some of workers that were killed, whose leases have expired."""
        token = f"{self.flow.id} {next(self._tokens)}"
        found = (await self.store.fetch(_QUEUES, limit=3, lease=_LEASE, worker="w", token=token)).jobs
        jobs = [job for job in found if job.id.startswith(self.flow.id)]
        left_over = [job for job in found if job not in jobs]  # by a run that has failed
        await self.store.settle([Settlement(job.lease, Transition(State.DEAD)) for job in left_over])
        self.fetched.update(self.index(job) for job in jobs)
        killed = [job for job in jobs if self.luck.random() < 0.2]
        if not killed:
            return list(jobs)
        rest = [job for job in jobs if job not in killed]
        await self.store.settle([Settlement(job.lease, _AGAIN) for job in rest])  # released
        self.allowed.update(self.index(job) for job in rest)
        self.clock.advance(2 * _LEASE)
        names = [share.queue for share in _QUEUES]
        lost = await self.store.reclaim(names, limit=9, lease=_LEASE, worker="w2", token=f"{token} again")
        assert {job.id for job in lost.jobs} == {job.id for job in killed}
        self.allowed.update(self.index(job) for job in lost.jobs)
        self.killed += [job.lease for job in killed]
        again = [job for job in lost.jobs if self.luck.random() < 0.5]
        await self.store.settle([Settlement(job.lease, _AGAIN) for job in again])
        return [job for job in lost.jobs if job not in again]

    def ended(self, job: Job, fails: bool, value: int) -> Settlement:
        to = Transition(State.COMPLETED, keep=self.luck.choice([0, _KEPT]))
        if job.cancel_asked:
            to = Transition(State.CANCELLED, keep=_KEPT)
        elif fails:
            to = Transition(State.DEAD, keep=_KEPT)
        return Settlement(job.lease, to, str(value).encode())

    async def settle(self, one: Settlement) -> None:
        (answer,) = await self.store.settle([one])
        if answer is Settled.APPLIED and one.transition.state is State.COMPLETED:
            self.completed[int(one.lease.id.rpartition(".")[2])] += 1
        if self.killed:  # one that was thought dead
            late = Settlement(self.killed.pop(), Transition(State.COMPLETED), b"-1")
            assert await self.store.settle([late]) in ([Settled.STALE], [Settled.GONE])

    async def value(self, job: Job) -> int:
        """1, and the values of its predecessors, as they are when the job starts."""
        seen: dict[int, FlowNode] = {}
        if self.graph["when"][self.index(job)] is When.FAILURE:
            return 1
        wanted = {*self.graph["before"][self.index(job)]}
        while wanted - set(seen):
            more = sorted(wanted - set(seen))
            seen.update(zip(more, await self.nodes_at(more), strict=True))
            wanted |= {one for i in more for one in seen[i].inputs}

        def of(i: int) -> int:
            node = seen[i]
            if node.state is not NodeState.COMPLETED:
                return 0
            if node.job is None and node.when is When.FAILURE:
                return 0
            return int(node.result or b"0") if node.job else sum(of(one) for one in node.inputs)

        return 1 + sum(of(i) for i in self.graph["before"][self.index(job)])

    # ── afterwards ──

    def index(self, job: Job) -> int:
        assert job.id.startswith(self.flow.id)
        return int(job.id.rpartition(".")[2])

    async def info(self) -> FlowInfo:
        (info,) = await self.store.get_flows([self.flow.ref])
        assert info is not None
        return info

    async def found(self) -> list[FlowNode]:
        return await self.nodes_at(list(range(len(self.graph["before"]))))

    async def nodes_at(self, indexes: list[int]) -> list[FlowNode]:
        found = [node for node in await self.store.flow_nodes(self.flow.ref, indexes) if node is not None]
        assert len(found) == len(indexes)
        return found

    def compare(self, info: FlowInfo, ends: list[NodeState], nodes: list[FlowNode]) -> None:
        graph = self.graph
        assert info.ended
        assert info.counts == Counter(ends)
        again = {i: n for i, n in self.fetched.items() if n > 1 + self.allowed[i]}
        assert not again, f"started more often than leases were lost: {again}"
        assert all(is_allowed(graph, i, ends) for i in range(len(ends))), ends
        bad = any(state not in _GOOD for state in ends)
        fails = bad and graph["policy"] is not FlowPolicy.IGNORE
        if graph["acts"] or graph["cancelled"]:
            return
        assert info.state is (FlowState.FAILED if fails else FlowState.COMPLETED)
        if graph["policy"] is FlowPolicy.STOP and bad:
            return
        assert ends == expected(graph)
        for node in nodes:
            if node.state is NodeState.COMPLETED and node.job is not None:
                assert node.result == str(value_of(graph, node.index, ends)).encode()


# ── on each store ────────────────────────────────────────────────────────────────────────────────


def some(n: int) -> Any:
    return settings(max_examples=n, deadline=None, suppress_health_check=list(HealthCheck))


@some(GRAPHS)
@given(graphs())
def test_random_graphs_end_as_the_reference_says(graph: dict[str, Any]) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        await Run(store, clock, graph).go()
        store.close()

    asyncio.run(main())


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def file_store(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[Store]:
    store = SqliteStore(tmp_path_factory.mktemp("graphs") / "jobs.db", durability="normal", clock=clock)
    yield store
    store.close()


@some(max(20, GRAPHS // 10))
@given(graphs())
def test_random_graphs_end_so_in_a_file(file_store: Store, clock: ManualClock, graph: dict[str, Any]) -> None:
    asyncio.run(Run(file_store, clock, graph).go())


@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_random_graphs_end_so_on_a_server(kind: str, clock: ManualClock) -> None:
    from penstock.stores.redis.store import RedisStore

    server = servers.SHARED_REDIS if kind == "redis" else servers.SHARED_CLUSTER
    url = f"{server.get().url}?prefix=penstock-{uuid4().hex[:8]}"

    @some(max(10, GRAPHS // 20))
    @given(graphs())
    def each(graph: dict[str, Any]) -> None:
        with contextlib.closing(RedisStore(url, clock=clock)) as store:
            asyncio.run(Run(store, clock, graph).go())

    each()
