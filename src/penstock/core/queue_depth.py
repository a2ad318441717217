"""The depth of a queue during one period: how many unfinished jobs it had, from samples."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

__all__ = ["QueueDepth", "depth_of_all", "depth_over_time"]


class QueueDepth(msgspec.Struct, frozen=True):
    """Sums of the unfinished jobs that were counted at some samples.

    - `samples`: number of samples.
    - `available`, `running`, `later`: sums over the samples; divided by `samples`, they are means. `later`:
      all other unfinished jobs, which are scheduled, retryable, parked, waiting, collecting or suspended.
    - `peak`: the most available jobs of a queue at one sample.

    Sums were chosen because they stay exact when periods, or queues, are added: the last value of each would
    not. A mean hides a short peak, so the peak is kept, too.
    """

    samples: int
    available: int
    running: int
    later: int
    peak: int

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


def _sums(parts: list[QueueDepth], samples: int) -> QueueDepth:
    return QueueDepth(
        samples,
        sum(one.available for one in parts),
        sum(one.running for one in parts),
        sum(one.later for one in parts),
        max((one.peak for one in parts), default=0),
    )
