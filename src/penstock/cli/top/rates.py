"""What happened per second between two overviews."""

from __future__ import annotations

from typing import NamedTuple

from penstock.inspector import Overview, WorkerView

__all__ = ["QueueRates", "Rates"]


#: Seconds between two reports of a worker that are one.
_SAME_REPORT = 0.05


class QueueRates(NamedTuple):
    """Jobs per second that were enqueued, and attempts that were processed and failed."""

    enqueued: float
    processed: float
    failed: float


class Rates:
    """Rates of queues, in total, and of the CPU of workers. None: unknown, as in the first overview."""

    def __init__(self, before: Overview | None, after: Overview, last: Rates | None = None) -> None:
        self._seconds = 0.0 if before is None else (after.now - before.now) / 1000
        self._before, self._after = before, after
        known: dict[str, float] = {} if last is None else last._cpu
        self._cpu: dict[str, float] = {
            w.id: cpu for w in after.workers if (cpu := self._cpu_of(w, known)) is not None
        }

    def of(self, queue: str) -> QueueRates | None:
        """The rates of a queue."""
        if self._before is None or self._seconds <= 0:
            return None
        was, now = self._before.stats.get(queue), self._after.stats.get(queue)
        if was is None or now is None:
            return None
        counts = (now.enqueued - was.enqueued, now.processed - was.processed, now.failed - was.failed)
        # a queue that was deleted and made again counts from 0
        return QueueRates(*(max(0, count) / self._seconds for count in counts))

    def total(self) -> QueueRates | None:
        """The rates of all queues together."""
        if self._before is None or self._seconds <= 0:
            return None
        found = [rate for name in self._after.stats if (rate := self.of(name)) is not None]
        return QueueRates(*(sum(rate[n] for rate in found) for n in range(3)))

    def cpu(self, worker: str) -> float | None:
        """The cores that a worker process used between its last two reports."""
        return self._cpu.get(worker)

    def _cpu_of(self, now: WorkerView, known: dict[str, float]) -> float | None:
        was = None if self._before is None else _worker(self._before, now.id)
        if was is None:
            return None
        seconds = self._seconds - now.silent + was.silent
        if seconds < _SAME_REPORT:  # a worker reports every few seconds
            return known.get(now.id)
        return max(0.0, now.cpu - was.cpu) / seconds


def _worker(view: Overview, id: str) -> WorkerView | None:
    return next((w for w in view.workers if w.id == id), None)
