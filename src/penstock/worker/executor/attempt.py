"""The life of an attempt, from the slot that `admission.py` has found for a leased job to its settlement.

1. The start of a last attempt or an at-most-once job is stored first, so that a crash cannot hide it
   (`record_start`).
2. It is run, by `runners.py` on the event loop, or by `thread_attempts.py` or `process_attempts.py`. Just
   before its function is called, it begins: from then on it counts, and its clock runs (`begin`).
3. It ends: by its function, by `interruption.py`, or by a drain. Its slot is free, and its end is an outcome:
   that of the worker's interrupt, otherwise that of its exception (`end`).
4. The outcome is decided, and the transition that follows goes to the settler (`report`).

A job may end before step 2: it is refused, cancelled or lost (`refuse`, `end_unrecorded`, `forget`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from penstock.app.attempt import Attempt
from penstock.app.deciding import can_be_undone, decided
from penstock.app.outcome import outcome_of, returned_by, timed_out, undetermined
from penstock.core.errors import (
    AttemptCancelled,
    AttemptLost,
    AttemptTimeout,
    StoreError,
    StoreUnavailable,
)
from penstock.core.events import JobStarted
from penstock.core.job import AttemptError, State
from penstock.core.lifecycle import ASK_CANCELLED, RUNNING_CANCELLED, completed, limit_passed
from penstock.core.loops import Batcher
from penstock.core.outcomes import (
    Cancelled,
    LeaseLost,
    Outcome,
    QueuePosition,
    Raised,
    Released,
    Suspended,
    Unknown,
)
from penstock.stores.contract import HeartbeatRequest, LeaseStatus
from penstock.worker.executor.settler import Settler
from penstock.worker.executor.slots import Slots
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.pools import CallRefused, ChildBroken, ChildDied, ChildFailed, NoChild
from penstock.worker.setup import WorkerSetup
from penstock.worker.unknown_tasks import UnknownTasks

_log = logging.getLogger("penstock.worker")


class LeaseRevoked(Exception):
    """The supervisor has revoked the job's lease: its function was not called."""


