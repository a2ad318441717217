"""`penstock jobs log`: the lines that a job has logged, with --follow also those that come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from penstock.cli.following import follow as follow_store
from penstock.cli.job_addresses import ambiguous, no_job
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, note, say
from penstock.core.job import Ref

if TYPE_CHECKING:
    from penstock.inspector import Inspector, JobView, LogLineView
    from penstock.stores.contract import Store

__all__ = ["add_log", "log_line"]


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
        follow_store(lambda store: _Followed(store, address, json=session.json).look)
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


class _Followed:
    """Prints the lines of a job since the last look, until it has ended."""

    def __init__(self, store: Store, address: str, *, json: bool) -> None:
        from penstock.inspector import Inspector

        self._inspector = Inspector(store)
        self._address = address
        self._json = json
        self._shown: int | None = None

    async def look(self) -> bool:
        """Print them; returns whether more may come."""
        if self._shown is None:
            job = await _the_job(self._inspector, self._address)
            self._address, self._shown = f"{job.queue}/{job.id}", 0
        else:
            found = await self._inspector.job(self._address)
            if not found:  # the job has ended, and is not kept
                return False
            (job,) = found
        _print(job.log[self._shown :], json=self._json)
        self._shown = len(job.log)
        return job.ended_at is None


def _print(lines: Sequence[LogLineView], *, json: bool) -> None:
    for line in lines:
        if json:
            emit(line, on_one_line=True)
        else:
            say(log_line(line))
