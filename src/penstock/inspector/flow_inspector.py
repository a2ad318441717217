"""What an operator may see and do of flows.

The reads of a graph are bounded, whatever the size of the flow: at most `MOST_NODES` nodes and `MOST_JOBS`
jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import asdict

from penstock.core.errors import ConfigError
from penstock.core.flow import FlowInfo, FlowNode, FlowState, NodeState, nodes_to_rerun, refuse_gone
from penstock.core.job import Job, Ref, State
from penstock.inspector.job_acts import Change
from penstock.inspector.job_filters import parse_address
from penstock.inspector.job_search import search_a_little
from penstock.inspector.job_views import row_of
from penstock.inspector.reach import Reach
from penstock.inspector.step_edits import drop_step, set_step
from penstock.inspector.step_views import StepsView, WaitView, read_steps, read_waits
from penstock.stores.contract import (
    FLOW_STEP,
    FlowChange,
    FlowPage,
    JobFilter,
    KeptSignal,
    Signal,
    SignalStatus,
    Store,
    most_steps,
)
from penstock.stores.cursors import cursor_before_names, place_of
from penstock.stores.signal_check import check_signal

#: The most nodes of one part, further nodes that follow them, and jobs of both that are read.
MOST_NODES, MOST_BEHIND, MOST_JOBS = 500, 40, 100
#: A join, its body and what follows that are shown with the members, however large their numbers are.
_STEPS_BEHIND = 3
_WITH_JOBS = (NodeState.ACTIVE, NodeState.DEAD, NodeState.CANCELLED)


class GraphNode(FlowNode, frozen=True, kw_only=True):
    """A node of a graph. `stored`: its job as it is, if it was read."""

    stored: Job | None


class FlowGraphView(msgspec.Struct, frozen=True):
    """Some nodes of a flow: those with numbers from `first` on, and `behind`: a few that follow these."""

    flow: FlowInfo
    first: int
    nodes: list[GraphNode]
    behind: list[GraphNode]


class MembersView(msgspec.Struct, frozen=True):
    """Jobs of a flow in some states. `complete`: whether all of them are among `members`."""

    members: list[Job]
    complete: bool


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
    return {job.ref: row_of(job) for job in jobs if job is not None}


def _view(node: FlowNode, jobs: dict[Ref, Job]) -> GraphNode:
    return GraphNode(**asdict(node), stored=None if node.job is None else jobs.get(node.job))


#: Flows that one call of `flows` with states passes at most.
_MOST_PASSED = 2_000


class FlowInspector:
    """The operator's methods for flows; `address` is "queue/id"."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def flows(
        self,
        *,
        after: str | None = None,
        limit: int = 50,
        states: Sequence[FlowState] = (),
        sees: Callable[[str], bool] | None = None,
    ) -> FlowPage:
        """A page of flows, newest first; with `states`, of those that are in one of them.

        `sees`: for viewers who may not read all queues. Flows of other queues are left out, and `next` does
        not name them.

        A call passes at most 2000 flows, so with `states` or `sees` it may find few or none before the end:
        only `next` is None tells the end.
        """
        if not states and sees is None:
            return await self._store.list_flows(after=after, limit=limit)
        found: list[FlowInfo] = []
        passed, start = 0, after
        while True:
            page = await self._store.list_flows(after=after, limit=FLOW_STEP)
            found += [info for info in page.flows if _fits(info, states, sees)]
            if len(found) > limit:
                places = [place_of(info) for info in found[: limit + 1]]
                return FlowPage.of(found[:limit], places, limit)
            passed, after = passed + len(page.flows), page.next
            shown = after if after is None or sees is None else cursor_before_names(after)
            # without names, a cursor leads to all flows of its millisecond: it must not lead here again
            if after is None or (passed >= _MOST_PASSED and shown != start):
                return FlowPage(found, shown)

    async def flow(self, address: str) -> FlowInfo | None:
        """The flow at this address; None if there is none."""
        (info,) = await self._store.get_flows([_ref(address)])
        return info

    async def flow_nodes(self, address: str, *, first: int = 0, limit: int = FLOW_STEP) -> list[FlowNode]:
        """Up to `limit` nodes of a flow, from the node `first` on."""
        wanted = range(first, first + min(limit, FLOW_STEP))
        nodes = await self._store.flow_nodes(_ref(address), wanted, results=False)
        return [node for node in nodes if node is not None]

    async def graph(self, address: str, *, first: int = 0, limit: int = MOST_NODES) -> FlowGraphView | None:
        """A part of a flow as a graph: up to `limit` nodes from the node `first` on, at most 500.

        With at most 40 nodes that follow them, and the jobs of at most 100; None if there is no flow. Large
        flows cost no more than small ones.
        """
        store, ref = self._store, _ref(address)
        (info,) = await store.get_flows([ref])
        if info is None:
            return None
        last = min(info.total, first + min(limit, MOST_NODES))
        nodes = await _nodes(store, ref, range(first, max(first, last)))
        behind = await _behind(store, ref, nodes)
        jobs = await _jobs(store, [*nodes, *behind])
        return FlowGraphView(
            info,
            first,
            [_view(node, jobs) for node in nodes],
            [_view(node, jobs) for node in behind],
        )

    async def members(self, address: str, states: Sequence[State], *, limit: int = 10) -> MembersView:
        """Up to `limit` jobs of a flow that are in these states, newest first, from a bounded search."""
        filter = JobFilter(states=tuple(states), flow=_ref(address))
        found = await search_a_little(self._store, filter, limit=limit)
        return MembersView(found.jobs, found.next is None)

    async def steps(self, address: str) -> StepsView | None:
        """The durable steps of the job at this address, and what it waits for; None if there is no job."""
        return await read_steps(self._store, _ref(address))

    async def waits(self, addresses: Sequence[str]) -> list[WaitView]:
        """What the suspended jobs at these addresses wait for."""
        return await read_waits(self._store, [_ref(address) for address in addresses])

    async def leaves(self, address: str, within: Sequence[str]) -> bool:
        """Whether an act on the flow changes jobs beyond these queues, in which `*` is any characters."""
        return await Reach(self._store, within).flow_leaves(_ref(address))

    async def cancel_flow(self, address: str) -> FlowInfo | None:
        """Cancel all jobs of a flow; None if there is none."""
        return await self._change(address, FlowChange.CANCEL)

    async def retry_flow(self, address: str, *, node: int | None = None) -> FlowInfo | None:
        """Run the failed and skipped jobs of a flow again; None if there is none.

        `node`: the number of a node that runs again as well, with all that follow it. Raises ConfigError if
        one of them cannot.
        """
        if node is not None:
            await self._check_rerun(_ref(address), node)
        return await self._change(address, FlowChange.RETRY, node)

    async def send(self, signal: Signal) -> SignalStatus:
        """Send a signal to the flow that waits for it, or store it.

        Raises ArgumentError if its data does not fit what a waiting flow takes.
        """
        await check_signal(self._store, signal)
        (status,) = await self._store.send_signals([signal])
        return status

    async def signals(
        self,
        *,
        name: str | None = None,
        key: str | None = None,
        after: tuple[str, str, str] | None = None,
        limit: int = 100,
    ) -> list[KeptSignal]:
        """Stored signals that no job has received, in the order of name, key and flow.

        `name`, `key`: only these. `after`: those behind this name, key and flow ("": any).
        """
        return await self._store.signals(name=name, key=key, after=after, limit=limit)

    async def drop_signal(self, name: str, key: str, flow: str | None) -> bool:
        """Drop a stored signal; False if there is none."""
        (dropped,) = await self._store.forget_signals([(name, key, flow)])
        return dropped

    async def drop_step(self, address: str, step: str) -> Change:
        """Forget a step of a job that does not run, by its stored name; its next run asks for it again."""
        return await drop_step(self._store, _ref(address), step)

    async def set_step(self, address: str, step: str, value: bytes) -> Change:
        """Replace the value of a step of a job that does not run, by JSON. Raises ArgumentError."""
        return await set_step(self._store, _ref(address), step, value)

    async def _check_rerun(self, ref: Ref, node: int) -> None:
        reading = nodes_to_rerun(node)
        try:
            wanted = next(reading)
            while True:
                wanted = reading.send(await self._store.flow_nodes(ref, wanted, results=False))
        except StopIteration as end:
            again: list[FlowNode] = end.value
        refs = [one.job for one in again if one.job is not None]
        jobs = await self._store.get(refs)
        refuse_gone(again, {one for one, job in zip(refs, jobs, strict=True) if job is None})

    async def _change(self, address: str, change: FlowChange, node: int | None = None) -> FlowInfo | None:
        info = await self._store.change_flow(_ref(address), change, node=node)
        if info is None:
            return None
        for _ in range(most_steps(info)):
            if not await self._store.advance_flows():
                break
        return await self.flow(address)


def _fits(info: FlowInfo, states: Sequence[FlowState], sees: Callable[[str], bool] | None) -> bool:
    return (not states or info.state in states) and (sees is None or sees(info.spec.queue))


def _ref(address: str) -> Ref:
    found = parse_address(address)
    if not isinstance(found, Ref):
        raise ConfigError(
            f"{address!r} is not the address of a flow: give queue/id, as `penstock flows list` shows"
        )
    return found
