"""Counts slots: attempts that have one, leased jobs that wait for one, and the time ended attempts took.

`StalledSlots` finds slots that are all held by attempts that wait for jobs which need one of them themselves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

from penstock.core.text import counted
from penstock.worker.executor.process_backlog import ProcessBacklog
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs
from penstock.worker.setup import WorkerSetup

_log = logging.getLogger("penstock.worker")


class Slots:
    """The slots of one worker.

    An attempt takes a slot when it starts and frees it when it ends or is given up. Thread prefetch starts
    more thread calls than there are slots: those beyond `concurrency` count as buffered.
    """

    def __init__(self, concurrency: int, process_slots: int, leased_jobs: LeasedJobs) -> None:
        self.concurrency = concurrency
        #: Maximum number of process tasks that run at the same time.
        self.process_slots = min(process_slots, concurrency)
        self.leased_jobs = leased_jobs
        #: Process tasks that wait for a process slot.
        self.backlog = ProcessBacklog()
        #: Other leased jobs without a slot, first to start first. Always the same deque: it is read for each
        #: job.
        self.waiting: deque[LeasedJob] = deque()
        #: Leased jobs that start soon: when their queue's rate limit allows, or when their inputs were read.
        self.reserved: set[LeasedJob] = set()
        #: Attempts that have been started and have not ended.
        self.attempts: set[LeasedJob] = set()
        #: Process slots in use.
        self.process_busy = 0
        #: Attempts that are not plain thread calls.
        self.not_plain = 0
        #: Slots given up because their attempt does not react.
        self.lost = 0
        #: Set when a slot has become free.
        self.freed = asyncio.Event()
        #: Set when an attempt has started, or a leased job waits for its start; the waiter clears it.
        self.started = asyncio.Event()
        #: Attempts started and ended so far, and the seconds that the ended ones ran.
        self.starts = 0
        self.ends = 0
        self.busy_seconds = 0.0
        #: Monotonic time at which the last attempt ended.
        self.last_end = 0.0

    @property
    def free(self) -> int:
        """Slots without an attempt."""
        return max(0, self.room() - len(self.reserved))

    @property
    def buffered(self) -> int:
        """Leased jobs without a slot, apart from the process backlog."""
        return len(self.waiting) + max(0, -self.room()) + self.process_ahead

    @property
    def running(self) -> int:
        """Attempts that have a slot."""
        return len(self.attempts) - max(0, -self.room()) - self.process_ahead

    @property
    def process_ahead(self) -> int:
        """Process calls beyond the process slots: they lie ready in child processes, and have no slot."""
        return max(0, self.process_busy - self.process_slots)

    def room(self) -> int:
        """Free slots; negative by the number of prefetched thread calls."""
        return self.concurrency - self.lost - len(self.attempts) + self.process_ahead

    def is_backed_up(self) -> bool:
        """Whether leased jobs wait for a slot."""
        return self.buffered > 0

    def reserve(self, leased: LeasedJob) -> None:
        """Keep a slot for a job that starts soon."""
        self.reserved.add(leased)
        # the watch marks that the event loop runs: else the supervisor releases the job as stuck
        self.started.set()

    def take(self, leased: LeasedJob, plain: bool) -> None:
        """Count this attempt as started. `plain`: it is a thread call without middleware."""
        self.attempts.add(leased)
        if not plain:
            leased.not_plain = True
            self.not_plain += 1
            if leased.plan.run_in == "process":
                leased.in_process_slot = True
                self.process_busy += 1
        self.starts += 1
        self.started.set()

    def take_back(self, batch: list[LeasedJob]) -> None:
        """Undo `take` for calls that have not started: they wait for a slot again, first in line."""
        for leased in batch:
            self.attempts.discard(leased)
            self._not_in_slot(leased)
        self.starts -= len(batch)
        self.waiting.extendleft(reversed(batch))

    def leave(self, leased: LeasedJob) -> None:
        """Free this attempt's slot."""
        leased.over = True
        leased.attempt = None  # breaks a reference cycle that only the garbage collector would free
        self.attempts.discard(leased)
        ahead = leased.in_process_slot and self.process_busy > self.process_slots
        self._not_in_slot(leased)
        self.leased_jobs.ended(leased)
        self.ends += 1
        if leased.started:
            self.last_end = now = time.monotonic()
            leased.took = leased.took or now - leased.started
            self.busy_seconds += leased.took
        if not ahead:  # else the next call that lies ready has the slot
            self.freed.set()

    def _not_in_slot(self, leased: LeasedJob) -> None:
        if leased.not_plain:
            leased.not_plain = False
            self.not_plain -= 1
            if leased.in_process_slot:
                leased.in_process_slot = False
                self.process_busy -= 1


