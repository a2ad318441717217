"""The panes of `penstock top`: their columns, order and acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.cli.top.pane_rows import (
    LATER,
    PaneRow,
    dead_rows,
    errors_rows,
    queues_rows,
    rate_text,
    running_rows,
    workers_rows,
)
from penstock.cli.top.rates import Rates
from penstock.core.job import State
from penstock.inspector import Overview

__all__ = ["PANES", "Pane", "arranged", "totals"]


@dataclass(frozen=True)
class Pane:
    """A pane.

    `spare`: the columns that a narrow terminal leaves out. `sort`: the column that it is first sorted by.
    `acts`: the acts on its rows.
    """

    title: str
    heads: tuple[str, ...]
    spare: tuple[str, ...]
    rows: Callable[[Overview, Rates], list[PaneRow]]
    sort: int
    falling: bool
    acts: tuple[str, ...]


def arranged(rows: Sequence[PaneRow], *, filter: str, sort: int, falling: bool) -> list[PaneRow]:
    """The rows with this text in any cell, in order. Rows without a value come last."""
    text = filter.lower()
    found = [row for row in rows if not text or any(text in cell.lower() for cell in row.cells)]
    known = [row for row in found if row.sorts[sort] is not None]
    known.sort(key=lambda row: row.key)
    known.sort(key=lambda row: row.sorts[sort], reverse=falling)
    return known + [row for row in found if row.sorts[sort] is None]


def totals(view: Overview, rates: Rates, width: int) -> str:
    """The numbers of all queues in one line. A line too long is rounded, and has no slots and parked."""
    counts = [queue.counts for queue in view.queues]
    slots = sum(w.concurrency for w in view.workers)
    ready, running, dead = (
        sum(c.get(state, 0) for c in counts) for state in (State.AVAILABLE, State.RUNNING, State.DEAD)
    )
    later = sum(c.get(state, 0) for c in counts for state in LATER)
    rate = rates.total()
    per_second = [] if rate is None else list(zip(("in", "done", "failed"), rate, strict=True))
    parts = [
        f"ready {ready:,}",
        f"running {running:,}" + (f"/{slots:,}" if slots else ""),
        f"later {later:,}",
        f"dead {dead:,}",
        *([f"parked {sum(one.jobs for one in view.parked):,}"] if view.parked else []),
        *(f"{name} {rate_text(one)}/s" for name, one in per_second),
    ]
    line = "  ".join(parts)
    if len(line) <= width:
        return line
    numbers = (("ready", ready), ("running", running), ("later", later), ("dead", dead))
    rounded = [f"{name} {_rounded(number)}" for name, number in numbers]
    return " ".join([*rounded, *(f"{name} {_rounded(one)}/s" for name, one in per_second)])


def _rounded(number: float) -> str:
    """A number in at most four characters: "9.5", "999", "1.2k", "12k", "1.2M"."""
    unit, size = ("", 1.0) if number < 999.5 else ("k", 1e3) if number < 999_500 else ("M", 1e6)
    digits = 1 if number < 9.95 * size and number % 1 + bool(unit) else 0
    return f"{number / size:.{digits}f}{unit}"


PANES = (
    Pane(
        "Queues",
        ("QUEUE", "READY", "RUN", "LATER", "DEAD", "OLDEST", "IN/S", "DONE/S", "FAIL/S", "WAIT95", "STATUS"),
        ("WAIT95", "FAIL/S", "LATER", "OLDEST"),
        queues_rows,
        sort=0,
        falling=False,
        acts=("pause",),
    ),
    Pane(
        "Workers",
        ("WORKER AT", "STATE", "BUSY", "CPU", "MEM", "SEEN", "VERSION", "QUEUES", "ID"),
        ("ID", "VERSION"),
        workers_rows,
        sort=0,
        falling=False,
        acts=("quiet", "drain"),
    ),
    Pane(
        "Running",
        ("JOB", "QUEUE", "TASK", "TRY", "AGE", "PROGRESS", "AT"),
        ("AT", "TRY", "PROGRESS", "QUEUE"),
        running_rows,
        sort=4,
        falling=True,
        acts=("cancel",),
    ),
    Pane(
        "Dead",
        ("JOB", "QUEUE", "TASK", "TRY", "AGE", "ERROR"),
        ("TRY", "QUEUE"),
        dead_rows,
        sort=4,
        falling=False,
        acts=("retry", "delete"),
    ),
    Pane(
        "Errors",
        ("COUNT", "LAST", "FIRST", "TASK", "ERROR"),
        ("FIRST",),
        errors_rows,
        sort=1,
        falling=False,
        acts=("retry", "delete"),
    ),
)
