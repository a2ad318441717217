"""What an operator may see and do of flows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.errors import ConfigError
from penstock.core.flow import FlowInfo, FlowNode, FlowState
from penstock.core.flow_rerun import nodes_to_rerun, refuse_gone
from penstock.core.job import Ref, State
from penstock.inspector.flow_graph import MOST_NODES, FlowGraphView, MembersView, members, read_graph
from penstock.inspector.flow_views import FlowPageView, FlowView, NodeView, flow_view, node_view
from penstock.inspector.requests import parse_address
from penstock.inspector.step_views import StepsView, WaitView, read_steps, read_waits
from penstock.stores.contract import FLOW_STEP, FlowChange, FlowPage, Signal, SignalStatus, Store, most_steps
from penstock.stores.flow_cursor import cursor_before_names, place_of

__all__ = ["FlowInspector"]

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
    ) -> FlowPageView:
        """A page of flows, newest first; with `states`, of those that are in one of them.

        `sees`: for viewers who may not read all queues. Flows of other queues are left out, and `next` does
        not name them.

        A call passes at most 2000 flows, so with `states` or `sees` it may find few or none before the end:
        only `next` is None tells the end.
        """
        if not states and sees is None:
            page = await self._store.list_flows(after=after, limit=limit)
            return FlowPageView([flow_view(info) for info in page.flows], page.next)
        found: list[FlowInfo] = []
        passed, start = 0, after
        while True:
            page = await self._store.list_flows(after=after, limit=FLOW_STEP)
            found += [info for info in page.flows if _fits(info, states, sees)]
            if len(found) > limit:
                places = [place_of(info) for info in found[: limit + 1]]
                cut = FlowPage.of(found[:limit], places, limit)
                return FlowPageView([flow_view(info) for info in cut.flows], cut.next)
            passed, after = passed + len(page.flows), page.next
            shown = after if after is None or sees is None else cursor_before_names(after)
            # without names, a cursor leads to all flows of its millisecond: it must not lead here again
            if after is None or (passed >= _MOST_PASSED and shown != start):
                return FlowPageView([flow_view(info) for info in found], shown)

    async def flow(self, address: str) -> FlowView | None:
        """The flow at this address; None if there is none."""
        (info,) = await self._store.get_flows([_ref(address)])
        return None if info is None else flow_view(info)

    async def flow_nodes(self, address: str, *, first: int = 0, limit: int = FLOW_STEP) -> list[NodeView]:
        """Up to `limit` nodes of a flow, from the node `first` on."""
        wanted = range(first, first + min(limit, FLOW_STEP))
        nodes = await self._store.flow_nodes(_ref(address), wanted, results=False)
        return [node_view(node) for node in nodes if node is not None]

    async def graph(self, address: str, *, first: int = 0, limit: int = MOST_NODES) -> FlowGraphView | None:
        """A part of a flow as a graph: up to `limit` nodes from the node `first` on, at most 500.

        With at most 40 nodes that follow them, and the jobs of at most 100; None if there is no flow. Large
        flows cost no more than small ones.
        """
        return await read_graph(self._store, _ref(address), first, limit)

    async def members(self, address: str, states: Sequence[State], *, limit: int = 10) -> MembersView:
        """Up to `limit` jobs of a flow that are in these states, newest first, from a bounded search."""
        return await members(self._store, _ref(address), states, limit)

    async def steps(self, address: str) -> StepsView | None:
        """The durable steps of the job at this address, and what it waits for; None if there is no job."""
        return await read_steps(self._store, _ref(address))

    async def waits(self, addresses: Sequence[str]) -> list[WaitView]:
        """What the suspended jobs at these addresses wait for."""
        return await read_waits(self._store, [_ref(address) for address in addresses])

    async def queues(self, address: str) -> set[str]:
        """The queues of the flow and of its jobs: an act on a flow changes jobs in all of them."""
        ref = _ref(address)
        (info,) = await self._store.get_flows([ref])
        found = {ref.queue}
        for first in range(0, 0 if info is None else info.total, FLOW_STEP):
            nodes = await self._store.flow_nodes(ref, range(first, first + FLOW_STEP), results=False)
            found |= {node.job.queue for node in nodes if node is not None and node.job is not None}
        return found

    async def cancel_flow(self, address: str) -> FlowView | None:
        """Cancel all jobs of a flow; None if there is none."""
        return await self._change(address, FlowChange.CANCEL)

    async def retry_flow(self, address: str, *, node: int | None = None) -> FlowView | None:
        """Run the failed and skipped jobs of a flow again; None if there is none.

        `node`: the number of a node that runs again as well, with all that follow it. Raises ConfigError if
        one of them cannot.
        """
        if node is not None:
            await self._check_rerun(_ref(address), node)
        return await self._change(address, FlowChange.RETRY, node)

    async def send(self, signal: Signal) -> SignalStatus:
        """Send a signal to the flow that waits for it, or store it."""
        (status,) = await self._store.send_signals([signal])
        return status

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

    async def _change(self, address: str, change: FlowChange, node: int | None = None) -> FlowView | None:
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
