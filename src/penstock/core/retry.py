"""Retry policies: how long to wait before the next attempt, as data that is stored with the job.

`attempt` is the number of the attempt that has just failed, from 1. `luck` is a random number in [0, 1) drawn
by the caller, so that every policy is a pure function.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.formats import LONGEST, Duration, milliseconds

__all__ = [
    "DEFAULT",
    "DURATIONS",
    "Custom",
    "Exponential",
    "Fibonacci",
    "Fixed",
    "Linear",
    "Polynomial",
    "RetryPolicy",
    "Steps",
    "asynq",
    "checked",
    "exponential",
    "fibonacci",
    "fixed",
    "linear",
    "polynomial",
    "sidekiq",
    "steps",
    "wait_ms",
]

_DAY = 86_400_000
_CANNOT_COMPUTE = (ArithmeticError, LookupError, TypeError, ValueError)


class _Policy(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True):
    pass


class Exponential(_Policy, frozen=True, tag="exponential"):
    """`base · factor^(attempt-1)`, at most `cap`; jitter shortens it by up to the share `jitter`.

    All in ms.
    """

    base: int = 1_000
    factor: float = 2.0
    cap: int = _DAY
    jitter: float = 0.5


class Fixed(_Policy, frozen=True, tag="fixed"):
    """The same wait each time (ms)."""

    delay: int


class Linear(_Policy, frozen=True, tag="linear"):
    """`step · attempt`, at most `cap` (ms)."""

    step: int
    cap: int = _DAY


class Fibonacci(_Policy, frozen=True, tag="fibonacci"):
    """`step` times 1, 2, 3, 5, 8 …, at most `cap` (ms); machinery's series."""

    step: int = 1_000
    cap: int = _DAY


class Steps(_Policy, frozen=True, tag="steps"):
    """One wait per attempt (ms); the last one is used for all further attempts."""

    delays: tuple[int, ...]


class Polynomial(_Policy, frozen=True, tag="polynomial"):
    """n⁴ + 15 seconds plus a jitter that grows with n, the number of attempts failed before.

    The jitter is random(0 … jitter-1)·(n + 1) s; with `even` it is random(0 … jitter·(n + 1)-1) s, which can
    be any second of its range. The defaults are asynq's.
    """

    jitter: Annotated[int, msgspec.Meta(ge=0)] = 30
    even: bool = False


class Custom(_Policy, frozen=True, tag="custom"):
    """A retry function of the task, called in the worker by `app/outcome.py`.

    The default policy applies elsewhere, after a timeout, and if the function raises.
    """


RetryPolicy = Exponential | Fixed | Linear | Fibonacci | Steps | Polynomial | Custom

DEFAULT = Exponential()
#: Names of policy fields that are durations (ms).
DURATIONS = frozenset({"base", "cap", "delay", "step", "delays"})


def exponential(
    base: Duration = 1, *, factor: float = 2.0, cap: Duration = "1d", jitter: float = 0.5
) -> Exponential:
    """`base`, then `factor` times longer each time up to `cap`; shortened by up to the share `jitter`."""
    if not factor >= 1:
        raise ConfigError(f"factor={factor!r}: a backoff must not shrink; use 1 or more")
    if not 0 <= jitter <= 1:
        raise ConfigError(f"jitter={jitter!r} is not between 0 and 1")
    return Exponential(
        milliseconds(base, what="base"), float(factor), milliseconds(cap, what="cap"), float(jitter)
    )


def fixed(delay: Duration) -> Fixed:
    """The same wait each time."""
    return Fixed(milliseconds(delay, what="delay"))


def linear(step: Duration, *, cap: Duration = "1d") -> Linear:
    """`step`, twice that, three times that, up to `cap`."""
    return Linear(milliseconds(step, what="step"), milliseconds(cap, what="cap"))


