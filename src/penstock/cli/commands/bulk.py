"""`penstock bulk`: show and abort acts on all jobs that match a filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli.completing import complete_bulk
from penstock.cli.faults import Exit, not_found
from penstock.cli.formats import age
from penstock.cli.job_acts import bulk_line, bulk_row
from penstock.cli.session import Command, Session, acting_user
from penstock.cli.show import emit, facts, say, table
from penstock.cli.watching import Listing
from penstock.core.formats import iso
from penstock.core.text import counted

if TYPE_CHECKING:
    from penstock.inspector import BulkAct
    from penstock.stores.contract import JobFilter


@click.group("bulk")
def command() -> None:
    """Show and abort bulk acts, such as `jobs retry --all`.

    A bulk act changes all jobs that match a filter, and is kept in the store. If the process that started it
    ends, workers continue it.
    """


@command.command("list", cls=Listing)
def list_() -> None:
    """List bulk acts that are running, or have ended in the last 7 days."""
    session = Session.current()
    acts = session.run(lambda inspector: inspector.bulk.all())
    if session.json:
        emit({"bulk": [bulk_row(bulk) for bulk in acts]})
        return
    head = ("ID", "ACT", "STATE", "DONE", "ASKED", "REFUSED", "BY", "STARTED", "PROGRESS")
    table(
        head,
        [_line(bulk) for bulk in acts],
        empty="no bulk acts",
        spare=("STARTED", "BY", "REFUSED", "ASKED"),
    )


def _line(bulk: BulkAct) -> tuple[str, ...]:
    counts = (f"{bulk.done}", f"{bulk.asked}", f"{bulk.refused}")
    started = age(bulk.created_at)
    progress = bulk.error or bulk_line(bulk).partition(": ")[2]
    return bulk.id, bulk.act.value, bulk.state.value, *counts, bulk.by, started, progress


@command.command("show", cls=Command)
@click.argument("id", metavar="ID", shell_complete=complete_bulk)
def show(id: str) -> None:
    """Show a bulk act: its filter, progress and result."""
    session = Session.current()
    bulk = session.run(lambda inspector: inspector.bulk.get(id))
    if bulk is None:
        raise not_found(f"there is no bulk act {id!r}")
    row = bulk_row(bulk)
    if session.json:
        emit({"bulk": row})
        return
    facts(
        [
            ("id", bulk.id),
            ("act", bulk.act.value),
            ("to", bulk.to or None),
            ("reason", bulk.reason or None),
            ("at-most-once", "left out, if started" if bulk.spare_at_most_once else None),
            ("filter", ", ".join(_terms(bulk.filter))),
            ("state", bulk.state.value),
            ("error", bulk.error or None),
            ("by", bulk.by),
            ("started", iso(bulk.created_at)),
            ("ended", iso(bulk.ended_at)),
            ("progress", bulk_line(bulk).partition(": ")[2]),
            *((name, f"{row[name]:,}") for name in ("done", "asked", "refused", "missing")),
            ("start again", f"{bulk.again:,} at-most-once" if bulk.again else None),
            *(("skipped", f"{n:,}: {why}") for why, n in bulk.skipped.items()),
        ]
    )


def _terms(filter: JobFilter) -> Iterator[str]:
    """A filter in words, named like the options of `jobs list`."""
    from penstock.inspector import ends_of_ranges, filter_texts

    texts = filter_texts(filter)
    for name in ("queue", "state", "task", "worker", "text", "header", "flow"):
        yield from (f"{name}={text}" for text in texts.get(name, ()))
    yield from (f"{name} {end} {iso(at)}" for name, end, at in ends_of_ranges(filter))
    yield from (f"not task={task}" for task in filter.not_tasks)


@command.command("abort", cls=Command)
@click.argument("id", metavar="ID", shell_complete=complete_bulk)
def abort(id: str) -> Exit:
    """Stop a bulk act after the step in progress. What it has changed stays changed."""
    session = Session.current()
    bulk = session.run(lambda inspector: inspector.bulk.abort(id, by=acting_user()))
    if bulk is None:
        raise not_found(f"there is no bulk act {id!r}")
    if session.json:
        emit({"bulk": bulk_row(bulk)})
    else:
        say(f"{bulk.id}: {bulk.state.value}, reached {counted(bulk.changed, 'job')}")
    return Exit.OK
