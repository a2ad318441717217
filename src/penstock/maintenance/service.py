"""The life of every loop: start, tick, stop, and what happens when the store does not answer."""

from __future__ import annotations

import asyncio
import logging
import random
import time

from penstock.app.outcome_events import log_set_aside
from penstock.core.errors import StoreError

__all__ = ["Backoff", "Complaint", "Service", "pause_after"]

_log = logging.getLogger("penstock.maintenance")

#: A store that is away makes every loop fail at once: say so at most this often (s).
_SAY_EVERY = 3.0


def pause_after(failures: int, *, first: float = 0.1, most: float = 1.0) -> float:
    """Seconds to let a store rest that has failed so often: doubled each time, with jitter.

    The longest is what a worker may be late when the store is back.
    """
    return float(min(most, first * 2 ** min(failures, 6)) * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, no secret)


class Backoff:
    """The pause after a round that had something to do and did nothing: none after the first `free` rounds,
    then 1 ms, doubled each time up to `most` seconds. Without it, a loop spins on what cannot be done."""

    def __init__(self, *, most: float, free: int = 0) -> None:
        self._most = most
        self._free = free
        self._rounds = 0

    def moved(self) -> None:
        """Something was done: begin anew."""
        self._rounds = 0

    def stuck(self) -> float:
        """Seconds to pause after one more round in vain."""
        self._rounds += 1
        over = self._rounds - self._free
        return 0.0 if over <= 0 else float(min(self._most, 0.001 * 2 ** min(over - 1, 30)))


class Complaint:
    """Logs a repeated trouble at most once in three seconds, with the count of what it left out."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said = float("-inf")
        self._unsaid = 0

    def about(self, what: str, error: BaseException) -> None:
        """Say that `what` failed, or count it."""
        now = time.monotonic()
        if now - self._said < _SAY_EVERY:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more like it in between)" if self._unsaid else ""
        self._log.warning("%s: %s%s", what, error, more)
        self._said, self._unsaid = now, 0


class Service:
    """One loop. A tick does a bounded piece of work and says in how many seconds it wants the next;
    `wake` brings it forward. A store that does not answer delays the next tick (see `pause_after`) and
    ends nothing."""

    name = "service"

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._stopping = False
        #: Those who depend on one store may share theirs, so that one outage is not told by each of them.
        self.complaint = Complaint(_log)
        #: Hears of what the store has set aside.
        self.on_set_aside = log_set_aside

    async def tick(self) -> float:
        """Do a piece of work; seconds until the next one."""
        raise NotImplementedError

    async def run(self) -> None:
        """Tick until stopped."""
        failures = 0
        while not self._stopping:
            self._woken.clear()
            try:
                pause = await self.tick()
                failures = 0
            except StoreError as error:
                self.complaint.about(f"{self.name}: the store does not answer", error)
                failures += 1
                pause = pause_after(failures)
            except Exception:  # noqa: BLE001  # boundary: a fault in one loop must not end the worker and the attempts in it
                _log.exception("%s failed, and goes on", self.name)
                failures += 1
                pause = pause_after(failures, most=5.0)
            if pause > 0 and not self._stopping:
                await self._sleep(pause)
            else:
                await asyncio.sleep(0)  # a store in memory never makes us wait: the others want their turn

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    def wake(self) -> None:
        """Tick now instead of later."""
        self._woken.set()

    def stop(self) -> None:
        """End after the tick that is under way."""
        self._stopping = True
        self._woken.set()
