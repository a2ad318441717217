"""Flows with their nodes, as the oracle keeps them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from penstock.core.flow import CLOSED, FlowState
from penstock.core.flow_engine import LiveFlow, LiveNode
from penstock.core.job import Ref
from tests.oracle.sorted import Sorted

__all__ = ["MemoryFlow", "MemoryFlows"]


@dataclasses.dataclass(slots=True)
class MemoryFlow:
    """A flow, and its nodes by number.

    - `number`: in the order of creation. `added`: the keys of calls that have added members.
    - `parent_ended`: the job that waits for the flow has ended; `advance_flows` has to see to it. If that job
      is gone by then, `parent_completed` says whether it had completed.
    """

    head: LiveFlow
    number: int
    nodes: list[LiveNode] = dataclasses.field(default_factory=list[LiveNode])
    added: set[str] = dataclasses.field(default_factory=set[str])
    parent_ended: bool = False
    parent_completed: bool = False


class MemoryFlows(dict[Ref, MemoryFlow]):
    """The flows of a store, and which of them `advance_flows` continues or removes: it looks at no others."""

    def __init__(self) -> None:
        super().__init__()
        self.busy: dict[Ref, None] = {}  # in the order in which they became busy
        self.parents: dict[Ref, dict[Ref, None]] = {}  # open flows by the job that waits for them
        self._over: Sorted[int, int] = Sorted()  # numbers of flows by the instant of their removal
        self._numbers: dict[int, Ref] = {}
        self._last = 0

    def create(self, head: LiveFlow) -> MemoryFlow:
        """A flow that is not stored yet."""
        return MemoryFlow(head, self._last + 1)

    def changed(self, flow: MemoryFlow) -> None:
        """Store a flow that was changed, or is new."""
        head = flow.head
        ref = head.spec.ref
        self[ref] = flow
        self._numbers[flow.number] = ref
        self._last = max(self._last, flow.number)
        if head.unfinished or flow.parent_ended:
            self.busy.setdefault(ref)
        else:
            self.busy.pop(ref, None)
        if head.state in CLOSED or head.state is FlowState.BUILDING:
            self._over.move(flow.number, head.over_at)
        else:
            self._over.drop(flow.number)
        if head.spec.wakes:
            self._note_parent(flow)

    def _note_parent(self, flow: MemoryFlow) -> None:
        ref = flow.head.spec.ref
        parent = Ref(ref.queue, flow.head.spec.wakes)
        if flow.head.state not in CLOSED:
            self.parents.setdefault(parent, {})[ref] = None
        elif (flows := self.parents.get(parent)) is not None and ref in flows:
            del flows[ref]
            if not flows:
                del self.parents[parent]

    def parent_ended(self, parent: Ref, *, completed: bool) -> None:
        """Let `advance_flows` see to the open flows that this job waited for."""
        for ref in self.parents.get(parent, {}):
            self[ref].parent_ended, self[ref].parent_completed = True, completed
            self.busy.setdefault(ref)

    def over(self, now: int) -> Iterator[Ref]:
        """The flows that are to be removed by now."""
        while (first := self._over.first()) is not None and first[0] <= now:
            yield self._numbers[first[1]]

    def remove(self, ref: Ref) -> None:
        """Remove a flow."""
        flow = self.pop(ref)
        del self._numbers[flow.number]
        self._over.drop(flow.number)
        self.busy.pop(ref, None)
        parent = Ref(ref.queue, flow.head.spec.wakes)
        if (flows := self.parents.get(parent)) is not None:
            flows.pop(ref, None)
            if not flows:
                del self.parents[parent]
