"""The jobs this worker holds a lease of, each from its fetch until the answer to its settlement."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from penstock.app.attempt import Attempt, Reported, StepAccess, StepCall
from penstock.app.deciding import can_be_undone
from penstock.core import clock
from penstock.core.clock import Clock
from penstock.core.errors import AttemptCancelled, AttemptTimeout, Interrupted, StoreError
from penstock.core.job import Job, Lease, Progress
from penstock.core.lifecycle import DEADLINE_PASSED, too_late
from penstock.core.outcomes import DeadlinePassed, Expired
from penstock.core.running import Awaited
from penstock.maintenance.service import ProblemLog
from penstock.stores.contract import Store
from penstock.stores.job_log import JobLog, store_logs
from penstock.worker.plan import Plan
from penstock.worker.shared_lease_table import LeaseTable

_log = logging.getLogger("penstock.worker")

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
    may_be_late: bool = False  #: it may expire before its start, or has a deadline
    over: bool = False  #: its function has ended, or its slot was given up
    undoes: str | None = None  #: why this run only undoes the steps of its flow; None: it runs as usual
    needs_undo: bool = False  #: it fails for good, and has steps that its function has not undone
    progress: Progress | None = None
    stored_progress: Progress | None = None  #: the progress that the store has
    awaited: bool = False  #: nothing else may run in its asyncio task: it has awaited something, or failed
    awaits: tuple[str, ...] = ()  #: queues of the jobs whose results its function waits for
    step_calls: set[StepCall] | None = None  #: functions of its steps that run off the event loop
    log: JobLog | None = None  #: lines that its function has logged
    slot: int = -1  #: its slot in the shared lease table; -1: none

    def store_now(self) -> int:
        """The store's clock (ms): its value at the fetch plus the time since."""
        return self.now + int((clock.lease_seconds() - self.fetched) * 1000)

    def switch_to_undo(self, why: str) -> bool:
        """Let this run only undo the steps of its flow, if there are any; False: there is nothing to undo."""
        if can_be_undone(self.job.checkpoint):
            self.undoes = self.undoes or why
        return self.undoes is not None

    def too_late(self) -> Expired | DeadlinePassed | None:
        """Why the job must not start any more; None: it may start, if only to undo the steps of its flow."""
        late = too_late(self.job, self.store_now())
        if late is None or not can_be_undone(self.job.checkpoint):
            return late
        if self.past_deadline:
            self.switch_to_undo(DEADLINE_PASSED)
        return None

    @property
    def past_deadline(self) -> bool:
        deadline = self.job.spec.deadline
        return deadline is not None and self.store_now() >= deadline

    def seconds_left(self) -> float | None:
        """Seconds until its timeout or deadline, if its function started now; None without one."""
        spec = self.job.spec
        left = None if spec.timeout is None else spec.timeout / 1000
        if spec.deadline is not None and self.undoes is None:
            until = (spec.deadline - self.store_now()) / 1000
            left = until if left is None else min(left, until)
        return left

    def times_out_at(self) -> float | None:
        """The monotonic instant at which its function, which has started, times out; None without a limit."""
        spec = self.job.spec
        ends = None if spec.timeout is None else self.started + spec.timeout / 1000
        if spec.deadline is not None and self.undoes is None:
            until = time.monotonic() + (spec.deadline - self.store_now()) / 1000
            ends = until if ends is None else min(ends, until)
        return ends

    @property
    def ends_from_outside(self) -> bool:
        """Whether a cancellation or its deadline ends the job: its next run, if any, only undoes."""
        return self.undoes is None and (self.interrupt is AttemptCancelled or self.past_deadline)

    @property
    def held_from(self) -> float:
        """When its lease began or was last extended, by `clock.lease_seconds()`."""
        return max(self.fetched, self.extended)

    @property
    def step_access(self) -> StepAccess | None:
        return self.plan.step_access

    def report(self, _job: Job, reported: Reported) -> None:
        """Keep what the attempt waits for, and its progress or a line of its log until the next heartbeat.
        Thread-safe."""
        if isinstance(reported, Progress):
            self.progress = reported
            return
        if isinstance(reported, Awaited):
            self.awaits = reported.queues
            return
        with _log_lock:
            log = self.log = self.log or JobLog(self.job)
        log.append(reported)

    async def steps_ended(self) -> None:
        """Wait for the functions of its steps, or until its slot is given up. Cancellations do not end it."""
        while self.step_calls and not self.over:
            try:
                await asyncio.wait([call.end for call in self.step_calls])
            except asyncio.CancelledError:  # of the attempt: the worker has interrupted the functions, too
                pass

    @property
    def has_news(self) -> bool:
        """Whether it has progress or lines of its log that are not stored yet."""
        return self.progress is not self.stored_progress or (self.log is not None and self.log.waits)


def leased_job_by(store_clock: Clock) -> type[LeasedJob]:
    """Make the class of leased jobs that read this clock of their store, which a test moves."""

    class JobByClock(LeasedJob, eq=False, gc=False):
        def store_now(self) -> int:
            now = store_clock.now()
            # a clock that stands still does not reach the deadline of an attempt that has timed out at it
            return max(now, super().store_now()) if self.interrupt is AttemptTimeout else now

    return JobByClock


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

    def fetch_sent(self, token: str) -> None:
        """Enter a fetch, or an offer, in the table: `token` is new."""
        if self._table is not None:
            self._table.fetch_sent(token)

    def fetch_arrived(self) -> bool:
        """Record that the jobs of the fetch were added; False if the supervisor has revoked all of them."""
        return self._table is None or self._table.fetch_arrived()

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

    def allow_cleanup(self, leased: LeasedJob, until: float) -> None:
        """Move the deadline in the table to this monotonic instant, if it is earlier: the supervisor kills no
        worker for an attempt that cleans up."""
        if self._table is not None and leased.ends is not None and leased.ends < until:
            self._table.set_deadline(leased.slot, int(until * 1e9))

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


# ── lines that attempts have logged ──────────────────────────────────────────────────────────────


async def store_lines(
    store: Store, logs: Sequence[tuple[Lease, JobLog]], by: int, *, within: float, problem_log: ProblemLog
) -> None:
    """Try once to store the lines that wait, for `within` seconds; `by` extends the leases.

    Neither a heartbeat nor the settler waits for them for long. Lines are best effort: an error is logged,
    and affects no lease and no outcome. Lines that could not be stored still wait. Raises nothing.
    """
    if not logs:
        return
    what = f"log lines of {len(logs)} job(s) could not be stored"
    try:
        async with asyncio.timeout(within):
            await store_logs(store, logs, by)
    except TimeoutError:
        problem_log.report(what, TimeoutError(f"no answer within {within:g} s"))
    except StoreError as error:
        problem_log.report(what, error)
    except Exception:  # noqa: BLE001  # boundary: lines that cannot be stored must not cost a lease or an outcome
        _log.exception("%s", what)
