"""Reports the end of each leased job: to the settler, to listeners, and to the count of unknown tasks."""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock.app.attempt import Attempt
from penstock.app.undoing import can_be_undone
from penstock.core.errors import AttemptLost, AttemptTimeout
from penstock.core.events import EventBus, LateResultRefused
from penstock.core.job import State
from penstock.core.lifecycle import Transition, completed, decide
from penstock.core.outcomes import Outcome, Unknown
from penstock.worker.executor.outcomes import outcome_of_end
from penstock.worker.executor.slots import Slots
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs
from penstock.worker.unknown_tasks import UnknownTasks

__all__ = ["OutcomeReporter", "Settle"]

#: Called with each end: the leased job, the transition that follows from its transition, and its encoded
#: result.
Settle = Callable[[LeasedJob, Transition, bytes | None], None]


class OutcomeReporter:
    """Ends leased jobs. Each end is reported once: by the attempt, by an interrupt, or by a drain."""

    def __init__(
        self,
        events: EventBus,
        leased_jobs: LeasedJobs,
        slots: Slots,
        unknown_tasks: UnknownTasks,
        *,
        settle: Settle,
        keep_dead: int,
        on_lease_lost: Callable[[], None],
    ) -> None:
        self._events = events
        self._leased_jobs = leased_jobs
        self._slots = slots
        self._unknown_tasks = unknown_tasks
        self._settle = settle
        self._keep_dead = keep_dead
        self._on_lease_lost = on_lease_lost

    def end(self, leased: LeasedJob, error: BaseException | None, result: bytes | None = None) -> None:
        """End an attempt: free its slot and report its outcome. The caller starts the next job."""
        if leased.over:
            return  # its slot was given up, and it was settled then
        attempt = leased.attempt
        self._slots.leave(leased)
        if error is None and leased.interrupt is not None:
            error = leased.interrupt()  # a return after the interrupt does not count
        if leased.interrupt is AttemptLost:
            self.lost(leased)
        elif error is None:
            self._settle(leased, completed(leased.job.spec.retention), result)
        else:
            outcome = outcome_of_end(leased, error)
            self.report(leased, outcome, attempt)
            if isinstance(outcome, Unknown):
                self._unknown_tasks.report_mismatch(leased.job, outcome.why or "")

    def refuse(self, leased: LeasedJob, outcome: Outcome) -> None:
        """End a leased job that was never started here, with this outcome."""
        self.forget(leased)
        self.report(leased, outcome)

    def report(self, leased: LeasedJob, outcome: Outcome, attempt: Attempt | None = None) -> None:
        """Settle the job with this outcome of the attempt, if it had begun."""
        now, jitter = leased.store_now(), random.random()  # noqa: S311 (jitter, no secret)
        move = decide(leased.job, outcome, now, jitter, keep_dead=self._keep_dead)
        if move.state is State.DEAD or move.state is State.CANCELLED:
            leased.undo = _leaves_undo(leased, move, attempt)
        self._settle(leased, move, None)

    def forget(self, leased: LeasedJob) -> None:
        """Count a leased job that was never started here as ended, without settling it."""
        leased.over = True
        self._leased_jobs.ended(leased)

    def lost(self, leased: LeasedJob) -> None:
        """Drop a leased job whose lease another worker has, without settling it."""
        self._leased_jobs.remove(leased)
        if leased.started:
            self._on_lease_lost()
        if leased.started and self._events.active:
            spec = leased.job.spec
            self._events.emit(
                LateResultRefused(leased.store_now(), spec.id, spec.queue, spec.task, leased.job.attempt)
            )


def _leaves_undo(leased: LeasedJob, move: Transition, attempt: Attempt | None) -> bool:
    """Whether the job fails for good with steps to undo, and its function had no chance to undo them."""
    if move.state is State.CANCELLED and (attempt is None or leased.interrupt is not None):
        return False  # from outside
    if attempt is None or attempt.flow is None:
        return can_be_undone(leased.job.checkpoint)
    return leased.interrupt is AttemptTimeout and can_be_undone(attempt.flow.checkpoint)
