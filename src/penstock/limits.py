"""What a queue is held to: how fast, how many at once, how full, and how much of what has ended it keeps."""

from __future__ import annotations

import math
import re

import msgspec

from penstock.errors import ConfigError

__all__ = ["Rate"]

_RATE = re.compile(r"\s*([+-]?[0-9]*\.?[0-9]+)\s*/\s*([0-9]*\.?[0-9]*)\s*([a-z]+)\s*\Z")
_UNITS = {
    **dict.fromkeys(("ms", "millisecond"), 1),
    **dict.fromkeys(("s", "sec", "second"), 1_000),
    **dict.fromkeys(("m", "min", "minute"), 60_000),
    **dict.fromkeys(("h", "hour"), 3_600_000),
    **dict.fromkeys(("d", "day"), 86_400_000),
    **dict.fromkeys(("w", "week"), 604_800_000),
}
#: A rate of more than so many starts in a ms limits nothing; one of less than a start a year is none.
_FASTEST, _SLOWEST = 1_000.0, 366 * 86_400_000
_MOST_BURST = 1_000_000


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts in every `per_ms`, evenly; up to `burst` of them may come at once.

    In every span of time t there are at most t * count / per_ms + burst starts.
    """

    count: float
    per_ms: int
    burst: int = 1

    @property
    def step(self) -> float:
        """The ms from one start to the next."""
        return self.per_ms / self.count

    @classmethod
    def of(cls, value: str | Rate, *, burst: int | None = None, what: str = "rate") -> Rate:
        """What a user may write: `"100/min"`, `"200/s"`, `"5/2s"`, `"1/day"`. Raises ConfigError."""
        if isinstance(value, str):
            rate = cls(*_parsed(value, what))
        elif isinstance(value, Rate):
            rate = value
        else:
            raise ConfigError(f"{what}={value!r} is not a rate: write '200/s', '100/min' or '5/2s'")
        rate = cls(rate.count, rate.per_ms, rate.burst if burst is None else burst)
        rate._check(what, value)
        return rate

    def __str__(self) -> str:
        """As `of` reads it, without the burst."""
        for unit in ("day", "h", "min", "s"):
            times, rest = divmod(self.per_ms, _UNITS[unit])
            if times and not rest:
                return f"{self.count:.12g}/{unit if times == 1 else f'{times}{unit}'}"
        return f"{self.count:.12g}/{self.per_ms}ms"

    def _check(self, what: str, value: str | Rate) -> None:
        said = f"{what}={str(value)!r}"
        if not math.isfinite(self.count) or self.count <= 0 or self.per_ms < 1:
            raise ConfigError(f"{said} lets nothing start, ever: pause the queue instead, or write '1/min'")
        if self.step > _SLOWEST:
            raise ConfigError(f"{said} is less than one a year: pause the queue instead")
        if self.step * _FASTEST < 1:
            raise ConfigError(f"{said} is more than a million a second: do without a rate")
        if isinstance(self.burst, bool) or not isinstance(self.burst, int) or self.burst < 1:
            raise ConfigError(f"burst={self.burst!r} is not a whole number of 1 or more")
        if self.burst > _MOST_BURST:
            raise ConfigError(f"burst={self.burst} is more than {_MOST_BURST:,}")


def _parsed(text: str, what: str) -> tuple[float, int]:
    """How many, in how many ms."""
    match = _RATE.match(text.lower())
    unit = match and (_UNITS.get(match[3]) or _UNITS.get(match[3].removesuffix("s")))
    if match is None or not unit or match[2] == ".":
        raise ConfigError(f"{what}={text!r} is not a rate: write '200/s', '100/min' or '5/2s'")
    return float(match[1]), round(float(match[2] or 1) * unit)
