"""Limits of a queue: rate, running jobs, size, and how many ended jobs are kept.

An operator's value takes precedence over the code's. The limits in effect are computed here and stored beside
these layers, so that fetches read no layers.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import milliseconds
from penstock.core.text import plain, whole

_RATE = re.compile(
    # bounded and unambiguous: no text takes long to match, no number is infinite
    r"\s*([+-]?(?:[0-9]{1,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30}))\s*"
    r"/\s*((?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})?)\s*([a-z]+)\s*\Z"
)
_UNITS = {
    **dict.fromkeys(("ms", "millisecond"), 1),
    **dict.fromkeys(("s", "sec", "second"), 1_000),
    **dict.fromkeys(("m", "min", "minute"), 60_000),
    **dict.fromkeys(("h", "hour"), 3_600_000),
    **dict.fromkeys(("d", "day"), 86_400_000),
    **dict.fromkeys(("w", "week"), 604_800_000),
}
#: Bounds of a rate: starts per ms (a faster rate limits nothing), and ms per start (366 days).
_FASTEST, _SLOWEST = 1_000.0, 366 * 86_400_000
_MOST_BURST = 1_000_000
#: Maximum length of a throttle (ms).
LONGEST_THROTTLE = 86_400_000
#: Minimum length of a throttle (ms): a task that is refused again and again must not spin.
_SHORTEST_THROTTLE = 100
_MAX_NUMBER = 2**53


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts per `per_ms`, evenly spread; up to `burst` of them may happen at once.

    In every span of time t there are at most t * count / per_ms + burst starts.
    """

    count: float
    per_ms: int
    burst: int = 1

    @property
    def step(self) -> float:
        """Milliseconds from one start to the next."""
        return self.per_ms / self.count

    @classmethod
    def of(cls, value: str | Rate, *, burst: int | None = None, what: str = "rate") -> Rate:
        """Parse a rate: `"100/min"`, `"200/s"`, `"5/2s"`, `"1/day"`. Raises ConfigError."""
        if isinstance(value, str):
            rate = cls(*_parsed(plain(value), what))
        elif isinstance(value, Rate):
            rate = value
        else:
            raise ConfigError(f"{what}={value!r} is not a rate: write '200/s', '100/min' or '5/2s'")
        rate = cls(rate.count, rate.per_ms, rate.burst if burst is None else burst)
        rate._check(what, value)
        return cls(float(rate.count), whole(rate.per_ms), whole(rate.burst))

    def __str__(self) -> str:
        """The rate as `of` reads it, without the burst."""
        for unit in ("day", "h", "min", "s"):
            times, rest = divmod(self.per_ms, _UNITS[unit])
            if times and not rest:
                return f"{self.count:.12g}/{unit if times == 1 else f'{times}{unit}'}"
        return f"{self.count:.12g}/{self.per_ms}ms"

    def _check(self, what: str, value: str | Rate) -> None:
        numbers = (self.count, self.per_ms)
        if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
            raise ConfigError(f"{what}={value!r} is not a rate: its count= and per_ms= are numbers")
        if not isinstance(self.per_ms, int):
            raise ConfigError(f"{what}={value!r} is not a rate: its per_ms= is a whole number")
        shown = f"{what}={str(value)!r}"
        if not math.isfinite(self.count) or self.count <= 0 or self.per_ms < 1:
            raise ConfigError(
                f"{shown} would never let a job start: pause the queue instead, or write '1/min'"
            )
        if self.step > _SLOWEST:
            raise ConfigError(f"{shown} is less than one per year: pause the queue instead")
        if self.step * _FASTEST < 1:
            raise ConfigError(f"{shown} is more than a million per second: leave the rate out")
        if isinstance(self.burst, bool) or not isinstance(self.burst, int) or self.burst < 1:
            raise ConfigError(f"burst={self.burst!r} is not a whole number of 1 or more")
        if self.burst > _MOST_BURST:
            raise ConfigError(f"burst={self.burst} is more than {_MOST_BURST:,}")


class OnFull(enum.StrEnum):
    """The rule for an enqueue into a full queue."""

    REJECT = "reject"  # QueueFull, at once
    WAIT = "wait"  # the caller waits for room, and gets QueueFull if none comes in time

    __hash__ = str.__hash__


