"""Options of a job as a user gives them: checked once, with durations converted to milliseconds.

An app sets defaults, a task overrides them, and a single call (`task.using(...)`) overrides both. Each of
these three has a TypedDict, so that type checkers and editors know the option names; at run time an unknown
option is refused with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from penstock.client.middleware import OnError, OnSuccess
from penstock.client.option_readers import (
    READERS,
    Delivery,
    ErrorClasses,
    IsFailure,
    RetryData,
    RetryFunction,
    RetryRule,
    RunIn,
)
from penstock.codec import Upgrade
from penstock.core.errors import ConfigError
from penstock.core.formats import Duration
from penstock.core.job import DEFAULT_TIMEOUT, MAX_ATTEMPTS
from penstock.core.limits import Rate
from penstock.core.peer_words import WordPlace, hint
from penstock.core.relations import Batch
from penstock.core.retry import RetryPolicy
from penstock.core.unique import Unique

#: The key of a call: the name of an argument, several names, or a function of some arguments.
KeyRule = str | Sequence[str] | Callable[..., str | int | None]


class DefaultOptions(TypedDict, total=False):
    """Options that `App(...)` accepts as defaults for its tasks."""

    queue: str
    timeout: Duration | None
    max_attempts: int
    retry: RetryRule
    retry_on: ErrorClasses | None
    discard_on: ErrorClasses | None
    is_failure: IsFailure | None
    retention: Duration | None


class HandlerOptions(DefaultOptions, total=False):
    """Options of `@app.handler(...)`: how its function runs, and the jobs of `app.enqueue_raw`."""

    priority: int
    keep_dead: Duration | None
    expires: Duration | None
    unique: bool | Duration | Unique
    run_in: RunIn
    delivery: Delivery
    headers: Mapping[str, str]
    on_success: OnSuccess
    on_failure: OnError
    on_dead: OnError


class TaskOptions(HandlerOptions, total=False):
    """Options of `@app.task(...)`."""

    name: str
    aliases: Sequence[str]
    upgrade: Upgrade
    concurrency_key: KeyRule | None
    max_running_per_key: int
    ordered: bool
    rate_per_key: str | Rate | None
    burst_per_key: int
    fair_by: KeyRule | None
    fair_weights: Mapping[str, int] | Callable[[str], int]


class RawOptions(TypedDict, total=False):
    """Options of `app.enqueue_raw(...)`."""

    id: str
    priority: int
    delay: Duration
    run_at: datetime
    expires: Duration | datetime | None
    timeout: Duration | None
    deadline: datetime | None
    max_attempts: int
    retry: RetryData
    unique: bool | Duration | Unique
    unique_key: str
    retention: Duration | None
    keep_dead: Duration | None
    headers: Mapping[str, str]


class CallOptions(RawOptions, total=False):
    """Options of `task.using(...)`, for one call."""

    queue: str
    batch_key: str


class Options(msgspec.Struct, frozen=True):
    """Checked options, with the fields and units of `NewJob`. `retention=None`: not given."""

    queue: str = "default"
    priority: int = 0
    delay: int = 0
    run_at: int | None = None
    expires_in: int | None = None
    expires_at: int | None = None
    timeout: int | None = DEFAULT_TIMEOUT
    deadline: int | None = None
    max_attempts: int = MAX_ATTEMPTS
    retry: RetryPolicy | None = None
    retry_function: RetryFunction | None = None
    retry_on: tuple[type[BaseException], ...] | None = None  # None: all but those of discard_on
    discard_on: tuple[type[BaseException], ...] = ()
    is_failure: IsFailure | None = None
    unique: Unique | None = None
    retention: int | None = None
    at_most_once: bool = False
    headers: dict[str, str] | None = None
    batch: Batch | None = None
    batch_key: str = ""
    keep_dead: int | None = None


def override(base: Options, given: Mapping[str, Any], *, who: str) -> Options:
    """Return `base` with the given options applied. Raises ConfigError that names `who` and the option.

    Options without a reader (`name`, `id`, `run_in`, callbacks) are left to the caller.
    """
    fields: dict[str, Any] = {}
    try:
        for name, value in given.items():
            read = READERS.get(name)
            if read is not None:
                fields.update(read(value))
        if "unique_key" in given:
            fields["unique"] = _with_key(fields.get("unique", base.unique), given)
        if fields.get("headers") and base.headers:
            fields["headers"] = {**base.headers, **fields["headers"]}
        options = msgspec.structs.replace(base, **fields)
        _refuse_contradictions(options, given)
    except ConfigError as error:
        raise ConfigError(f"{who}: {error}") from None
    # at-most-once uses the rule for last attempts: their start is stored before they begin
    return msgspec.structs.replace(options, max_attempts=1) if options.at_most_once else options


def override_call(base: Options, given: Mapping[str, Any], *, who: str) -> Options:
    """Like `override`, for a single call, which cannot carry a function."""
    refuse_unknown(given, CallOptions.__optional_keys__, who=who)
    if callable(given.get("retry")):
        raise ConfigError(
            f"{who}: a retry function cannot travel with a job; set it on the task, and choose data here"
        )
    _refuse_of_batches(base, given, who)
    return override(base, given, who=who)


#: Options of an attempt. A batch has one attempt for all its jobs, so a single call cannot set them.
_ATTEMPT_OPTIONS = ("timeout", "deadline", "max_attempts", "retry", "retention", "keep_dead")


def _refuse_of_batches(base: Options, given: Mapping[str, Any], who: str) -> None:
    if base.batch is None:
        if "batch_key" in given:
            raise ConfigError(
                f"{who}: batch_key= is for tasks that run in batches, and this one does not: give it "
                "batch=Batch(...), or leave batch_key= out"
            )
        return
    for name in _ATTEMPT_OPTIONS:
        if name in given:
            raise ConfigError(
                f"{who}: {name}= is the same for all that run in one batch: set it on the task, not on a call"
            )


def refuse_unknown(
    given: Iterable[str], known: Iterable[str], *, who: str, place: WordPlace = "option"
) -> None:
    """Raise ConfigError for the first unknown option."""
    known = sorted(known)
    for name in given:
        if name not in known:
            near = hint(place, name, known)
            raise ConfigError(f"{who} has no option {name!r}{near or '; it has ' + ', '.join(known)}")


def _with_key(rule: Unique | None, given: Mapping[str, Any]) -> Unique:
    if rule is None and "unique" in given:
        raise ConfigError(f"unique_key= makes the job unique, but unique={given['unique']!r} turns that off")
    return (rule or Unique()).with_key(given["unique_key"])


def _refuse_contradictions(options: Options, given: Mapping[str, Any]) -> None:
    if "delay" in given and "run_at" in given:
        raise ConfigError("delay= and run_at= both set when the job is due: give one of them")
    if options.expires_in is not None and options.run_at is None and options.expires_in <= options.delay:
        raise ConfigError(
            "the job would expire before it is due: expires= counts from the enqueue, as delay= does"
        )
    if options.run_at is not None and options.expires_at is not None and options.expires_at <= options.run_at:
        raise ConfigError("the job would expire before it is due: expires= is not after run_at=")
    if options.deadline is not None and options.run_at is not None and options.deadline <= options.run_at:
        raise ConfigError("its deadline= is not after its run_at=: no attempt could ever succeed")
    if options.at_most_once and given.get("max_attempts", 1) != 1:
        raise ConfigError("delivery='at-most-once' allows a single attempt: leave max_attempts= out")
    for name in ("retry", "retry_on"):
        if options.at_most_once and given.get(name) is not None:
            raise ConfigError(
                f"delivery='at-most-once' is never retried: leave {name}= out. A function that has done "
                "nothing yet may raise Snooze or RateLimited to start again later"
            )
    both = [one.__name__ for one in options.retry_on or () if one in options.discard_on]
    if both:
        raise ConfigError(f"retry_on= and discard_on= both name {', '.join(both)}: use one of them")
