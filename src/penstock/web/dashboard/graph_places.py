"""Where the boxes of a layered graph stand across their ranks: near their neighbours, without overlaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["middles_of"]

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
