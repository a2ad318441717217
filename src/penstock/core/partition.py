"""Partitions and tenants: how a job depends on other jobs of its queue.

A partition is a key and its terms. At most `most` of its jobs are *admitted* (available or running); the
others wait outside the queue's order. A tenant only sets a position in that order: jobs of one tenant are a
step apart, so that each tenant comes once per round. Both are data of a job; the computations for all stores
are here.
"""

from __future__ import annotations

import math

import msgspec

from penstock.core.limits import Rate

__all__ = ["MOST_AT_ONCE", "MOST_KEY", "MOST_WEIGHT", "STEP", "Partition", "Tenant"]

#: Maximum bytes of a key.
MOST_KEY = 200
MOST_AT_ONCE = 1_000_000
MOST_WEIGHT = 100
#: Distance between the positions of two jobs of a tenant of weight 1. It is divisible by all small weights,
#: and leaves room in between for other tenants' jobs, in order of arrival.
STEP = 7_680


class Partition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Limits the running jobs of one partition key in its queue to `most`; the oldest is admitted next.

    `ordered`: one job at a time, in order of arrival regardless of priority; an admitted job stays admitted
    until it has ended. `rate`: the maximum rate at which jobs of this key start.
    """

    key: str
    most: int = 1
    ordered: bool = False
    rate: Rate | None = None

    def rank(self, priority: int) -> int:
        """The rank among waiting jobs of the partition: lower ranks first, then by position."""
        return 0 if self.ordered else -priority

    def allowed_at(self, ready: int, spent: float, throttled_until: int, now: int) -> int | None:
        """The earliest instant at which one more job may be admitted, if there is room.

        None: not before another job has started. `ready` is the number of jobs that are admitted but not
        started. `spent` is the instant at which no past start counts any more: each start moves it forward by
        one step of the rate, from the present or from its value. A value further ahead than starts could have
        moved it comes from a clock that was set back, and is ignored.
        """
        if self.rate is None:
            return throttled_until
        step, left = self.rate.step, self.rate.burst - 1 - ready
        if spent > now + (self.rate.burst + 1) * step:
            spent = now
        return None if left < 0 else max(throttled_until, math.ceil(spent - left * step))

    def after_start(self, spent: float, now: int) -> float:
        """The value of `spent` after one more start. Values left by a clock that was set back are limited."""
        if self.rate is None:
            return spent
        step = self.rate.step
        return min(max(spent, float(now)), now + self.rate.burst * step) + step


class Tenant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tenant of a job, for the fair share: a tenant of weight 3 gets three starts in each round."""

    key: str
    weight: int = 1

    @property
    def step(self) -> int:
        return STEP // self.weight
