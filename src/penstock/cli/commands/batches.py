"""`penstock batches`: list the batches that are collecting jobs, and start one early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.completing import complete_queue
from penstock.cli.faults import not_found
from penstock.cli.formats import age
from penstock.cli.session import AuditedAct, Command, Session, limit_option
from penstock.cli.show import emit, say, table
from penstock.cli.watching import Listing

if TYPE_CHECKING:
    from penstock.stores.contract import BatchInfo, Store


@click.group("batches")
def command() -> None:
    """List batches that are collecting jobs, and start one early."""


@command.command("list", cls=Listing)
@click.option("--queue", "-q", metavar="QUEUE", shell_complete=complete_queue, help="Filter by queue.")
@limit_option("batches")
def list_(queue: str | None, limit: int) -> None:
    """List batches that are still collecting, ordered by when they are due."""
    session = Session.current()
    batches = session.run(lambda i: i.batches(queue, limit=limit))
    if session.json:
        emit({"batches": batches})
        return
    table(
        ("QUEUE", "TASK", "BATCH KEY", "SIZE", "OLDEST", "DUE"),
        [
            (g.queue, g.task, g.key or "-", f"{g.size}", age(g.oldest), age(g.due) or "when full")
            for g in batches
        ],
        empty="no batches are collecting",
    )


@command.command("flush", cls=Command)
@click.argument("queue", shell_complete=complete_queue)
@click.argument("task")
@click.option(
    "--key", "-k", metavar="KEY", default="", help="Key of the collecting batch.  [default: the empty key]"
)
def flush(queue: str, task: str, key: str) -> None:
    """Start a collecting batch now, even if it is neither full nor due."""
    session = Session.current()

    async def acting(store: Store) -> str:
        from penstock.inspector import Inspector

        inspector = Inspector(store)
        batch = await inspector.flush_batch(queue, task, key)
        if batch is None:
            there = await inspector.batches(queue, limit=5)
            raise not_found(
                f"the queue {queue!r} has no collecting batch {key!r} of the task {task!r}{_others(there)}"
            )
        await AuditedAct("batches.flush", [f"{queue}/{batch}"], {"task": task, "key": key}).write(store)
        return batch

    batch = session.run_on_store(acting)
    if session.json:
        emit({"queue": queue, "batch": batch})
    else:
        say(f"{queue}/{batch}: available")


def _others(batches: list[BatchInfo]) -> str:
    there = "".join(f"; there is {batch.key!r} of {batch.task}" for batch in batches)
    return there or "; `penstock batches list` lists all"
