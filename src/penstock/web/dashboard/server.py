"""Serves a dashboard alone, with uvicorn, until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from penstock.core.errors import ConfigError
from penstock.web.dashboard.bounded_connection import BoundedConnection
from penstock.web.dashboard.dashboard import Dashboard
from penstock.web.sockets import UnixSocket, bind_tcp
from penstock.web.tls import Tls

_log = logging.getLogger("penstock.web")

_MOST_CONNECTIONS = 1_000


@dataclass(frozen=True, kw_only=True)
class DashboardListener:
    """Where a dashboard listens.

    `proxy`: the address of a proxy whose X-Forwarded headers are believed; `unix` for one that connects to
    the Unix socket.
    """

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
    tls = None
    if listener.certificate is not None and listener.key is not None:
        tls = Tls(listener.certificate, listener.key)
    listening, file = _sockets(listener) if sockets is None else (sockets, None)
    server = new_server(dashboard, listener, grace=grace, tls=tls)
    _stop_on_signals(dashboard, server)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, tls)
    if on_ready is not None:
        on_ready(_address(listener, listening), _port(listening))
    try:
        with dashboard.running():
            await server.serve(listening)
    finally:
        if file is not None:
            file.remove()
    return 0


def new_server(
    application: ASGIApp, listener: DashboardListener, *, grace: float, tls: Tls | None = None
) -> uvicorn.Server:
    """A server for a dashboard, or for what stands in its place. Signals are left to the caller."""
    return _DashboardServer(_config(application, listener, grace, tls))


def _config(
    application: ASGIApp, listener: DashboardListener, grace: float, tls: Tls | None
) -> uvicorn.Config:
    config = uvicorn.Config(
        _behind_proxy(application, listener),
        loop="none",
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=listener.access_log,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(grace)),
        timeout_keep_alive=30,
        limit_concurrency=_MOST_CONNECTIONS,
    )
    config.load()
    config.ssl = None if tls is None else tls.context
    return config


def _reload(tls: Tls | None) -> None:
    """Read the certificate again at SIGHUP."""
    try:
        if tls is not None:
            tls.reload()
    except ConfigError as error:
        _log.error("the certificate stays as it is: %s", error)


def _behind_proxy(application: ASGIApp, listener: DashboardListener) -> ASGIApp:
    if listener.proxy is None:
        return application
    believing: Any = ProxyHeadersMiddleware(application, listener.proxy)  # type: ignore[arg-type]
    return believing if listener.path is None else _NamedClient(believing)


class _NamedClient:
    """Gives clients of a Unix socket, which have no address, the name `unix`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["client"] = scope.get("client") or ("unix", 0)
        await self._app(scope, receive, send)


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