# ── slots that wait for each other's jobs ────────────────────────────────────────────────────────

#: It is logged at most this often (s): each job of a task may do it.
_LOG_EVERY = 60.0
_NAMED = 3
_WAY_OUT = (
    "unless another worker runs those, nothing goes on before a timeout; enqueue the children as a flow "
    "(chain, group, chord), or gather them in a durable task: both keep no slot while they wait. Or give the "
    "children a queue and a worker of their own"
)


class StalledSlots:
    """Looks at the slots of one worker. `on_change` is called when `queues` changes."""

    def __init__(self, setup: WorkerSetup, slots: Slots, on_change: Callable[[], None]) -> None:
        self._slots = slots
        self._served = frozenset(setup.queue_names)
        self._queue_slots = setup.queue_slots
        self._on_change = on_change
        self._logged = -_LOG_EVERY
        #: The queues whose jobs are waited for in every slot that they could have here.
        self.queues: frozenset[str] = frozenset()

    def look(self) -> None:
        """Look once, and warn if slots have stalled."""
        waiting = [leased for leased in self._slots.attempts if leased.awaits and not leased.over]
        if not waiting and not self.queues:
            return
        stalled = self._stalled(waiting)
        if stalled != self.queues:
            self.queues = stalled
            self._on_change()
        if stalled and time.monotonic() - self._logged > _LOG_EVERY:
            self._logged = time.monotonic()
            self._warn(waiting, stalled)

    def _stalled(self, waiting: list[LeasedJob]) -> frozenset[str]:
        slots, found = self._slots, set[str]()
        if slots.room() <= 0 and len(waiting) >= slots.running:
            found |= self._all_wait_for(waiting, self._served)
        in_process = [leased for leased in waiting if leased.plan.run_in == "process"]
        if slots.backlog and len(in_process) >= slots.process_slots:
            found |= self._all_wait_for(in_process, {one.job.spec.queue for one in slots.backlog.jobs})
        for queue, most in self._queue_slots.items():
            own = [leased for leased in waiting if leased.job.spec.queue == queue]
            if own and len(own) >= most:
                found |= self._all_wait_for(own, {queue})
        return frozenset(found)

    @staticmethod
    def _all_wait_for(waiting: Iterable[LeasedJob], queues: Collection[str]) -> set[str]:
        """Those of the queues that are waited for, if each attempt waits for one of them; else none."""
        found: set[str] = set()
        for leased in waiting:
            awaited = [queue for queue in leased.awaits if queue in queues]
            if not awaited:
                return set()
            found.update(awaited)
        return found

    def _warn(self, waiting: list[LeasedJob], queues: Iterable[str]) -> None:
        named = ", ".join(f"{leased.job.id} of {leased.job.task}" for leased in waiting[:_NAMED])
        more = " and others" if len(waiting) > _NAMED else ""
        _log.warning(
            "%s (%s%s) in slots wait for results of jobs of the queue %s, and no slot is left for those: %s",
            counted(len(waiting), "job"),
            named,
            more,
            ", ".join(sorted(queues)),
            _WAY_OUT,
        )
