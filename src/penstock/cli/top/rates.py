"""What happened per second between two overviews."""

from __future__ import annotations

from typing import NamedTuple

from penstock.inspector import Overview

__all__ = ["Rate", "Rates"]


class Rate(NamedTuple):
    """Jobs per second that were enqueued, and attempts that were processed and failed."""

    enqueued: float
    processed: float
    failed: float


class Rates:
    """Rates of queues, in total, and of the CPU of workers. None: unknown, as in the first overview."""

    def __init__(self, before: Overview | None, after: Overview) -> None:
        self._seconds = 0.0 if before is None else (after.now - before.now) / 1000
        self._before, self._after = before, after

    def of(self, queue: str) -> Rate | None:
        """The rates of a queue."""
        if self._before is None or self._seconds <= 0:
            return None
        was, now = self._before.stats.get(queue), self._after.stats.get(queue)
        if was is None or now is None:
            return None
        counts = (now.enqueued - was.enqueued, now.processed - was.processed, now.failed - was.failed)
        # a queue that was deleted and made again counts from 0
        return Rate(*(max(0, count) / self._seconds for count in counts))

    def total(self) -> Rate | None:
        """The rates of all queues together."""
        if self._before is None or self._seconds <= 0:
            return None
        found = [rate for name in self._after.stats if (rate := self.of(name)) is not None]
        return Rate(*(sum(rate[n] for rate in found) for n in range(3)))

    def cpu(self, worker: str) -> float | None:
        """The cores that a worker process used."""
        if self._before is None:
            return None
        was = next((w for w in self._before.workers if w.id == worker), None)
        now = next((w for w in self._after.workers if w.id == worker), None)
        if was is None or now is None:
            return None
        # a worker reports every few seconds: between two of its reports, not of ours
        seconds = self._seconds - now.silent + was.silent
        return max(0.0, now.cpu - was.cpu) / seconds if seconds > 0.05 else None
