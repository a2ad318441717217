"""The outcome of an attempt: from its exception and its task's rules, or from what its function returned."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

from penstock.client.flows.canvas import Canvas
from penstock.client.job_call import JobCall
from penstock.client.options import Options
from penstock.core import errors, lazy
from penstock.core.formats import milliseconds
from penstock.core.job import AttemptError, Job
from penstock.core.limits import bounded_throttle
from penstock.core.outcomes import (
    Cancelled,
    DecodingFailed,
    Outcome,
    Raised,
    Snoozed,
    Suspended,
    Throttled,
    TimedOut,
    Unknown,
)
from penstock.core.text import text_of

_log = logging.getLogger("penstock")

#: Innermost frames kept of a deep traceback.
_FRAMES = 30

#: Reads a class's name without calling user code: the class may override `__qualname__`.
_name_of: Any = type.__dict__["__qualname__"].__get__

#: For tasks without options.
_ANY = Options()


def returned_by(job: Job, error: BaseException | None) -> bool:
    """Whether the job's function has done its work, and returned what cannot be its result.

    Another attempt would do the work again and return the same, so the job is dead at once. Its steps are not
    undone: they did what they should.
    """
    return isinstance(error, errors.ResultError) and error.job == job.id


def error_of(job: Job, now: int, error: BaseException, more: str = "") -> AttemptError:
    """The error as it is stored with the job. Never raises, even if the error's own methods do."""
    kind = kind_of(error)
    message = (text_of(error, f"a {kind} that cannot be shown") or kind) + more
    return AttemptError.bounded(job.attempt, now, kind, message, _traceback_of(error))


def kind_of(error: BaseException) -> str:
    """The name of the error's class, read without its metaclass."""
    name: str = _name_of(type(error))
    return name


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error, limit=-_FRAMES))
    except BaseException:  # noqa: BLE001  # boundary: a user's exception that cannot be shown
        return "".join(traceback.format_tb(error.__traceback__, limit=-_FRAMES))


def outcome_of(job: Job, now: int, error: BaseException, options: Options = _ANY) -> Outcome:
    """The outcome of an attempt that raised `error`. `now` is the store's clock, `options` are its task's.

    Never raises: an error without a clear outcome is a failed attempt whose message says why.
    """
    try:
        return _outcome(job, now, error, options)
    except BaseException as wrong:  # noqa: BLE001  # boundary: the user's error class may raise; the attempt must end
        return undetermined(job, now, error, wrong)


def undetermined(job: Job, now: int, error: BaseException, wrong: BaseException) -> Raised:
    """The outcome of an attempt whose error could not be examined, because of `wrong`."""
    more = f" (its outcome could not be determined: {kind_of(wrong)}: {text_of(wrong, most=300)})"
    return Raised(error_of(job, now, error, more))


def _outcome(job: Job, now: int, error: BaseException, options: Options) -> Outcome:
    try:
        match error:
            case errors.FlowSuspended():
                return Suspended(error.delay)
            case errors.FlowVersionMismatch() | errors.FlowMismatch():
                return Unknown(text_of(error))
            case errors.FlowError():
                return Raised(error_of(job, now, error), final=True)
            case errors.Snooze():
                return Snoozed(milliseconds(error.delay, what="Snooze(delay)"))
            case errors.RateLimited():
                return Throttled(
                    error_of(job, now, error),
                    bounded_throttle(milliseconds(error.retry_after, what="RateLimited(retry_after)")),
                    bool(error.key),
                )
            case errors.Cancel():
                reason: Any = error.reason
                return Cancelled(
                    errors.Cancel.reason if reason is None else text_of(reason, errors.Cancel.reason)
                )
            case errors.Discard():
                return Raised(error_of(job, now, error), final=True)
            # of this job, not of another job that the task has read
            case errors.SignatureMismatch() if error.job == job.id:
                return Unknown(f"of another release: {text_of(error)}")
            case errors.ResultError() if returned_by(job, error):
                return Raised(error_of(job, now, error), final=True)
            case errors.Undecodable():
                return DecodingFailed(AttemptError.bounded(job.attempt, now, "Undecodable", text_of(error)))
            case errors.Retry() if error.delay is not None:
                return Raised(error_of(job, now, error), milliseconds(error.delay, what="Retry(delay)"))
    except errors.ConfigError as wrong:  # Snooze("soon"): the task's own mistake is the attempt's failure
        error = wrong
    fact = error_of(job, now, error)
    if isinstance(error, errors.Steering):
        return Raised(fact, _own_delay(job, error, options))
    why = _not_again(type(error).__mro__, options)
    if why is not None:
        return Raised(fact, final=True, why=why)
    return Raised(fact, _own_delay(job, error, options), failure=_is_failure(job, error, options))


