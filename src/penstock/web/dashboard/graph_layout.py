"""Lays a graph out in layers: ranks, the order within each, and where the boxes stand."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

# ── positions in a column ────────────────────────────────────────────────────────────────────────

#: Passes over all ranks that move boxes towards their neighbours; the last one makes rows straight.
_MOVES = 7

Neighbours = Sequence[Sequence[int]]


def middles_of(
    order: Sequence[Sequence[int]],
    before: Neighbours,
    after: Neighbours,
    half: Sequence[float],
    first: float,
) -> list[float]:
    """The middle of each box. `half`: half of its room across the ranks; `first`: the least middle."""
    middles = [0.0] * len(half)
    for rank in order:
        _move(middles, rank, [0.0] * len(rank), half)
    for n in range(_MOVES):
        near, other = (before, after) if n % 2 == 0 else (after, before)
        for rank in order if n % 2 == 0 else reversed(order):
            _move(middles, rank, [_wanted(middles, one, near[one] or other[one]) for one in rank], half)
    shift = first - min(middles, default=0.0)
    return [middle + shift for middle in middles]


def _wanted(middles: Sequence[float], one: int, near: Sequence[int]) -> float:
    """The mean of the neighbours; a box without neighbours stays."""
    return sum(middles[other] for other in near) / len(near) if near else middles[one]


def _move(middles: list[float], rank: Sequence[int], wanted: Sequence[float], half: Sequence[float]) -> None:
    """Move the boxes of a rank as near as possible to the wanted places, in their order.

    Boxes that would overlap stand side by side, in blocks around their mean: the least squares.
    """
    offsets = list(accumulate((half[one] + (half[rank[n - 1]] if n else 0.0) for n, one in enumerate(rank))))
    blocks: list[tuple[float, int]] = []  # sum and number of boxes
    for place, offset in zip(wanted, offsets, strict=True):
        total, size = place - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / size:
            more, boxes = blocks.pop()
            total, size = total + more, size + boxes
        blocks.append((total, size))
    ends = list(accumulate(size for _, size in blocks))
    for n, one in enumerate(rank):
        total, size = blocks[bisect_right(ends, n)]
        middles[one] = total / size + offsets[n]


# ── columns, and order within them ───────────────────────────────────────────────────────────────

#: Passes over all ranks that put boxes into the order of their neighbours.
_SWEEPS = 6
#: A line over several ranks gets a free way between the boxes, as long as there are no more such places.
_MOST_BENDS = 1_500

Edge = tuple[int, int]


@dataclass(frozen=True)
class Sizes:
    """The size of a box, the gaps between boxes, and the room that a passing line takes."""

    width: float = 184
    height: float = 44
    across: float = 48
    between: float = 14
    line: float = 12


@dataclass(frozen=True)
class Layout:
    """Where everything is.

    - `ranks`: of each box; `x`, `y`: its left, and its middle from above.
    - `columns`: the left and the right end of each rank.
    - `lines`: the ranks and middles that each line passes. One that would close a circle is not there.
    """

    ranks: list[int]
    x: list[float]
    y: list[float]
    columns: list[tuple[float, float]]
    lines: dict[Edge, list[tuple[int, float]]]
    width: float
    height: float


def layered(
    count: int,
    edges: Sequence[Edge],
    *,
    sizes: Sizes | None = None,
    widths: Sequence[float] | None = None,
    first: Collection[int] = (),
) -> Layout:
    """Lay out boxes 0 to `count` - 1 and the lines between them.

    `widths`: of boxes that are narrower than others. `first`: boxes that stay in their first possible rank.
    """
    sizes = sizes or Sizes()
    wide = list(widths or [sizes.width] * count)
    ranks, forward = ranked(count, edges, first)
    graph = _Graph(count, forward, ranks)
    half = [
        (sizes.height + sizes.between if one < count else sizes.line) / 2 for one in range(len(graph.ranks))
    ]
    middles = middles_of(graph.ordered(), graph.before, graph.after, half, sizes.height / 2)
    columns = _columns(ranks, wide, sizes.across)
    return Layout(
        ranks,
        [(columns[rank][0] + columns[rank][1] - width) / 2 for rank, width in zip(ranks, wide, strict=True)],
        middles[:count],
        columns,
        {edge: [(graph.ranks[one], middles[one]) for one in way] for edge, way in graph.ways.items()},
        columns[-1][1] if columns else 0.0,
        max(middles, default=0.0) + sizes.height / 2,
    )


def _columns(ranks: Sequence[int], wide: Sequence[float], across: float) -> list[tuple[float, float]]:
    """The left and the right end of each rank: as wide as its widest box."""
    most = [0.0] * (max(ranks, default=-1) + 1)
    for rank, width in zip(ranks, wide, strict=True):
        most[rank] = max(most[rank], width)
    columns, left = [], 0.0
    for width in most:
        columns.append((left, left + width))
        left += width + across
    return columns


def ranked(count: int, edges: Sequence[Edge], first: Collection[int] = ()) -> tuple[list[int], list[Edge]]:
    """The rank of each box, and the lines that lead to a higher rank."""
    forward = _without_circles(count, edges)
    return _ranks(count, forward, first), forward


def _without_circles(count: int, edges: Sequence[Edge]) -> list[Edge]:
    """The lines without repetitions, and without those that lead back."""
    after: list[list[int]] = [[] for _ in range(count)]
    before = [0] * count
    for start, end in dict.fromkeys(edges):
        if start != end and 0 <= start < count and 0 <= end < count:
            after[start].append(end)
            before[end] += 1
    place: dict[int, int] = {}
    free = deque(one for one in range(count) if not before[one])
    later = iter(range(count))
    while len(place) < count:
        if not free:  # only circles are left: the first box begins
            free.append(next(one for one in later if one not in place))
        one = free.popleft()
        if one in place:
            continue
        place[one] = len(place)
        for end in after[one]:
            before[end] -= 1
            if not before[end]:
                free.append(end)
    return [(start, end) for start in place for end in after[start] if place[start] < place[end]]


def _ranks(count: int, forward: Sequence[Edge], stay: Collection[int]) -> list[int]:
    """The longest path to each box; others without predecessors stand right before their first successor.

    `forward` is in the order of its starts.
    """
    ranks, first = [0] * count, [True] * count
    nearest: list[int | None] = [None] * count
    for start, end in forward:
        ranks[end] = max(ranks[end], ranks[start] + 1)
        first[end] = False
    for start, end in forward:
        known = nearest[start]
        nearest[start] = ranks[end] if known is None else min(known, ranks[end])
    return [
        near - 1 if first[one] and near is not None and one not in stay else rank
        for one, (rank, near) in enumerate(zip(ranks, nearest, strict=True))
    ]


class _Graph:
    """Boxes and the bends of long lines by rank, with the neighbours of each in the ranks next to it."""

    def __init__(self, count: int, forward: Sequence[Edge], ranks: Sequence[int]) -> None:
        self.count = count
        self.ranks = list(ranks)
        self.ways: dict[Edge, list[int]] = {}
        left = _MOST_BENDS
        for start, end in forward:
            bends = self.ranks[end] - self.ranks[start] - 1
            if bends > left:
                self.ways[start, end] = [start, end]
                continue
            left -= bends
            way = [start]
            for n in range(bends):
                way.append(len(self.ranks))
                self.ranks.append(self.ranks[start] + 1 + n)
            self.ways[start, end] = [*way, end]
        self.before: list[list[int]] = [[] for _ in self.ranks]
        self.after: list[list[int]] = [[] for _ in self.ranks]
        for way in self.ways.values():
            for one, other in pairwise(way):
                self.after[one].append(other)
                self.before[other].append(one)

    def ordered(self) -> list[list[int]]:
        """The boxes of each rank, in the order with the fewest crossings that the sweeps have found."""
        order: list[list[int]] = [[] for _ in range(max(self.ranks, default=-1) + 1)]
        for one in self._as_met():
            order[self.ranks[one]].append(one)
        best, fewest = [list(rank) for rank in order], self._crossings(order)
        for sweep in range(_SWEEPS):
            if not fewest:
                break
            down = sweep % 2 == 0
            for n in range(1, len(order)) if down else range(len(order) - 2, -1, -1):
                beside = order[n - 1 if down else n + 1]
                order[n] = _sorted_by(order[n], beside, self.before if down else self.after)
            crossings = self._crossings(order)
            if crossings < fewest:
                best, fewest = [list(rank) for rank in order], crossings
        return best

    def _as_met(self) -> list[int]:
        """All boxes, each after the first of its predecessors, and beside the others of that one."""
        met: dict[int, None] = {}
        waiting = [one for one in range(len(self.ranks) - 1, -1, -1) if not self.before[one]]
        while waiting:
            one = waiting.pop()
            if one not in met:
                met[one] = None
                waiting += reversed(self.after[one])
        return list(met)

    def _crossings(self, order: Sequence[Sequence[int]]) -> int:
        found = 0
        for upper, lower in pairwise(order):
            places = {one: n for n, one in enumerate(lower)}
            ends = (sorted(places[end] for end in self.after[one] if end in places) for one in upper)
            found += _inversions([place for some in ends for place in some])
        return found


def _sorted_by(rank: list[int], beside: Sequence[int], neighbours: Sequence[Sequence[int]]) -> list[int]:
    """A rank in the order of the mean places of its neighbours; boxes without neighbours keep their place."""
    places = {one: n for n, one in enumerate(beside)}
    scale = len(beside) / max(1, len(rank))

    def mean(n: int) -> float:
        found = [places[one] for one in neighbours[rank[n]] if one in places]
        return sum(found) / len(found) if found else n * scale

    return [rank[n] for n in sorted(range(len(rank)), key=mean)]


def _inversions(numbers: Sequence[int]) -> int:
    """How many pairs are out of order."""
    size = max(numbers, default=0) + 1
    tree, found = [0] * (size + 1), 0
    for seen, number in enumerate(numbers):
        n, smaller = number + 1, 0
        while n:
            smaller += tree[n]
            n &= n - 1
        found += seen - smaller
        n = number + 1
        while n <= size:
            tree[n] += 1
            n += n & -n
    return found
