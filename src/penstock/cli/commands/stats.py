"""`penstock stats`: count jobs in total and by day, and show the attempts and times of each task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from penstock.cli.completing import complete_queue
from penstock.cli.faults import Exit
from penstock.cli.formats import brief
from penstock.cli.queue_notes import note_away, why_empty
from penstock.cli.session import Session
from penstock.cli.show import emit, note, say, table
from penstock.cli.watching import Listing
from penstock.core.formats import instant, milliseconds

if TYPE_CHECKING:
    from penstock.inspector import (
        Inspector,
        PeriodDepthView,
        PeriodStatsView,
        QueueDepthView,
        TaskStatsView,
        TimesView,
    )
    from penstock.stores.contract import QueueStats, Resolution

_DEPTH_HEADS = ("AVAILABLE", "PEAK", "RUNNING", "LATER", "ENQUEUED")
_NO_ATTEMPTS = "no attempts in this time"
_NO_SAMPLES = "no samples in this time: a worker takes one each minute"
_HEADS = ("DONE", "FAILED", "RETRIED", "DEAD", "WAIT 50/95/99 %", "RUN 50/95/99 %")


@click.command("stats", cls=Listing, short_help="Show job counts and times, by queue, task and day.")
@click.option(
    "--days",
    "-d",
    type=click.IntRange(1, 90),
    default=7,
    show_default=True,
    metavar="N",
    help="Number of UTC days to show, including today.",
)
@click.option("--queue", "-q", metavar="QUEUE", shell_complete=complete_queue, help="Filter by queue.")
@click.option("--task", "-t", metavar="TASK", help="Filter by task: show only the statistics of tasks.")
@click.option(
    "--since",
    metavar="DURATION",
    default="2h",
    show_default=True,
    help="Age of the oldest attempts of tasks.",
)
@click.option(
    "--by",
    type=click.Choice(["minute", "hour", "day"]),
    help="Show the statistics of all these tasks together, by period.",
)
@click.option(
    "--depth",
    "depths",
    is_flag=True,
    help="Show how many unfinished jobs queues had: available, running and later ones, and nothing else.",
)
@click.option(
    "--sizes", is_flag=True, help="Show an estimate of the space that each queue takes, and nothing else."
)
def command(
    days: int, queue: str | None, task: str | None, since: str, by: str | None, depths: bool, sizes: bool
) -> Exit:
    """Show how many jobs were enqueued, and how many attempts ended and failed, in total and by day.

    Then show the attempts of each task in the last two hours, or since --since: how many ended, and the
    50th, 95th and 99th percentiles of the time until they were leased and of their run time, within 5 %.
    Statistics of tasks are kept per minute for 2 hours, per hour for 4 days and per day for 90 days.

    With --depth, show the mean number of unfinished jobs of each queue, or by --by of all queues together,
    and the most available ones of one queue. A worker or dashboard counts them once a minute, with the jobs
    that were enqueued. Enqueued jobs are counted by queue, not by task.
    """
    session, span = Session.current(), milliseconds(since, what="since")
    if depths and task is not None:
        raise click.UsageError("--depth counts the jobs of queues: leave out --task")
    if sizes:
        _show_sizes(session, queue)
    elif depths:
        _show_depths(session, by, queue, span)
    elif by is not None:
        _show_periods(session, by, queue, task, span)
    else:
        _show_all(session, days, queue, task, span)
    return note_away(session, queue)


def _show_all(session: Session, days: int, queue: str | None, task: str | None, span: int) -> None:
    async def read(inspector: Inspector) -> tuple[list[QueueStats], list[TaskStatsView]]:
        tasks = await inspector.statistics.tasks(queue=queue, task=task, span=span)
        every = await inspector.stats(days=days) if task is None else []
        return [one for one in every if queue in (None, one.name)], tasks

    queues, tasks = session.run(read)
    totals = {
        "enqueued": sum(q.enqueued for q in queues),
        "processed": sum(q.processed for q in queues),
        "failed": sum(q.failed for q in queues),
    }
    if session.json:
        emit({"totals": totals, "queues": queues, "tasks": tasks} if task is None else {"tasks": tasks})
        return
    if task is None:
        _show_totals(queues, totals, "" if queues else _why_empty(session, queue, "no queues yet"))
    if tasks or task is not None:
        rows = [(*_cells(one), f"{one.queue}/{one.task}") for one in tasks]
        empty = "" if tasks else _why_empty(session, queue, _NO_ATTEMPTS)
        table((*_HEADS, "TASK"), rows, empty=empty)
    _note_missing("day", span)


def _show_totals(queues: list[QueueStats], totals: dict[str, int], empty: str) -> None:
    rows: list[tuple[str, ...]] = [(q.name, str(q.enqueued), str(q.processed), str(q.failed)) for q in queues]
    if len(rows) > 1:
        rows.append(("all", *(str(n) for n in totals.values())))
    table(("QUEUE", "ENQUEUED", "PROCESSED", "FAILED"), rows, empty=empty)
    by_day = _by_day(queues)
    if by_day:
        say()
        table(("DAY", "PROCESSED", "FAILED"), by_day, empty="")
        say()


def _show_periods(session: Session, by: str, queue: str | None, task: str | None, span: int) -> None:
    periods = session.run(lambda i: i.statistics.periods(_resolution(by), queue=queue, task=task, span=span))
    if session.json:
        emit({"by": by, "periods": periods})
        return
    table(
        (by.upper(), "ENQUEUED", *_HEADS),
        [(_start(one.at, by), _enqueued(one), *_cells(one)) for one in periods],
        empty="" if periods else _why_empty(session, queue, _NO_ATTEMPTS),
    )
    _note_missing(by, span)


def _show_depths(session: Session, by: str | None, queue: str | None, span: int) -> None:
    shown: Mapping[str, object]
    if by is None:
        queues = session.run(lambda i: i.statistics.depths(queue=queue, span=span))
        shown, rows = {"depths": queues}, [(one.queue, *_depth_cells(one)) for one in queues]
    else:
        periods = session.run(lambda i: i.statistics.depth_periods(_resolution(by), queue=queue, span=span))
        rows = [(_start(one.at, by), *_depth_cells(one)) for one in periods]
        shown = {"by": by, "depths": periods}
    if session.json:
        emit(shown)
        return
    empty = "" if rows else _why_empty(session, queue, _NO_SAMPLES)
    table(((by or "queue").upper(), *_DEPTH_HEADS), rows, empty=empty)
    _note_missing(by or "day", span)


def _depth_cells(one: QueueDepthView | PeriodDepthView) -> tuple[str, ...]:
    means = (f"{one.running:,.0f}", f"{one.later:,.0f}")
    return f"{one.available:,.0f}", f"{one.peak:,}", *means, _enqueued(one)


def _enqueued(one: QueueDepthView | PeriodDepthView | PeriodStatsView) -> str:
    return "-" if one.enqueued is None else f"{one.enqueued:,}"


def _resolution(by: str) -> Resolution:
    from penstock.stores.contract import Resolution

    return Resolution(by)


def _note_missing(by: str, span: int) -> None:
    """Tell that periods of this span are no longer kept."""
    if span > _resolution(by).length * _resolution(by).kept:
        kept = {"minute": "2 hours", "hour": "4 days", "day": "90 days"}[by]
        note(f"statistics by {by} are kept for {kept}: older ones are not shown")


def _show_sizes(session: Session, queue: str | None) -> None:
    found = [one for one in session.run(lambda i: i.statistics.sizes()) if queue in (None, one.queue)]
    if session.json:
        emit({"sizes": found})
        return
    rows = [(one.queue, f"{one.bytes:,}", "sampled" if one.sampled else "") for one in found]
    empty = "" if rows else _why_empty(session, queue, "no queues yet")
    table(("QUEUE", "BYTES", "ESTIMATE"), rows, empty=empty)


def _why_empty(session: Session, queue: str | None, otherwise: str) -> str:
    return why_empty(session, [] if queue is None else [queue], otherwise)


def _cells(one: TaskStatsView | PeriodStatsView) -> tuple[str, ...]:
    numbers = (one.processed, one.failed, one.retried, one.dead)
    return (*(str(number) for number in numbers), _times(one.wait), _times(one.run))


def _times(times: TimesView) -> str:
    return "/".join(brief(one) for one in (times.p50, times.p95, times.p99)) if times.p50 is not None else "-"


def _start(ms: int, by: str) -> str:
    at = instant(ms)
    return at[:10] if by == "day" else f"{at[:10]} {at[11:16]}"


def _by_day(queues: list[QueueStats]) -> list[tuple[str, str, str]]:
    sums: dict[str, tuple[int, int]] = {}
    for queue in queues:
        for day in queue.days:
            processed, failed = sums.get(day.day, (0, 0))
            sums[day.day] = processed + day.processed, failed + day.failed
    return [(day, str(p), str(f)) for day, (p, f) in sorted(sums.items(), reverse=True)]
