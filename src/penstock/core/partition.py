"""Partitions and tenants: how a job depends on other jobs of its queue.

A partition is a key and its terms; of its jobs at most `most` are *admitted* (available or running), and the
others wait outside of the queue's order. A tenant is only a place: jobs of one key stand a step apart, so
that each key comes once in a round. Both are data on a job; the arithmetic is here, for all stores alike.
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
#: How far apart the places of a key of weight 1 are: divisible by all small weights, and with room between
#: two for others, who stand there one behind the other in the order of their coming.
STEP = 7_680


class Partition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """At most `most` jobs of this key, in its queue, run at once; the first in line is looked at first.

    `ordered`: one at a time, in the order in which they joined, whatever their priority: the one admitted
    stays until it has ended. `rate`: so many of the key may start in so long.
    """

    key: str
    most: int = 1
    ordered: bool = False
    rate: Rate | None = None

    def rank(self, priority: int) -> int:
        """Among waiting jobs of the key: the lower first; then by place."""
        return 0 if self.ordered else -priority

    def allowed_at(self, ready: int, spent: float, throttled_until: int, now: int) -> int | None:
        """From when on one more may be admitted, if there is room; None: not before another one has started.

        `ready` is how many are admitted and not started. `spent` is the instant at which none of the starts
        so far counts any more: a start moves it on by one step of the rate, from now on or from where it is.
        What lies further ahead than starts can have moved it is of a clock that was set back.
        """
        if self.rate is None:
            return throttled_until
        step, left = self.rate.step, self.rate.burst - 1 - ready
        if spent > now + (self.rate.burst + 1) * step:
            spent = now
        return None if left < 0 else max(throttled_until, math.ceil(spent - left * step))

    def after_start(self, spent: float, now: int) -> float:
        """`spent`, when one more has started. What a clock that was set back has left there is forgiven."""
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
