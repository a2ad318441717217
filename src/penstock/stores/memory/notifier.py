"""How a wait is woken: a bell for a coroutine of an event loop, and one for a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Protocol

__all__ = ["Bell", "Countdown", "LoopBell", "ThreadBell"]


class Bell(Protocol):
    def ring(self) -> None:
        """Wake whoever waits; from any thread, and under the shelf's lock."""
        ...


class Countdown:
    """The seconds that are left of a timeout in ms."""

    def __init__(self, timeout: int) -> None:
        self._ends = time.monotonic() + timeout / 1000

    def __call__(self) -> float:
        return self._ends - time.monotonic()


class LoopBell:
    """Wakes a coroutine of the event loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._rung = False

    def ring(self) -> None:
        if self._rung:
            return
        self._rung = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # its loop is closed: nobody waits there any more
            pass

    async def heard(self, seconds: float) -> bool:
        """Whether it was rung since the last time, or is within that time."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        self._rung = False
        return True


class ThreadBell:
    """Wakes a thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def heard(self, seconds: float) -> bool:
        heard = self._event.wait(max(0.0, seconds))
        self._event.clear()
        return heard
