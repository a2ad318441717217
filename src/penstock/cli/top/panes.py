"""The panes of `penstock top`: what happened per second, their rows, columns, order and acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.cli.formats import brief, last_error, progress_text
from penstock.core.formats import seconds, shown_text
from penstock.core.job import TERMINAL, Job, State
from penstock.inspector import ErrorGroupView, Overview, QueueView, WorkerView

#: Seconds between two reports of a worker that are one.
_SAME_REPORT = 0.05


class QueueRates(NamedTuple):
    """Jobs per second that were enqueued, and attempts that were processed and failed."""

    enqueued: float
    processed: float
    failed: float


class Rates:
    """Rates of queues, in total, and of the CPU of workers. None: unknown, as in the first overview."""

    def __init__(self, before: Overview | None, after: Overview, last: Rates | None = None) -> None:
        self._seconds = 0.0 if before is None else (after.now - before.now) / 1000
        self._before, self._after = before, after
        known: dict[str, float] = {} if last is None else last._cpu
        self._cpu: dict[str, float] = {
            w.id: cpu for w in after.workers if (cpu := self._cpu_of(w, known)) is not None
        }

    def of(self, queue: str) -> QueueRates | None:
        """The rates of a queue."""
        if self._before is None or self._seconds <= 0:
            return None
        was, now = self._before.stats.get(queue), self._after.stats.get(queue)
        if was is None or now is None:
            return None
        counts = (now.enqueued - was.enqueued, now.processed - was.processed, now.failed - was.failed)
        # a queue that was deleted and made again counts from 0
        return QueueRates(*(max(0, count) / self._seconds for count in counts))

    def total(self) -> QueueRates | None:
        """The rates of all queues together."""
        if self._before is None or self._seconds <= 0:
            return None
        found = [rate for name in self._after.stats if (rate := self.of(name)) is not None]
        return QueueRates(*(sum(rate[n] for rate in found) for n in range(3)))

    def cpu(self, worker: str) -> float | None:
        """The cores that a worker process used between its last two reports."""
        return self._cpu.get(worker)

    def _cpu_of(self, now: WorkerView, known: dict[str, float]) -> float | None:
        was = None if self._before is None else _worker(self._before, now.id)
        if was is None:
            return None
        seconds = self._seconds - now.silent + was.silent
        if seconds < _SAME_REPORT:  # a worker reports every few seconds
            return known.get(now.id)
        return max(0.0, now.cpu - was.cpu) / seconds


def _worker(view: Overview, id: str) -> WorkerView | None:
    return next((w for w in view.workers if w.id == id), None)


#: States of jobs that wait for a time, an event or a worker.
LATER = tuple(state for state in State if state not in TERMINAL | {State.AVAILABLE, State.RUNNING})


class PaneRow(NamedTuple):
    """A row: the key that finds it again after a refresh, its cells, what they sort by, and its subject."""

    key: str
    cells: tuple[str, ...]
    sorts: tuple[Any, ...]
    subject: QueueView | WorkerView | Job | ErrorGroupView


# ── queues ───────────────────────────────────────────────────────────────────────────────────────


def queues_rows(view: Overview, rates: Rates) -> list[PaneRow]:
    """The rows of the pane Queues."""
    return [_queue(queue, view, rates) for queue in view.queues]


def _queue(queue: QueueView, view: Overview, rates: Rates) -> PaneRow:
    counts = queue.counts
    ready, running, dead = (counts.get(state, 0) for state in (State.AVAILABLE, State.RUNNING, State.DEAD))
    later = sum(counts.get(state, 0) for state in LATER)
    age = seconds(queue.oldest_available, view.now)
    rate = rates.of(queue.name)
    waits = view.waits.get(queue.name)
    wait = None if waits is None else waits.p95
    status = _status(queue)
    per_second = ("-",) * 3 if rate is None else tuple(map(rate_text, rate))
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
    if queue.workers == 0 and any(queue.counts.get(state) for state in (State.AVAILABLE, *LATER)):
        words.append("no worker")
    most = queue.limits.max_running
    if most is not None and queue.counts.get(State.RUNNING, 0) >= most:
        words.append(f"at limit {most}")
    return ", ".join(words)


# ── workers and their jobs ───────────────────────────────────────────────────────────────────────


def workers_rows(view: Overview, rates: Rates) -> list[PaneRow]:
    """The rows of the pane Workers."""
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


def running_rows(view: Overview, rates: Rates) -> list[PaneRow]:
    """The rows of the pane Running."""
    places = {w.id: f"{w.host}:{w.pid}" for w in view.workers}
    rows = []
    for job in view.running:
        age, place = seconds(job.fetched_at, view.now), places.get(job.worker or "", job.worker or "")
        progress = "-" if job.progress is None else progress_text(job.progress)
        cells = (job.id, job.queue, job.task, f"{job.attempt}", brief(age), progress, place)
        sorts = (job.id, job.queue, job.task, job.attempt, age, progress, place)
        rows.append(PaneRow(f"{job.queue}/{job.id}", cells, sorts, job))
    return rows


# ── what failed ──────────────────────────────────────────────────────────────────────────────────


def dead_rows(view: Overview, rates: Rates) -> list[PaneRow]:
    """The rows of the pane Dead."""
    rows = []
    for job in view.dead:
        age = seconds(job.ended_at, view.now)
        error = last_error(job) or shown_text(job.reason or "")
        cells = (job.id, job.queue, job.task, f"{job.attempt}", brief(age), error)
        rows.append(
            PaneRow(
                f"{job.queue}/{job.id}", cells, (job.id, job.queue, job.task, job.attempt, age, error), job
            )
        )
    return rows


def errors_rows(view: Overview, rates: Rates) -> list[PaneRow]:
    """The rows of the pane Errors."""
    rows = []
    for group in view.errors:
        task, text = f"{group.queue}/{group.task}", ": ".join(filter(None, (group.kind, group.message)))
        last, first = seconds(group.last, view.now), seconds(group.first, view.now)
        cells = (f"{group.count:,}", brief(last), brief(first), task, text)
        rows.append(PaneRow(f"{task} {text}", cells, (group.count, last, first, task, text), group))
    return rows


# ── cells ────────────────────────────────────────────────────────────────────────────────────────


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"


def rate_text(rate: float) -> str:
    """A rate per second."""
    return f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"


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
