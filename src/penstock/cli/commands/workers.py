"""`penstock workers`: who is there, who runs what, since when."""

from __future__ import annotations

import click

from penstock.cli.session import Command, Session
from penstock.cli.show import age, emit, note, say, table

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
    table(
        ("WORKER", "HOST", "PID", "STATE", "RUNNING", "SLOTS", "QUEUES", "STARTED", "SEEN"),
        [
            (
                w.id,
                w.host,
                str(w.pid),
                w.state,
                str(w.running),
                str(w.concurrency),
                ",".join(w.queues),
                age(w.started_at),
                age(w.seen_at),
            )
            for w in workers
        ],
        empty="no workers",
    )
    held = [(w, job) for w in workers for job in w.jobs]
    if not held:
        return
    say()
    table(
        ("JOB", "QUEUE", "TASK", "ATTEMPT", "LEASED", "FUNCTION", "WORKER"),
        [
            (
                job.id,
                job.queue,
                job.task,
                str(job.attempt),
                age(job.since),
                "has begun" if job.started else "-",
                worker.id,
            )
            for worker, job in held
        ],
        empty="",
    )
    for worker in workers:
        if worker.more:
            note(f"{worker.id} holds more than these {len(worker.jobs)}: -n shows more")
