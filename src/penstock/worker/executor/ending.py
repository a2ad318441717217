"""Reports how each leased job ended: to the settler, to listeners, and to the count of unknown tasks."""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock.core.errors import AttemptLost
from penstock.core.events import EventBus, LateResultRefused
from penstock.core.lifecycle import Transition, decide
from penstock.core.outcomes import Outcome, Returned, Unknown
from penstock.worker.executor.outcomes import outcome_of_end
from penstock.worker.executor.slots import Slots
from penstock.worker.leased_jobs import Hold, Holdings
from penstock.worker.unknown_tasks import Strangers

__all__ = ["Ending", "Settle"]

_RETURNED = Returned()

#: Where ends go: the leased job, what follows from its outcome, and its encoded result.
Settle = Callable[[Hold, Transition, bytes | None], None]


class Ending:
    """Ends leased jobs. Each is reported once, whoever ends it first: the attempt, an interrupt, a drain."""

    def __init__(
        self,
        events: EventBus,
        holdings: Holdings,
        slots: Slots,
        strangers: Strangers,
        *,
        settle: Settle,
        keep_dead: int,
    ) -> None:
        self._events = events
        self._holdings = holdings
        self._slots = slots
        self._strangers = strangers
        self._settle = settle
        self._keep_dead = keep_dead

    def end(self, hold: Hold, error: BaseException | None, result: bytes | None = None) -> None:
        """End an attempt: free its slot and report its outcome. The caller starts what comes next."""
        if hold.over:
            return  # its slot was given up before; the settlement went out then
        self._slots.leave(hold)
        if error is None and hold.interrupt is not None:
            error = hold.interrupt()  # a return after the interrupt is too late
        if hold.interrupt is AttemptLost:
            self.lost(hold)
        elif error is None:
            self._settle(hold, decide(hold.job, _RETURNED, hold.now), result)
        else:
            outcome = outcome_of_end(hold, error)
            self.report(hold, outcome)
            if isinstance(outcome, Unknown):
                self._strangers.tell_misfit(hold.job, outcome.why or "")

    def refuse(self, hold: Hold, outcome: Outcome) -> None:
        """End a leased job that was never started here."""
        self.forget(hold)
        self.report(hold, outcome)

    def report(self, hold: Hold, outcome: Outcome) -> None:
        """Settle this outcome."""
        now, luck = hold.store_now(), random.random()  # noqa: S311 (jitter, no secret)
        self._settle(hold, decide(hold.job, outcome, now, luck, keep_dead=self._keep_dead), None)

    def forget(self, hold: Hold) -> None:
        """Count a leased job as ended that was never started here; it is not settled."""
        hold.over = True
        self._holdings.ended(hold)

    def lost(self, hold: Hold) -> None:
        """Drop a leased job whose lease another worker has: a settlement would not count."""
        self._holdings.remove(hold)
        if hold.started and self._events.active:
            spec = hold.job.spec
            self._events.emit(
                LateResultRefused(hold.store_now(), spec.id, spec.queue, spec.task, hold.job.attempt)
            )