def fibonacci(step: Duration = 1, *, cap: Duration = "1d") -> Fibonacci:
    """`step` times 1, 2, 3, 5, 8 …, up to `cap`.

    This is machinery's series (`FibonacciNext` of its v1/retry): each wait is the smallest Fibonacci number
    of seconds above the previous one, from 0. Machinery has neither a cap nor a jitter; one day is longer
    than any wait of the default 25 attempts.
    """
    return Fibonacci(milliseconds(step, what="step"), milliseconds(cap, what="cap"))


def steps(*delays: Duration) -> Steps:
    """One wait per attempt; the last one is used for all further attempts."""
    if not delays:
        raise ConfigError("steps() needs at least one delay")
    return Steps(tuple(milliseconds(d, what="delay") for d in delays))


def polynomial() -> Polynomial:
    """Same as `asynq()`: about 15 s, 16 s, 31 s, 96 s … 3.2 days for the 24th."""
    return asynq()


def asynq() -> Polynomial:
    """n⁴ + 15 + random(0 … 29)·(n + 1) seconds, after n failures before this one.

    This is asynq's `DefaultRetryDelayFunc` (server.go), and the rule of go-workers.
    """
    return Polynomial()


def sidekiq(version: int = 8) -> Polynomial:
    """n⁴ + 15 seconds plus a jitter below 10·(n + 1) seconds, after n failures before this one.

    This is Sidekiq's `delay_for` (job_retry.rb). From version 8.0 on the jitter can be any second of that
    range, random(0 … 10·(n + 1)-1); up to 7.3 (`sidekiq(7)`) it is random(0 … 9)·(n + 1).
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ConfigError(
            f"version={version!r} is not a major version of Sidekiq: use 8, or 7 for those before it"
        )
    return Polynomial(jitter=10, even=version >= 8)


def checked(policy: RetryPolicy) -> RetryPolicy:
    """Return the policy if its values are valid, as other programs must read it.

    Raises ConfigError otherwise.
    """
    try:
        msgspec.convert(msgspec.to_builtins(policy), RetryPolicy)
        waits = [_wait_ms(policy, attempt, luck) for attempt in (1, 2, 100) for luck in (0.0, 1.0)]
    except (msgspec.ValidationError, *_CANNOT_COMPUTE) as error:
        raise ConfigError(f"retry={policy!r} is invalid: {error}; {_MAKERS}") from None
    if min(waits) < 0:
        raise ConfigError(f"retry={policy!r} has a negative wait; {_MAKERS}")
    return policy


_MAKERS = "make it with exponential(), fixed(), linear(), fibonacci() or steps(), which check their values"


def wait_ms(policy: RetryPolicy | None, attempt: int, luck: float) -> int:
    """The wait after the failure of this attempt in ms, at most 1000 years.

    A stored policy that cannot be computed (written by another program, say) counts as the default.
    """
    try:
        return min(_wait_ms(policy, attempt, luck), LONGEST)
    except _CANNOT_COMPUTE:
        return _wait_ms(DEFAULT, attempt, luck)


def _wait_ms(policy: RetryPolicy | None, attempt: int, luck: float) -> int:
    match policy:
        case None | Custom():
            return _wait_ms(DEFAULT, attempt, luck)
        case Exponential(base, factor, cap, jitter):
            # the exponent is bounded: 2.0**5000 would overflow, long after the cap is reached
            full = min(float(cap), base * factor ** min(attempt - 1, 64))
            return int(full * (1 - jitter * luck))
        case Fixed(delay):
            return delay
        case Linear(step, cap):
            return min(cap, step * attempt)
        case Fibonacci(step, cap):
            return min(cap, step * _fibonacci(min(attempt, 90) + 1))
        case Steps(delays):
            return delays[min(attempt, len(delays)) - 1]
        case Polynomial(jitter, even):
            n = attempt - 1
            drawn = int(luck * jitter * (n + 1)) if even else int(luck * jitter) * (n + 1)
            return (n**4 + 15 + drawn) * 1_000


def _fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
