"""`penstock groups`: list the groups that collect jobs for a batch, and flush one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.completing import complete_queue
from penstock.cli.faults import not_found
from penstock.cli.session import Command, Session
from penstock.cli.show import age, emit, say, table

if TYPE_CHECKING:
    from penstock.inspector import GroupView, Inspector

__all__ = ["command"]


@click.group("groups")
def command() -> None:
    """List groups of jobs collected for a batch; flush them."""


@command.command("list", cls=Command)
@click.option("--queue", "-q", metavar="QUEUE", shell_complete=complete_queue, help="Filter by queue.")
@click.option(
    "--limit",
    "-n",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=50,
    show_default=True,
    help="Maximum number of groups to show.",
)
def list_(queue: str | None, limit: int) -> None:
    """List groups that are not batches yet, ordered by when they are due."""
    session = Session.current()
    groups = session.run(lambda i: i.groups(queue, limit=limit))
    if session.json:
        emit({"groups": groups})
        return
    table(
        ("QUEUE", "TASK", "GROUP", "SIZE", "OLDEST", "DUE"),
        [
            (g.queue, g.task, g.key or "-", f"{g.size}", age(g.oldest_at), age(g.due_at) or "when full")
            for g in groups
        ],
        empty="no groups",
    )


@command.command("flush", cls=Command)
@click.argument("queue", shell_complete=complete_queue)
@click.argument("task")
@click.option("--key", "-k", metavar="KEY", default="", help="Key of the group.  [default: the empty key]")
def flush(queue: str, task: str, key: str) -> None:
    """Make a group a batch now, even if it is neither full nor due."""
    session = Session.current()

    async def acting(inspector: Inspector) -> str:
        batch = await inspector.flush_group(queue, task, key)
        if batch is None:
            there = await inspector.groups(queue, limit=5)
            raise not_found(f"the queue {queue!r} has no group {key!r} of the task {task!r}{_others(there)}")
        return batch

    batch = session.run(acting)
    if session.json:
        emit({"queue": queue, "batch": batch})
    else:
        say(f"{queue}/{batch}: available")


def _others(groups: list[GroupView]) -> str:
    return "".join(f"; there is {g.key!r} of {g.task}" for g in groups)
