"""Instants, durations and numbers as text for people."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from penstock.core.errors import ConfigError
from penstock.core.schedule import zone
from penstock.core.text import one_line

__all__ = ["ago", "brief", "compact", "exact", "instant_of", "local_time", "now_ms", "plain_line", "span"]

_STEPS = ((60, "s", 1), (3600, "min", 60), (86_400, "h", 3600), (86_400 * 60, "d", 86_400))


def now_ms() -> int:
    """The clock of this machine (ms)."""
    return time.time_ns() // 1_000_000


def instant_of(iso: str | None) -> int | None:
    """The ms of an instant in RFC 3339; None if it is no such text."""
    try:
        return None if iso is None else round(datetime.fromisoformat(iso).timestamp() * 1000)
    except ValueError:
        return None


def ago(iso: str | None, now: int) -> str:
    """`3 min ago`, `in 2 h`, `now`."""
    at = instant_of(iso)
    if at is None:
        return iso or ""
    seconds = (now - at) / 1000
    if abs(seconds) < 1:
        return "now"
    text = _coarse(abs(seconds))
    return f"{text} ago" if seconds > 0 else f"in {text}"


def exact(iso: str | None) -> str:
    """An instant in full: `2026-11-20 08:30:00.250 UTC`."""
    if instant_of(iso) is None:
        return iso or ""
    return f"{datetime.fromisoformat(str(iso)).astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def local_time(iso: str, tz: str) -> str:
    """An instant in a time zone: `Fri 2026-11-20 09:30:00 CET`; as it is for a zone that is unknown."""
    try:
        return f"{datetime.fromisoformat(iso).astimezone(zone(tz)):%a %Y-%m-%d %H:%M:%S %Z}"
    except (ValueError, ConfigError):
        return iso


def span(seconds: float | None) -> str:
    """A duration: `0.4 ms`, `120 ms`, `1.25 s`, `3 min 20 s`, `2 d 4 h`."""
    if seconds is None:
        return "–"
    if seconds < 1:
        ms = seconds * 1000
        return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.2g} ms" if ms else "0 ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    left, parts = int(seconds), []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        n, left = divmod(left, size)
        if n:
            parts.append(f"{n} {unit}")
    return " ".join(parts[:2])


def compact(number: float) -> str:
    """A number of at most four characters: `950`, `12.3k`, `4.1M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            shown = number / (1e3 if unit == "k" else size)
            return f"{shown:.3g}{unit}" if shown < 1000 else f"{shown:.0f}{unit}"
    return f"{number:,.0f}" if number == int(number) else f"{number:.3g}"


def percent(share: float) -> str:
    """A share of 1: `0.59 %`, `9.1 %`, `100 %`."""
    hundredths = share * 100
    return f"{hundredths:.0f} %" if hundredths >= 10 else f"{hundredths:.2g} %"


def brief(id: str, most: int = 20) -> str:
    """An id; of a long one the end, which differs most."""
    return id if len(id) <= most else f"…{id[-12:]}"


def plain_line(text: str | None) -> str:
    """Text in one line, without characters that change the direction of writing."""
    return one_line(text) if text else ""


def _coarse(seconds: float) -> str:
    for below, unit, size in _STEPS:
        if seconds < below:
            return f"{int(seconds / size + 0.5)} {unit}"
    return (
        f"{seconds / 86_400 / 365.25:.1f} years"
        if seconds > 86_400 * 730
        else f"{int(seconds / 86_400 + 0.5)} d"
    )
