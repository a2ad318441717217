"""`penstock stats`: count enqueued, processed and failed jobs, in total and by day."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.session import Command, Session
from penstock.cli.show import emit, say, table

if TYPE_CHECKING:
    from penstock.inspector import QueueStatsView

__all__ = ["command"]


@click.command("stats", cls=Command, short_help="Show job counts, in total and by day.")
@click.option(
    "--days",
    "-d",
    type=click.IntRange(1, 90),
    default=7,
    show_default=True,
    metavar="N",
    help="Number of UTC days to show, including today.",
)
def command(days: int) -> None:
    """Show how many jobs were enqueued, and how many attempts ended and failed, in total and by day."""
    session = Session.current()
    queues = session.run(lambda i: i.stats(days=days))
    totals = {
        "enqueued": sum(q.enqueued for q in queues),
        "processed": sum(q.processed for q in queues),
        "failed": sum(q.failed for q in queues),
    }
    if session.json:
        emit({"totals": totals, "queues": queues})
        return
    rows: list[tuple[str, ...]] = [(q.name, str(q.enqueued), str(q.processed), str(q.failed)) for q in queues]
    if len(rows) > 1:
        rows.append(("all", *(str(n) for n in totals.values())))
    table(("QUEUE", "ENQUEUED", "PROCESSED", "FAILED"), rows, empty="no queues yet")
    by_day = _by_day(queues)
    if by_day:
        say()
        table(("DAY", "PROCESSED", "FAILED"), by_day, empty="")


def _by_day(queues: list[QueueStatsView]) -> list[tuple[str, str, str]]:
    sums: dict[str, tuple[int, int]] = {}
    for queue in queues:
        for day in queue.days:
            processed, failed = sums.get(day.day, (0, 0))
            sums[day.day] = processed + day.processed, failed + day.failed
    return [(day, str(p), str(f)) for day, (p, f) in sorted(sums.items(), reverse=True)]
