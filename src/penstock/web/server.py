"""An HTTP listener: accepts connections, and stops without losing an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.web.bounds import DEFAULT_BOUNDS, HttpBounds
from penstock.web.connection import HttpConnection
from penstock.web.exchange import Exchange, Handler
from penstock.web.registry import ConnectionRegistry

__all__ = ["HttpServer"]

_log = logging.getLogger("penstock.web")


class HttpServer:
    """Serves one handler on one or more sockets, in the running event loop.

    `body_limit` gives the largest body (bytes) of a request that the handler wants, from its method, path and
    headers; 0: the body is read and thrown away.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        body_limit: Callable[[Exchange], int] = lambda _: 0,
        bounds: HttpBounds = DEFAULT_BOUNDS,
    ) -> None:
        self._registry = ConnectionRegistry(handler, body_limit, bounds)
        self._listeners: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> int:
        """Accept connections at this address; returns the port, which matters if `port` is 0."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(self._connection, host, port, backlog=2_048)
        self._listeners.append(listener)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

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
