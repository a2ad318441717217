"""An HTTP listener: accepts connections, and stops without losing an answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

from penstock.web.access_log import AccessLog
from penstock.web.bounds import DEFAULT_BOUNDS, HttpBounds
from penstock.web.connection import HttpConnection
from penstock.web.exchange import Exchange, Handler, Prove
from penstock.web.registry import ConnectionRegistry
from penstock.web.sockets import BACKLOG, bind_tcp
from penstock.web.tls import Tls

_log = logging.getLogger("penstock.web")

#: Time (s) of a TLS handshake, and of the end of a TLS connection.
_HANDSHAKE, _SHUTDOWN = 10.0, 2.0


class HttpServer:
    """Serves one handler on one or more sockets, in the running event loop.

    `body_limit` gives the largest body (bytes) of a request that the handler wants, from its method, path and
    headers; 0: the body is read and thrown away. `prove` is asked whose request it is before a large body is
    read; else the client's address stands for it.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        body_limit: Callable[[Exchange], int] = lambda _: 0,
        bounds: HttpBounds = DEFAULT_BOUNDS,
        access_log: AccessLog | None = None,
        prove: Prove | None = None,
    ) -> None:
        self._registry = ConnectionRegistry(handler, body_limit, bounds, access_log, prove)
        self._listeners: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> int:
        """Accept connections at this address; returns the port, which matters if `port` is 0."""
        (sockets,) = bind_tcp(host, port)
        await self.accept_on(sockets)
        bound: int = sockets[0].getsockname()[1]
        return bound

    async def accept_on(self, sockets: Sequence[socket.socket], tls: Tls | None = None) -> None:
        """Accept connections on listening sockets, with TLS if it is given."""
        loop = asyncio.get_running_loop()
        context = None if tls is None else tls.context
        timeouts = (
            {} if tls is None else {"ssl_handshake_timeout": _HANDSHAKE, "ssl_shutdown_timeout": _SHUTDOWN}
        )
        for one in sockets:
            create: Any = loop.create_unix_server if one.family == socket.AF_UNIX else loop.create_server
            given: dict[str, Any] = {**timeouts, "ssl": context, "backlog": BACKLOG}
            if one.family == socket.AF_UNIX and "cleanup_socket" in inspect.signature(create).parameters:
                given["cleanup_socket"] = False  # other processes may use the same file
            self._listeners.append(await create(self._connection, sock=one, **given))

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._registry)

    def close_listeners(self) -> None:
        """Accept no more connections; those that are open end with the answer of their next request."""
        self._registry.stopping = True
        for listener in self._listeners:
            listener.close()

    async def stop(self, grace: float = 30.0) -> None:
        """Stop accepting, and wait up to `grace` seconds until requests in flight are answered."""
        self.close_listeners()
        self._registry.stop_all()
        if self.connections:
            try:
                async with asyncio.timeout(grace):
                    await self._registry.all_closed.wait()
            except TimeoutError:
                _log.warning("closing %d connections whose requests are not answered", self.connections)
        self._registry.abort_all()

    def _connection(self) -> HttpConnection:
        return HttpConnection(self._registry)
