"""The jobs this worker holds a lease of, each from its fetch until the answer to its settlement."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from penstock.app.attempt import Attempt, StepAccess
from penstock.core import clock
from penstock.core.errors import Interrupted
from penstock.core.job import Job, Progress
from penstock.stores.job_log import JobLog, LogLine
from penstock.worker.plan import Plan
from penstock.worker.shared_lease_table import LeaseTable

__all__ = ["LeasedJob", "LeasedJobs"]


#: Held while the log of a job is made.
_log_lock = threading.Lock()


class LeasedJob(msgspec.Struct, eq=False, gc=False):
    """One leased job with the state of its attempt. The executor updates it; heartbeats read it.

    It is not tracked by the garbage collector, because thousands are made each second. References that point
    back to it (from its attempt or its asyncio task) are dropped when the attempt ends.
    """

    job: Job
    plan: Plan
    fetched: float  #: `clock.lease_seconds()` before the fetch was sent: the lease counts from here
    now: int  #: the store's clock at the fetch
    extended: float = 0.0  #: `clock.lease_seconds()` before its lease was last extended; 0: never
    arrived: float = 0.0  #: monotonic: when it began to wait for a slot
    started: float = 0.0  #: monotonic: when its function started; 0: not yet
    ends: float | None = None  #: monotonic instant of its timeout or deadline
    runner: asyncio.Task[None] | None = None  #: the asyncio task that runs it on the event loop, if any
    attempt: Attempt | None = None
    in_process_slot: bool = False  #: it occupies a process slot
    not_plain: bool = False  #: it has a slot and is not a plain thread call
    interrupt: type[Interrupted] | None = None  #: why it was interrupted; None: it was not
    interrupted_at: float = 0.0
    not_before: float = 0.0  #: monotonic: start of the job by its queue's rate limit; 0: none
    took: float = 0.0  #: seconds that its function ran
    over: bool = False  #: its function has ended, or its slot was given up
    undo: bool = False  #: it fails for good, and has steps that its function has not undone
    progress: Progress | None = None
    stored_progress: Progress | None = None  #: the progress that the store has
    log: JobLog | None = None  #: lines that its function has logged
    slot: int = -1  #: its slot in the shared lease table; -1: none

    def store_now(self) -> int:
        """The store's clock (ms): its value at the fetch plus the time since."""
        return self.now + int((clock.lease_seconds() - self.fetched) * 1000)

    @property
    def step_access(self) -> StepAccess | None:
        return self.plan.step_access

    def report(self, _job: Job, reported: Progress | LogLine) -> None:
        """Keep the attempt's progress or a line of its log until the next heartbeat. Thread-safe."""
        if isinstance(reported, Progress):
            self.progress = reported
            return
        with _log_lock:
            log = self.log = self.log or JobLog(self.job)
        log.append(reported)

    @property
    def has_news(self) -> bool:
        """Whether it has progress or lines of its log that are not stored yet."""
        return self.progress is not self.stored_progress or (self.log is not None and self.log.waits)


class LeasedJobs:
    """All leased jobs of this worker process, mirrored in the lease table that its supervisor reads."""

    def __init__(self, table: LeaseTable | None = None) -> None:
        self._table = table
        self._leased: dict[int, LeasedJob] = {}
        #: Jobs added since the start.
        self.added = 0
        #: Leased jobs per queue that have not ended: they count against the queue's `slots`.
        self.per_queue: Counter[str] = Counter()

    def add(self, batch: Sequence[LeasedJob], until: float) -> None:
        """Add jobs whose leases end at `until` (by `clock.lease_seconds()`)."""
        self.added += len(batch)
        for leased in batch:
            self._leased[id(leased)] = leased
            self.per_queue[leased.job.spec.queue] += 1
        if self._table is not None:
            slots = self._table.put_many([leased.job for leased in batch], int(until * 1e9))
            for leased, slot in zip(batch, slots, strict=True):
                leased.slot = slot

    def try_start(self, leased: LeasedJob) -> bool:
        """Mark the start in the table; False if the supervisor has revoked the job."""
        return self._table is None or self._table.try_start(leased.slot)

    @property
    def table_file(self) -> int | None:
        """The file descriptor of the lease table, for child processes that mark starts; None without one."""
        return None if self._table is None else self._table.fileno()

    def entry(self, leased: LeasedJob) -> tuple[int, int] | None:
        """Slot and number of the job in the table; None if it is not in the table."""
        if self._table is None or leased.slot < 0:
            return None
        return leased.slot, self._table.number(leased.slot)

    def clock_starts(self, leased: LeasedJob) -> None:
        """Enter the attempt's deadline in the table, as its function starts now."""
        if self._table is not None and leased.ends is not None:
            self._table.set_deadline(leased.slot, int(leased.ends * 1e9))

    def drop_deadlines(self, batch: Sequence[LeasedJob]) -> None:
        """Clear the deadlines in the table of jobs whose functions have ended and whose outcomes wait for the
        store: the supervisor kills workers for overdue functions, not for a slow store."""
        if self._table is not None:
            for leased in batch:
                self._table.set_deadline(leased.slot, 0)

    def ended(self, leased: LeasedJob) -> None:
        """Free the job's slot in its queue: its function has ended."""
        self.per_queue[leased.job.spec.queue] -= 1

    def remove(self, leased: LeasedJob) -> None:
        """Remove a job whose settlement was answered."""
        if self._leased.pop(id(leased), None) is not None and self._table is not None:
            self._table.free(leased.slot)

    def __len__(self) -> int:
        return len(self._leased)

    def __iter__(self) -> Iterator[LeasedJob]:
        return iter(list(self._leased.values()))  # a copy: the heartbeat thread reads while this changes
