"""The rows of the panes of `penstock top`: what they show of queues, workers, jobs and errors."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.cli.short_forms import brief, progress_text
from penstock.cli.top.rates import Rates
from penstock.core.formats import ms_of
from penstock.core.job import TERMINAL, State
from penstock.inspector import ErrorGroupView, HeldView, JobRow, Overview, QueueView, WorkerView

__all__ = [
    "LATER",
    "PaneRow",
    "dead_rows",
    "errors_rows",
    "queues_rows",
    "rate_text",
    "running_rows",
    "workers_rows",
]

#: States of jobs that wait for a time, an event or a worker.
LATER = tuple(state for state in State if state not in TERMINAL | {State.AVAILABLE, State.RUNNING})


class PaneRow(NamedTuple):
    """A row: the key that finds it again after a refresh, its cells, what they sort by, and its subject."""

    key: str
    cells: tuple[str, ...]
    sorts: tuple[Any, ...]
    subject: QueueView | WorkerView | HeldView | JobRow | ErrorGroupView


# ── queues ───────────────────────────────────────────────────────────────────────────────────────


def queues_rows(view: Overview, rates: Rates) -> list[PaneRow]:
    """The rows of the pane Queues."""
    return [_queue(queue, view, rates) for queue in view.queues]


def _queue(queue: QueueView, view: Overview, rates: Rates) -> PaneRow:
    counts = queue.counts
    ready, running, dead = (counts.get(state, 0) for state in (State.AVAILABLE, State.RUNNING, State.DEAD))
    later = sum(counts.get(state, 0) for state in LATER)
    oldest = ms_of(queue.oldest_available_at)
    age = None if oldest is None else max(0.0, (view.now - oldest) / 1000)
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
    if not queue.workers and any(queue.counts.get(state) for state in (State.AVAILABLE, *LATER)):
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
    for held in view.running:
        job, place = held.job, places.get(held.worker, held.worker)
        progress = "-" if job.progress is None else progress_text(job.progress)
        cells = (job.id, job.queue, job.task, f"{job.attempt}", brief(job.age), progress, place)
        sorts = (job.id, job.queue, job.task, job.attempt, job.age, progress, place)
        rows.append(PaneRow(f"{job.queue}/{job.id}", cells, sorts, held))
    return rows


# ── what failed ──────────────────────────────────────────────────────────────────────────────────


def dead_rows(view: Overview, rates: Rates) -> list[PaneRow]:
    """The rows of the pane Dead."""
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


def errors_rows(view: Overview, rates: Rates) -> list[PaneRow]:
    """The rows of the pane Errors."""
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


def rate_text(rate: float) -> str:
    """A rate per second."""
    return f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"
