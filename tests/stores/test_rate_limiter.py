"""The rate limiter of a queue: how many jobs may be fetched now, and when more may be."""

from __future__ import annotations

import pytest

from penstock.core.limits import QueueLimits, Rate
from penstock.stores.rate_limiter import ExactRateLimiter, RateLimiter


@pytest.mark.parametrize("kind", [RateLimiter, ExactRateLimiter])
@pytest.mark.parametrize("per_ms", [1, 10, 15, 1_000])
def test_it_says_when_it_opens_only_while_nothing_may_be_fetched(
    kind: type[RateLimiter], per_ms: int
) -> None:
    """A worker fetches a little ahead of the next start: until then that start is no reason to wait."""
    limiter, now = kind(QueueLimits(rate=Rate(1, per_ms))), 1_700_000_000_000
    for _ in range(9):
        room, opens = limiter.room(0, now), limiter.opens_at(0, now)
        assert (room == 0) == (opens is not None)
        limiter.count_starts(room or 0, now)
        now += 7
