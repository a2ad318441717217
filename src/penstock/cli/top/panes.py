"""The panes of `penstock top`: what their rows show, how they are sorted, and which acts they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.cli.show import brief, progress_text
from penstock.cli.top.rates import Rates
from penstock.core.formats import ms_of
from penstock.core.job import TERMINAL, State
from penstock.inspector import ErrorGroupView, HeldView, JobRow, Overview, QueueView, WorkerView

__all__ = ["PANES", "Pane", "PaneRow", "arranged", "totals"]

#: States of jobs that wait for a time, an event or a worker.
_LATER = tuple(state for state in State if state not in TERMINAL | {State.AVAILABLE, State.RUNNING})


class PaneRow(NamedTuple):
    """A row: the key that finds it again after a refresh, its cells, what they sort by, and its subject."""

    key: str
    cells: tuple[str, ...]
    sorts: tuple[Any, ...]
    subject: QueueView | WorkerView | HeldView | JobRow | ErrorGroupView


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
        f"later {sum(c.get(state, 0) for c in counts for state in _LATER):,}",
        f"dead {sum(c.get(State.DEAD, 0) for c in counts):,}",
    ]
    if view.parked:
        parts.append(f"parked {sum(one.jobs for one in view.parked):,}")
    rate = rates.total()
    if rate is not None:
        parts += [f"in {_rate(rate[0])}/s", f"done {_rate(rate[1])}/s", f"failed {_rate(rate[2])}/s"]
    return "  ".join(parts)


# ── queues ───────────────────────────────────────────────────────────────────────────────────────


def _queues(view: Overview, rates: Rates) -> list[PaneRow]:
    return [_queue(queue, view, rates) for queue in view.queues]


def _queue(queue: QueueView, view: Overview, rates: Rates) -> PaneRow:
    counts = queue.counts
    ready, running, dead = (counts.get(state, 0) for state in (State.AVAILABLE, State.RUNNING, State.DEAD))
    later = sum(counts.get(state, 0) for state in _LATER)
    oldest = ms_of(queue.oldest_available_at)
    age = None if oldest is None else max(0.0, (view.now - oldest) / 1000)
    rate = rates.of(queue.name)
    waits = view.waits.get(queue.name)
    wait = None if waits is None else waits.p95
    status = _status(queue)
    per_second = ("-",) * 3 if rate is None else tuple(map(_rate, rate))
    return PaneRow(
        queue.name,
        (
            queue.name,
            *map(_count, (ready, running, later, dead)),
            brief(age),
            *per_second,
            brief(wait),
            status,
        ),
        (queue.name, ready, running, later, dead, age, *(rate or (None,) * 3), wait, status or None),
        queue,
    )


def _status(queue: QueueView) -> str:
    words = [word for word, on in (("paused", queue.paused), ("closed", queue.closed)) if on]
    if queue.away:
        words.append("away")
    if queue.throttled_until is not None:
        words.append("throttled")
    if not queue.workers and any(queue.counts.get(state) for state in (State.AVAILABLE, *_LATER)):
        words.append("no worker")
    most = queue.limits.max_running
    if most is not None and queue.counts.get(State.RUNNING, 0) >= most:
        words.append(f"at limit {most}")
    return ", ".join(words)


# ── workers and their jobs ───────────────────────────────────────────────────────────────────────


def _workers(view: Overview, rates: Rates) -> list[PaneRow]:
    rows = []
    for w in view.workers:
        place, cpu = f"{w.host}:{w.pid}", rates.cpu(w.id)
        cells = (
            place,
            w.state,
            f"{w.running}/{w.concurrency}",
            "-" if cpu is None else f"{cpu:.0%}",
            f"{w.memory / 1e6:.0f}M" if w.memory else "-",
            brief(w.silent),
            w.version,
            ",".join(w.queues),
            w.id,
        )
        rows.append(
            PaneRow(
                w.id,
                cells,
                (place, w.state, w.running, cpu, w.memory, w.silent, w.version, cells[7], w.id),
                w,
            )
        )
    return rows


def _running(view: Overview, rates: Rates) -> list[PaneRow]:
    places = {w.id: f"{w.host}:{w.pid}" for w in view.workers}
    rows = []
    for held in view.running:
        job, place = held.job, places.get(held.worker, held.worker)
        progress = "-" if job.progress is None else progress_text(job.progress)
        cells = (job.id, job.queue, job.task, f"{job.attempt}", brief(job.age), progress, place)
        sorts = (job.id, job.queue, job.task, job.attempt, job.age, progress, place)
        rows.append(PaneRow(f"{job.queue}/{job.id}", cells, sorts, held))
    return rows


# ── what failed ──────────────────────────────────────────────────────────────────────────────────


def _dead(view: Overview, rates: Rates) -> list[PaneRow]:
    rows = []
    for job in view.dead:
        age = _age(view, job.ended_at)
        error = job.error or job.reason or ""
        cells = (job.id, job.queue, job.task, f"{job.attempt}", brief(age), error)
        rows.append(
            PaneRow(
                f"{job.queue}/{job.id}", cells, (job.id, job.queue, job.task, job.attempt, age, error), job
            )
        )
    return rows


def _errors(view: Overview, rates: Rates) -> list[PaneRow]:
    rows = []
    for group in view.errors:
        task, text = f"{group.queue}/{group.task}", ": ".join(filter(None, (group.kind, group.message)))
        last, first = _age(view, group.last_at), _age(view, group.first_at)
        cells = (f"{group.count:,}", brief(last), brief(first), task, text)
        rows.append(PaneRow(f"{task} {text}", cells, (group.count, last, first, task, text), group))
    return rows


# ── cells ────────────────────────────────────────────────────────────────────────────────────────


def _age(view: Overview, instant: str | None) -> float | None:
    at = ms_of(instant)
    return None if at is None else max(0.0, (view.now - at) / 1000)


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"


def _rate(rate: float) -> str:
    return f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"


PANES = (
    Pane(
        "Queues",
        ("QUEUE", "READY", "RUN", "LATER", "DEAD", "OLDEST", "IN/S", "DONE/S", "FAIL/S", "WAIT95", "STATUS"),
        ("WAIT95", "FAIL/S", "LATER", "OLDEST"),
        _queues,
        sort=0,
        falling=False,
        acts=("pause",),
    ),
    Pane(
        "Workers",
        ("WORKER AT", "STATE", "BUSY", "CPU", "MEM", "SEEN", "VERSION", "QUEUES", "ID"),
        ("ID", "VERSION"),
        _workers,
        sort=0,
        falling=False,
        acts=("quiet", "drain"),
    ),
    Pane(
        "Running",
        ("JOB", "QUEUE", "TASK", "TRY", "AGE", "PROGRESS", "AT"),
        ("AT", "TRY", "PROGRESS", "QUEUE"),
        _running,
        sort=4,
        falling=True,
        acts=("cancel",),
    ),
    Pane(
        "Dead",
        ("JOB", "QUEUE", "TASK", "TRY", "AGE", "ERROR"),
        ("TRY", "QUEUE"),
        _dead,
        sort=4,
        falling=False,
        acts=("retry", "delete"),
    ),
    Pane(
        "Errors",
        ("COUNT", "LAST", "FIRST", "TASK", "ERROR"),
        ("FIRST",),
        _errors,
        sort=1,
        falling=False,
        acts=("retry", "delete"),
    ),
)
