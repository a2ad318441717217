"""A traceback for a page: frames of libraries are folded, those of the user's own code are open."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Fold", "folded"]

_FRAME = re.compile(r'\s+File "(?P<file>.*)", line \d+')
_LIBRARY = re.compile(r"site-packages|dist-packages|[/\\]lib[/\\]python3|<frozen |[/\\]penstock[/\\]")
_DEMO = re.compile(r"[/\\]penstock[/\\]demo[/\\]")


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


def folded(traceback: str, task: str = "") -> list[Fold]:
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
    return f"/{re.split('(?:site|dist)-packages.', file)[-1]}" if "-packages" in file else ""
