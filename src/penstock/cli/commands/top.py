"""`penstock top`: a live view of queues, workers and jobs in the terminal."""

from __future__ import annotations

import asyncio
import signal
import sys

import click

from penstock.cli.faults import CommandError
from penstock.cli.session import Command, Session
from penstock.config import mask_url


@click.command("top", cls=Command, short_help="Show queues, workers and jobs live, with acts by keys.")
@click.option(
    "--interval",
    "-i",
    type=click.FloatRange(0.2, 3_600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two reads of the store.",
)
@click.option("--read-only", is_flag=True, help="Show only: no key changes anything.")
def command(interval: float, read_only: bool) -> int:
    """Show queues, workers, running and dead jobs, and errors, live in the whole terminal.

    Keys pause a queue, retry, cancel or delete a job, and quiet or drain a worker; ? shows all of them.
    """
    session = Session.current()
    if session.json:
        raise click.UsageError("top has no --json: use `penstock queues list --json --watch`, for example")
    from penstock.core.installation import require_extra

    require_extra("tui", ("textual",), "top")
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty()):
        raise CommandError("top needs a terminal: use `penstock queues list --watch`, for example")
    from penstock.cli.top.app import Top

    with session.store() as store:
        namespace = getattr(store, "namespace", "")
        place = mask_url(store.url) + (f"  {namespace}" if namespace else "")

        async def show() -> int:
            top = Top(store, place=place, interval=interval, read_only=read_only)
            for ending in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(ending, top.exit)  # restores the terminal
            await top.run_async()
            return top.return_code or 0

        return asyncio.run(show())
