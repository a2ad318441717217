"""The runs of a periodic entry on a line of time: a mark for each, and one for now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.inspector import RunView
from penstock.web.dashboard.formats import exact, instant_of

__all__ = ["RunMark", "Strip", "strip_of"]

#: Room at both ends, so that marks are not cut.
_EDGE = 4.0


@dataclass(frozen=True)
class RunMark:
    """A run. `kind`: the state of its job, "gone" if it is not kept, or "next"."""

    x: float
    kind: str
    title: str
    link: str | None


@dataclass(frozen=True)
class Strip:
    """Marks on a line that is `width` wide, and where now is."""

    width: float
    now: float
    marks: list[RunMark]
    says: str


def strip_of(runs: Sequence[RunView], now: int, width: float, link: Callable[[str], str]) -> Strip:
    """Place runs by their time. `link`: of a job by its id."""
    times = [at for run in runs if (at := instant_of(run.at)) is not None]
    first, last = min([*times, now]), max([*times, now])
    scale = (width - 2 * _EDGE) / max(1, last - first)

    def place(at: int) -> float:
        return round(_EDGE + (at - first) * scale, 1)

    marks = []
    for run in runs:
        at = instant_of(run.at)
        if at is None:
            continue
        kind = run.job.state if run.job is not None else "gone" if run.passed else "next"
        says = {"gone": "job not kept", "next": "due"}.get(kind, kind)
        marks.append(
            RunMark(place(at), kind, f"{exact(run.at)}: {says}", None if run.job is None else link(run.id))
        )
    coming = sum(not run.passed for run in runs)
    return Strip(width, place(now), marks, f"{len(runs) - coming} runs before now, {coming} after")
