"""Async connections: one that many callers share, and the listener of an event loop for messages.

Requests go out at once, and replies are matched to callers. A message is only a wake-up: one that is
published while the connection is down is lost, and `on_lost` reports that there may be such messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

import hiredis

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.formats import format_ms
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.calls import backoff, encoded, encoded_all
from penstock.stores.redis.wire.connect import (
    Abortable,
    Handshake,
    Kind,
    Server,
    connect_async,
    handshake_error,
)
from penstock.stores.redis.wire.faults import ErrorReply, Lost, Step, Unsent, lost_because, read

#: How often a busy connection checks for overdue calls (seconds).
_WATCH = 0.25
_NOTHING: Any = object()


def _keep_freed_memory() -> None:
    """Make glibc keep up to 8 MiB of freed memory, and use it for the next buffers and replies.

    It does so once a block of half that size has been freed. Measured per reply, in CPU: of 20 bytes by
    asyncio's own loop, which reads into 256 KiB, 27 µs instead of 48; of 100 KB, 80 µs instead of 220; of
    1 MB, 1.1 ms instead of 3.5.
    """
    bytearray(4 << 20)


_keep_freed_memory()


class _Caller:
    """A caller that waits for the next `count` replies."""

    __slots__ = ("count", "future", "replies", "sent", "until")

    def __init__(self, future: asyncio.Future[list[Any]], count: int, sent: float, until: float) -> None:
        self.future = future
        self.count = count
        self.sent = sent
        self.until = until
        self.replies: list[Any] = []


class AsyncConnection(asyncio.Protocol, Abortable):
    """A connection of one event loop; it is closed if no byte moved for `patience` seconds."""

    def __init__(self, *, patience: float) -> None:
        self.lost: str = ""
        self.server: Server | None = None
        self.on_lost: Callable[[], None] | None = None
        self.on_message: Callable[[Any], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport  # from `connection_made` on
        self._patience = patience
        self._callers: deque[_Caller] = deque()
        self._reader = hiredis.Reader(replyError=ErrorReply, notEnoughData=_NOTHING)
        self.last_received = time.monotonic()
        self._moved = 0.0  # when bytes of ours last went out
        self._left = 0  # how many were left to send then
        self._watch: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        return not self.lost and not self._transport.is_closing()

    def ask(self, payload: bytes, count: int, until: float) -> asyncio.Future[list[Any]]:
        """Send the payload; the future gets the next `count` replies, or Lost.

        Raises Unsent if nothing was written.
        """
        if not self.alive:
            raise Unsent(self.lost or lost_because(None))
        now = time.monotonic()
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        caller = _Caller(future, count, now, until)
        self._callers.append(caller)
        self._transport.write(payload)
        if self._watch is None:
            self._watch = self._loop.call_later(_WATCH, self._check_callers)
        if until - now < 4 * _WATCH:
            timer = self._loop.call_later(max(until - now, 0), self._overdue, caller)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def send(self, payload: bytes) -> None:
        """Send without expecting replies; messages may follow."""
        if self.alive:
            self._transport.write(payload)

    def close(self, why: str = "it was closed") -> None:
        """Close the connection now; waiting callers get Lost."""
        if not self.lost:
            self._fail_callers(why)
        self._transport.abort()

    def abandon(self) -> None:
        """Give up a connection whose loop is closed. The socket is closed with the last reference to it."""
        self.lost = "its event loop is closed"
        with contextlib.suppress(RuntimeError):
            self._transport.abort()

    # ── callbacks of the loop ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.last_received = time.monotonic()
        reader, callers = self._reader, self._callers
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOTHING:
                if not callers:
                    if self.on_message is not None:
                        self.on_message(reply)
                    continue
                caller = callers[0]
                caller.replies.append(reply)
                if len(caller.replies) == caller.count:
                    callers.popleft()
                    if not caller.future.done():
                        caller.future.set_result(caller.replies)
        except hiredis.ProtocolError as error:
            self.close(f"its reply is not in Redis's protocol ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost:
            self._fail_callers(lost_because(exc), exc)

    def _fail_callers(self, why: str, cause: Exception | None = None) -> None:
        self.lost = why
        if self._watch is not None:
            self._watch.cancel()
        callers, self._callers = self._callers, deque()
        for caller in callers:
            if not caller.future.done():
                caller.future.set_exception(Lost(why, caller.replies, cause))
        if self.on_lost is not None:
            self.on_lost()

    def _check_callers(self) -> None:
        """Check, at an interval while there are callers, for overdue calls and for a dead connection."""
        self._watch = None
        if not self._callers:
            return
        now = time.monotonic()
        left = self._transport.get_write_buffer_size() + unsent(self._transport.get_extra_info("socket"))
        if left != self._left:
            self._left, self._moved = left, now
        silent = now - max(self.last_received, self._moved, self._callers[0].sent)
        if silent >= self._patience:
            self.close(f"it has not answered for {silent:.1f} s")
            return
        for caller in self._callers:
            if caller.until <= now:
                self._overdue(caller)
        self._watch = self._loop.call_later(_WATCH, self._check_callers)

    def _overdue(self, caller: _Caller) -> None:
        """Fail a call whose time is up, unless bytes still move in either direction."""
        now = time.monotonic()
        if now - max(self.last_received, self._moved) < min(self._patience, caller.until - caller.sent):
            return
        if not caller.future.done():
            waited = now - caller.sent
            caller.future.set_exception(Lost(f"it has not answered within {waited:.2g} s", caller.replies))


def unsent(sock: Any) -> int:
    """Return the number of bytes in the system's send buffer; 0 if unknown."""
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError, AttributeError):
        return 0


