"""Stops attempts: timeouts, cancellations, lost leases, and attempts that do not react.

An interrupt is pressed in steps. An async attempt is cancelled, a thread gets an exception after its grace, a
child process is killed. An attempt that outlasts all that is given up together with its thread or slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from penstock.core.errors import AttemptLost, AttemptTimeout, Interrupted
from penstock.core.job import AttemptError
from penstock.core.outcomes import LeaseLost, Outcome, Released
from penstock.worker.executor.ending import Ending
from penstock.worker.executor.process_attempts import ProcessAttempts
from penstock.worker.executor.slots import Slots
from penstock.worker.executor.thread_attempts import ThreadAttempts
from penstock.worker.leased_jobs import Hold

__all__ = ["Interruption"]

_log = logging.getLogger("penstock.worker")
#: How long what is raised into an attempt may take to have effect, besides its grace (s): see GIVES_UP_AFTER.
_STUBBORN = 1.0


class Interruption:
    """Interrupts attempts that have a slot.

    `grace` is the time (s) that a thread has to react by itself. `ended` is called with the end of an attempt
    that is given up, `on_slot_lost` after it.
    """

    def __init__(
        self,
        slots: Slots,
        ending: Ending,
        threads: ThreadAttempts,
        processes: ProcessAttempts,
        *,
        grace: float,
        ended: Callable[[Hold, BaseException | None, bytes | None], None],
        on_slot_lost: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._ending = ending
        self._threads = threads
        self._processes = processes
        self._grace = grace
        self._ended = ended
        self._on_slot_lost = on_slot_lost

    def watch(self, now: float) -> None:
        """Interrupt attempts that are over their time, and press those that have not reacted."""
        for hold in list(self._slots.attempts):
            if hold.interrupt is not None:
                self._press(hold, now)
            elif hold.ends is not None and now >= hold.ends and hold.started:
                self.interrupt(hold, AttemptTimeout)

    def interrupt(self, hold: Hold, why: type[Interrupted]) -> None:
        """Make a leased job stop: AttemptTimeout, AttemptCancelled or AttemptLost."""
        if hold.over or hold.interrupt is not None:
            return
        if why is AttemptTimeout and self._has_returned(hold):
            return
        hold.interrupt, hold.interrupted_at = why, time.monotonic()
        if hold.attempt is not None:
            hold.attempt.ask_to_stop()
        if hold.started and hold.plan.run_in == "process" and self._processes.kill(hold):
            return
        if hold.started and self._in_thread(hold):
            self._press(hold, hold.interrupted_at)
        elif hold.handle is not None:  # async code: its function, middleware, or the record of its start
            hold.handle.cancel()

    def release_all(self) -> None:
        """Give back all attempts and stop them; their results will not count."""
        for hold in list(self._slots.attempts):
            fact = AttemptError.bounded(
                hold.job.attempt, hold.store_now(), "WorkerStopped", "its worker stopped before it ended"
            )
            started = bool(hold.started)
            outcome: Outcome = LeaseLost(fact, started=started) if hold.job.spec.at_most_once else Released()
            self._ending.report(hold, outcome)
            self.interrupt(hold, AttemptLost)
            if self._in_thread(hold):  # it has had its grace, and its job may start elsewhere any moment
                self._threads.interrupt(hold, AttemptLost)
            self._slots.leave(hold)

    def _has_returned(self, hold: Hold) -> bool:
        """Whether the function has ended in time, and only this loop has not got to it yet."""
        if hold.plan.around or hold.plan.run_in == "async":
            return False
        if hold.plan.run_in == "thread":
            return not self._threads.is_in_thread(hold)
        return not self._processes.is_in_child(hold)

    def _in_thread(self, hold: Hold) -> bool:
        return hold.plan.run_in == "thread" and self._threads.is_in_thread(hold)

    def _press(self, hold: Hold, now: float) -> None:
        """Take the next step against an attempt that was interrupted and has not ended."""
        waited, grace = now - hold.interrupted_at, self._grace
        in_thread = self._in_thread(hold)
        if in_thread and grace <= waited < grace + _STUBBORN:
            self._threads.interrupt(hold, hold.interrupt or AttemptLost)
        elif hold.plan.run_in == "process" and not hold.plan.around:
            return  # it is killed; its end is on the way
        elif waited >= 3 * grace + 2 * _STUBBORN:
            self._give_up(hold, in_thread)
        elif waited >= 3 * grace + _STUBBORN and hold.handle is not None and not in_thread:
            hold.handle.cancel()  # it swallowed the first one

    def _give_up(self, hold: Hold, in_thread: bool) -> None:
        if in_thread and not self._threads.abandon(hold):
            return  # it has just ended after all
        _log.error(
            "job %s (%s, attempt %d) does not react to its %s: its %s is given up",
            hold.job.id,
            hold.plan.name,
            hold.job.attempt,
            "timeout" if hold.interrupt is AttemptTimeout else "cancellation",
            "thread" if in_thread else "slot",
        )
        self._slots.lost += 1
        self._ended(hold, hold.interrupt() if hold.interrupt else AttemptLost(), None)
        if in_thread and hold.handle is not None:
            hold.handle.cancel()
        self._on_slot_lost()
