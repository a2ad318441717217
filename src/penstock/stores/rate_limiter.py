"""The arithmetic of a queue's limits: how many jobs it may give now, and when it may give the next.

For the stores that keep their data here; `scripts/lib/limits.lua` is the same on a Redis server.
"""

from __future__ import annotations

import math

from penstock.core.limits import NO_LIMITS, LimitChange, QueueLimits, bounded_hold

__all__ = ["Drain", "ExactGate", "Gate"]

#: Starts that are due so soon (ms) are given out already, and begin then: who fetches late loses none.
_AHEAD = 20
#: Who sleeps until the next start comes back so long (ms) before it.
_LEAD = 10
#: A drain rate is measured over about so long (ms), and has to be measured for so long to say anything.
_SPAN, _LEAST = 5_000.0, 200.0
#: Whoever is refused is told to come again after at least, at most, and where nothing is known (ms).
_SOONEST, _LATEST, _UNKNOWN = 10, 60_000, 1_000
#: An instant as a double has so much noise (ms).
_NOISE = 0.001


class Drain:
    """How fast jobs leave a queue, of late: a count that decays."""

    __slots__ = ("at", "count", "since")

    def __init__(self, count: float = 0.0, at: int = 0, since: int = 0) -> None:
        self.count = count
        self.at = at
        self.since = since

    def left(self, n: int, now: int) -> None:
        """n jobs have just been fetched."""
        if now - self.at > 2 * _SPAN or now < self.at:  # nothing that was before says anything any more
            self.count, self.at, self.since = 0.0, now, now
        self.count = self.count * math.exp((self.at - now) / _SPAN) + n
        self.at = now

    def wait(self, needed: int, now: int) -> int:
        """For how long (ms) it takes until so many have left."""
        if self.count <= 0:
            return _UNKNOWN
        seen = max(_LEAST, _SPAN * -math.expm1(-max(0, now - self.since) / _SPAN))
        per_ms = self.count * math.exp(min(0, self.at - now) / _SPAN) / seen
        return max(_SOONEST, math.ceil(min(_LATEST, needed / per_ms))) if per_ms > 0 else _LATEST


class Gate:
    """Of one queue: its limits, and what has passed."""

    __slots__ = ("drain", "held_until", "limits", "tat")

    ahead: float = _AHEAD
    lead = _LEAD

    def __init__(
        self,
        limits: QueueLimits = NO_LIMITS,
        held_until: int = 0,
        tat: float = 0.0,
        drain: Drain | None = None,
    ) -> None:
        self.limits = limits
        self.held_until = held_until
        self.tat = tat  # when the next start would come at an even pace (ms); "theoretical arrival time"
        self.drain = drain or Drain()

    def change(self, change: LimitChange, now: int) -> bool:
        """Whether anything is other than before."""
        before = self.limits, self.held(now)
        self.limits = change.applied(self.limits)
        rate = self.limits.rate
        if self.limits == NO_LIMITS:
            self.tat = 0.0  # a queue without limits remembers nothing of them
        elif rate is not None and rate != before[0].rate:
            self.tat = min(self.tat, now + rate.burst * rate.step)
        if isinstance(change.hold, int):
            self.held_until = now + change.hold
        elif change.hold is None:
            self.held_until = 0
        return before != (self.limits, self.held(now))

    def hold(self, ms: int, now: int) -> None:
        """It gives nothing for so long, or for longer if that was said before."""
        self.held_until = max(self.held_until, now + bounded_hold(ms))

    def held(self, now: int) -> int | None:
        """Until when it is held, if it is."""
        return self.held_until if self.held_until > now else None

    def room(self, running: int, now: int) -> int | None:
        """How many jobs it may give now; None: any number."""
        if self.held_until > now:
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
        """Whether as many run as may."""
        return self.limits.max_running is not None and running >= self.limits.max_running

    def opens(self, running: int, now: int) -> int | None:
        """When a gate that is shut opens by the time that passes; None: not by that."""
        limits = self.limits
        if self.full(running):
            return None
        opens = self.held_until
        if limits.rate is not None:
            opens = max(opens, math.ceil(self._first(now) - _NOISE) - self.lead)
        return opens if opens > now else None

    def pass_(self, n: int, now: int) -> list[int] | None:
        """n jobs are given: at which instants they start; None: all now."""
        rate = self.limits.rate
        if self.limits.max_size is not None:
            self.drain.left(n, now)
        if rate is None:
            return None
        first, base = self._first(now), self._base(now)
        self.tat = base + n * rate.step
        return [max(now, math.ceil(first + k * rate.step - _NOISE)) for k in range(n)]

    def _base(self, now: int) -> float:
        """When the next start would come; now, where that is further ahead than it can have come: then the
        clock was set back."""
        rate = self.limits.rate
        assert rate is not None
        ahead = self.tat - now
        return self.tat if 0 < ahead <= _AHEAD + rate.burst * rate.step + 1 else float(now)

    def _first(self, now: int) -> float:
        """The instant of the next start, which may have passed."""
        rate = self.limits.rate
        assert rate is not None
        return self._base(now) - (rate.burst - 1) * rate.step


class ExactGate(Gate):
    """Gives each start at its instant, none ahead: for a clock that stands still between two instants."""

    __slots__ = ()

    ahead = _NOISE
    lead = 0
