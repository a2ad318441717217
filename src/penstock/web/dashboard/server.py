"""Serves a dashboard alone, with uvicorn, until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from penstock.web.dashboard.dashboard import Dashboard
from penstock.web.sockets import UnixSocket, bind_tcp
from penstock.web.tls import Tls

__all__ = ["DashboardListener", "new_server", "serve_dashboard"]


@dataclass(frozen=True, kw_only=True)
class DashboardListener:
    """Where a dashboard listens. `proxy`: the address of a proxy whose X-Forwarded headers are believed."""

    host: str = "127.0.0.1"
    port: int = 8080
    path: Path | None = None
    mode: int = 0o600
    certificate: Path | None = None
    key: Path | None = None
    proxy: str | None = None
    access_log: bool = False


class _DashboardServer(uvicorn.Server):
    """Leaves signals to `serve_dashboard`: uvicorn would raise them again after its end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_dashboard(
    dashboard: Dashboard,
    listener: DashboardListener,
    *,
    grace: float,
    on_ready: Callable[[str, int], None] | None = None,
    sockets: list[socket.socket] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; a second signal exits at once. `on_ready` gets the address and port.

    `sockets`: those that listen already, in place of those of the listener.
    """
    if listener.certificate is not None and listener.key is not None:
        Tls(listener.certificate, listener.key)  # its errors say what is wrong
    listening, file = _sockets(listener) if sockets is None else (sockets, None)
    server = new_server(dashboard, listener, grace=grace)
    _stop_on_signals(dashboard, server)
    if on_ready is not None:
        on_ready(_address(listener, listening), _port(listening))
    try:
        with dashboard.running():
            await server.serve(listening)
    finally:
        if file is not None:
            file.remove()
    return 0


def new_server(application: ASGIApp, listener: DashboardListener, *, grace: float) -> uvicorn.Server:
    """A server for a dashboard, or for what stands in its place. Signals are left to the caller."""
    return _DashboardServer(_config(application, listener, grace))


def _config(application: ASGIApp, listener: DashboardListener, grace: float) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=listener.access_log,
        server_header=False,
        proxy_headers=listener.proxy is not None,
        forwarded_allow_ips=listener.proxy,
        ssl_certfile=listener.certificate,
        ssl_keyfile=listener.key,
        timeout_graceful_shutdown=max(1, round(grace)),
        timeout_keep_alive=30,
        limit_concurrency=1_000,
    )


def _sockets(listener: DashboardListener) -> tuple[list[socket.socket], UnixSocket | None]:
    if listener.path is not None:
        file = UnixSocket(listener.path, listener.mode)
        return [file.socket], file
    (found,) = bind_tcp(listener.host, listener.port)
    return found, None


def _stop_on_signals(dashboard: Dashboard, server: uvicorn.Server) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if server.should_exit:  # the second signal
            raise SystemExit(1)
        server.should_exit = True
        dashboard.close()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _address(listener: DashboardListener, sockets: list[socket.socket]) -> str:
    if listener.path is not None:
        return str(listener.path)
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    return f"{'http' if listener.certificate is None else 'https'}://{host}:{_port(sockets)}/"


def _port(sockets: list[socket.socket]) -> int:
    name = sockets[0].getsockname()
    return int(name[1]) if isinstance(name, tuple) else 0
