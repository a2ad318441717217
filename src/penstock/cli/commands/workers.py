"""`penstock workers`: who is there, who runs what, since when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from penstock.cli.session import Command, Session
from penstock.cli.show import age, emit, note, say, table

if TYPE_CHECKING:
    from penstock.inspector import RunningView, WorkerView

__all__ = ["command"]


@click.command("workers", cls=Command, short_help="Who works, and who runs what since when.")
@click.option("--jobs", "-n", type=click.IntRange(1, 1_000), default=20, show_default=True,
              help="Of each worker, so many of the jobs that it holds.")  # fmt: skip
def command(jobs: int) -> None:
    """Who works: each worker process, what it serves, and what it runs since when."""
    session = Session.current()
    workers = session.run(lambda i: i.workers(jobs=jobs))
    if session.json:
        emit({"workers": workers})
        return
    _print_workers(workers)
    held = [(worker.id, job) for worker in workers for job in worker.jobs]
    if held:
        say()
        _print_jobs(held)
    for worker in workers:
        if worker.more:
            note(f"{worker.id} holds more than these {len(worker.jobs)}: -n shows more")


def _print_workers(workers: Iterable[WorkerView]) -> None:
    head = ("WORKER", "HOST", "PID", "STATE", "RUNNING", "SLOTS", "QUEUES", "STARTED", "SEEN")
    rows = []
    for w in workers:
        at_work = (w.state, str(w.running), str(w.concurrency), ",".join(w.queues))
        rows.append((w.id, w.host, str(w.pid), *at_work, age(w.started_at), age(w.seen_at)))
    table(head, rows, empty="no workers")


def _print_jobs(held: Iterable[tuple[str, RunningView]]) -> None:
    head = ("JOB", "QUEUE", "TASK", "ATTEMPT", "LEASED", "FUNCTION", "WORKER")
    rows = []
    for worker, job in held:
        function = "has begun" if job.started else "-"
        rows.append((job.id, job.queue, job.task, str(job.attempt), age(job.since), function, worker))
    table(head, rows, empty="")
