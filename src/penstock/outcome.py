"""What an exception says about an attempt, in the words of the lifecycle."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from penstock.duration import Duration, milliseconds
from penstock.errors import Cancel, ConfigError, Discard, Retry, Snooze, Undecodable
from penstock.job import AttemptError, Job
from penstock.lifecycle import Cancelled, Outcome, Raised, Snoozed
from penstock.lifecycle import Undecodable as NotDecodable

__all__ = ["error_of", "outcome_of"]

_log = logging.getLogger("penstock")

#: Of a deep traceback the innermost frames say most.
_FRAMES = 30


def error_of(job: Job, now: int, error: BaseException) -> AttemptError:
    """The error as it is kept with the job."""
    text = "".join(traceback.format_exception(error, limit=-_FRAMES))
    kind = type(error).__qualname__
    return AttemptError.bounded(job.attempt, now, kind, _words(error) or kind, text)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # boundary: an exception of the user's whose own __str__ raises
        return f"a {type(error).__qualname__} that cannot be shown"


def outcome_of(
    job: Job,
    now: int,
    error: BaseException,
    retry_function: Callable[[int, BaseException, Job], Duration] | None = None,
) -> Outcome:
    """The outcome of an attempt that raised this. `now` is the store's clock."""
    try:
        match error:
            case Snooze():
                return Snoozed(milliseconds(error.delay, what="Snooze(delay)"))
            case Cancel():
                return Cancelled(error.reason)
            case Discard():
                return Raised(error_of(job, now, error), final=True)
            case Undecodable():
                return NotDecodable(AttemptError.bounded(job.attempt, now, "Undecodable", str(error)))
            case Retry() if error.delay is not None:
                return Raised(error_of(job, now, error), milliseconds(error.delay, what="Retry(delay)"))
    except ConfigError as wrong:  # Snooze("soon"): the task's own mistake is the attempt's failure
        error = wrong
    return Raised(error_of(job, now, error), _own_delay(job, error, retry_function))


def _own_delay(
    job: Job, error: BaseException, function: Callable[[int, BaseException, Job], Duration] | None
) -> int | None:
    """What the task's own retry function says, in ms; None lets the job's policy speak."""
    if function is None:
        return None
    try:
        return milliseconds(function(job.attempt, error, job), what="the retry function's answer")
    except Exception:  # noqa: BLE001  # boundary: a user's function; where it fails the default policy applies
        _log.exception(
            "job %s: the retry function of %s failed; the default policy applies", job.id, job.task
        )
        return None
