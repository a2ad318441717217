"""The picture of a flow: folded groups, boxes with their texts, and lines, as attributes of SVG elements.

The members of a large group are folded: some are shown, the others are one box, "48 more". Members are nodes
after the same nodes whose branches look alike: a branch is what follows a member and nothing else. So a group
of chains is folded chain by chain, whatever its size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from penstock.core.flow import NodeState
from penstock.core.job import State
from penstock.inspector import GraphNode
from penstock.web.dashboard.formats import plain_line
from penstock.web.dashboard.graph_layout import Edge, Layout, Sizes, layered, ranked

# ── boxes: equal nodes are folded ────────────────────────────────────────────────────────────────

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

    nodes: tuple[GraphNode, ...]
    branches: int = 0

    @property
    def first(self) -> GraphNode:
        return self.nodes[0]


@dataclass(frozen=True)
class BoxGraph:
    """Boxes, and the lines between them. `opened`: whether a group was unfolded on request."""

    boxes: list[GraphBox]
    lines: list[Edge]
    opened: bool


def state_of(node: GraphNode) -> str:
    """The state of a node: that of its job if it is active."""
    if node.state == "active":
        return "active" if node.stored is None else node.stored.state
    return node.state


def queue_of(node: GraphNode) -> str | None:
    """The queue of the job of a node; None for a join."""
    return None if node.job is None else node.job.queue


def boxes_of(nodes: Sequence[GraphNode], opened: Collection[int] = ()) -> BoxGraph:
    """The boxes for some nodes. `opened`: the first node of each group to show in full."""
    return _Folding(nodes, opened).graph()


class _Folding:
    def __init__(self, nodes: Sequence[GraphNode], opened: Collection[int]) -> None:
        self._nodes = nodes
        self._opened = opened
        place = {node.index: n for n, node in enumerate(nodes)}
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
                if any(self._nodes[one].index in self._opened for one in members):
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
                *(node.task, node.when, queue_of(node), node.job is None, shared, self._elsewhere[one]),
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


def _interest(node: GraphNode) -> int:
    state = state_of(node)
    return _INTEREST.index(state) if state in _INTEREST else _LEAST


# ── the drawing ──────────────────────────────────────────────────────────────────────────────────

_SIZES = Sizes()
#: Joins are small boxes in the middle of their column.
_JOIN = 58
_EDGE = 12
#: Characters of a name that fit into a box.
_NAME, _LINE = 19, 25


@dataclass(frozen=True)
class StateShare:
    """A part of a bar: a state, its number, and its place from 0 to 100."""

    state: str
    number: int
    x: float
    width: float


@dataclass(frozen=True)
class DrawnBox:
    """A box. `kind`: node, join or more; `link`: where a click leads; `title`: shown on hover."""

    kind: str
    state: str
    x: float
    y: float
    width: float
    name: str
    says: str
    title: str
    link: str
    node: int
    shares: list[StateShare] = field(default_factory=list[StateShare])
    progress: float | None = None


@dataclass(frozen=True)
class DrawnGraph:
    """A picture of this size. Lines: their path, and whether what they wait for has completed."""

    boxes: list[DrawnBox]
    lines: list[tuple[str, bool]]
    width: float
    height: float


def drawn(
    graph: BoxGraph,
    link: Callable[[GraphNode], str],
    unfold: Callable[[int], str],
    waits: Callable[[GraphNode], str],
) -> DrawnGraph:
    """Draw a graph. `link`: of a node; `unfold`: of a folded group; `waits`: why a node is suspended."""
    widths = [_JOIN if _is_join(box) else _SIZES.width for box in graph.boxes]
    folds = {n for n, box in enumerate(graph.boxes) if box.branches}
    last = any(len(plain_line(box.first.task)) > _NAME for box in graph.boxes)  # of all names, or of none
    places = layered(len(graph.boxes), graph.lines, sizes=_SIZES, widths=widths, first=folds)
    boxes = []
    for n, box in enumerate(graph.boxes):
        x, y = places.x[n] + _EDGE, places.y[n] + _EDGE
        boxes.append(
            _folded(box, x, y, unfold) if box.branches else _single(box.first, x, y, link, waits, last)
        )
    lines = [
        (
            _path(places, points, places.x[start] + widths[start], places.x[end]),
            all(node.state == "completed" for node in graph.boxes[start].nodes),
        )
        for (start, end), points in places.lines.items()
    ]
    return DrawnGraph(boxes, lines, places.width + 2 * _EDGE, places.height + 2 * _EDGE)


def shares(counts: dict[str, int]) -> list[StateShare]:
    """A bar of states, in the order given."""
    total, x, made = sum(counts.values()), 0.0, []
    for state, number in counts.items():
        width = 100 * number / total if total else 0.0
        made.append(StateShare(state, number, round(x, 2), round(width, 2)))
        x += width
    return made


def short(name: str, most: int = _NAME, *, last: bool = False) -> str:
    """A name that fits: of a dotted name that is too long, or with `last`, the end, which says most."""
    name = plain_line(name)
    if len(name) <= most and not last:
        return name
    end = name.rpartition(".")[2] or name
    return end if len(end) <= most else f"{end[: most - 1]}…"


def says(node: GraphNode, waits: str = "") -> str:
    """What a node does now, in a few words."""
    state, job = state_of(node), node.stored
    if job is None:
        return _WORDS.get(node.state, node.state)
    if state == "dead" and job.errors:
        return plain_line(job.errors[-1].in_a_line)
    if state == "suspended" and waits:
        return waits
    if job.cancel_asked and state == "running":
        return f"{state}, asked to stop"
    if state == "running" and job.progress is not None and job.progress.of:
        return f"running {job.progress.done} of {job.progress.of}"
    return f"{state}, attempt {job.attempt}" if job.attempt > 1 else state


_WORDS = {"active": "in its queue", "gone": "its job is gone"}


def _is_join(box: GraphBox) -> bool:
    return not box.branches and box.first.job is None


def _single(
    node: GraphNode,
    x: float,
    y: float,
    link: Callable[[GraphNode], str],
    waits: Callable[[GraphNode], str],
    last: bool,
) -> DrawnBox:
    text = says(node, waits(node))
    title = f"{node.index}: {plain_line(node.task) or 'join'}\n{text}"
    if node.job is None:
        name = f"{len(node.inputs):,}" if node.inputs else "join"
        title = f"{node.index}: join of {len(node.inputs):,} results\n{text}"
        return DrawnBox("join", state_of(node), x, y, _JOIN, name, "", title, link(node), node.index)
    progress = node.stored.progress if node.stored is not None and state_of(node) == "running" else None
    done = min(1.0, max(0.0, progress.done / progress.of)) if progress is not None and progress.of else None
    return DrawnBox(
        "node",
        state_of(node),
        x,
        y,
        _SIZES.width,
        short(node.task, last=last),
        _cut(text),
        title,
        link(node),
        node.index,
        progress=done,
    )


def _folded(box: GraphBox, x: float, y: float, unfold: Callable[[int], str]) -> DrawnBox:
    counts = Counter(state_of(node) for node in box.nodes)
    text = ", ".join(f"{number:,} {state}" for state, number in counts.most_common())
    what = "branches" if len(box.nodes) > box.branches else "members"
    return DrawnBox(
        "more",
        "",
        x,
        y,
        _SIZES.width,
        f"{box.branches:,} more {what}",
        _cut(text),
        f"{box.branches:,} more {what} of {plain_line(box.first.task)}\n{text}",
        unfold(box.first.index),
        box.first.index,
        shares(dict(counts.most_common())),
    )


def _path(places: Layout, points: Sequence[tuple[int, float]], start: float, end: float) -> str:
    """A line from the right of a box, `start`, through the free ways to the left of another one, `end`."""
    y, half = points[0][1], _SIZES.across / 2
    parts = [f"M{_n(start)} {_n(y)}"]
    for coming, middle in points[1:]:
        left = places.columns[coming][0]
        if start < left - 2 * half:  # along a column: a narrow box, a free way, or a line without one
            parts.append(f"H{_n(left - 2 * half)}")
        parts.append(f"C{_n(left - half)} {_n(y)} {_n(left - half)} {_n(middle)} {_n(left)} {_n(middle)}")
        start, y = left, middle
    if end > start:
        parts.append(f"H{_n(end)}")
    return "".join(parts)


def _n(value: float) -> str:
    return f"{value + _EDGE:.1f}".removesuffix(".0")


def _cut(text: str) -> str:
    return text if len(text) <= _LINE else f"{text[: _LINE - 1]}…"
