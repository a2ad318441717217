"""The async runner: sends calls and returns their answers, for any number of event loops.

`calls.py` and `topology.py` decide what to send, where, and what to retry, for this runner and the sync one
(`sync_runner.py`). This module has the connections, the waiting and the handling of forks.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from penstock.core import forks
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.loops import PerLoop
from penstock.stores.redis.wire.address import Address, Mode, Node
from penstock.stores.redis.wire.async_connection import AsyncConnection, AsyncListener, open_async_connection
from penstock.stores.redis.wire.calls import Call, NodeRequest, RequestBatch, encoded
from penstock.stores.redis.wire.connect import Kind, OnConnect
from penstock.stores.redis.wire.faults import Lost, Unsent
from penstock.stores.redis.wire.topology import FixedTopology, Query, Topology, topology_of


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


class AsyncRunner:
    """Runs calls from any number of event loops and threads; each loop has its own connections. Fork-safe."""

    def __init__(self, address: Address, *, on_connect: OnConnect | None = None) -> None:
        self._address = address
        self._on_connect = on_connect
        self._topology: Topology = topology_of(address)
        self._lock = forks.lock()
        self._pid = os.getpid()
        self._loops: PerLoop[LoopConnections] = PerLoop(LoopConnections.abandon)

    @property
    def mode(self) -> Mode:
        return self._address.mode

    @property
    def address(self) -> Address:
        return self._address

    async def run(self, calls: Sequence[Call], *, within: int | None = None) -> list[Any]:
        """Send the calls and return one answer per call, in order; an answer may be a StoreError.

        Calls to one server go out in one write. `within`: the deadline in ms.
        """
        connections = self._loop_connections()
        if connections.shutdown_hook is None:
            await connections.watch_shutdown()
        batch = RequestBatch(calls, self._topology, self._address, within)
        return await self._run_batch(connections, batch)

    async def everywhere(self, calls: Sequence[Call], *, within: int | None = None) -> dict[Node, list[Any]]:
        """Send the same plain commands to every master. Raises StoreError."""
        connections = self._loop_connections()
        await connections.watch_shutdown()
        limit = self._address.timeout if within is None else within
        if self._topology.stale:
            await self._refresh(connections, time.monotonic() + limit / 1000)
        nodes = self._topology.masters()
        answers = await asyncio.gather(*(self.at(node, calls, within=within) for node in nodes))
        return dict(zip(nodes, answers, strict=True))

    async def at(self, node: Node, calls: Sequence[Call], *, within: int | None = None) -> list[Any]:
        """Send the calls to this server, as `run` does, without regard to their keys."""
        connections = self._loop_connections()
        await connections.watch_shutdown()
        batch = RequestBatch(calls, FixedTopology(self._address, node), self._address, within)
        return await self._run_batch(connections, batch)

    async def _run_batch(self, connections: LoopConnections, batch: RequestBatch) -> list[Any]:
        while not batch.done:
            try:
                if self._topology.stale:
                    await self._refresh(connections, batch.until)
            except StoreError as error:
                batch.on_refresh_failed(error)
            else:
                requests = batch.requests()
                if len(requests) == 1:
                    await self._send(connections, requests[0])
                else:
                    await asyncio.gather(*(self._send(connections, request) for request in requests))
            if not batch.done and (seconds := batch.pause()):
                await asyncio.sleep(seconds)
        return batch.answers

    async def listen(
        self, channel: bytes, on_message: Callable[[bytes], None], on_lost: Callable[[], None]
    ) -> None:
        """Subscribe to a channel: `on_message` is called in this loop for each message.

        `on_lost` is called after each reconnect, because messages may have been missed. Raises StoreError.
        """
        connections = self._loop_connections()
        await connections.watch_shutdown()
        if connections.listener is None:
            connections.listener = AsyncListener(self._address, lambda: self._connect_listener(connections))
        await connections.listener.listen(channel, on_message, on_lost)

    async def unlisten(self, channel: bytes) -> None:
        connections = self._loop_connections()
        if connections.listener is not None:
            connections.listener.unlisten(channel)

    def close(self) -> None:
        """Close the connections, from any thread; a later call opens new ones."""
        self._loops.drop_closed()  # a closed loop is not kept alive
        for loop, connections in self._loops.items():
            _close_in(loop, connections.close)

    async def _send(self, connections: LoopConnections, request: NodeRequest) -> None:
        until = request.until
        try:
            connection = await connections.connection(request.node, request.kind, request.connect_until)
            if request.run_bound:
                request.check_run(connection.server)
            replies = await connection.ask(*request.encoded(), until)
        except StoreError as error:
            request.on_unsent(error)
        except Unsent as unsent:
            request.on_unsent(StoreUnavailable(f"{self._address.at(request.node)}: {unsent}"))
        except Lost as lost:
            request.on_lost(str(lost), lost.replies)
        else:
            request.on_replies(replies)
            if request.drop_connection:
                connections.drop(request.node)

    async def _connect_listener(self, connections: LoopConnections) -> AsyncConnection:
        until = time.monotonic() + self._address.connect_timeout / 1000
        if self._topology.stale:
            await self._refresh(connections, until)
        edition = self._topology.edition
        node = self._topology.node_of(None)
        try:
            if node is None:
                raise StoreUnavailable(f"{self._address.url}: there is no master now")
            connections.listener_node = node
            return await open_async_connection(
                self._address, node, "messages", self._address.connect_timeout / 1000
            )
        except StoreUnavailable:
            self._topology.invalidate(edition, node)
            raise

    async def _refresh(self, connections: LoopConnections, until: float) -> None:
        """Refresh the topology. Raises StoreError."""
        async with connections.refreshing:
            if not self._topology.stale:  # another task has refreshed it
                return
            refresh = self._topology.refresh()
            try:
                query = next(refresh)
                while True:
                    query = refresh.send(await self._query(connections, query, until))
            except StopIteration:
                in_charge = self._topology.node_of(None)
                if (
                    self.mode == "sentinel"
                    and connections.listener is not None
                    and connections.listener_node != in_charge
                ):
                    connections.listener.reconnect("another server is the master now")

    async def _query(self, connections: LoopConnections, query: Query, until: float) -> Any:
        payload = encoded(*query.command)
        limit = min(until, time.monotonic() + self._address.connect_timeout / 1000)
        try:
            if not query.sentinel:
                connection = await connections.connection(query.node, "calls", until)
                return (await connection.ask(payload, 1, limit))[0]
            timeout = max(limit - time.monotonic(), 0.05)
            connection = await open_async_connection(self._address, query.node, "sentinel", timeout)
            try:
                return (await connection.ask(payload, 1, limit))[0]
            finally:
                connection.close()
        except StoreError as error:
            return error
        except (Lost, Unsent) as lost:
            return StoreUnavailable(f"{query.node}: {lost}")

    def _loop_connections(self) -> LoopConnections:
        loop = asyncio.get_running_loop()
        connections = self._loops.get(loop) if self._pid == os.getpid() else None
        return connections or self._enter_loop(loop)

    def _enter_loop(self, loop: asyncio.AbstractEventLoop) -> LoopConnections:
        with self._lock:
            if self._pid != os.getpid():
                _left_to_parent.append(self._loops)
                self._loops = PerLoop(LoopConnections.abandon)
                self._pid = os.getpid()
        return self._loops.put(loop, LoopConnections(self._address, self._on_connect))


#: Connections of the parent that a child keeps and never touches: closing them would send on their sockets.
_left_to_parent: list[Any] = []


def _close_in(loop: asyncio.AbstractEventLoop, close: Callable[[], None]) -> None:
    """Call `close` in its loop, or here if that loop no longer runs."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    try:
        if running is loop or loop.is_closed() or not loop.is_running():
            close()
        else:
            loop.call_soon_threadsafe(close)
    except RuntimeError:  # the loop was just closed, and its sockets with it
        pass
