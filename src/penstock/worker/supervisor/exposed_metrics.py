"""The metrics of all worker processes of a supervisor, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.web.exposition import CALL_BOUNDS, Labels, exposed, exposed_histogram
from penstock.worker.shared_lease_table import LeaseTable
from penstock.worker.worker_metrics import TIME_BOUNDS, Times, WorkerFigures

__all__ = ["figures_text", "process_text"]

_TASK = ("task",)
_VERB = ("verb",)


def figures_text(figures: WorkerFigures) -> Iterable[str]:
    """What the worker processes did since the start of their supervisor."""
    outcomes = [
        ((task, outcome), number)
        for task, one in figures.tasks.items()
        for outcome, number in one.outcomes.items()
    ]
    help = "Attempts and jobs by outcome."
    yield exposed("penstock_worker_attempts_total", "counter", help, ("task", "outcome"), outcomes)
    durations = [((task,), one.durations) for task, one in figures.tasks.items()]
    yield _histogram("penstock_job_duration_seconds", "Run time of attempts (s).", _TASK, durations)
    waits = [
        ((task,), Times(one.waits.buckets, one.waits.total / 1_000)) for task, one in figures.tasks.items()
    ]
    help = "Time from due to leased by a worker (s)."
    yield _histogram("penstock_job_wait_seconds", help, _TASK, waits)
    help = "Attempts whose outcome was refused because another worker had got their lease."
    yield exposed("penstock_leases_lost_total", "counter", help, (), [((), figures.leases_lost)])
    help = "Jobs of lost workers that were taken back here."
    yield exposed("penstock_jobs_reclaimed_total", "counter", help, (), [((), figures.reclaimed)])
    calls = [((verb,), times) for verb, times in figures.calls.items()]
    help = "Time of calls of the store (s)."
    yield exposed_histogram(
        "penstock_store_call_duration_seconds",
        help,
        _VERB,
        CALL_BOUNDS,
        [(labels, times.buckets, times.total) for labels, times in calls],
    )
    failed = [((verb,), number) for verb, number in figures.failed_calls.items()]
    help = "Calls of the store that failed."
    yield exposed("penstock_store_call_errors_total", "counter", help, _VERB, failed)


def process_text(tables: Sequence[LeaseTable], *, slots: int, deaths: int) -> Iterable[str]:
    """The worker processes that run now, and the jobs that they have leased."""
    entries = [table.entries() for table in tables]
    started = sum(one.started for every in entries for one in every)
    leased = sum(len(every) for every in entries)
    for name, help, value in (
        ("penstock_worker_processes", "Worker processes.", len(tables)),
        ("penstock_worker_slots", "Slots of all worker processes.", slots * len(tables)),
        ("penstock_worker_running_jobs", "Attempts that have started and are not settled.", started),
        ("penstock_worker_leased_jobs", "Leased jobs, running ones included.", leased),
    ):
        yield exposed(name, "gauge", help, (), [((), value)])
    help = "Worker processes that died, by a signal, an error or a kill."
    yield exposed("penstock_worker_process_deaths_total", "counter", help, (), [((), deaths)])


def _histogram(name: str, help: str, names: Labels, samples: Iterable[tuple[Labels, Times]]) -> str:
    found = [(labels, times.buckets, times.total) for labels, times in samples]
    return exposed_histogram(name, help, names, TIME_BOUNDS, found)
