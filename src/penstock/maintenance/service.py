"""Services: loops with start, tick and stop that continue when the store does not answer."""

from __future__ import annotations

import asyncio
import logging
import random
import time

from penstock.app.outcome_events import log_set_aside
from penstock.core.errors import StoreError
from penstock.stores.contract import Capability

_log = logging.getLogger("penstock.maintenance")

#: Minimum interval of log lines about an unreachable store (s): every loop fails at once.
_LOG_EVERY = 3.0


def pause_after(failures: int, *, first: float = 0.1, most: float = 1.0) -> float:
    """Seconds to wait after `failures` failed calls: doubled each time up to `most`, with jitter.

    The maximum is also the delay with which a worker notices that the store is back.
    """
    return float(min(most, first * 2 ** min(failures, 6)) * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, no secret)


class Backoff:
    """The pause after rounds that had work and could do none of it: none after the first `free` rounds, then
    1 ms, doubled each time up to `most` seconds. Without it, the loop would spin."""

    def __init__(self, *, most: float, free: int = 0) -> None:
        self._most = most
        self._free = free
        self._rounds = 0

    def reset(self) -> None:
        """Reset after a round that did something."""
        self._rounds = 0

    def next_pause(self) -> float:
        """Count a round without effect; returns the seconds to pause."""
        self._rounds += 1
        over = self._rounds - self._free
        return 0.0 if over <= 0 else float(min(self._most, 0.001 * 2 ** min(over - 1, 30)))


class ProblemLog:
    """Logs a repeated problem at most once in three seconds, with the number of lines left out."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged_at = float("-inf")
        self._unlogged = 0

    def report(self, what: str, error: BaseException) -> None:
        """Log that `what` failed, or count it."""
        now = time.monotonic()
        if now - self._logged_at < _LOG_EVERY:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more like it in between)" if self._unlogged else ""
        self._log.warning("%s: %s%s", what, error, more)
        self._logged_at, self._unlogged = now, 0


class Service:
    """A loop. Each tick does a bounded piece of work and returns the seconds until the next tick.

    `wake` starts the next tick early. If the store does not answer, the next tick is delayed (see
    `pause_after`).
    """

    name = "service"
    #: What the store must be able to do; None: nothing beyond the core. Else the service does not run.
    needs: Capability | None = None

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._stopping = False
        #: Services of one store may share a problem log, so that an outage is logged once.
        self.problem_log = ProblemLog(_log)
        #: Called with records that the store has set aside.
        self.on_set_aside = log_set_aside

    async def tick(self) -> float:
        """Do a piece of work; returns the seconds until the next tick."""
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
                self.problem_log.report(f"{self.name}: the store does not answer", error)
                failures += 1
                pause = pause_after(failures)
            except Exception:  # noqa: BLE001  # boundary: a fault in one loop must not end the worker and the attempts in it
                _log.exception("%s failed and continues", self.name)
                failures += 1
                pause = pause_after(failures, most=5.0)
            if pause > 0 and not self._stopping:
                await self._sleep(pause)
            else:
                await asyncio.sleep(0)  # a store in memory never waits: let other tasks run

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    def wake(self) -> None:
        """Tick now instead of at the planned time."""
        self._woken.set()

    def stop(self) -> None:
        """End after the tick that is in progress."""
        self._stopping = True
        self._woken.set()
