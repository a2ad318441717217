"""Option readers: each checks the value of one option and converts it to fields of `Options`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal

from penstock.client.job_checks import check_headers
from penstock.core import lazy
from penstock.core import retry as _retry
from penstock.core.errors import AttemptTimeout, ConfigError, Interrupted, Steering, Undecodable, did_you_mean
from penstock.core.formats import Duration, instant_ms, milliseconds
from penstock.core.ids import check_id, check_queue
from penstock.core.job import MOST_ATTEMPTS, PRIORITIES, Job
from penstock.core.relations import check_batch_key
from penstock.core.retry import Custom, RetryPolicy
from penstock.core.text import whole
from penstock.core.unique import Unique

RunIn = Literal["async", "thread", "process"]
Delivery = Literal["at-least-once", "at-most-once"]
#: (attempt that failed, its error, the job) → seconds until the next one; called in the worker.
RetryFunction = Callable[[int, BaseException, Job], Duration]
#: The forms of `retry=`: a policy or its name, a duration (fixed wait), or several durations (steps).
RetryData = RetryPolicy | Duration | Sequence[Duration] | None
RetryRule = RetryData | RetryFunction
#: Exception classes, as in an `except`: one, or several.
ErrorClasses = type[BaseException] | Sequence[type[BaseException]]
#: (error) → whether the error is a failure, which uses up an attempt and is counted; called in the worker.
IsFailure = Callable[[BaseException], bool]


def _id(value: Any) -> dict[str, Any]:
    check_id(value)
    return {}  # belongs to one job: other jobs cannot inherit it


def _priority(value: Any) -> dict[str, Any]:
    if not isinstance(value, int) or isinstance(value, bool) or value not in PRIORITIES:
        raise ConfigError(f"priority={value!r} is not a whole number from -100 to 100 (higher goes first)")
    return {"priority": whole(value)}


def _run_at(value: Any) -> dict[str, Any]:
    return {"run_at": instant_ms(value, what="run_at"), "delay": 0}


def _expires(value: Any) -> dict[str, Any]:
    if value is None:
        return {"expires_in": None, "expires_at": None}
    if isinstance(value, datetime):
        return {"expires_in": None, "expires_at": instant_ms(value, what="expires")}
    span = milliseconds(value, what="expires")
    if span == 0:
        raise ConfigError("expires=0: the job could never start; leave it out, or use None, for no limit")
    return {"expires_in": span, "expires_at": None}


def _timeout(value: Any) -> dict[str, Any]:
    if value is None:
        return {"timeout": None}
    span = milliseconds(value, what="timeout")
    if span == 0:
        raise ConfigError("timeout=0 would end every attempt at once; None means no limit")
    return {"timeout": span}


def _deadline(value: Any) -> dict[str, Any]:
    if value is None:
        return {"deadline": None}
    if not isinstance(value, datetime):
        raise ConfigError(
            f"deadline={value!r} is not a datetime: it is the instant by which all attempts must have ended; "
            "for a span of time use timeout= (one attempt) or expires= (until it starts)"
        )
    return {"deadline": instant_ms(value, what="deadline")}


def _max_attempts(value: Any) -> dict[str, Any]:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_ATTEMPTS:
        raise ConfigError(f"max_attempts={value!r} is not a whole number of 1 or more")
    return {"max_attempts": whole(value)}


def _retention(value: Any) -> dict[str, Any]:
    return {"retention": 0 if value is None else milliseconds(value, what="retention")}


def _keep_dead(value: Any) -> dict[str, Any]:
    return {"keep_dead": 0 if value is None else milliseconds(value, what="keep_dead")}


def _unique(value: Any) -> dict[str, Any]:
    return {"unique": Unique.of(value)}


def _delivery(value: Any) -> dict[str, Any]:
    if value not in ("at-least-once", "at-most-once"):
        raise ConfigError(f"delivery={value!r} is neither 'at-least-once' nor 'at-most-once'")
    return {"at_most_once": value == "at-most-once"}


def _headers(value: Any) -> dict[str, Any]:
    return {"headers": check_headers(value) or None}


_NAMED_POLICIES: dict[str, Callable[[], RetryPolicy]] = {
    "exponential": _retry.exponential,
    "fibonacci": _retry.fibonacci,
    "polynomial": _retry.polynomial,
    "asynq": _retry.asynq,
    "sidekiq": _retry.sidekiq,
}


def _retry_rule(value: Any) -> dict[str, Any]:
    policy, function = _policy(value)
    return {"retry": policy, "retry_function": function}


def _policy(value: Any) -> tuple[RetryPolicy | None, RetryFunction | None]:
    if value is None:
        return None, None
    if isinstance(value, Custom):
        raise ConfigError("retry=Custom(): pass the function itself")
    if isinstance(value, RetryPolicy):
        return _retry.checked(value), None
    if isinstance(value, bool):
        raise ConfigError(f"retry={value!r} is not a policy; for a single attempt use max_attempts=1")
    if isinstance(value, (list, tuple)):
        return _retry.steps(*value), None
    if callable(value):
        return Custom(), _checked_function(value)
    if isinstance(value, str) and value in _NAMED_POLICIES:
        return _NAMED_POLICIES[value](), None
    try:
        return _retry.Fixed(milliseconds(value, what="retry")), None
    except ConfigError as error:
        near = did_you_mean(value, _NAMED_POLICIES) if isinstance(value, str) else ""
        raise ConfigError(f"{error}, or name a policy: {', '.join(_NAMED_POLICIES)}{near}") from None


def _checked_function(function: Any) -> RetryFunction:
    name = getattr(function, "__name__", repr(function))
    if getattr(function, "__module__", "") == _retry.__name__:
        raise ConfigError(f"retry={name} is the function that makes a policy: call it, as in retry={name}(…)")
    if lazy.returned_by(function):
        raise ConfigError(f"retry={name}: a retry function is a plain `def`, not `async def`")
    try:
        inspect.signature(function).bind(1, ValueError(), None)
    except TypeError:
        raise ConfigError(
            f"retry={name}: a retry function takes (attempt, error, job) and returns seconds"
        ) from None
    except ValueError:  # a builtin without a signature: the first call shows it
        pass
    checked: RetryFunction = function
    return checked


def _retry_on(value: Any) -> dict[str, Any]:
    classes = None if value is None else _error_classes(value, "retry_on")
    if classes == ():
        raise ConfigError("retry_on=() would retry no error: use max_attempts=1; None means all errors")
    return {"retry_on": classes}


def _discard_on(value: Any) -> dict[str, Any]:
    return {"discard_on": () if value is None else _error_classes(value, "discard_on")}


def _error_classes(value: Any, what: str) -> tuple[type[BaseException], ...]:
    classes = (value,) if isinstance(value, type) else value
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise ConfigError(f"{what}={value!r} is not a tuple of exception classes")
    for one in classes:
        if not isinstance(one, type) or not issubclass(one, BaseException):
            raise ConfigError(f"{what}: {one!r} is not an exception class")
        if issubclass(one, Steering):
            raise ConfigError(f"{what}: {one.__name__} chooses the outcome itself; leave it out")
        if issubclass(one, Undecodable):
            raise ConfigError(f"{what}: Undecodable always makes the job dead at once; leave it out")
        if issubclass(one, Interrupted) and one is not AttemptTimeout:
            raise ConfigError(f"{what}: {one.__name__} is not a failure of the task; leave it out")
    return tuple(classes)


def _is_failure(value: Any) -> dict[str, Any]:
    if value is not None:
        check_function(value, 1, "is_failure", "takes (error) and returns whether it is a failure")
        if lazy.returned_by(value):
            raise ConfigError(f"is_failure={shown_name(value)} is a plain `def`, not `async def`")
    return {"is_failure": value}


def check_function(function: Any, count: int, what: str, rule: str) -> None:
    """Raise ConfigError unless the function accepts `count` positional arguments."""
    if not callable(function) or (isinstance(function, type) and issubclass(function, BaseException)):
        raise ConfigError(f"{what}={function!r} is not a function: it {rule}")
    if (why := lazy.refuse_generator(function)) is not None:
        raise ConfigError(f"{what}={shown_name(function)} is a generator function: {why}")
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        raise ConfigError(f"{what}={shown_name(function)}: it {rule}") from None
    except ValueError:  # a builtin without a signature: the first call shows it
        pass


def shown_name(function: Any) -> str:
    """The name of a function for a message."""
    return getattr(function, "__qualname__", None) or repr(function)


#: Option name → its reader: value → fields of `Options`.
READERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "queue": lambda value: {"queue": check_queue(value)},
    "id": _id,
    "batch_key": lambda value: {"batch_key": check_batch_key(value)},
    "priority": _priority,
    "delay": lambda value: {"delay": milliseconds(value, what="delay"), "run_at": None},
    "run_at": _run_at,
    "expires": _expires,
    "timeout": _timeout,
    "deadline": _deadline,
    "max_attempts": _max_attempts,
    "retry": _retry_rule,
    "retry_on": _retry_on,
    "discard_on": _discard_on,
    "is_failure": _is_failure,
    "retention": _retention,
    "keep_dead": _keep_dead,
    "unique": _unique,
    "delivery": _delivery,
    "headers": _headers,
}
