"""Flows as rows of lists: their progress as a bar of states, and what failed."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.flow import OPEN, NodeState
from penstock.inspector import FlowView
from penstock.web.dashboard.flow_drawing import StateShare, shares
from penstock.web.dashboard.view import View, segment

__all__ = ["FlowRow", "flow_link", "flow_row", "shade_of"]

#: The order in a bar: what has ended well, what failed, what is open.
_ORDER = (
    *(NodeState.COMPLETED, NodeState.UNUSED, NodeState.DEAD, NodeState.GONE, NodeState.CANCELLED),
    *(NodeState.SKIPPED, NodeState.ACTIVE, NodeState.WAITING),
)
_FAILED = (NodeState.DEAD, NodeState.GONE, NodeState.CANCELLED)
#: The colours of states of flows and nodes that are no states of jobs.
_SHADES = {
    "active": "available",
    "building": "scheduled",
    "stopping": "retryable",
    "failed": "dead",
    "gone": "dead",
    "skipped": "cancelled",
    "unused": "cancelled",
}


@dataclass(frozen=True)
class FlowRow:
    """A flow in a list. `ended`, `failed`: numbers of its nodes."""

    flow: FlowView
    link: str
    name: str
    ended: int
    failed: int
    bar: list[StateShare]

    @property
    def over(self) -> bool:
        return self.flow.ended_at is not None


def flow_row(view: View, flow: FlowView) -> FlowRow:
    """A flow with its numbers."""
    counts = {state.value: flow.counts.get(state.value, 0) for state in _ORDER}
    open_ = sum(counts[state.value] for state in OPEN)
    return FlowRow(
        flow,
        flow_link(view, flow.queue, flow.id),
        flow.name or flow.id,
        flow.nodes - open_,
        sum(counts[state.value] for state in _FAILED),
        shares({state: n for state, n in counts.items() if n}),
    )


def flow_link(view: View, queue: str, id: str) -> str:
    """The path of the page of a flow."""
    return view.link(f"/flows/{segment(queue)}/{segment(id)}")


def shade_of(state: str) -> str:
    """The state of jobs that has the colour of this state."""
    return _SHADES.get(state, state)
