"""Converts durations such as `"5m"`, and datetimes, to milliseconds."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from penstock.core.errors import ConfigError
from penstock.core.text import plain, shown

__all__ = ["INSTANTS", "LONGEST", "Duration", "format_ms", "instant_ms", "milliseconds"]

#: Seconds as a number, a timedelta, or text such as "90s", "5m", "2h", "1d", "250ms", "1h30m".
Duration = float | int | str | timedelta

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The longest text that is read: the search for parts takes quadratic time in text that has none.
_LONGEST_TEXT = 100
#: The longest duration: far enough for any job, while now + delay stays a 64-bit integer and a valid
#: datetime.
LONGEST = 1000 * 365 * 86_400_000
#: The first and the last instant that a datetime can express, in ms since 1970.
INSTANTS = -62_135_596_800_000, 253_402_300_800_000


def milliseconds(value: Duration, *, what: str = "duration") -> int:
    """A duration in whole milliseconds, rounded up so that nothing starts early. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, timedelta)):
        raise ConfigError(
            f"{what}={shown(value)} is not a duration: "
            "give seconds, a timedelta, or text like '90s', '5m', '2h'"
        )
    if isinstance(value, str):
        ms = _parse(plain(value), what)
    elif isinstance(value, timedelta):
        ms = value / timedelta(milliseconds=1)
    else:
        ms = value * 1000
    if ms != ms:
        raise ConfigError(f"{what}={value!r} is not a number")
    if ms < 0:
        raise ConfigError(f"{what}={shown(value)} is negative: a duration is zero or more")
    if ms > LONGEST:
        raise ConfigError(f"{what}={shown(value)} is longer than 1000 years")
    return math.ceil(ms - 1e-6)  # 0.1 + 0.2 seconds must not become 301 ms


def _parse(text: str, what: str) -> float:
    compact = text.replace(" ", "").lower()
    parts = _PART.findall(compact) if len(compact) <= _LONGEST_TEXT else []
    if not parts or "".join(n + u for n, u in parts) != compact:
        hint = "is negative" if compact.startswith("-") else "is not a duration"
        raise ConfigError(f"{what}={shown(text)} {hint}: write '90s', '5m', '2h', '1d', '250ms' or '1h30m'")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def instant_ms(value: datetime, *, what: str = "run_at") -> int:
    """An aware datetime as milliseconds since the epoch, rounded up; naive ones are refused."""
    if not isinstance(value, datetime):
        raise ConfigError(f"{what}={value!r} is not a datetime; for a span of time use a duration option")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ConfigError(
            f"{what}={value!r} is naive, without a time zone: "
            "use datetime.now(timezone.utc) or give it a tzinfo"
        )
    return math.ceil((value - _EPOCH) / timedelta(milliseconds=1) - 1e-6)


def format_ms(ms: int) -> str:
    """A duration as text: `"1.5s"`, `"2m 5s"`, `"3d 4h"`."""
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g}s"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        n, ms = divmod(ms, _UNITS[unit])
        if n:
            parts.append(f"{n}{unit}")
    return " ".join(parts[:2])
