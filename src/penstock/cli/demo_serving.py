"""Runs `penstock demo --serve`: the dashboard of a shop with sample data and running workers."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from penstock.cli.listening import address_of, interruptible, listen_somewhere
from penstock.cli.session import Session, require_web
from penstock.cli.show import emit, note

__all__ = ["serve_sample"]

_PACKAGES = ("httptools", "starlette", "jinja2", "uvicorn")
_HOST = "127.0.0.1"
_PROCESSES = 2


def serve_sample(workdir: Path | None, *, port: int | None, opens: bool) -> int:
    """Make the data, start workers, and serve the dashboard until SIGTERM or SIGINT."""
    require_web("demo --serve needs", _PACKAGES)
    session = Session.current()
    for name in ("url", "namespace", "app"):
        if name in session.options:
            raise click.UsageError(f"demo --serve makes a store of its own: leave --{name} out")
    from penstock.demo.demo_folder import DemoFolder
    from penstock.demo.workers import workers
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
    from penstock.demo.showcase import shop, traffic
    from penstock.web.dashboard import Dashboard
    from penstock.web.dashboard.server import DashboardListener, serve_dashboard

    dashboard = Dashboard(shop.app, open_to_all=True, hosts=())
    new_jobs = asyncio.create_task(traffic.go_on())
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
