"""Folds the members of a large group in a graph: some are shown, the others are one box, "48 more".

Members are nodes after the same nodes whose branches look alike: a branch is what follows a member and
nothing else. So a group of chains is folded chain by chain, whatever its size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.core.flow import NodeState
from penstock.core.job import State
from penstock.inspector import GraphNodeView
from penstock.web.dashboard.graph_layout import Edge, ranked

__all__ = ["BoxGraph", "GraphBox", "folded", "state_of"]

#: A group with more members than this is folded to so many.
_SHOWN = 5
#: States from the most to the least worth a look.
_INTEREST: tuple[str, ...] = (
    *(State.DEAD, NodeState.GONE, State.RUNNING, State.RETRYABLE, State.SUSPENDED, State.PARKED),
    *(State.CANCELLED, State.AVAILABLE, State.COLLECTING, State.SCHEDULED, NodeState.ACTIVE),
    *(NodeState.WAITING, NodeState.SKIPPED, NodeState.UNUSED, State.COMPLETED),
)
_LEAST = len(_INTEREST)


@dataclass(frozen=True)
class GraphBox:
    """A box of the graph: one node, or all nodes of the `branches` that are folded into it."""

    nodes: tuple[GraphNodeView, ...]
    branches: int = 0

    @property
    def first(self) -> GraphNodeView:
        return self.nodes[0]


@dataclass(frozen=True)
class BoxGraph:
    """Boxes, and the lines between them. `opened`: whether a group was unfolded on request."""

    boxes: list[GraphBox]
    lines: list[Edge]
    opened: bool


def state_of(node: GraphNodeView) -> str:
    """The state of a node: that of its job if it is active."""
    if node.state == "active":
        return "active" if node.job is None else node.job.state
    return node.state


def folded(nodes: Sequence[GraphNodeView], opened: Collection[int] = ()) -> BoxGraph:
    """The boxes for some nodes. `opened`: the first node of each group to show in full."""
    return _Folding(nodes, opened).graph()


class _Folding:
    def __init__(self, nodes: Sequence[GraphNodeView], opened: Collection[int]) -> None:
        self._nodes = nodes
        self._opened = opened
        place = {node.node: n for n, node in enumerate(nodes)}
        edges = [(n, place[one]) for n, node in enumerate(nodes) for one in node.next if one in place]
        self._ranks, self._edges = ranked(len(nodes), edges)
        self._before: list[list[int]] = [[] for _ in nodes]
        self._after: list[list[int]] = [[] for _ in nodes]
        for start, end in self._edges:
            self._before[end].append(start)
            self._after[start].append(end)
        self._elsewhere = [tuple(one for one in node.next if one not in place)[:8] for node in nodes]
        self._alike: list[int] = [0] * len(nodes)
        self._interest: list[int] = [_LEAST] * len(nodes)
        self._compare()

    def graph(self) -> BoxGraph:
        owner: list[int | None] = [None] * len(self._nodes)
        boxes: list[GraphBox] = []
        unfolded = False
        for members in self._groups():
            if owner[members[0]] is not None:  # in a branch that is folded
                continue
            fold: list[int] = []
            if len(members) > _SHOWN + 1:
                if any(self._nodes[one].node in self._opened for one in members):
                    unfolded = True
                else:
                    best = sorted(members, key=lambda one: (self._interest[one], one))[:_SHOWN]
                    fold = [one for one in members if one not in best]
            for one in members:
                if one not in fold:
                    owner[one] = len(boxes)
                    boxes.append(GraphBox((self._nodes[one],)))
            if fold:
                inside = [node for one in fold for node in self._branch(one)]
                for one in inside:
                    owner[one] = len(boxes)
                boxes.append(GraphBox(tuple(self._nodes[one] for one in inside), len(fold)))
        lines = dict.fromkeys((owner[start], owner[end]) for start, end in self._edges)
        return BoxGraph(
            boxes,
            [(start, end) for start, end in lines if start is not None and end is not None and start != end],
            unfolded,
        )

    def _compare(self) -> None:
        """Number the branches, equal ones alike, from the last ranks to the first."""
        numbers: dict[object, int] = {}
        for one in sorted(range(len(self._nodes)), key=lambda n: -self._ranks[n]):
            node = self._nodes[one]
            own = [end for end in self._after[one] if len(self._before[end]) == 1]
            shared = tuple(end for end in self._after[one] if len(self._before[end]) > 1)
            looks = (
                *(node.task, node.when, node.queue, node.id is None, shared, self._elsewhere[one]),
                tuple(sorted(self._alike[end] for end in own)),
            )
            self._alike[one] = numbers.setdefault(looks, len(numbers))
            self._interest[one] = min([_interest(node), *(self._interest[end] for end in own)])

    def _groups(self) -> list[list[int]]:
        """Nodes with equal branches after the same nodes, by rank."""
        found: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for one in sorted(range(len(self._nodes)), key=lambda n: (self._ranks[n], n)):
            found.setdefault((tuple(self._before[one]), self._alike[one]), []).append(one)
        return list(found.values())

    def _branch(self, root: int) -> list[int]:
        """A node and what follows it alone."""
        found, waiting = [], [root]
        while waiting:
            one = waiting.pop()
            found.append(one)
            waiting += [end for end in self._after[one] if len(self._before[end]) == 1]
        return found


def _interest(node: GraphNodeView) -> int:
    state = state_of(node)
    return _INTEREST.index(state) if state in _INTEREST else _LEAST
