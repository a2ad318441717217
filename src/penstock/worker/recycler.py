"""Replaces this worker process when it has run many jobs or has grown large."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.core.text import number
from penstock.maintenance.service import Service
from penstock.worker.leased_jobs import LeasedJobs

__all__ = ["Recycler"]

_log = logging.getLogger("penstock.worker")
_LOOK_EVERY = 1.0
#: The replacement may fail to start: ask for another one after this long (s).
_ASK_AGAIN = 60.0


class Recycler(Service):
    """Asks for a replacement once a limit is reached: `jobs` ended, `memory` bytes `resident`; 0: no limit.

    A worker is never replaced before a job has ended, so that a limit below what the app needs does not make
    workers replace each other for ever. `replace` asks the supervisor, which starts a new process and then
    lets this one drain.
    """

    name = "recycler"

    def __init__(
        self,
        worker: str,
        leased_jobs: LeasedJobs,
        *,
        jobs: int,
        memory: int,
        resident: Callable[[], int],
        replace: Callable[[], None],
    ) -> None:
        super().__init__()
        self._worker = worker
        self._leased_jobs = leased_jobs
        self._jobs = jobs
        self._memory = memory
        self._resident = resident
        self._replace = replace

    async def tick(self) -> float:
        if (why := self._reached()) is None:
            return _LOOK_EVERY
        _log.info("worker %s: %s; it is replaced", self._worker, why)
        self._replace()
        return _ASK_AGAIN

    def _reached(self) -> str | None:
        """The limit that is reached, as text."""
        ended = self._leased_jobs.added - len(self._leased_jobs)
        if self._jobs and ended >= self._jobs:
            return f"{ended:,} jobs have ended (max_jobs_per_worker={self._jobs:,})"
        if ended and self._memory and (size := self._resident()) > self._memory:
            mega = number(size / 1e6), number(self._memory / 1e6)
            return f"{mega[0]} MB are resident (max_memory_per_worker={mega[1]}MB)"
        return None
