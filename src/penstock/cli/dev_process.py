"""The process of `penstock dev`: a worker and the dashboard of an app, on one event loop."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.app.app import App
from penstock.app.loading import load_app
from penstock.cli.show import note, say_lines
from penstock.config import Config
from penstock.core.errors import PenstockError
from penstock.core.security import is_loopback
from penstock.web.dashboard import Dashboard
from penstock.web.dashboard.security import Guard
from penstock.web.dashboard.server import DashboardListener, new_server
from penstock.web.hosts import HostRule
from penstock.worker.event_loop import loop_runner
from penstock.worker.logs import configure_logs
from penstock.worker.queues import Queue
from penstock.worker.signals import DRAIN, listen
from penstock.worker.worker import Worker

#: Seconds for requests in flight when the process stops: event streams are ended before.
_GRACE = 1.0


def serve_dev(
    spec: str, config: Config, queues: Sequence[Queue] | None, sockets: list[socket.socket], host: str
) -> int:
    """Work and serve until SIGTERM or SIGINT; returns the exit code.

    If the app cannot be loaded, its traceback is printed, and shown in place of the dashboard.
    """
    configure_logs(config)
    with loop_runner() as runner:
        try:
            app = load_app(spec)
            worker = Worker(app, queues, config=config)
        except PenstockError as error:
            return runner.run(_show(error, sockets, host))
        if app.store_url.startswith("memory:"):
            note(f"the jobs of {app.store_url} are lost at each restart; use a file: sqlite:///jobs.db")
        return runner.run(_work(app, worker, sockets, host))


async def _work(app: App, worker: Worker, sockets: list[socket.socket], host: str) -> int:
    open_to_all = is_loopback(host)
    dashboard = Dashboard(app, open_to_all=open_to_all, hosts=() if open_to_all else None)
    listen(worker.stop, worker.quiet, drain=DRAIN)
    server = _server(dashboard, host)
    with dashboard.running():
        serving = asyncio.create_task(server.serve(sockets))
        try:
            await worker.run()
        finally:
            dashboard.close()
            server.should_exit = True
            await serving
            app.store.close()
    return 0


def _server(application: ASGIApp, host: str) -> uvicorn.Server:
    return new_server(application, DashboardListener(host=host), grace=_GRACE)


# ── an app that cannot be loaded ─────────────────────────────────────────────────────────────────


async def _show(error: PenstockError, sockets: list[socket.socket], host: str) -> int:
    text = _text(error)
    say_lines(indent(text, "  "), err=True)
    note("penstock: waiting for a change of the code")
    server = _server(_ErrorPage(text, host), host)

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in DRAIN:
        loop.add_signal_handler(number, stop)
    await server.serve(sockets)
    return 0


def _text(error: PenstockError) -> str:
    """The traceback of the user's own error, without the frames that have imported the module."""
    cause = error.__cause__
    if cause is None:
        return str(error)
    shown = traceback.TracebackException.from_exception(cause)
    shown.stack = traceback.StackSummary.from_list(one for one in shown.stack if not _is_import(one.filename))
    return f"{''.join(shown.format()).rstrip()}\n\n{error}"


def _is_import(file: str) -> bool:
    package = find_spec("penstock.app")
    inside = package is not None and any(
        Path(file).is_relative_to(place) for place in package.submodule_search_locations or ()
    )
    return inside or file.startswith("<frozen importlib") or file.endswith("importlib/__init__.py")


class _ErrorPage:
    """Answers every request with the text. Browsers ask again each second, until the app can be loaded."""

    def __init__(self, text: str, host: str) -> None:
        self._text = text if is_loopback(host) else "the app cannot be loaded: its terminal shows why"
        self._guarded = Guard(self._answer, HostRule((), open_to_all=not is_loopback(host)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = PlainTextResponse(f"{self._text}\n", 503, {"Refresh": "1"})
        if scope["path"].endswith(
            "/events"
        ):  # after an error, open pages would not ask for their stream again
            answer = PlainTextResponse("retry: 1000\n\n", media_type="text/event-stream")
        await answer(scope, receive, send)