class QueueLimits(msgspec.Struct, frozen=True):
    """The limits of one queue that are in effect, the operator's or those of the app's code.

    None: no limit, or for `keep_…` the worker's default.

    `max_size` counts all jobs that wait to start, in any state. `keep_…` are numbers of ended jobs, and
    `keep_…_for` their maximum age in ms since their end, which can only shorten their retention. `finished`
    are completed and cancelled jobs.
    """

    max_size: int | None = None
    on_full: OnFull = OnFull.REJECT
    max_running: int | None = None
    rate: Rate | None = None
    keep_finished: int | None = None
    keep_dead: int | None = None
    keep_finished_for: int | None = None
    keep_dead_for: int | None = None

    @property
    def delay_starts(self) -> bool:
        """Whether they may keep ready jobs from starting."""
        return self.max_running is not None or self.rate is not None

    def kept(self, dead: bool, newest: int, now: int) -> tuple[int, float]:
        """How many ended jobs of a kind are kept (`newest`: the default), and the end time after which."""
        number, age = (
            (self.keep_dead, self.keep_dead_for) if dead else (self.keep_finished, self.keep_finished_for)
        )
        return max(0, newest if number is None else number), -math.inf if age is None else now - age


NO_LIMITS = QueueLimits()


class LimitChange(msgspec.Struct, frozen=True):
    """Changes of a queue's limits, by an operator or, with `by_code`, by the app's code.

    UNSET leaves a limit as it is, None means no limit.

    - `throttle`: the time (ms from now) for which the queue starts no jobs; None ends a throttle.
    - `keep_burst`: the new rate keeps the burst of the old one, if there was one.
    - `by_code`: these are all limits that the app's code sets; they apply where no operator has set one.
    - `reset`: limits that the operator no longer sets, so that the code's value applies.
    """

    max_size: int | UnsetType | None = UNSET
    on_full: OnFull | UnsetType = UNSET
    max_running: int | UnsetType | None = UNSET
    rate: Rate | UnsetType | None = UNSET
    keep_finished: int | UnsetType | None = UNSET
    keep_dead: int | UnsetType | None = UNSET
    keep_finished_for: int | UnsetType | None = UNSET
    keep_dead_for: int | UnsetType | None = UNSET
    throttle: int | UnsetType | None = UNSET
    keep_burst: bool = False
    by_code: bool = False
    reset: tuple[str, ...] = ()

    @classmethod
    def of(cls, **given: Any) -> LimitChange:
        """Read a user's settings: numbers, durations, `rate="100/min"` with `burst=`. Raises ConfigError."""
        burst = given.pop("burst", None)
        if burst is not None and given.get("rate") is None:
            raise ConfigError("burst= needs a rate: give both, as in rate='100/min', burst=10")
        read: dict[str, Any] = {}
        for name, value in given.items():
            reader = _READERS.get(name)
            if reader is None:
                known = [*_READERS, "burst"]
                from penstock.core.peer_words import hint  # only for this message

                near = hint("queue", name, known)
                raise ConfigError(f"a queue has no setting {name!r}{near or '; it has ' + ', '.join(known)}")
            read[name] = reader(name, value)
        if burst is not None:
            read["rate"] = Rate.of(read["rate"], burst=burst)
        read["keep_burst"] = burst is None and isinstance(given.get("rate"), str)
        return cls(**read)


