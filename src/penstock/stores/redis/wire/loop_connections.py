"""The connections of one event loop: opened once for all who want them, closed with the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from penstock.core.errors import StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.async_connection import Link, open_link
from penstock.stores.redis.wire.handshake import Kind, OnConnect
from penstock.stores.redis.wire.listener import Ear

__all__ = ["Here"]


class Here:
    """What an AsyncRunner has in one event loop."""

    def __init__(self, address: Address, on_connect: OnConnect | None) -> None:
        self.looking = asyncio.Lock()
        self.ear: Ear | None = None
        self.ear_node: Node | None = None  # where it listens
        self.links: dict[tuple[Node, Kind], Link] = {}
        self._opening: dict[tuple[Node, Kind], asyncio.Task[Link]] = {}
        self._address = address
        self._on_connect = on_connect
        self.will: AsyncGenerator[None, None] | None = None

    async def begin(self) -> None:
        """A loop that is shut down, as by asyncio.run, closes its generators: this one closes the links."""
        if self.will is None:
            self.will = self._last_will()
            await self.will.__anext__()

    async def _last_will(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.close()
            await asyncio.sleep(0)  # the transports' own farewell

    async def link(self, node: Node, kind: Kind, until: float) -> Link:
        """The living link to this server; callers that come while it is being opened share it."""
        key = (node, kind)
        link = self.links.get(key)
        if link is not None and link.alive:
            return link
        task = self._opening.get(key)
        if task is None:
            timeout = min(self._address.connect_timeout / 1000, max(until - time.monotonic(), 0.05))
            task = self._opening[key] = asyncio.create_task(self._open(key, timeout))
            task.add_done_callback(lambda done: self._opened(key, done))
        try:
            # the opening has a limit of its own, and knows better why it failed
            async with asyncio.timeout(max(until - time.monotonic(), 0) + 0.1):
                return await asyncio.shield(task)
        except TimeoutError:
            raise StoreUnavailable(f"{self._address.at(node)} does not answer") from None
        except asyncio.CancelledError:
            if task.cancelled():  # not the caller but the opening, by `close`
                raise StoreUnavailable("the store was closed") from None
            raise

    async def _open(self, key: tuple[Node, Kind], timeout: float) -> Link:
        link = await open_link(self._address, *key, timeout)
        if self._on_connect is not None and link.server is not None:
            self._on_connect(link.server)
        self.links[key] = link
        return link

    def _opened(self, key: tuple[Node, Kind], task: asyncio.Task[Link]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # who waits has it; nobody may be left

    def drop(self, node: Node) -> None:
        for key in [key for key in self.links if key[0] == node]:
            self.links.pop(key).close("the server is not in charge any more")

    def close(self) -> None:
        for task in list(self._opening.values()):
            task.cancel()
        if self.ear is not None:
            self.ear.close()
            self.ear = None
        while self.links:
            self.links.popitem()[1].close("the store was closed")

    def let_go(self) -> None:
        """The loop is closed, without having been shut down if there is anything left here."""
        for link in self.links.values():
            link.let_go()
        if self.ear is not None:
            self.ear.let_go()
