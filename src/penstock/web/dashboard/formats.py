"""Instants, durations, numbers and tracebacks as text for people."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.errors import ConfigError
from penstock.core.formats import dated, instant, shown_text
from penstock.core.schedule import zone
from penstock.core.text import one_line

_STEPS = ((60, "s", 1), (3600, "min", 60), (86_400, "h", 3600), (86_400 * 60, "d", 86_400))


# ── times and numbers ────────────────────────────────────────────────────────────────────────────


def now_ms() -> int:
    """The clock of this machine (ms)."""
    return time.time_ns() // 1_000_000


def ago(at: int, now: int) -> str:
    """`3 min ago`, `in 2 h`, `now`."""
    if dated(at) is None:
        return instant(at)
    seconds = (now - at) / 1000
    if abs(seconds) < 1:
        return "now"
    text = _coarse(abs(seconds))
    return f"{text} ago" if seconds > 0 else f"in {text}"


def exact(at: int) -> str:
    """An instant in full: `2026-11-20 08:30:00.250 UTC`."""
    moment = dated(at)
    return instant(at) if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}.{at % 1000:03d} UTC"


def local_time(at: int, tz: str) -> str:
    """An instant in a time zone: `Fri 2026-11-20 09:30:00 CET`; in UTC for a zone that is unknown."""
    moment = dated(at)
    try:
        return instant(at) if moment is None else f"{moment.astimezone(zone(tz)):%a %Y-%m-%d %H:%M:%S %Z}"
    except (ValueError, ConfigError):
        return instant(at)


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
    return one_line(shown_text(text)) if text else ""


def _coarse(seconds: float) -> str:
    for below, unit, size in _STEPS:
        if seconds < below:
            return f"{int(seconds / size + 0.5)} {unit}"
    return (
        f"{seconds / 86_400 / 365.25:.1f} years"
        if seconds > 86_400 * 730
        else f"{int(seconds / 86_400 + 0.5)} d"
    )


# ── tracebacks ───────────────────────────────────────────────────────────────────────────────────

_FRAME = re.compile(r'\s+File "(?P<file>.*)", line \d+')
#: Where installed code is, on whatever machine a worker runs. A folder's name says nothing: a project may be
#: called as a library is.
_INSTALLED = r"[/\\](?:site|dist)-packages[/\\]"
#: Penstock itself: as it is installed there, or run from its source here.
_PENSTOCK = rf"(?:{_INSTALLED}penstock|^{re.escape(str(Path(__file__).parents[2]))})[/\\]"
_LIBRARY = re.compile(rf"{_INSTALLED}|{_PENSTOCK}|[/\\]lib[/\\]python3[\d.]*[/\\]|^<frozen ")
_DEMO = re.compile(rf"{_PENSTOCK}demo[/\\]")


@dataclass
class Fold:
    """Lines that are shown, or frames of libraries that are folded: `frames` is their number.

    `open`: the frames are shown at once, because no frame is of the user's own code.
    """

    frames: int = 0
    lines: list[str] = field(default_factory=list)
    open: bool = False

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


def folded_traceback(traceback: str, task: str = "") -> list[Fold]:
    """The parts of a traceback, in order. Installed code is the user's own if the task is of its package."""
    package = task.partition(".")[0]
    own = re.compile(rf"[/\\]{re.escape(package)}([/\\]|\.py$)") if package else None
    parts: list[Fold] = []
    library = False
    for line in traceback.rstrip().splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            library = _is_library(frame["file"], own)
        elif not line.startswith(" "):
            library = False
        if not parts or bool(parts[-1].frames) != library:
            parts.append(Fold())
        parts[-1].lines.append(line)
        parts[-1].frames += library and frame is not None
    shown = any(_FRAME.match(line) for part in parts if not part.frames for line in part.lines)
    if not shown:
        for part in [part for part in parts if part.frames][-1:]:
            part.open = True
    return parts


def _is_library(file: str, own: re.Pattern[str] | None) -> bool:
    known = _LIBRARY.search(file) is not None and _DEMO.search(file) is None
    return known and (own is None or own.match(_inside(file)) is None)


def _inside(file: str) -> str:
    """The path below the directory of installed packages."""
    *before, inside = re.split(_INSTALLED, file)
    return f"/{inside}" if before else ""
