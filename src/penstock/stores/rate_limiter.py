"""Compute the limits of a queue: how many jobs may be fetched now, and when the next one may be fetched.

The rate limiter is a GCRA (generic cell rate algorithm). The memory and SQLite stores use this module;
`scripts/lib/limits.lua` does the same on a Redis server.
"""

from __future__ import annotations

import math

from penstock.core.limits import NO_LAYERS, NO_LIMITS, LimitChange, LimitLayers, QueueLimits, bounded_throttle

#: Jobs may be fetched this long (ms) before they may start, so that a late fetch does not lower the rate.
_AHEAD = 20
#: A worker that waits for the next start should fetch this long (ms) before it.
_LEAD = 10
#: The drain rate is measured over about `_SPAN` ms, and counts as measured for at least `_LEAST` ms.
_SPAN, _LEAST = 5_000.0, 200.0
#: Bounds of the `retry_after` of a refused enqueue, and its value if no drain rate is known (ms).
_SOONEST, _LATEST, _UNKNOWN = 10, 60_000, 1_000
#: The rounding error of an instant stored as a double (ms).
_NOISE = 0.001


class Drain:
    """How fast jobs have left a queue recently, as an exponentially decaying count."""

    __slots__ = ("at", "count", "since")

    def __init__(self, count: float = 0.0, at: int = 0, since: int = 0) -> None:
        self.count = count
        self.at = at
        self.since = since

    def left(self, n: int, now: int) -> None:
        """Count n jobs that were just fetched."""
        if now - self.at > 2 * _SPAN or now < self.at:  # too old, or the clock was set back: count from 0
            self.count, self.at, self.since = 0.0, now, now
        self.count = self.count * math.exp((self.at - now) / _SPAN) + n
        self.at = now

    def wait(self, needed: int, now: int) -> int:
        """Estimate the time (ms) until `needed` jobs have left the queue."""
        if self.count <= 0:
            return _UNKNOWN
        seen = max(_LEAST, _SPAN * -math.expm1(-max(0, now - self.since) / _SPAN))
        per_ms = self.count * math.exp(min(0, self.at - now) / _SPAN) / seen
        return max(_SOONEST, math.ceil(min(_LATEST, needed / per_ms))) if per_ms > 0 else _LATEST


class RateLimiter:
    """The rate limiter of one queue: its limits, its throttle, and its recent starts."""

    __slots__ = ("drain", "layers", "limits", "next_start", "throttled_until")

    ahead: float = _AHEAD
    lead = _LEAD

    def __init__(
        self,
        limits: QueueLimits = NO_LIMITS,
        throttled_until: int = 0,
        next_start: float = 0.0,
        drain: Drain | None = None,
    ) -> None:
        self.limits = limits
        #: Who has set the limits; only for `change` and for operators.
        self.layers = NO_LAYERS
        self.throttled_until = throttled_until
        self.next_start = (
            next_start  # theoretical arrival time (ms): when the next start is due at an even rate
        )
        self.drain = drain or Drain()

    def change(self, change: LimitChange, now: int) -> bool:
        """Apply a change of limits or throttle; return True if anything has changed."""
        before = self.limits, self.throttled(now)
        self.layers = self.known_layers().changed(change, self.limits)
        self.limits = self.layers.limits()
        rate = self.limits.rate
        if self.limits == NO_LIMITS:
            self.next_start = 0.0  # a queue without limits stores no starts
        elif rate is not None and rate != before[0].rate:
            self.next_start = min(self.next_start, now + rate.burst * rate.step)
        if isinstance(change.throttle, int):
            self.throttled_until = now + change.throttle
        elif change.throttle is None:
            self.throttled_until = 0
        return before != (self.limits, self.throttled(now))

    def known_layers(self) -> LimitLayers:
        """Return who has set the limits; an operator, if that was not stored."""
        return self.layers if self.layers != NO_LAYERS else LimitLayers.by_operator(self.limits)

    def throttle(self, ms: int, now: int) -> None:
        """Throttle the queue for `ms`. A throttle that already lasts longer stays."""
        self.throttled_until = max(self.throttled_until, now + bounded_throttle(ms))

    def throttled(self, now: int) -> int | None:
        """Return when the queue's throttle ends; None if the queue is not throttled."""
        return self.throttled_until if self.throttled_until > now else None

    def room(self, running: int, now: int) -> int | None:
        """Return how many jobs may be fetched now; None: any number."""
        if self.throttled_until > now:
            return 0
        limits, room = self.limits, None
        if limits.max_running is not None:
            room = max(0, limits.max_running - running)
        if limits.rate is not None:
            slots = (now + self.ahead - self._first(now)) / limits.rate.step
            by_rate = math.floor(slots) + 1 if slots >= 0 else 0
            room = by_rate if room is None else min(room, by_rate)
        return room

    def full(self, running: int) -> bool:
        """Return True if `max_running` jobs run."""
        return self.limits.max_running is not None and running >= self.limits.max_running

    def opens_at(self, running: int, now: int) -> int | None:
        """Return when jobs may be fetched again; None if they may be now, or only when a running job ends."""
        limits = self.limits
        if self.full(running):
            return None
        opens = self.throttled_until
        if limits.rate is not None and (first := self._first(now)) > now + self.ahead:
            opens = max(opens, math.ceil(first - _NOISE) - self.lead)
        return opens if opens > now else None

    def count_starts(self, n: int, now: int) -> list[int] | None:
        """Count n jobs that are fetched now; return the instants at which they may start, None: all now."""
        rate = self.limits.rate
        if self.limits.max_size is not None:
            self.drain.left(n, now)
        if rate is None:
            return None
        first, base = self._first(now), self._base(now)
        self.next_start = base + n * rate.step
        return [max(now, math.ceil(first + k * rate.step - _NOISE)) for k in range(n)]

    def _base(self, now: int) -> float:
        """Return when the next start is due at an even rate.

        Returns now if that instant is impossibly far ahead, which means that the clock was set back.
        """
        rate = self.limits.rate
        assert rate is not None
        ahead = self.next_start - now
        return self.next_start if 0 < ahead <= _AHEAD + rate.burst * rate.step + 1 else float(now)

    def _first(self, now: int) -> float:
        """Return the earliest instant of the next start, which may be in the past."""
        rate = self.limits.rate
        assert rate is not None
        return self._base(now) - (rate.burst - 1) * rate.step


class ExactRateLimiter(RateLimiter):
    """A rate limiter that allows no fetch ahead of its start, for a test clock that stands still."""

    __slots__ = ()

    ahead = _NOISE
    lead = 0
