"""The store's clock: instants of jobs are the store's, so their age is counted by its clock, not by ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from penstock.core.errors import PenstockError
from penstock.web.dashboard.formats import now_ms

__all__ = ["StoreTime"]

#: Seconds between two measurements, and how long one may take.
_EVERY, _PATIENCE = 30.0, 1.0
#: A smaller distance (ms) is that of the network.
_SAME = 50


class StoreTime:
    """Tells the store's time by the clock of this machine and a measured distance between the two."""

    def __init__(self, read: Callable[[], Awaitable[int]]) -> None:
        self._read = read
        self._ahead = 0
        self._due = 0.0

    async def now(self) -> int:
        """The store's time (ms). If the store does not answer, the last distance counts."""
        at = time.monotonic()
        if at >= self._due:
            self._due = at + _EVERY
            await self._measure()
        return now_ms() + self._ahead

    async def _measure(self) -> None:
        before = now_ms()
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await self._read()
        except (PenstockError, TimeoutError):
            return
        ahead = found - (before + now_ms()) // 2
        self._ahead = ahead if abs(ahead) > _SAME else 0
