"""Sketches of durations: numbers by bucket, from which percentiles can be read with a known error.

The largest value of each bucket is 1.105 times that of the bucket before, so a percentile is wrong by at most
5 %. Sketches with the same buckets can be added: those of several workers, or of several minutes. The idea is
that of DDSketch (Masson, Rim and Lee, VLDB 2019).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

__all__ = [
    "BUCKETS",
    "ERROR",
    "MS_BOUNDS",
    "SECOND_BOUNDS",
    "Sketch",
    "quantile",
    "sketch_of",
    "sum_sketches",
]

#: The largest relative error of a percentile.
ERROR = 0.05
_GROWTH = (1 + ERROR) / (1 - ERROR)
_LAST = 330
#: Number of buckets: the first has all values up to 1 µs, the last all values above seven years.
BUCKETS = _LAST + 2
#: The largest value of each bucket but the last, in seconds and in milliseconds.
SECOND_BOUNDS = tuple(1e-6 * _GROWTH**n for n in range(_LAST + 1))
MS_BOUNDS = tuple(1e-3 * _GROWTH**n for n in range(_LAST + 1))

#: Bucket, number, bucket, number …, by rising bucket. A list of integers is small in every store.
Sketch = list[int]


def sketch_of(values: Sequence[float], bounds: Sequence[float]) -> Sketch:
    """Count sorted values by bucket: SECOND_BOUNDS for seconds, MS_BOUNDS for milliseconds."""
    found: Sketch = []
    start = 0
    while start < len(values):
        bucket = bisect_left(bounds, values[start])
        end = len(values) if bucket == len(bounds) else bisect_right(values, bounds[bucket], start)
        found += (bucket, end - start)
        start = end
    return found


def sum_sketches(sketches: Iterable[Sketch]) -> Sketch:
    """The sum of sketches."""
    counts: defaultdict[int, int] = defaultdict(int)
    for one in sketches:
        numbers = iter(one)
        for bucket, number in zip(numbers, numbers, strict=False):  # pairs, without a copy
            counts[bucket] += number
    return [number for pair in sorted(counts.items()) for number in pair]


def quantile(sketch: Sketch, share: float) -> float | None:
    """The value (s) below which this share of all values is, within 5 %; None without values."""
    numbers = sketch[1::2]
    rank = share * (sum(numbers) - 1)
    seen = 0
    for bucket, number in zip(sketch[0::2], numbers, strict=False):
        seen += number
        if seen > rank:
            return _middle(bucket)
    return None


def _middle(bucket: int) -> float:
    """The value (s) that is equally wrong, in relation, for the least and the greatest value of a bucket."""
    if bucket <= 0:
        return 0.0
    return SECOND_BOUNDS[min(bucket, _LAST)] * 2 / (1 + _GROWTH)
