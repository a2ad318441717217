"""Notifiers: one for a waiting coroutine of an event loop, and one for a waiting thread."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Protocol

__all__ = ["Countdown", "LoopNotifier", "MemoryNotifier", "ThreadNotifier"]


class MemoryNotifier(Protocol):
    def notify(self) -> None:
        """Wake the waiter. Called from any thread, under the lock of the state."""
        ...


class Countdown:
    """A timeout in ms; calling it returns the seconds that are left."""

    def __init__(self, timeout: int) -> None:
        self._ends = time.monotonic() + timeout / 1000

    def __call__(self) -> float:
        return self._ends - time.monotonic()


class LoopNotifier:
    """Wakes a coroutine of the event loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._notified = False

    def notify(self) -> None:
        if self._notified:
            return
        self._notified = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop is closed, so nothing waits there
            pass

    async def wait(self, seconds: float) -> bool:
        """Return True if a notification came since the last wait, or comes within `seconds`."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        self._notified = False
        return True


class ThreadNotifier:
    """Wakes a thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def notify(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> bool:
        notified = self._event.wait(max(0.0, seconds))
        self._event.clear()
        return notified
