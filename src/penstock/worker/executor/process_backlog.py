"""Holds process tasks that wait for a process slot, so that the jobs behind them can start.

A worker without a free process slot looks past the process tasks at the head of a queue: it leases up to
MOST_WAITING of them, keeps them here, and fetches the jobs behind them. After a moment all are released to
their own positions, where workers with free process slots find them. If a look has found nothing else to
start, the next look is later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Set

from penstock.worker.leased_jobs import LeasedJob

#: Maximum number of process tasks that wait here.
MOST_WAITING = 32
#: Time (s) for which they are kept while there are other jobs to start behind them.
_KEEP_FOR = 0.25
#: Pause (s) before the next look, in which other workers can take them.
_SHORT_PAUSE = 0.05
#: Pause (s) after a look that has found nothing else, doubled each time.
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 0.5


class _Look:
    """One look past the process tasks at the head of a queue, and when the next one may be."""

    __slots__ = ("began", "found", "next", "pause")

    def __init__(self, now: float) -> None:
        self.began: float | None = now  # None: none of its jobs wait here
        self.found = False  # whether the queue had other jobs to start
        self.next = 0.0  # monotonic time of the next look
        self.pause = _FIRST_PAUSE / 2

    def end(self, now: float) -> None:
        self.pause = _SHORT_PAUSE if self.found else min(_LAST_PAUSE, max(_FIRST_PAUSE, 2 * self.pause))
        self.began, self.found, self.next = None, False, now + self.pause


class ProcessBacklog:
    """Leased jobs without a process slot, in order of arrival."""

    def __init__(self) -> None:
        #: Always the same deque: its emptiness is checked for each job.
        self.jobs: deque[LeasedJob] = deque()
        self._looks: dict[str, _Look] = {}
        #: Number of waiting jobs per queue.
        self.per_queue: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.jobs)

    def put(self, leased: LeasedJob, now: float) -> bool:
        """Add a job; False if there is no room."""
        queue = leased.job.spec.queue
        look = self._looks.get(queue)
        if look is None:
            look = self._looks[queue] = _Look(now)
        if look.began is None:
            look.began = now
        if len(self.jobs) >= MOST_WAITING:
            return False
        self.jobs.append(leased)
        self.per_queue[queue] += 1
        return True

    def note_other_job(self, queue: str) -> None:
        """Note that another kind of job has come from this queue."""
        if (look := self._looks.get(queue)) is not None:
            look.found = True

    def take(
        self, held: Mapping[str, int], slots: Mapping[str, int], fits: Callable[[LeasedJob], bool]
    ) -> LeasedJob | None:
        """Remove and return the first job that may start now, if a child has room for it.

        `held`: leased jobs per queue. `slots`: maximum number of a queue's jobs running at the same time.
        """
        for place, leased in enumerate(self.jobs):
            queue = leased.job.spec.queue
            if queue not in slots or held[queue] - self.per_queue[queue] < slots[queue]:
                if not fits(leased):
                    return None
                del self.jobs[place]
                self._count_removed(leased)
                return leased
        return None

    def take_all(self) -> list[LeasedJob]:
        """Remove and return all jobs, when the worker stops."""
        batch = list(self.jobs)
        self.jobs.clear()
        self._looks.clear()
        self.per_queue.clear()
        return batch

    def release_unproductive(self, queues: Iterable[str], now: float) -> list[LeasedJob]:
        """Remove and return the jobs to release because nothing else was found in their queues."""
        return self._end([queue for queue in queues if self._found_nothing(queue)], now)

    def overdue(self, now: float) -> list[LeasedJob]:
        """Remove and return the jobs that were kept for their maximum time."""
        full = len(self.jobs) >= MOST_WAITING
        over = []
        for queue, look in self._looks.items():
            began = look.began
            if began is not None and (now - began >= _KEEP_FOR or (full and not look.found)):
                over.append(queue)
        return self._end(over, now) if over else []

    def caps(self, free: int, now: float) -> dict[str, int]:
        """How many jobs to fetch at most from queues with process tasks at their head.

        `free`: process slots without an attempt.
        """
        room = MOST_WAITING - len(self.jobs)
        caps: dict[str, int] = {}
        for queue, look in list(self._looks.items()):
            if look.began is None and free and now >= look.next:
                del self._looks[queue]
            else:
                caps[queue] = free + (room if look.began is not None or now >= look.next else 0)
        return caps

    def looks_only_at(self, queues: Set[str]) -> bool:
        """Whether all looked-at queues are among these."""
        return self._looks.keys() <= queues

    def next_look(self, now: float) -> float | None:
        """Seconds until the next look at a queue that is skipped now; None if no queue is skipped."""
        waits = [look.next - now for look in self._looks.values() if look.began is None]
        return max(0.001, min(waits)) if waits else None

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _found_nothing(self, queue: str) -> bool:
        look = self._looks.get(queue)
        return look is not None and look.began is not None and not look.found

    def _count_removed(self, leased: LeasedJob) -> None:
        queue = leased.job.spec.queue
        self.per_queue[queue] -= 1
        if not self.per_queue[queue]:
            del self.per_queue[queue]
            self._looks.pop(queue, None)  # all its jobs have got a slot

    def _end(self, queues: list[str], now: float) -> list[LeasedJob]:
        if not queues:
            return []
        back = [leased for leased in self.jobs if leased.job.spec.queue in queues]
        stay = [leased for leased in self.jobs if leased.job.spec.queue not in queues]
        self.jobs.clear()
        self.jobs.extend(stay)
        for queue in queues:
            del self.per_queue[queue]
            self._looks[queue].end(now)
        return back
