"""The verbs of flows: store nodes that depend on each other, read them, steer them (docs/concepts/flows.md).

Every verb that ends or removes a job counts the end of its node, in the same step.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.core.flow import FlowInfo, FlowNode, NewFlow, NewNode
from penstock.core.job import NewJob, Ref

__all__ = ["FLOW_STEP", "FlowChange", "FlowPage", "Flowing", "SyncFlowing", "most_steps"]

#: The largest number of nodes in one call of a verb of flows.
FLOW_STEP = 1_000


class FlowChange(enum.StrEnum):
    """What an operator wants of a flow."""

    CANCEL = "cancel"  # cancel all nodes that have not ended
    RETRY = "retry"  # run failed nodes again, and what was skipped because of them

    __hash__ = str.__hash__


class FlowPage(msgspec.Struct, frozen=True):
    """One page of a list of flows. `next` is the `after` of the next page; None on the last page."""

    flows: list[FlowInfo]
    next: str | None

    @classmethod
    def of(cls, flows: Sequence[FlowInfo], places: Sequence[tuple[int, str, str]], limit: int) -> FlowPage:
        """A page of flows. `places`: time, queue and id of each, and of one more if there is a next page."""
        if len(places) <= limit:
            return cls(list(flows), None)
        at, queue, id = places[limit - 1]
        return cls(list(flows), f"{at}/{queue}/{id}")


def most_steps(info: FlowInfo) -> int:
    """How often a client calls `advance_flows` for this flow at most; workers continue what is left."""
    return 100 + info.total // 10


class Flowing(Protocol):
    """The verbs of flows, for callers in an event loop."""

    async def put_flow(
        self, flow: NewFlow, nodes: Sequence[NewNode], *, start: bool = True
    ) -> FlowInfo | None:
        """Store up to `FLOW_STEP` nodes of a flow, and with `start` start it.

        - Nodes come in the order of their numbers, and predecessors before their successors. Nodes that are
          stored already are skipped, so a call can be repeated.
        - Nothing runs before the call with `start`, which is the last: it starts up to `FLOW_STEP` nodes; the
          others are started by `advance_flows`.
        - A closed or full queue takes the jobs of a flow.

        Answer: the flow; None if the id belongs to another flow (another `key`), or the parts before this one
        are gone (see `BUILDING_KEPT`). Nothing was stored then.

        Errors: NotReplicated if it is stored, but on fewer replicas than the store's URL requires.
        """
        ...

    async def add_to_flow(
        self, ref: Ref, join: int, jobs: Sequence[NewJob], *, key: str = ""
    ) -> FlowInfo | None:
        """Add up to `FLOW_STEP` jobs to a running flow, as further predecessors and inputs of a join.

        - Each job becomes a node and is enqueued; its `flow` is set by the store.
        - `key`: a call whose key was used in this flow before changes nothing, so it can be repeated.

        Answer: the flow; None if it does not run, or the join has ended. Nothing was stored then.

        Errors: NotReplicated if they are stored, but on fewer replicas than the store's URL requires.
        """
        ...

    async def get_flows(self, refs: Sequence[Ref]) -> list[FlowInfo | None]:
        """Read flows, one per ref; None for a flow that does not exist."""
        ...

    async def flow_nodes(self, ref: Ref, indexes: Sequence[int]) -> list[FlowNode | None]:
        """Read up to `FLOW_STEP` nodes of a flow by their numbers; None for a node that does not exist."""
        ...

    async def list_flows(self, *, after: str | None = None, limit: int = 50) -> FlowPage:
        """List flows of all queues by their time of creation, newest first.

        Errors: ConfigError if `after` is not a cursor.
        """
        ...

    async def change_flow(self, ref: Ref, change: FlowChange, *, node: int | None = None) -> FlowInfo | None:
        """Cancel or retry a flow: up to `FLOW_STEP` nodes now, the others by `advance_flows`.

        - CANCEL: jobs in a queue are cancelled, running jobs are asked to stop, nodes without a job are
          skipped. A flow that has ended does not change.
        - RETRY: failed nodes whose jobs still exist run again, and skipped nodes wait again. A flow without
          failed nodes does not change.
        - RETRY with `node`: this node and all that follow it run again as well, also completed ones. Their
          jobs are retried when they start, and keep their errors; a node whose job is gone ends.

        Answer: the flow after the change; None if it does not exist.
        Errors: ConfigError if the flow has not ended, or `node` has no job that can run again.
        """
        ...

    async def advance_flows(self, *, limit: int = FLOW_STEP) -> int:
        """Continue what verbs of flows, and ends of jobs, have left over, in one bounded step per flow.

        - Cancels flows whose job (`NewFlow.wakes`) was cancelled, is dead, or was removed before its end, and
          those that were not started when it completed.
        - Removes results that no node needs any longer (`NewNode.uses`), flows past their retention, and
          those that were never started.

        Workers call it.

        Answer: the number of nodes and flows changed; 0: nothing is left over.
        """
        ...


class SyncFlowing(Protocol):
    """The same for callers without an event loop; each verb runs in the caller's thread."""

    def put_flow(self, flow: NewFlow, nodes: Sequence[NewNode], *, start: bool = True) -> FlowInfo | None:
        """As `Flowing.put_flow`."""
        ...

    def add_to_flow(self, ref: Ref, join: int, jobs: Sequence[NewJob], *, key: str = "") -> FlowInfo | None:
        """As `Flowing.add_to_flow`."""
        ...

    def get_flows(self, refs: Sequence[Ref]) -> list[FlowInfo | None]:
        """As `Flowing.get_flows`."""
        ...

    def flow_nodes(self, ref: Ref, indexes: Sequence[int]) -> list[FlowNode | None]:
        """As `Flowing.flow_nodes`."""
        ...

    def change_flow(self, ref: Ref, change: FlowChange, *, node: int | None = None) -> FlowInfo | None:
        """As `Flowing.change_flow`."""
        ...

    def advance_flows(self, *, limit: int = FLOW_STEP) -> int:
        """As `Flowing.advance_flows`."""
        ...
