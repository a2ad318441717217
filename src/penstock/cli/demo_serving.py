"""The terminal display of `penstock demo`, and its `--serve`."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.serving import address_of, interruptible, listen_somewhere
from penstock.cli.session import Session
from penstock.cli.show import emit, note
from penstock.core.installation import DASHBOARD_SERVER, require_extra
from penstock.core.text import one_line

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.demo.demo_folder import DemoProgress, ParsingChild


# ── the display ──────────────────────────────────────────────────────────────────────────────────

_NAMES = {"parse": "files parsed (processes)", "read": "files hashed (threads)", "sum": "directories (async)"}
#: How often a terminal is redrawn per second: more would take CPU from the children.
_REDRAWS = 5
#: At most this many children are shown; characters of a file's path.
_SHOWN, _PATH = 16, 48
#: A child that ended its last job this long ago (s) and does nothing is not shown any more.
_GONE = 3.0


@contextlib.contextmanager
def display(*, quiet: bool) -> Iterator[Callable[[DemoProgress], None]]:
    """A function that shows the progress."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _live() as show:
            yield show
    else:
        yield _lines()


@contextlib.contextmanager
def _live() -> Iterator[Callable[[DemoProgress], None]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=Console(stderr=True))
    rows = {queue: bars.add_task(name, total=None, visible=False) for queue, name in _NAMES.items()}
    children: Sequence[ParsingChild] = ()

    def picture() -> Any:
        return Group(bars, _table(children, time.monotonic()))

    with Live(console=bars.console, refresh_per_second=_REDRAWS, get_renderable=picture) as live:

        def show(progress: DemoProgress) -> None:
            nonlocal children
            children = progress.children
            for queue, n in progress.of.items():
                if n:
                    bars.update(rows[queue], total=n, completed=progress.done[queue], visible=True)
            if progress.news:
                live.console.print(Text(one_line(progress.news), style="bold"))

        yield show


def _table(children: Sequence[ParsingChild], now: float) -> Table:
    """A line per child: its worker, its jobs, how busy it is, and the file that it parses."""
    from rich.table import Table
    from rich.text import Text

    table = Table("child", "worker", "files", "busy", "parses", box=None, pad_edge=False)
    for child in [one for one in children if one.since or now - one.last < _GONE][:_SHOWN]:
        path = child.name if len(child.name) <= _PATH else "…" + child.name[1 - _PATH :]
        took = f"{path}  {(now - child.since) * 1000:.0f} ms" if child.since else "-"
        numbers = (child.pid, child.worker, child.jobs, f"{child.load(now):.0%}")
        table.add_row(*map(str, numbers), Text(one_line(took)))
    return table


def _lines() -> Callable[[DemoProgress], None]:
    """Print a line for every tenth of the work."""
    last_tenth = -1

    def show(progress: DemoProgress) -> None:
        nonlocal last_tenth
        done, of = sum(progress.done.values()), sum(progress.of.values())
        if of and done * 10 // of > last_tenth:
            last_tenth = done * 10 // of
            note(f"{done} of {of} jobs done{_parsed(progress.children)}")
        if progress.news:
            note(progress.news)

    return show


def _parsed(children: Sequence[ParsingChild]) -> str:
    """The files that each child has parsed."""
    now = time.monotonic()
    counts = [f"child {one.pid}: {one.jobs} ({one.load(now):.0%} busy)" for one in children[-_SHOWN:]]
    return "; parsed by " + ", ".join(counts) if counts else ""


# ── --serve ──────────────────────────────────────────────────────────────────────────────────────

_HOST = "127.0.0.1"
_PROCESSES = 2


def serve_sample(workdir: Path | None, *, port: int | None, opens: bool) -> int:
    """Make the data, start workers, and serve the dashboard until SIGTERM or SIGINT."""
    require_extra("web", DASHBOARD_SERVER, "demo --serve")
    session = Session.current()
    for name in ("url", "namespace", "app"):
        if name in session.options:
            raise click.UsageError(f"demo --serve makes a store of its own: leave --{name} out")
    from penstock.demo.conductor import workers
    from penstock.demo.demo_folder import DemoFolder
    from penstock.worker.event_loop import loop_runner

    sockets = listen_somewhere(_HOST, port)
    with _directory(workdir) as directory, interruptible():
        file = directory / f"shop-{time.time_ns()}.db"
        folder = DemoFolder(directory, f"sqlite:///{file}", with_ledger=False)
        folder.announce()
        from penstock.demo.showcase import shop

        with loop_runner() as runner:
            note("making a day of jobs ...")
            runner.run(_fill(f"{folder.url}?durability=normal"))
            with workers(folder, _PROCESSES, app=f"{shop.__name__}:app", queues=shop.QUEUES, drain="1s"):
                address = address_of(_HOST, sockets[0])
                if session.json:
                    facts = {"dashboard": address, "port": sockets[0].getsockname()[1], "url": folder.url}
                    emit(facts)
                else:
                    note(f"{address}  dashboard of a shop with sample data; Ctrl-C stops")
                if opens:
                    import webbrowser

                    webbrowser.open(address)
                return runner.run(_serve(sockets))


async def _fill(url: str) -> None:
    from penstock.demo.showcase import history, present, shop
    from penstock.stores.connect import connect

    await history.live_through(lambda clock: connect(url, clock=clock), time.time_ns() // 1_000_000)
    await present.fill_store(shop.app.store)


async def _serve(sockets: list[socket.socket]) -> int:
    from penstock.demo.showcase import present, shop
    from penstock.web.dashboard import Dashboard
    from penstock.web.dashboard.server import DashboardListener, serve_dashboard

    dashboard = Dashboard(shop.app, open_to_all=True, hosts=())
    new_jobs = asyncio.create_task(present.keep_enqueueing())
    try:
        return await serve_dashboard(dashboard, DashboardListener(host=_HOST), grace=1.0, sockets=sockets)
    finally:
        new_jobs.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await new_jobs
        shop.app.store.close()


@contextlib.contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    """The directory of the store; one that nobody has named is removed."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    made = Path(tempfile.mkdtemp(prefix="penstock-shop-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