def timed_out(job: Job, fact: AttemptError, options: Options = _ANY) -> TimedOut:
    """The outcome of an attempt that timed out.

    A task's rules see an AttemptTimeout that is also a TimeoutError: a rule that lists Python's class matches
    too.
    """
    why = _not_again((*errors.AttemptTimeout.__mro__[:-2], *TimeoutError.__mro__), options)
    if why is not None:
        return TimedOut(fact, final=True, why=why)
    return TimedOut(fact, failure=_is_failure(job, errors.AttemptTimeout(fact.message), options))


def _not_again(kinds: tuple[type, ...], options: Options) -> str | None:
    """The reason why an error of this class is not retried; None: it is.

    `kinds` are the class and its bases, nearest first. The nearest class in a rule decides, as in a row of
    `except` clauses.
    """
    only, never = options.retry_on, options.discard_on
    for kind in kinds if only or never else ():
        if kind in never:
            return f"not retried: discard_on has {kind.__name__}"
        if only and kind in only:
            return None
    return f"not retried: retry_on has no {kinds[0].__name__}" if only else None


def _is_failure(job: Job, error: BaseException, options: Options) -> bool:
    if options.is_failure is None:
        return True
    try:
        return bool(options.is_failure(error))
    except BaseException:  # noqa: BLE001  # boundary: a user's function; if it fails, the error is a failure
        _log.exception("job %s: is_failure of %s failed; the error counts as a failure", job.id, job.task)
        return True


def _own_delay(job: Job, error: BaseException, options: Options) -> int | None:
    """The delay (ms) that the task's retry function returns; None: the job's policy applies."""
    function = options.retry_function
    if function is None:
        return None
    try:
        return milliseconds(function(job.attempt, error, job), what="the retry function's answer")
    except BaseException:  # noqa: BLE001  # boundary: a user's function; if it fails, the default policy applies
        _log.exception(
            "job %s: the retry function of %s failed; the default policy applies", job.id, job.task
        )
        return None


# ── what a function has returned ─────────────────────────────────────────────────────────────────

# The gate in every executor: one check, and one outcome. A value that stands for work not done yet (a
# coroutine, a generator), or that cannot be stored, fails the job for good: the function would return it
# again, after doing its work again.


def checked(value: Any, job: Job) -> Any:
    """The value that a function of this job has returned. Raises ResultError if it is lazy."""
    if type(value) in lazy.DONE:  # most are
        return value
    why = lazy.refused(value)
    if why is None and issubclass(type(lazy.first_of(value)), (JobCall, Canvas)):
        why = f"it returned {value!r:.100}, which was not enqueued: enqueue it in the function"
    if why is not None:
        raise _of(job, errors.ResultError(f"{job.task}: {why}"))
    return value


def result_of(value: Any, encode: Callable[[Any], bytes] | None, job: Job) -> bytes | None:
    """The encoded result of a job; None: none is kept. Raises ResultError if there can be none."""
    checked(value, job)
    if encode is None:
        return None
    try:
        return encode(value)
    except errors.ResultError as error:
        raise _of(job, error) from None
    except MemoryError:  # may pass
        raise
    except (Exception, SystemExit) as error:  # boundary: the value's own methods run in here
        why = text_of(error, type(error).__name__)
        kind = type(value).__name__
        raise _of(
            job, errors.ResultError(f"{job.task}: the result, of type {kind}, cannot be stored: {why}")
        ) from error


def _of(job: Job, error: errors.ResultError) -> errors.ResultError:
    """The error as this job's own: errors of other jobs' results, which a task may read, are retried."""
    error.job = job.id
    return error