async def open_async_connection(address: Address, node: Node, kind: Kind, timeout: float) -> AsyncConnection:
    """Connect and shake hands. Raises StoreError."""
    started = time.monotonic()
    patience = address.timeout / 2000
    if kind == "waits":
        patience += address.wait_timeout / 1000
    unasked: list[Any] = []

    def protocol() -> AsyncConnection:
        made = AsyncConnection(patience=max(patience, 0.1))
        made.on_message = unasked.append  # an error reply, if the server refuses the connection
        return made

    connection, said = await connect_async(address, node, kind, timeout, protocol)
    try:
        handshake = Handshake(address, node, kind, said)
        payload = encoded_all(handshake.commands)
        until = max(started + timeout, time.monotonic() + 0.1)
        replies = await connection.ask(payload, len(handshake.commands), until)
        connection.server = handshake.read(replies)
    except (Lost, Unsent) as lost:
        raise handshake_error(lost, [*unasked, *lost.replies], address, node, kind) from None
    finally:
        connection.on_message = None
        if connection.server is None:
            connection.close()
    return connection


OnMessage = Callable[[bytes], None]


class _Channel:
    """The listener of one channel."""

    __slots__ = ("on_lost", "on_message", "ready")

    def __init__(
        self, on_message: OnMessage, on_lost: Callable[[], None], ready: asyncio.Future[None]
    ) -> None:
        self.on_message = on_message
        self.on_lost = on_lost
        self.ready = ready


