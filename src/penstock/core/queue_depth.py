"""The depth of a queue during one period: its unfinished and its enqueued jobs, from samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

__all__ = ["QueueDepth", "depth_of_all", "depth_over_time", "enqueued_between"]


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
