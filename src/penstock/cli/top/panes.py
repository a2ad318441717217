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


def totals(view: Overview, rates: Rates) -> str:
    """The numbers of all queues in one line."""
    counts = [queue.counts for queue in view.queues]
    slots = sum(w.concurrency for w in view.workers)
    running = sum(c.get(State.RUNNING, 0) for c in counts)
    parts = [
        f"ready {sum(c.get(State.AVAILABLE, 0) for c in counts):,}",
        f"running {running:,}" + (f"/{slots:,}" if slots else ""),
        f"later {sum(c.get(state, 0) for c in counts for state in LATER):,}",
        f"dead {sum(c.get(State.DEAD, 0) for c in counts):,}",
    ]
    if view.parked:
        parts.append(f"parked {sum(one.jobs for one in view.parked):,}")
    rate = rates.total()
    if rate is not None:
        names = ("in", "done", "failed")
        parts += [f"{name} {rate_text(one)}/s" for name, one in zip(names, rate, strict=True)]
    return "  ".join(parts)


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
