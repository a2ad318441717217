"""`penstock jobs log`: the lines that a job has logged, with --follow also those that come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from penstock.cli.faults import complain
from penstock.cli.job_addresses import ambiguous, no_job
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, note, say
from penstock.core.errors import StoreUnavailable
from penstock.core.job import Ref

if TYPE_CHECKING:
    from penstock.inspector import Inspector, JobView, LogLineView
    from penstock.stores.contract import Store

__all__ = ["add_log", "log_line"]

#: With --follow: ms between two looks at the log of a running job.
_FOLLOWED = 500


def add_log(group: click.Group) -> None:
    """Add the command to the group of commands on jobs."""
    group.add_command(_log)


def log_line(line: LogLineView) -> str:
    """A line of a log with its instant."""
    return f"{line.at}  {line.text}"


@click.command("log", cls=Command)
@click.argument("address", metavar="ID")
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Print new lines until the job ends, or Ctrl-C. With --json: one JSON document per line.",
)
def _log(address: str, follow: bool) -> None:
    """Print the lines that a job has logged by current_job().log()."""
    session = Session.current()
    if follow:
        with suppress(KeyboardInterrupt):
            session.run_on_store(lambda store: _follow(store, address, json=session.json))
        return
    job = session.run(lambda inspector: _the_job(inspector, address))
    if session.json:
        emit({"log": job.log})
    elif job.log:
        _print(job.log, json=False)
    else:
        note("this job has logged no lines")


# ── private ──────────────────────────────────────────────────────────────────────────────────────


async def _the_job(inspector: Inspector, address: str) -> JobView:
    found = await inspector.job(address)
    if not found:
        raise no_job(address)
    if len(found) > 1:
        raise ambiguous(address, [Ref(job.queue, job.id) for job in found])
    return found[0]


async def _follow(store: Store, address: str, *, json: bool) -> None:
    """Print lines until the job has ended. A store that does not answer is reported once, and asked again."""
    from penstock.inspector import Inspector

    inspector = Inspector(store)
    found, shown, away = [await _the_job(inspector, address)], 0, False
    ref = Ref(found[0].queue, found[0].id)
    while found:  # else the job has ended, and is not kept
        (job,) = found
        _print(job.log[shown:], json=json)
        shown = len(job.log)
        if job.ended_at is not None:
            return
        try:
            await store.wait_for_end([ref], timeout=_FOLLOWED)
            found, away = await inspector.job(f"{ref.queue}/{ref.id}"), False
        except StoreUnavailable as error:
            if not away:
                complain(error, json=json)
            away = True
            await asyncio.sleep(_FOLLOWED / 1000)


def _print(lines: Sequence[LogLineView], *, json: bool) -> None:
    for line in lines:
        if json:
            emit(line, on_one_line=True)
        else:
            say(log_line(line))
