"""Durations, instants, sizes and bytes: read from people's values such as `"5m"`, and shown to people.

Inside, durations and instants are milliseconds.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from datetime import UTC, datetime, timedelta

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.text import plain, shown

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


# ── shown ────────────────────────────────────────────────────────────────────────────────────────


#: Text that was encrypted with the key of this id.
_ENCRYPTED = re.compile(r"\$sealed:1\.([0-9a-f]{8})\.[A-Za-z0-9+/=]+")


def iso(ms: int | None) -> str | None:
    """An instant in RFC 3339 format, `2026-11-20T08:30:00.250Z`; None for None."""
    return None if ms is None else instant(ms)


def instant(ms: int) -> str:
    """An instant in the format of `iso`."""
    moment = dated(ms)
    return f"{ms} ms since 1970" if moment is None else f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def dated(ms: int) -> datetime | None:
    """The second of an instant in UTC; None without a date: a foreign producer may have stored any number."""
    try:
        return datetime.fromtimestamp(ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def ms_of(text: str | None) -> int | None:
    """The instant of a text in the format of `iso`; None if it has none."""
    try:
        return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def shown_text(text: str) -> str:
    """A text for people: encrypted parts are replaced by a note that names their key."""
    return _ENCRYPTED.sub(r"(encrypted with the key \1)", text) if "$sealed:" in text else text


def seconds(begin: int | None, end: int | None) -> float | None:
    """The seconds between two instants; None if one is unknown."""
    return None if begin is None or end is None else max(0, end - begin) / 1000


def size_text(count: float) -> str:
    """A number of bytes: `950 B`, `312 MB`, `2.9 GB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def json_or_base64(data: bytes | None) -> tuple[msgspec.Raw | None, str | None]:
    """The bytes as JSON in one line, or else as base64; one of the two is None."""
    if data is None:
        return None, None
    try:
        text = data.decode("utf-8")
        return msgspec.Raw(msgspec.json.format(text, indent=-1).encode()), None
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):  # the last: nested too deeply
        return None, b64encode(data).decode()
