"""How tables and lines show instants, durations and progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.core.formats import dated, instant, shown_text
from penstock.core.text import number

if TYPE_CHECKING:
    from penstock.core.job import Job, Progress


def age(at: int | None) -> str:
    """An instant (ms) relative to now: "3 s ago", "in 5 min"."""
    if at is None or dated(at) is None:
        return "" if at is None else instant(at)
    seconds = time.time() - at / 1000
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def exact(at: int | None) -> str | None:
    """An instant (ms) and its age: "2026-11-20T08:30:00.250Z (3 s ago)"; None for None."""
    return None if at is None else f"{instant(at)} ({age(at)})"


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


def last_error(job: Job) -> str | None:
    """The error of the last attempt in a line; None if no error is kept."""
    return job.errors[-1].in_a_line if job.errors else None


def progress_text(progress: Progress) -> str:
    """The progress of a job: "3 of 10 reading"."""
    of = "" if progress.of is None else f" of {number(progress.of)}"
    return f"{number(progress.done)}{of} {shown_text(progress.note)}".rstrip()


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
