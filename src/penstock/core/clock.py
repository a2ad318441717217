"""What time it is, and who says so.

Every instant in Penstock is an integer of **milliseconds since the epoch**, every duration an
integer of milliseconds; seconds, strings and datetimes exist only at the edge (`duration.py`).
A store owns the clock that its jobs are judged by; tests pass one in and steer it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock", "lease_seconds"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


#: Seconds, steady, and running on while the machine is suspended: what a holder reckons its leases from.
#: Always called as `clock.lease_seconds()`, so that tests can let time pass.
lease_seconds: Callable[[], float] = (
    time.monotonic if _BOOTTIME is None else functools.partial(time.clock_gettime, _BOOTTIME)
)


class Clock(Protocol):
    """What a store needs to know about time."""

    def now(self) -> int:
        """Wall clock, ms since the epoch: when jobs are due, were enqueued, expire."""
        ...

    def lease_now(self) -> int:
        """The clock of leases, ms: steady where the platform has one, so that a set clock voids none."""
        ...

    def boot_id(self) -> str:
        """Which run of the machine `lease_now` counts from; leases of another boot are void."""
        ...


class SystemClock:
    """The machine's own clocks. Leases count on CLOCK_BOOTTIME, which runs on through suspend."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def lease_now(self) -> int:
        if _BOOTTIME is None:  # no such clock here: the wall clock has to do
            return self.now()
        return time.clock_gettime_ns(_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        return _boot_id()


class ManualClock:
    """A clock that stands still until it is told to move: no test waits for time to pass."""

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
        """Let `ms` milliseconds pass on both clocks."""
        self._now += ms
        self._steady += ms

    def set_wall(self, now: int) -> None:
        """Set the wall clock, as an administrator or NTP does; the clock of leases does not move."""
        self._now = now

    def reboot(self, boot: str) -> None:
        """A new run of the machine: the steady clock begins anew."""
        self._boot = boot
        self._steady = 0


@functools.cache  # no process outlives its boot, and stores ask at every fetch
def _boot_id() -> str:
    if _BOOTTIME is None:
        return "wall"
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"
