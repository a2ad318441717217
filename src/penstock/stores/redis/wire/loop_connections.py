"""The connections of one event loop: shared by all callers, and closed with the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from penstock.core.errors import StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.async_connection import AsyncConnection, open_async_connection
from penstock.stores.redis.wire.handshake import Kind, OnConnect
from penstock.stores.redis.wire.listener import AsyncListener

__all__ = ["LoopConnections"]


class LoopConnections:
    """The connections of an AsyncRunner in one event loop."""

    def __init__(self, address: Address, on_connect: OnConnect | None) -> None:
        self.refreshing = asyncio.Lock()
        self.listener: AsyncListener | None = None
        self.listener_node: Node | None = None  # where it listens
        self.by_target: dict[tuple[Node, Kind], AsyncConnection] = {}
        self._opening: dict[tuple[Node, Kind], asyncio.Task[AsyncConnection]] = {}
        self._address = address
        self._on_connect = on_connect
        self.shutdown_hook: AsyncGenerator[None, None] | None = None

    async def watch_shutdown(self) -> None:
        """Close the connections when the loop shuts down.

        A loop that is shut down, as by asyncio.run, closes its async generators; this one closes connections.
        """
        if self.shutdown_hook is None:
            self.shutdown_hook = self._close_at_shutdown()
            await self.shutdown_hook.__anext__()

    async def _close_at_shutdown(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.close()
            await asyncio.sleep(0)  # lets the transports close

    async def connection(self, node: Node, kind: Kind, until: float) -> AsyncConnection:
        """Return the open connection to this server; concurrent callers share the one being opened."""
        key = (node, kind)
        connection = self.by_target.get(key)
        if connection is not None and connection.alive:
            return connection
        task = self._opening.get(key)
        if task is None:
            timeout = min(self._address.connect_timeout / 1000, max(until - time.monotonic(), 0.05))
            task = self._opening[key] = asyncio.create_task(self._open(key, timeout))
            task.add_done_callback(lambda done: self._opened(key, done))
        try:
            # opening has its own timeout, and a better error message
            async with asyncio.timeout(max(until - time.monotonic(), 0) + 0.1):
                return await asyncio.shield(task)
        except TimeoutError:
            raise StoreUnavailable(f"{self._address.at(node)} does not answer") from None
        except asyncio.CancelledError:
            if task.cancelled():  # `close` cancelled the opening, not the caller
                raise StoreUnavailable("the store was closed") from None
            raise

    async def _open(self, key: tuple[Node, Kind], timeout: float) -> AsyncConnection:
        connection = await open_async_connection(self._address, *key, timeout)
        if self._on_connect is not None and connection.server is not None:
            self._on_connect(connection.server)
        self.by_target[key] = connection
        return connection

    def _opened(self, key: tuple[Node, Kind], task: asyncio.Task[AsyncConnection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the waiting caller, if any, raises it

    def drop(self, node: Node) -> None:
        for key in [key for key in self.by_target if key[0] == node]:
            self.by_target.pop(key).close("the server is not the master any more")

    def close(self) -> None:
        for task in list(self._opening.values()):
            task.cancel()
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        while self.by_target:
            self.by_target.popitem()[1].close("the store was closed")

    def abandon(self) -> None:
        """Give up connections of a loop that was closed without being shut down."""
        for connection in self.by_target.values():
            connection.abandon()
        if self.listener is not None:
            self.listener.abandon()