class StartedTooLate(Exception):
    """The job has expired, or its deadline has passed, since it got its slot: its function was not called."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


class Attempts:
    """Records, begins, ends and reports the attempts of leased jobs. The settler gets each end once."""

    def __init__(
        self, setup: WorkerSetup, slots: Slots, unknown_tasks: UnknownTasks, settler: Settler
    ) -> None:
        self.leased_jobs = slots.leased_jobs
        self.slots = slots
        #: Time (s) for which a fetched job's lease is certain.
        self.lease = setup.config.lease / 1000
        #: Starts leased jobs that wait, as slots are free; set by admission.
        self.start_next: Callable[[], None] = lambda: None
        self._store = setup.app.store
        self._events = setup.app.events
        self._keep_dead = setup.config.keep_dead
        self._lease_ms = setup.config.lease
        self._waiting, self._backlog = slots.waiting, slots.backlog.jobs
        self._unknown_tasks = unknown_tasks
        self._settler = settler
        self._records: Batcher[HeartbeatRequest, LeaseStatus] = Batcher(self._store_starts)

    # ── 1: its start is stored ───────────────────────────────────────────────────────────────────

    async def record_start(self, leased: LeasedJob) -> bool:
        """Store the start of a job that has a slot, in one call with those that come together.

        False: it must not run any more, and has ended.
        """
        try:
            status = await self._records.put(
                HeartbeatRequest(leased.job.lease, self._lease_ms, started=True, lasting=True)
            )
        except asyncio.CancelledError:
            self.end_unrecorded(leased)
            return False
        except StoreError as error:
            _log.warning("job %s: its start could not be stored; it is released: %s", leased.job.id, error)
            self.end_unrecorded(leased)
            return False
        except Exception as error:  # noqa: BLE001  # boundary: a start that cannot be stored fails its attempt alone
            self.end_and_start_next(leased, error)
            return False
        leased.runner = None
        if status is LeaseStatus.LOST:
            self.slots.leave(leased)
            self._settler.drop_lost(leased)
        elif status is LeaseStatus.CANCEL_ASKED and not leased.switch_to_undo(RUNNING_CANCELLED):
            self._end_unstarted(leased, cancelled_unstarted(leased))
        elif leased.may_be_late and (late := leased.too_late()):  # the store was slow
            self._end_unstarted(leased, late)
        else:
            return True
        self.start_next()
        return False

    async def _store_starts(self, requests: list[HeartbeatRequest]) -> Sequence[LeaseStatus | BaseException]:
        """The store's answers; StoreUnavailable for a lease whose part of the store is unreachable."""
        try:
            statuses = await self._store.extend(requests)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # boundary: one start that cannot be stored must not fail the others
            if len(requests) == 1:
                return [error]
            return [answer for one in requests for answer in await self._store_starts([one])]
        unreachable = StoreUnavailable("the part of the store that holds its queue is unreachable")
        return [unreachable if status is LeaseStatus.UNKNOWN else status for status in statuses]

    # ── 2: it begins; from any thread ────────────────────────────────────────────────────────────

    def begin(self, leased: LeasedJob) -> Attempt:
        """Start the attempt and its clock.

        Raises LeaseRevoked if the supervisor has revoked the job, and StartedTooLate if it must not start
        any more: it may have waited for a thread or for the event loop.

        Until now the supervisor could revoke it, as it does while this process is blocked. If the process
        dies before this point, the lease table shows that the function had not started.
        """
        if leased.may_be_late and (late := leased.too_late()):
            raise StartedTooLate(late)
        if not self.leased_jobs.try_start(leased):
            raise LeaseRevoked
        if self._events.active:
            self._emit_start(leased, leased.store_now())
        return self.start_clock(leased)

    def start_clock(self, leased: LeasedJob) -> Attempt:
        """Start the attempt's clock; for a process task with middleware once more when its child starts."""
        leased.started = time.monotonic()
        leased.ends = leased.times_out_at()
        self.leased_jobs.clock_starts(leased)
        leased.attempt = attempt = Attempt(leased.job, leased.report, leased.ends, leased)
        if leased.interrupt is not None:  # interrupted before the attempt existed
            attempt.ask_to_stop()
        return attempt

    def note_begun(self, leased: LeasedJob, started: float) -> None:
        """Start the clock of an attempt whose function started in a child process at this monotonic instant.

        The child has marked the start in the lease table.
        """
        leased.started = started
        leased.ends = leased.times_out_at()
        self.leased_jobs.clock_starts(leased)
        self.emit_started(leased)

    def emit_started(self, leased: LeasedJob) -> None:
        """Emit JobStarted of an attempt that a child process runs, or has run."""
        if self._events.active:
            self._emit_start(leased, leased.store_now() - int((time.monotonic() - leased.started) * 1000))

    def _emit_start(self, leased: LeasedJob, at: int) -> None:
        spec = leased.job.spec
        self._events.emit(JobStarted(at, spec.id, spec.queue, spec.task, leased.job.attempt))

    # ── or it never begins ───────────────────────────────────────────────────────────────────────

    def refuse(self, leased: LeasedJob, outcome: Outcome) -> None:
        """End a leased job that was never started here, with this outcome."""
        self.forget(leased)
        self.report(leased, outcome)

    def forget(self, leased: LeasedJob) -> None:
        """Count a leased job that was never started here as ended, without settling it."""
        leased.over = True
        self.leased_jobs.ended(leased)

    def end_unrecorded(self, leased: LeasedJob) -> None:
        """End an attempt whose start was not stored, as it was interrupted or the store did not answer."""
        if not leased.over:
            cancelled = leased.interrupt is AttemptCancelled
            self._end_unstarted(leased, cancelled_unstarted(leased) if cancelled else Released())
            self.start_next()

    def _end_unstarted(self, leased: LeasedJob, outcome: Outcome) -> None:
        self.slots.leave(leased)
        self.report(leased, outcome)

    # ── 3: it ends ───────────────────────────────────────────────────────────────────────────────

    def end_and_start_next(
        self, leased: LeasedJob, error: BaseException | None, result: bytes | None = None
    ) -> None:
        """End an attempt, and start the next job."""
        self.end(leased, error, result)
        if self._waiting or self._backlog:
            self.start_next()

    def end(self, leased: LeasedJob, error: BaseException | None, result: bytes | None = None) -> None:
        """End an attempt: free its slot and report its outcome. The caller starts the next job."""
        if leased.over:
            return  # its slot was given up, and it was settled then
        attempt = leased.attempt
        self.slots.leave(leased)
        if error is None and leased.interrupt is not None:
            error = leased.interrupt()  # a return after the interrupt does not count
        if leased.interrupt is AttemptLost:
            self._settler.drop_lost(leased)
        elif error is not None:
            self._report_error(leased, error, attempt)
        elif leased.undoes is None:
            self._settler.settle(leased, completed(leased.job.spec.retention), result)
        else:
            outcome = _not_undone(leased, "returned without its flow")
            self.report(leased, outcome, attempt, may_need_undo=False)

    def _report_error(self, leased: LeasedJob, error: BaseException, attempt: Attempt | None) -> None:
        outcome = outcome_of_end(leased, error)
        self.report(leased, outcome, attempt, may_need_undo=not returned_by(leased.job, error))
        if isinstance(outcome, Unknown):
            self._unknown_tasks.report_mismatch(leased.job, outcome.why or "")

    # ── 4: its outcome is decided ────────────────────────────────────────────────────────────────

    def report(
        self,
        leased: LeasedJob,
        outcome: Outcome,
        attempt: Attempt | None = None,
        *,
        may_need_undo: bool = True,
    ) -> None:
        """Decide the transition that follows from the outcome, and hand it to the settler.

        `attempt`: None if it had not begun. `may_need_undo`: False if no further run is to undo its steps.
        """
        transition = decided(
            leased.job,
            outcome,
            leased.store_now(),
            self._keep_dead,
            undoes=leased.undoes is not None,
            store=self._store,
        )
        if may_need_undo and (transition.state is State.DEAD or transition.state is State.CANCELLED):
            leased.needs_undo = _needs_undo(leased, attempt)
        self._settler.settle(leased, transition, None)


