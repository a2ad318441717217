"""Events for the ends of jobs and attempts, decided by a worker, a reclaimer or `app.take`."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from penstock.core.events import (
    Event,
    EventBus,
    JobCancelled,
    JobCompleted,
    JobDied,
    JobFailed,
    JobParked,
    JobReleased,
    JobSnoozed,
    RecordSetAside,
)
from penstock.core.job import Job, State
from penstock.core.lifecycle import UNKNOWN_TASK, Transition
from penstock.stores.contract import SetAside

_log = logging.getLogger("penstock.maintenance")


def event_of(job: Job, move: Transition, seconds: float = 0.0) -> Event | None:
    """The event for a transition that a store has applied; None for an unknown task (see TaskUnknown).

    `seconds`: how long the job's function ran.
    """
    spec = job.spec
    about = (int(time.time() * 1000), spec.id, spec.queue, spec.task, job.attempt)
    error = "" if move.error is None else f"{move.error.kind}: {move.error.message}"
    if move.state is State.COMPLETED:
        return JobCompleted(*about, seconds=seconds)
    if move.state is State.DEAD:
        return JobDied(*about, error=error or (move.reason or ""))
    if move.state is State.CANCELLED:
        return JobCancelled(*about, reason=move.reason or "")
    if move.error is not None:
        return JobFailed(*about, error=error, delay=move.delay)
    if move.throttle or move.throttle_partition:
        return JobSnoozed(*about, delay=move.throttle or move.throttle_partition)
    if move.state in (
        State.SCHEDULED,
        State.RETRYABLE,
        State.SUSPENDED,
    ):  # RETRYABLE: by an error that is not a failure
        return JobSnoozed(*about, delay=move.delay)
    if move.state is not State.PARKED:
        return JobReleased(*about)
    reason = move.reason or ""
    return None if reason.startswith(UNKNOWN_TASK) else JobParked(*about, reason=reason)


def emit_outcome(events: EventBus, job: Job, move: Transition) -> None:
    """Emit the event of an applied transition, for a job that was not run here."""
    if events.active and (event := event_of(job, move)) is not None:
        events.emit(event)


def emit_set_aside(events: EventBus, found: Sequence[SetAside]) -> None:
    """Emit an event for each record that the store cannot read and has set aside."""
    for one in found if events.active else ():
        events.emit(RecordSetAside(int(time.time() * 1000), one.kind, one.queue, one.id, one.cause))


def log_set_aside(found: Sequence[SetAside]) -> None:
    """Log a warning for each record that the store has set aside."""
    for one in found:
        _log.warning("record cannot be read and was set aside: %s", one)
