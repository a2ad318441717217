"""`penstock errors`: list the groups of errors."""

from __future__ import annotations

import click

from penstock.cli.completing import complete_queue
from penstock.cli.faults import Exit
from penstock.cli.formats import age
from penstock.cli.queue_notes import note_away, why_empty
from penstock.cli.session import Session, limit_option
from penstock.cli.show import emit, note, table
from penstock.cli.watching import Listing


@click.command("errors", cls=Listing, short_help="List errors by task, class and message.")
@click.option("--queue", "-q", metavar="QUEUE", shell_complete=complete_queue, help="Filter by queue.")
@click.option("--task", "-t", metavar="TASK", help="Filter by task.")
@limit_option("groups")
def command(queue: str | None, task: str | None, limit: int) -> Exit:
    """List the errors of the last 90 days, grouped by queue, task, class and message, latest first.

    Numbers, ids, addresses, paths and quoted text of a message are replaced, so that similar errors are in
    one group.
    """
    session = Session.current()
    groups = session.run(lambda i: i.statistics.errors(queue=queue, task=task, limit=limit))
    if session.json:
        emit({"errors": groups})
        return note_away(session, queue)
    table(
        ("COUNT", "LAST", "FIRST", "TASK", "ERROR"),
        [
            (f"{g.count:,}", age(g.last), age(g.first), f"{g.queue}/{g.task}", _text(g.kind, g.message))
            for g in groups
        ],
        empty="" if groups else why_empty(session, [queue] if queue else [], "no errors"),
        spare=("FIRST",),
    )
    if groups:
        note(f"the latest job of the first line: penstock jobs show {groups[0].queue}/{groups[0].job}")
    return note_away(session, queue)


def _text(kind: str, message: str) -> str:
    return ": ".join(filter(None, (kind, message))) or "groups that were removed"
