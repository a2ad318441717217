"""Finds the outcome of an attempt: by the worker's interrupt, otherwise by its exception."""

from __future__ import annotations

import asyncio

from penstock.app.outcome import outcome_of, timed_out, undetermined
from penstock.core.errors import AttemptCancelled, AttemptTimeout
from penstock.core.job import AttemptError
from penstock.core.lifecycle import QueuePosition
from penstock.core.outcomes import Cancelled, LeaseLost, Outcome, Raised, Released
from penstock.core.text import number
from penstock.worker.executor.attempt_start import LeaseRevoked
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.pools import CallRefused, ChildBroken, ChildDied, ChildFailed, NoChild

__all__ = ["outcome_of_end"]


def outcome_of_end(leased: LeasedJob, error: BaseException) -> Outcome:
    """The outcome of an attempt that ended with `error`. Never raises."""
    try:
        if isinstance(error, (LeaseRevoked, CallRefused)):
            return Released(QueuePosition.OWN)
        if isinstance(error, ChildFailed):
            return error.outcome
        if isinstance(error, ChildDied):
            return _child_died(leased, error)
        return _raised(leased, error)
    except BaseException as wrong:  # noqa: BLE001  # boundary: the attempt has ended, even if its error cannot be read
        return undetermined(leased.job, leased.store_now(), error, wrong)


def _raised(leased: LeasedJob, error: BaseException) -> Outcome:
    if leased.interrupt is AttemptCancelled:  # even if the task raised something else: no retry
        return Cancelled("cancelled while running")
    stopped = isinstance(error, (asyncio.CancelledError, AttemptTimeout, AttemptCancelled))
    if stopped and leased.interrupt is AttemptTimeout:
        return _timed_out(leased)
    return outcome_of(leased.job, leased.store_now(), error, leased.plan.options)


def _timed_out(leased: LeasedJob) -> Outcome:
    """The outcome of an attempt that reached its timeout or deadline."""
    spent = "" if leased.ends is None else f" after {number(leased.ends - leased.started)} s"
    fact = AttemptError.bounded(
        leased.job.attempt, leased.store_now(), "Timeout", f"the attempt timed out{spent}"
    )
    return timed_out(leased.job, fact, leased.plan.options)


def _child_died(leased: LeasedJob, error: ChildDied) -> Outcome:
    if leased.interrupt is AttemptTimeout:
        return _timed_out(leased)
    if leased.interrupt is AttemptCancelled:
        return Cancelled("cancelled while running")
    if isinstance(error, NoChild):
        return Released(QueuePosition.OWN)
    kind = type(error).__name__
    broken = isinstance(error, ChildBroken)
    cause = error.cause if broken else f"{error.cause} while it ran {leased.job.task}"
    fact = AttemptError.bounded(leased.job.attempt, leased.store_now(), kind, cause, error.stderr)
    return Raised(fact) if broken else LeaseLost(fact)
