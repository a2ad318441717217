"""`penstock workers`: list the workers and the jobs they run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from penstock.cli.session import Command, Session
from penstock.cli.show import age, counted, emit, note, say, table

if TYPE_CHECKING:
    from penstock.inspector import RunningView, WorkerView

__all__ = ["command"]


@click.command("workers", cls=Command, short_help="List workers and the jobs they run.")
@click.option(
    "--jobs",
    "-n",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Maximum number of jobs to show per worker.",
)
def command(jobs: int) -> None:
    """List worker processes with their queues and running jobs."""
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
            note(f"{worker.id} holds more than the {counted(len(worker.jobs), 'job')} shown: raise -n")


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
        function = "started" if job.started else "-"
        rows.append((job.id, job.queue, job.task, str(job.attempt), age(job.since), function, worker))
    table(head, rows, empty="")
