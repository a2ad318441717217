"""How an attempt ended: what we did to it ourselves, else what its exception says."""

from __future__ import annotations

import asyncio

from penstock.app.outcome import outcome_of, timed_out
from penstock.core.errors import AttemptCancelled, AttemptTimeout
from penstock.core.job import AttemptError
from penstock.core.outcomes import Cancelled, Outcome
from penstock.core.text import number
from penstock.worker.leased_jobs import Hold

__all__ = ["out_of_time", "raised"]


def raised(hold: Hold, now: int, error: BaseException) -> Outcome:
    """What this exception means for the attempt in hand."""
    if hold.interrupt is AttemptCancelled:  # whatever it makes of that, nobody wants it tried again
        return Cancelled("cancelled while running")
    stopped = isinstance(error, (asyncio.CancelledError, AttemptTimeout, AttemptCancelled))
    if stopped and hold.interrupt is AttemptTimeout:
        return out_of_time(hold, now)
    return outcome_of(hold.job, now, error, hold.plan.options)


def out_of_time(hold: Hold, now: int) -> Outcome:
    """The attempt ran out of its own time."""
    spent = "" if hold.ends is None else f" after {number(hold.ends - hold.started)} s"
    fact = AttemptError.bounded(hold.job.attempt, now, "Timeout", f"the attempt timed out{spent}")
    return timed_out(hold.job, fact, hold.plan.options)
