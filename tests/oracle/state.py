"""The data of one oracle, and the lock under which every verb runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar, TypeVarTuple

from penstock.core import forks
from penstock.core.clock import Clock
from penstock.core.job import Job, Lease, Ref, State
from penstock.stores.contract import STEP_UNDO, LogEntry, WorkerInfo
from penstock.stores.rate_limiter import RateLimiter
from tests.oracle.documents import MemoryDocuments
from tests.oracle.flow_ends import FlowEnd
from tests.oracle.flow_rows import MemoryFlows
from tests.oracle.rows import MemoryQueue, Row
from tests.oracle.sorted import Sorted
from tests.oracle.steps import JobSteps, MemorySignals
from tests.oracle.waiters import Waiters

__all__ = ["MemoryState", "named"]

A = TypeVarTuple("A")
R = TypeVar("R")


class MemoryState:
    """The data of one store. Verbs are functions of a MemoryState; each runs under the lock."""

    def __init__(self, clock: Clock, rate_limiters: Callable[[], RateLimiter] = RateLimiter) -> None:
        self.pid = os.getpid()
        self.rate_limiters = rate_limiters
        self.clock = clock
        #: The garbage collector may end an abandoned wait while a verb runs; that is allowed, as it changes
        #: nothing but the wait.
        self.lock = forks.lock()
        self.in_verb = False
        self.boot = clock.boot_id()
        self.queues: dict[str, MemoryQueue] = {}
        self.rows: dict[int, Row] = {}  # by generation, rising
        self.listing: list[int] = []  # the generations, ascending; may contain removed jobs
        self.workers: dict[str, WorkerInfo] = {}
        self.tokens: dict[str, dict[int, Row]] = {}  # leased jobs by token
        self.held: dict[str, dict[int, Row]] = {}  # leased jobs by worker
        self.unique_keys: dict[
            int, tuple[MemoryQueue, str]
        ] = {}  # the unique key that a job holds, by the job's generation
        self.over: Sorted[int, int] = Sorted()  # ended jobs by the end of their retention
        self.expiring: Sorted[int, int] = Sorted()  # queued jobs by expires_at
        self.documents: dict[str, MemoryDocuments] = {}  # by kind
        self.logs: dict[str, list[LogEntry]] = {}  # by name, oldest entry first
        self.quotas: dict[str, tuple[int, int]] = {}  # by name: taken, end of the window
        self.most_quotas = 0  # their number at which those that are over are removed
        self.flows = MemoryFlows()
        self.flow_ends: list[FlowEnd] = []  # noted by the verb in progress
        self.steps: dict[int, JobSteps] = {}  # by generation: of jobs that have any
        self.signals = MemorySignals()
        self.waiters = Waiters()
        self.generation = self.tail = self.head = 0

    def run(self, verb: Callable[[MemoryState, *A], R], *args: *A) -> R:
        """Run a verb under the lock."""
        with self.lock:
            return verb(self, *args)

    # ── finding ──

    def queue(self, name: str) -> MemoryQueue:
        """Return this queue, created if it does not exist."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = MemoryQueue(name, self.rate_limiters())
        return queue

    def known(self, names: Iterable[str] | None) -> list[MemoryQueue]:
        """Return those of these queues that exist; None: all queues, by name."""
        names = sorted(self.queues) if names is None else names
        return [self.queues[name] for name in names if name in self.queues]

    def row(self, ref: Ref) -> Row | None:
        queue = self.queues.get(ref.queue)
        return None if queue is None else queue.rows.get(ref.id)

    def has_undo(self, row: Row) -> bool:
        """Return True if the job remembers STEP_UNDO."""
        steps = self.steps.get(row.generation)
        return steps is not None and STEP_UNDO in steps.stored

    def leased(self, lease: Lease | Ref) -> Row | None:
        """Return the running job if this is its current lease, else None: the fencing check of all verbs."""
        queue = self.queues.get(lease.queue)
        row = None if queue is None else queue.rows.get(lease.id)
        if row is None or row.job.state is not State.RUNNING:
            return None
        if isinstance(lease, Lease) and (row.job.token != lease.token or row.generation != lease.generation):
            return None
        return row

    def under(self, token: str) -> list[Job]:
        """Return the jobs that are still leased under this token."""
        return [row.job for row in self.tokens.get(token, {}).values()]

    # ── adding and removing rows ──

    def next_place(self) -> int:
        """Return a place after all others."""
        self.tail += 1
        return self.tail

    def add(self, job: Job, queue: MemoryQueue) -> Row:
        """Add a new job, with the next generation; it is in no index yet."""
        generation = self.generation = job.generation
        queue.rows[job.id] = self.rows[generation] = row = Row(job, queue, self.next_place())
        self.listing.append(generation)
        return row

    def discard(self, row: Row) -> None:
        """Remove a row that was taken out of all indexes."""
        del row.queue.rows[row.job.id]
        del self.rows[row.generation]
        if (steps := self.steps.pop(row.generation, None)) is not None:
            for wait in steps.waits:
                if wait.signal is not None:
                    self.signals.unwatch(wait.signal, row.generation, wait.name)
        if len(self.listing) > 2 * len(self.rows) + 64:
            self.listing = list(self.rows)


_states: dict[tuple[str, str], MemoryState] = {}
_states_lock = forks.lock()


def named(name: str, namespace: str, clock: Clock) -> MemoryState:
    """Return the state with this name, created if needed; it exists as long as the process."""
    with _states_lock:
        memory = _states.get((name, namespace))
        if memory is None or memory.pid != os.getpid():  # do not use the copy in a forked child
            memory = _states[name, namespace] = MemoryState(clock)
        return memory
