"""A traceback for a page: frames of libraries are folded, those of the user's own code are open."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Fold", "folded"]

_FRAME = re.compile(r'\s+File "(?P<file>.*)", line \d+')
_LIBRARY = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python3|<frozen |[/\\]penstock[/\\](?!demo[/\\])"
)


@dataclass
class Fold:
    """Lines that are shown, or frames of libraries that are folded: `frames` is their number."""

    frames: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


def folded(traceback: str) -> list[Fold]:
    """The parts of a traceback, in order."""
    parts: list[Fold] = []
    library = False
    for line in traceback.rstrip().splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            library = _LIBRARY.search(frame["file"]) is not None
        elif not line.startswith(" "):
            library = False
        if not parts or bool(parts[-1].frames) != library:
            parts.append(Fold())
        parts[-1].lines.append(line)
        parts[-1].frames += library and frame is not None
    return parts
