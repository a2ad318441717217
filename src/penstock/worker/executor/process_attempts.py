"""Runs attempts in child processes: plain process calls in batches, and calls that middleware awaits."""

from __future__ import annotations

import asyncio

from penstock.app.attempt import Reported
from penstock.core.lifecycle import starts_on_record
from penstock.worker.executor.attempt import Attempts
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.plan import Plan
from penstock.worker.pools import (
    CallEnd,
    ChildLimits,
    ChildOptions,
    EncodedResult,
    PoolEvents,
    ProcessCall,
    ProcessPool,
    epoch_of,
)
from penstock.worker.setup import WorkerSetup

#: How many of a task's last calls its average duration is made of, and their average size, about.
_AVERAGED = 16


class ProcessAttempts(PoolEvents):
    """Runs attempts of process tasks. The process pool is made for the first attempt.

    Several short calls lie ready in each child, so that it need not wait for the worker between two of them.
    A call that has not begun is not charged; it can be taken back. Under a supervisor the children
    get the worker's config; otherwise they read their own.
    """

    def __init__(self, attempts: Attempts, setup: WorkerSetup) -> None:
        self._attempts = attempts
        self._size = attempts.slots.process_slots
        self._setup = setup
        self._pool: ProcessPool | None = None
        self._dispatching = False
        self._expected: float | None = None  # of the last submitted call
        self._bytes = 0.0  # average size (bytes) of the last arguments

    def lacks_resources(self) -> bool:
        """Whether the system has no resources for another child at the moment."""
        return self._pool is not None and self._pool.lacks_resources

    def has_room(self, leased: LeasedJob, busy: int) -> bool:
        """Whether this attempt can be given to a child now; `busy` attempts of process tasks have not ended.

        An attempt that must not wait behind another one needs a child of its own.
        """
        if busy < self._size:
            return True
        expected = _expected(leased)
        return expected is not None and self._pool is not None and self._pool.room(expected) > 0

    def fetchable(self) -> int | None:
        """How many short calls to fetch now, 0 while most of the last ones have not begun.

        None while calls are long, or their duration is unknown: then each needs a process slot.
        """
        if self._pool is None or self._expected is None:
            return None
        return self._pool.fetchable(self._expected, self._bytes)

    def submit(self, leased: LeasedJob) -> None:
        """Run a plain call, without an asyncio task or a future."""
        pool = self._pool or self._open()
        self._expected = expected = _expected(leased)
        self._bytes += (len(leased.job.spec.payload) - self._bytes) / _AVERAGED
        pool.submit(
            ProcessCall(
                leased,
                leased.job,
                leased.plan.reference,
                epoch_of(leased.store_now()),
                leased.seconds_left(),
                entry=self._attempts.leased_jobs.entry(leased),
                expected=expected,
            )
        )
        if not self._dispatching:
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    async def run(self, leased: LeasedJob) -> EncodedResult:
        """Run the attempt in a child. Its clock restarts when the child starts the function."""
        limit = None if leased.ends is None else leased.ends - leased.started
        leased.ends = None
        pool = self._pool or self._open()
        return await pool.run(
            leased,
            leased.job,
            leased.plan.reference,
            now=leased.store_now(),
            seconds=limit,
            on_start=lambda: self._attempts.start_clock(leased),
            on_progress=lambda progress: leased.report(leased.job, progress),
        )

    def is_in_child(self, leased: LeasedJob) -> bool:
        """Whether a child runs this attempt now."""
        return self._pool is not None and self._pool.started_at(leased) is not None

    def kill(self, leased: LeasedJob) -> bool:
        """Withdraw the attempt, or kill its child if it has begun; False if it is in no child."""
        return self._pool is not None and self._pool.kill(leased)

    def watch(self, now: float) -> list[LeasedJob]:
        """Note the starts of attempts. Returns those that wait behind a long one: they have not begun."""
        return [] if self._pool is None else [call.ticket for call in self._pool.watch(now)]

    def take_back(self) -> list[LeasedJob]:
        """Remove and return submitted attempts that have not begun, in order."""
        return [] if self._pool is None else [call.ticket for call in self._pool.take_back()]

    def close(self) -> None:
        """End all children."""
        if self._pool is not None:
            self._pool.close()

    # ── events of the pool ───────────────────────────────────────────────────────────────────────

    def started(self, call: ProcessCall) -> None:
        self._attempts.note_begun(call.ticket, call.started)

    def lease_end(self, call: ProcessCall) -> float:
        leased: LeasedJob = call.ticket
        return leased.held_from + self._attempts.lease

    def progressed(self, call: ProcessCall, progress: Reported) -> None:
        call.ticket.report(call.job, progress)

    def ended(self, batch: list[CallEnd]) -> None:
        for call, result, error in batch:
            leased: LeasedJob = call.ticket
            if call.started and not leased.started:
                leased.started = call.started
                self._attempts.emit_started(leased)
            if call.took:
                leased.took = call.took
            if call.spent:
                _measure(leased.plan, call.spent)
            self._attempts.end(leased, error, None if result is None else result.result)
        self._attempts.start_next()
        if self.fetchable() != 0:
            self._attempts.slots.freed.set()

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _dispatch(self) -> None:
        self._dispatching = False
        if self._pool is not None:
            self._pool.dispatch()

    def _open(self) -> ProcessPool:
        self._pool = pool = self.new_pool(self, self._attempts.leased_jobs.table_file)
        return pool

    def new_pool(self, events: PoolEvents | None = None, table: int | None = None) -> ProcessPool:
        """Make a pool of children with this worker's settings."""
        config = self._setup.config
        options = ChildOptions(
            config=None if self._setup.supervision.pid is None else config,
            start=config.process_start,
            spares=config.process_spares,
            nice=config.process_nice,
            cpus=tuple(int(cpu) for cpu in config.process_cpus.split(",") if cpu),
            limits=ChildLimits(config.max_jobs_per_child or 0, config.max_memory_per_child or 0),
        )
        return ProcessPool(self._size, self._setup.app.spec, options, events=events, table=table)


def _expected(leased: LeasedJob) -> float | None:
    """How long the call will take; None if that is unknown, or if nothing may run before it in its child.

    A start on record counts as an attempt from then on: behind another call, it could be lost unbegun.
    """
    plan = leased.plan
    return plan.seconds if plan.in_process and not starts_on_record(leased.job) else None


def _measure(plan: Plan, spent: float) -> None:
    """Update the average duration of the task's last calls."""
    plan.measured = min(_AVERAGED, plan.measured + 1)
    plan.seconds = spent if plan.seconds is None else plan.seconds + (spent - plan.seconds) / plan.measured
