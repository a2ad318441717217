"""What an operator may see and do of flows."""

from __future__ import annotations

from penstock.core.errors import ConfigError
from penstock.core.flow import FlowNode
from penstock.core.flow_rerun import nodes_to_rerun, refuse_gone
from penstock.core.job import Ref
from penstock.inspector.flow_views import FlowPageView, FlowView, NodeView, flow_view, node_view
from penstock.inspector.requests import parse_address
from penstock.stores.contract import FLOW_STEP, FlowChange, Signal, SignalStatus, Store, most_steps

__all__ = ["FlowInspector"]


class FlowInspector:
    """The operator's methods for flows; `address` is "queue/id"."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def flows(self, *, after: str | None = None, limit: int = 50) -> FlowPageView:
        """A page of flows, newest first."""
        page = await self._store.list_flows(after=after, limit=limit)
        return FlowPageView([flow_view(info) for info in page.flows], page.next)

    async def flow(self, address: str) -> FlowView | None:
        """The flow at this address; None if there is none."""
        (info,) = await self._store.get_flows([_ref(address)])
        return None if info is None else flow_view(info)

    async def flow_nodes(self, address: str, *, first: int = 0, limit: int = FLOW_STEP) -> list[NodeView]:
        """Up to `limit` nodes of a flow, from the node `first` on."""
        wanted = range(first, first + min(limit, FLOW_STEP))
        nodes = await self._store.flow_nodes(_ref(address), wanted)
        return [node_view(node) for node in nodes if node is not None]

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
                wanted = reading.send(await self._store.flow_nodes(ref, wanted))
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


def _ref(address: str) -> Ref:
    found = parse_address(address)
    if not isinstance(found, Ref):
        raise ConfigError(
            f"{address!r} is no address of a flow: give queue/id, as `penstock flows list` shows"
        )
    return found