class AsyncListener:
    """Listens for one event loop, on one connection that is opened with the first channel and reconnects."""

    def __init__(self, address: Address, connect: Callable[[], Awaitable[AsyncConnection]]) -> None:
        self._address = address
        self._connect = connect
        self._channels: dict[bytes, _Channel] = {}
        self._connection: AsyncConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._trouble: StoreError | None = None
        self._tries = 0

    async def listen(self, channel: bytes, on_message: OnMessage, on_lost: Callable[[], None]) -> None:
        """Subscribe; from then on, `on_lost` is called if messages may be missed. Raises StoreError."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ready.add_done_callback(_ignore_exception)
        mine = self._channels[channel] = _Channel(on_message, on_lost, ready)
        if self._connection is not None and self._connection.alive:
            self._connection.send(encoded("SUBSCRIBE", channel))
        elif self._task is None or self._task.done():
            self._task = asyncio.create_task(self._stay_connected())
        try:
            async with asyncio.timeout(self._address.timeout / 1000):
                await ready
        except TimeoutError:
            trouble = self._trouble or StoreUnavailable(f"{self._address.url} does not answer")
            gave_up = f"gave up after {format_ms(self._address.timeout)}"
            raise StoreUnavailable(f"cannot listen: {trouble}; {gave_up}") from None
        finally:
            if not ready.done() or ready.cancelled() or ready.exception() is not None:
                self._forget(channel, mine)

    def unlisten(self, channel: bytes) -> None:
        mine = self._channels.get(channel)
        if mine is not None:
            self._forget(channel, mine)

    def reconnect(self, why: str) -> None:
        """Reconnect, because messages are published on another server now."""
        if self._connection is not None:
            self._connection.close(why)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._refuse(StoreUnavailable("the store was closed"))
        self._channels.clear()
        if self._connection is not None:
            self._connection.close("the store was closed")

    def abandon(self) -> None:
        """Give up a connection whose loop is closed."""
        if self._connection is not None:
            self._connection.abandon()

    def _forget(self, channel: bytes, mine: _Channel) -> None:
        if self._channels.get(channel) is mine:
            del self._channels[channel]
            if self._connection is not None and self._connection.alive:
                self._connection.send(encoded("UNSUBSCRIBE", channel))

    async def _stay_connected(self) -> None:
        """Stay connected while there are channels."""
        while self._channels:
            try:
                connection = self._connection = await self._connect()
            except StoreError as error:
                self._trouble = error
                if not isinstance(error, StoreUnavailable):
                    self._refuse(error)
            else:
                await self._serve(connection)
            await asyncio.sleep(backoff(self._tries, first=0.05, most=2.0))
            self._tries += 1

    async def _serve(self, connection: AsyncConnection) -> None:
        """Serve this connection until it is lost; PING detects a dead one."""
        gone = asyncio.Event()
        connection.on_lost = gone.set
        connection.on_message = self._message
        if self._channels:
            connection.send(encoded("SUBSCRIBE", *self._channels))
        period = self._address.timeout / 1000
        # in a Cluster nothing else would detect that this node is dead
        calm = period * (0.9 if self._address.mode == "cluster" else 1.9)
        while connection.alive:
            try:
                async with asyncio.timeout(period / 2):
                    await gone.wait()
            except TimeoutError:
                silent = time.monotonic() - connection.last_received
                if silent > calm + period / 2:
                    connection.close(f"it has sent nothing for {silent:.1f} s")
                elif silent > calm:
                    connection.send(encoded("PING"))
        self._trouble = StoreUnavailable(f"{self._address.url}: {connection.lost}")

    def _message(self, message: Any) -> None:
        if isinstance(message, ErrorReply):
            meaning = read(str(message), self._address.url)
            if meaning.error is not None and meaning.step is Step.FINAL:
                self._refuse(meaning.error)
            elif self._connection is not None:
                self._connection.close(str(message))
            return
        if not isinstance(message, list) or len(message) != 3:
            return  # a PONG
        channel = self._channels.get(message[1])
        if channel is None:
            return
        if message[0] == b"message":
            channel.on_message(message[2])
        elif message[0] == b"subscribe":
            self._tries = 0
            if not channel.ready.done():
                channel.ready.set_result(None)
            else:
                channel.on_lost()

    def _refuse(self, error: StoreError) -> None:
        for channel in list(self._channels.values()):
            if not channel.ready.done():
                channel.ready.set_exception(error)


def _ignore_exception(ready: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved, so that the loop does not log it."""
    if not ready.cancelled():
        ready.exception()