# ── the outcome of an end ────────────────────────────────────────────────────────────────────────


def outcome_of_end(leased: LeasedJob, error: BaseException) -> Outcome:
    """The outcome of an attempt that ended with `error`. Never raises."""
    try:
        if isinstance(error, (LeaseRevoked, CallRefused)):
            return Released(QueuePosition.OWN)
        if isinstance(error, (ChildFailed, StartedTooLate)):
            return error.outcome
        if isinstance(error, ChildDied):
            return _outcome_of_death(leased, error)
        return _outcome_of_error(leased, error)
    except BaseException as wrong:  # noqa: BLE001  # boundary: the attempt has ended, even if its error cannot be read
        return undetermined(leased.job, leased.store_now(), error, wrong)


def cancelled_unstarted(leased: LeasedJob) -> Outcome:
    """The outcome of a leased job that was cancelled before its attempt began.

    A job with steps to undo is released: its next attempt only undoes them.
    """
    if can_be_undone(leased.job.checkpoint):
        return Released(QueuePosition.OWN)
    return Cancelled(ASK_CANCELLED)


def _not_undone(leased: LeasedJob, what: str) -> Outcome:
    """The outcome of a run that had only to undo its steps, and has not done it."""
    why = f"not undone, as its function {what}: {leased.undoes}"
    return Raised(
        AttemptError.bounded(leased.job.attempt, leased.store_now(), "NotUndone", why), final=True, why=why
    )


def _outcome_of_error(leased: LeasedJob, error: BaseException) -> Outcome:
    if leased.interrupt is AttemptCancelled:  # even if the task raised something else: no retry
        return Cancelled(RUNNING_CANCELLED)
    stopped = isinstance(error, (asyncio.CancelledError, AttemptTimeout, AttemptCancelled))
    if stopped and leased.interrupt is AttemptTimeout:
        return _outcome_of_timeout(leased)
    outcome = outcome_of(leased.job, leased.store_now(), error, leased.plan.options)
    if isinstance(outcome, Suspended) and leased.undoes is not None:
        return _not_undone(leased, "waited")  # it would wait for ever: nothing else ends the job
    return outcome


def _outcome_of_timeout(leased: LeasedJob) -> Outcome:
    """The outcome of an attempt that reached its timeout or deadline."""
    message = "the attempt timed out"
    if leased.ends is not None:
        message = limit_passed(leased.job, leased.ends - leased.started)
    fact = AttemptError.bounded(leased.job.attempt, leased.store_now(), "Timeout", message)
    return timed_out(leased.job, fact, leased.plan.options)


def _outcome_of_death(leased: LeasedJob, error: ChildDied) -> Outcome:
    if leased.interrupt is AttemptTimeout:
        return _outcome_of_timeout(leased)
    if leased.interrupt is AttemptCancelled:
        return Cancelled(RUNNING_CANCELLED)
    if isinstance(error, NoChild):
        return Released(QueuePosition.OWN)
    kind = type(error).__name__
    broken = isinstance(error, ChildBroken)
    cause = error.cause if broken else f"{error.cause} while it ran {leased.job.task}"
    fact = AttemptError.bounded(leased.job.attempt, leased.store_now(), kind, cause, error.stderr)
    return Raised(fact) if broken else LeaseLost(fact)


def _needs_undo(leased: LeasedJob, attempt: Attempt | None) -> bool:
    """Whether a job that ends has steps to undo, and its function had no chance to undo them."""
    if attempt is None or attempt.flow is None:
        return can_be_undone(leased.job.checkpoint)
    interrupted = leased.interrupt is AttemptTimeout or leased.interrupt is AttemptCancelled
    return interrupted and can_be_undone(attempt.flow.checkpoint)
