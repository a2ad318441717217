"""The picture of a flow: boxes with their texts, and lines between them, as attributes of SVG elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.inspector import GraphNodeView
from penstock.web.dashboard.formats import plain_line
from penstock.web.dashboard.graph_groups import BoxGraph, GraphBox, state_of
from penstock.web.dashboard.graph_layout import Layout, Sizes, layered

__all__ = ["DrawnBox", "DrawnGraph", "StateShare", "drawn", "says", "shares", "short"]

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
    link: Callable[[GraphNodeView], str],
    unfold: Callable[[int], str],
    waits: Callable[[GraphNodeView], str],
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


def says(node: GraphNodeView, waits: str = "") -> str:
    """What a node does now, in a few words."""
    state, job = state_of(node), node.job
    if job is None:
        return _WORDS.get(node.state, node.state)
    if state == "dead" and job.error:
        return plain_line(job.error)
    if state == "suspended" and waits:
        return waits
    if job.cancel_asked and state == "running":
        return f"{state}, asked to stop"
    if state == "running" and job.progress is not None and job.progress.of:
        return f"running {job.progress.done} of {job.progress.of}"
    return f"{state}, attempt {job.attempt}" if job.attempt > 1 else state


_WORDS = {"active": "in its queue", "gone": "its job is gone"}


def _is_join(box: GraphBox) -> bool:
    return not box.branches and box.first.id is None


def _single(
    node: GraphNodeView,
    x: float,
    y: float,
    link: Callable[[GraphNodeView], str],
    waits: Callable[[GraphNodeView], str],
    last: bool,
) -> DrawnBox:
    text = says(node, waits(node))
    title = f"{node.node}: {plain_line(node.task) or 'join'}\n{text}"
    if node.id is None:
        name = f"{node.inputs:,}" if node.inputs else "join"
        title = f"{node.node}: join of {node.inputs:,} results\n{text}"
        return DrawnBox("join", state_of(node), x, y, _JOIN, name, "", title, link(node), node.node)
    progress = node.job.progress if node.job is not None and state_of(node) == "running" else None
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
        node.node,
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
        unfold(box.first.node),
        box.first.node,
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
