"""Statistics that stores keep: times of attempts as sketches, numbers of attempts, depths of queues.

A sketch has numbers by bucket, from which percentiles can be read with a known error. The largest value of
each bucket is 1.105 times that of the bucket before, so a percentile is wrong by at most 5 %. Sketches with
the same buckets can be added: those of several workers, or of several minutes. The idea is that of DDSketch
(Masson, Rim and Lee, VLDB 2019).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

#: The largest relative error of a percentile.
_ERROR = 0.05
_GROWTH = (1 + _ERROR) / (1 - _ERROR)
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


# ── a task in one queue during one period ────────────────────────────────────────────────────────


#: The name under which the tasks beyond the most that are counted by name are counted together.
OTHER = "other"


class TaskStats(msgspec.Struct, array_like=True):
    """Numbers of attempts by how they ended, and sketches of their times.

    - `started`: attempts whose function has started. `processed` and `failed` count as a queue's totals do:
      attempts that were charged, and those that ended with an error. `retried` and `dead`: what followed.
    - `waited`, `ran`: sums (µs). `waits`: from due to leased. `runs`: of the function.

    A store adds the numbers and the sketches of two records place by place, so all numbers come first.
    """

    started: int = 0
    processed: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    waited: int = 0
    ran: int = 0
    waits: Sketch = msgspec.field(default_factory=list)
    runs: Sketch = msgspec.field(default_factory=list)


def sum_of(parts: Sequence[TaskStats]) -> TaskStats:
    """The sum of many statistics."""
    return TaskStats(
        started=sum(one.started for one in parts),
        processed=sum(one.processed for one in parts),
        failed=sum(one.failed for one in parts),
        retried=sum(one.retried for one in parts),
        dead=sum(one.dead for one in parts),
        waited=sum(one.waited for one in parts),
        ran=sum(one.ran for one in parts),
        waits=sum_sketches(one.waits for one in parts),
        runs=sum_sketches(one.runs for one in parts),
    )


# ── a queue during one period ────────────────────────────────────────────────────────────────────


class QueueDepth(msgspec.Struct, frozen=True):
    """Sums of the unfinished jobs that were counted at some samples.

    - `samples`: number of samples.
    - `available`, `running`, `later`: sums over the samples; divided by `samples`, they are means. `later`:
      all other unfinished jobs, which are scheduled, retryable, parked, waiting, collecting or suspended.
    - `peak`: the most available jobs of a queue at one sample.
    - `enqueued`: jobs enqueued from the first of the samples to the first sample of the next period that has
      one, or until now. None: unknown, as the samples were stored without the total of enqueued jobs.

    Sums were chosen because they stay exact when periods, or queues, are added: the last value of each would
    not. A mean hides a short peak, so the peak is kept, too.
    """

    samples: int
    available: int
    running: int
    later: int
    peak: int
    enqueued: int | None = None

    @classmethod
    def sample(cls, available: int, running: int, later: int) -> QueueDepth:
        """One sample."""
        return cls(1, available, running, later, available)


def depth_over_time(parts: Iterable[QueueDepth]) -> QueueDepth:
    """The depth of one queue over several periods."""
    every = list(parts)
    return _sums(every, sum(one.samples for one in every))


def depth_of_all(queues: Iterable[QueueDepth]) -> QueueDepth:
    """The depth of several queues together in one period.

    A queue with fewer samples than others did not exist at the others: it had no jobs then.
    """
    every = list(queues)
    return _sums(every, max((one.samples for one in every), default=0))


def enqueued_between(totals: Sequence[int | None], total: int) -> list[int | None]:
    """The jobs that were enqueued in each period of one queue, oldest first.

    `totals`: of enqueued jobs at the first sample of each period, None if it is unknown; `total`: the one of
    now. A total that is lower than an earlier one counts as nothing enqueued: counters were restored.
    """
    counted: list[int | None] = []
    for first in reversed(totals):
        counted.append(None if first is None else max(0, total - first))
        total = total if first is None else first
    return counted[::-1]


def _sums(parts: list[QueueDepth], samples: int) -> QueueDepth:
    counted = [one.enqueued for one in parts if one.enqueued is not None]
    return QueueDepth(
        samples,
        sum(one.available for one in parts),
        sum(one.running for one in parts),
        sum(one.later for one in parts),
        max((one.peak for one in parts), default=0),
        sum(counted) if counted else None,
    )
