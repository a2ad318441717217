"""Clocks.

Every instant in Penstock is an integer of **milliseconds since the epoch**, and every duration is an integer
of milliseconds; seconds, strings and datetimes exist only at the edge (`formats.py`). A store owns the clock
for its jobs; tests pass in a clock and control it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


#: Steady seconds that keep counting while the machine is suspended; holders count their leases from it.
#: Always called as `clock.lease_seconds()`, so that tests can replace it.
lease_seconds: Callable[[], float] = (
    time.monotonic if _BOOTTIME is None else functools.partial(time.clock_gettime, _BOOTTIME)
)


class Clock(Protocol):
    """The clocks that a store needs."""

    def now(self) -> int:
        """Wall clock, ms since the epoch: for due times, enqueue times, expiry."""
        ...

    def lease_now(self) -> int:
        """Clock of leases, ms: steady if the platform has one, so that setting the time voids no lease."""
        ...

    def boot_id(self) -> str:
        """The boot of the machine that `lease_now` counts from; leases of another boot are void."""
        ...


class SystemClock:
    """The machine's clocks. Leases count on CLOCK_BOOTTIME, which includes time spent suspended."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def lease_now(self) -> int:
        if _BOOTTIME is None:  # no steady clock here: use the wall clock
            return self.now()
        return time.clock_gettime_ns(_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        return _boot_id()


class ManualClock:
    """A clock that stands still until it is advanced: tests need not wait for time to pass."""

    def __init__(self, now: int = 1_700_000_000_000, boot: str = "boot-1") -> None:
        self._now = now
        self._steady = 1_000_000
        self._boot = boot

    def now(self) -> int:
        return self._now

    def lease_now(self) -> int:
        return self._steady

    def boot_id(self) -> str:
        return self._boot

    def advance(self, ms: int) -> None:
        """Advance both clocks by `ms` milliseconds."""
        self._now += ms
        self._steady += ms

    def set_wall(self, now: int) -> None:
        """Set the wall clock, as an administrator or NTP does; the clock of leases does not change."""
        self._now = now

    def reboot(self, boot: str) -> None:
        """Simulate a reboot: the steady clock restarts at 0."""
        self._boot = boot
        self._steady = 0


@functools.cache  # constant for a process; stores read it at every fetch
def _boot_id() -> str:
    if _BOOTTIME is None:
        return "wall"
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"
