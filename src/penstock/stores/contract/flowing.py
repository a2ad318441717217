"""The verbs of flows: store nodes that depend on each other, read them, steer them (docs/concepts/flows.md).

Every verb that ends or removes a job counts the end of its node, in the same step.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Self

import msgspec
from msgspec.structs import replace

from penstock.core.errors import QueueFull
from penstock.core.flow import FlowInfo, FlowNode, NewFlow, NewNode
from penstock.core.job import NewJob
from penstock.stores.contract.request import OfRef, OfRefs, Request, SyncRequest

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


def no_room(queue: str, needs: int, size: int, retry_after: int, *, waits: bool) -> QueueFull:
    """The error for a queue that does not take the first jobs of a flow.

    `needs`: how many; `size`, `retry_after` (ms) and `waits` as in `Enqueued`.
    """
    fits = needs <= size
    wait = retry_after / 1000 if fits else None  # it never has room for more than its limit
    return QueueFull(queue, wait, size, needs=needs, waits=waits and fits)


def most_steps(info: FlowInfo) -> int:
    """How often a client calls `advance_flows` for this flow at most; workers continue what is left."""
    return 100 + info.total // 10


class PutFlow(SyncRequest[FlowInfo | None], frozen=True):
    """Store up to `FLOW_STEP` nodes of a flow, and with `start` start it.

    - Nodes come in the order of their numbers, and predecessors before their successors. Nodes that are
      stored already are skipped, so a call can be repeated.
    - Nothing runs before the call with `start`, which is the last: it starts up to `FLOW_STEP` nodes; the
      others are started by `advance_flows`.
    - The first call asks the queues in `flow.starts` if they take the flow. All other jobs of a flow
      follow an accepted job: a closed or full queue takes them.

    Answer: the flow; None if the id belongs to another flow (another `key`), or the parts before this one
    are gone (see `BUILDING_KEPT`). Nothing was stored then.

    Errors: QueueClosed and QueueFull if a queue in `flow.starts` refuses its jobs: nothing was stored.
    NotReplicated if it is stored, but on fewer replicas than the store's URL requires.
    """

    flow: NewFlow
    nodes: Sequence[NewNode]
    start: bool = True


class AddToFlow(OfRef[FlowInfo | None], frozen=True):
    """Add up to `FLOW_STEP` jobs to a running flow, as further predecessors and inputs of a join.

    - Each job becomes a node and is enqueued; its `flow` is set by the store.
    - `key`: a call whose key was used in this flow before changes nothing, so it can be repeated.

    Answer: the flow; None if it does not run, or the join has ended. Nothing was stored then.

    Errors: NotReplicated if they are stored, but on fewer replicas than the store's URL requires.
    """

    join: int
    jobs: Sequence[NewJob]
    key: str = ""


class GetFlows(OfRefs[list[FlowInfo | None]], frozen=True):
    """Read flows, one per ref; None for a flow that does not exist."""


class FlowNodes(OfRef[list[FlowNode | None]], frozen=True):
    """Read up to `FLOW_STEP` nodes of a flow by their numbers; None for a node that does not exist.

    `results=False`: without their results, which may be large: they are not read, and None in the answer.
    """

    indexes: Sequence[int]
    results: bool = True


class ListFlows(Request[FlowPage], frozen=True, kw_only=True):
    """List flows of all queues by their time of creation, newest first.

    Errors: ConfigError if `after` is not a cursor.
    """

    after: str | None = None
    limit: int = 50

    def checked(self) -> Self:
        return replace(self, limit=min(max(1, self.limit), FLOW_STEP))


class ChangeFlow(OfRef[FlowInfo | None], frozen=True):
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

    change: FlowChange
    node: int | None = None


class AdvanceFlows(SyncRequest[int], frozen=True, kw_only=True):
    """Continue what verbs of flows, and ends of jobs, have left over, in one bounded step per flow.

    - Cancels flows whose job (`NewFlow.wakes`) was cancelled, is dead, or was removed before its end, and
      those that were not started when it completed.
    - Removes results that no node needs any longer (`NewNode.uses`), flows past their retention, and
      those that were never started.

    Workers call it.

    Answer: the number of nodes and flows changed; 0: nothing is left over.
    """

    limit: int = FLOW_STEP
