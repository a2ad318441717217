"""Short forms for people: ages, durations and progress."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.core.text import number

if TYPE_CHECKING:
    from penstock.inspector.job_views import ProgressView

__all__ = ["age", "brief", "progress_text", "span"]


def age(iso: str | None) -> str:
    """An instant relative to now: "3 s ago", "in 5 min"."""
    if iso is None:
        return ""
    try:
        seconds = time.time() - datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return iso
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float | None) -> str:
    """A duration in one unit: "250 ms", "3 s", "12 min", "5 h", "8 d"."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, until in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < size * until:
            return f"{seconds / size:.2g} {unit}" if seconds < 9.5 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def progress_text(progress: ProgressView) -> str:
    """The progress of a job: "3 of 10 reading"."""
    of = "" if progress.of is None else f" of {number(progress.of)}"
    return f"{number(progress.done)}{of} {progress.note}".rstrip()


def brief(seconds: float | None) -> str:
    """A duration in as few characters as possible: "250µs", "3.1ms", "12s", "5h"."""
    if seconds is None:
        return "-"
    if seconds < 1e-6:
        return "0"
    for unit, size, until in (("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 100.0), ("m", 60.0, 6_000.0)):
        if seconds < until:
            return f"{seconds / size:.2g}{unit}" if seconds < 9.5 * size else f"{seconds / size:.0f}{unit}"
    return f"{seconds / 3_600:.0f}h" if seconds < 172_800 else f"{seconds / 86_400:.0f}d"
