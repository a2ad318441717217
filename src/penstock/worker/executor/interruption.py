"""Stops attempts: on timeouts, cancellations and lost leases, also attempts that do not react.

An interrupt escalates in steps. An async attempt is cancelled, a thread gets an exception after its grace
period unless it has noticed by then, a child process is killed. An attempt that has noticed has the cleanup
grace from then on; after it, the attempt is interrupted again. One that does not react to any of these is
given up with its thread or slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from penstock.config import Config
from penstock.core.errors import AttemptLost, AttemptTimeout, Interrupted
from penstock.core.job import AttemptError
from penstock.core.outcomes import LeaseLost, Outcome, Released
from penstock.worker.executor.runners import Runners
from penstock.worker.leased_jobs import LeasedJob

_log = logging.getLogger("penstock.worker")
#: Time that an attempt has to react to a raised exception, after its grace (s): see GIVES_UP_AFTER.
_REACTION_TIME = 1.0


class Interruption:
    """Interrupts attempts that have a slot.

    `on_slot_lost` is called after the end of an attempt that is given up.
    """

    def __init__(self, config: Config, runners: Runners, on_slot_lost: Callable[[], None]) -> None:
        self._attempts = runners.attempts
        self._slots = runners.attempts.slots
        self._threads = runners.threads
        self._processes = runners.processes
        #: The time (s) that a thread has to notice, and the time (s) that it then has to clean up.
        self._grace = config.thread_grace / 1000
        self._cleanup = config.cleanup_grace / 1000
        self._on_slot_lost = on_slot_lost

    def watch(self, now: float) -> None:
        """Interrupt attempts past their time, and escalate for those that have not reacted."""
        for leased in list(self._slots.attempts):
            if leased.interrupt is not None:
                self._escalate(leased, now)
            elif leased.ends is not None and now >= leased.ends and leased.started:
                self.interrupt(leased, AttemptTimeout)

    def interrupt(self, leased: LeasedJob, why: type[Interrupted]) -> None:
        """Stop a leased job with AttemptTimeout, AttemptCancelled or AttemptLost."""
        if leased.over or leased.interrupt is not None:
            return
        if why is AttemptTimeout and self._has_returned(leased):
            return
        leased.interrupt, leased.interrupted_at = why, time.monotonic()
        if leased.attempt is not None:
            leased.attempt.ask_to_stop()
        if leased.plan.run_in == "process" and self._processes.kill(leased):
            return
        for call in list(leased.step_calls or ()):
            call.kill()
        if leased.started and self._in_thread(leased):
            self._escalate(leased, leased.interrupted_at)
        elif leased.runner is not None:  # async code: its function, middleware, or the record of its start
            leased.runner.cancel()
            self._interrupt_steps(leased, leased.interrupted_at)

    def release_all(self) -> None:
        """Release all attempts and stop them; their results are ignored."""
        for leased in list(self._slots.attempts):
            fact = AttemptError.bounded(
                leased.job.attempt,
                leased.store_now(),
                "WorkerStopped",
                "the worker stopped before the attempt ended",
            )
            # a call may have started in its child since the last look
            started = bool(leased.started) or self._processes.is_in_child(leased)
            outcome: Outcome = (
                LeaseLost(fact, started=started) if leased.job.spec.at_most_once else Released()
            )
            self._attempts.report(leased, outcome)
            self.interrupt(leased, AttemptLost)
            if self._in_thread(leased):  # no further grace: its job may start elsewhere at any time
                self._threads.interrupt(leased, AttemptLost)
            for call in list(leased.step_calls or ()):
                call.interrupt(AttemptLost)
            self._slots.leave(leased)

    def _has_returned(self, leased: LeasedJob) -> bool:
        """Whether the function has ended in time and only the event loop has not processed its end yet."""
        if leased.plan.around or leased.plan.run_in == "async":
            return False
        if leased.plan.run_in == "thread":
            return not self._threads.is_in_thread(leased)
        return not self._processes.is_in_child(leased)

    def _in_thread(self, leased: LeasedJob) -> bool:
        return leased.plan.run_in == "thread" and self._threads.is_in_thread(leased)

    def _escalate(self, leased: LeasedJob, now: float) -> None:
        """Take the next step against an interrupted attempt that has not ended."""
        if leased.plan.run_in == "process" and not leased.plan.around:
            return  # its child was killed; the end follows
        self._interrupt_steps(leased, now)
        in_thread = self._in_thread(leased)
        noticed = self._noticed_at(leased, in_thread)
        if noticed is None:
            waited = now - leased.interrupted_at
            if waited >= 3 * self._grace + 2 * _REACTION_TIME:
                self._give_up(leased, in_thread)
            elif waited >= self._grace:
                self._threads.interrupt(leased, leased.interrupt or AttemptLost)
            return
        until = noticed + self._cleanup
        self._attempts.leased_jobs.allow_cleanup(leased, until + _REACTION_TIME)
        if now >= until + _REACTION_TIME:
            self._give_up(leased, in_thread)
        elif now >= until:
            self._interrupt_again(leased, in_thread)

    def _interrupt_steps(self, leased: LeasedJob, now: float) -> None:
        """Interrupt its steps in threads, after the grace, or after the cleanup of those that noticed."""
        if not leased.step_calls:
            return
        noticed = 0.0 if leased.attempt is None else leased.attempt.noticed
        if now >= (noticed + self._cleanup if noticed else leased.interrupted_at + self._grace):
            for call in list(leased.step_calls):
                call.interrupt(leased.interrupt or AttemptLost)

    def _noticed_at(self, leased: LeasedJob, in_thread: bool) -> float | None:
        """When (monotonic) the attempt learned of its interrupt. Async code does at once."""
        noticed = 0.0 if leased.attempt is None else leased.attempt.noticed
        if in_thread:
            return noticed or None
        return max(noticed, leased.interrupted_at)

    def _interrupt_again(self, leased: LeasedJob, in_thread: bool) -> None:
        if in_thread:
            self._threads.interrupt(leased, leased.interrupt or AttemptLost)
        elif leased.runner is not None:
            leased.runner.cancel()

    def _give_up(self, leased: LeasedJob, in_thread: bool) -> None:
        if in_thread and not self._threads.abandon(leased):
            return  # it has just ended
        _log.error(
            "job %s (%s, attempt %d) does not react to its %s: its %s is given up",
            leased.job.id,
            leased.plan.name,
            leased.job.attempt,
            "timeout" if leased.interrupt is AttemptTimeout else "cancellation",
            "thread" if in_thread else "slot",
        )
        self._slots.lost += 1
        self._attempts.end_and_start_next(leased, (leased.interrupt or AttemptLost)())
        for call in list(leased.step_calls or ()):
            call.abandon()
        if in_thread and leased.runner is not None:
            leased.runner.cancel()
        self._on_slot_lost()