def bounded_throttle(ms: int) -> int:
    """The requested length of a throttle (ms), limited to the allowed range."""
    return min(max(ms, _SHORTEST_THROTTLE), LONGEST_THROTTLE)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def _whole(name: str, value: Any, least: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _MAX_NUMBER:
        raise ConfigError(f"{name}={value!r} is not a whole number of {least} or more, or None for no limit")
    return whole(value)


def _from_one(name: str, value: Any) -> int | None:
    if value == 0 and not isinstance(value, bool):
        way = "close the queue" if name == "max_size" else "pause the queue"
        raise ConfigError(f"{name}=0 would let nothing in or out: {way} instead, or give None for no limit")
    return _whole(name, value, 1)


def _from_zero(name: str, value: Any) -> int | None:
    return _whole(name, value, 0)


def _age(name: str, value: Any) -> int | None:
    return None if value is None else milliseconds(value, what=name)


def _on_full(name: str, value: Any) -> OnFull:
    try:
        return OnFull(value)
    except ValueError:
        near = did_you_mean(value, [rule.value for rule in OnFull]) if isinstance(value, str) else ""
        raise ConfigError(f"{name}={value!r} is neither 'reject' nor 'wait'{near}") from None


def _rate(name: str, value: Any) -> Rate | None:
    return None if value is None else Rate.of(value, what=name)


def _throttle(name: str, value: Any) -> int | None:
    ms = _age(name, value)
    if ms is not None and ms > LONGEST_THROTTLE:
        raise ConfigError(f"{name}={value!r} is longer than a day: pause the queue instead")
    return ms or None


_READERS = {
    "max_size": _from_one,
    "on_full": _on_full,
    "max_running": _from_one,
    "rate": _rate,
    "keep_finished": _from_zero,
    "keep_dead": _from_zero,
    "keep_finished_for": _age,
    "keep_dead_for": _age,
    "throttle": _throttle,
}


def _parsed(text: str, what: str) -> tuple[float, int]:
    """The count, and the milliseconds that it is for."""
    match = _RATE.match(text.lower())
    unit = match and (_UNITS.get(match[3]) or _UNITS.get(match[3].removesuffix("s")))
    if match is None or not unit:
        raise ConfigError(f"{what}={text!r} is not a rate: write '200/s', '100/min' or '5/2s'")
    return float(match[1]), round(float(match[2] or 1) * unit)


# ── whose limit is in effect ─────────────────────────────────────────────────────────────────────


LimitSource = Literal["operator", "code", "default"]
#: The limits that both can set. A throttle is no limit: it ends by itself.
LIMIT_NAMES = QueueLimits.__struct_fields__
_UNCHANGED = LimitChange()


class LimitLayers(msgspec.Struct, frozen=True):
    """What an operator and what the app's code have set; UNSET: nothing, None: no limit."""

    operator: LimitChange = _UNCHANGED
    code: LimitChange = _UNCHANGED

    @classmethod
    def by_operator(cls, limits: QueueLimits) -> LimitLayers:
        """The layers of limits that were stored without any: an operator has set what is not the default."""
        given = {name: value for name, value in _values(limits).items() if value != getattr(NO_LIMITS, name)}
        return cls(LimitChange(**given))

    def source(self, name: str) -> LimitSource:
        """The source of the value that is in effect: the operator or the code."""
        if getattr(self.operator, name) is not UNSET:
            return "operator"
        return "default" if getattr(self.code, name) is UNSET else "code"

    def limits(self) -> QueueLimits:
        """The limits in effect."""
        return QueueLimits(**{**_set_in(self.code), **_set_in(self.operator)})

    def changed(self, change: LimitChange, now: QueueLimits) -> LimitLayers:
        """Apply a change. `now`: the limits in effect, of which a new rate may keep the burst."""
        if change.by_code:
            return LimitLayers(self.operator, LimitChange(**_set_in(change)))
        operator = {**_set_in(self.operator), **_set_in(change)}
        rate = operator.get("rate")
        if change.keep_burst and change.rate and rate and now.rate is not None:
            operator["rate"] = msgspec.structs.replace(rate, burst=now.rate.burst)
        return LimitLayers(
            LimitChange(**{name: value for name, value in operator.items() if name not in change.reset}),
            self.code,
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """The layers for a store: the operator's values and the code's, by name."""
        return [_set_in(self.operator), _set_in(self.code)]


NO_LAYERS = LimitLayers()


def limits_by_code(**given: Any) -> LimitChange:
    """Read the limits in an app's code. The change replaces all that the code has set before."""
    change = LimitChange.of(**given)
    return msgspec.structs.replace(change, by_code=True, keep_burst=False)


def limits_reset(names: Iterable[str] = LIMIT_NAMES) -> LimitChange:
    """The change that forgets an operator's values, so that the code's are in effect again."""
    return LimitChange(reset=tuple(names))


def _values(limits: QueueLimits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in LIMIT_NAMES}


def _set_in(change: LimitChange) -> dict[str, Any]:
    found = {name: getattr(change, name) for name in LIMIT_NAMES}
    return {name: value for name, value in found.items() if value is not UNSET}
