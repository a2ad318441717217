"""Listeners for messages: one connection for all channels of an event loop, and one per waiting thread.

A message is only a wake-up: a message published while the connection is down is lost, and `on_lost` reports
that there may be such messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Self

from penstock.core.duration import format_ms
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.async_connection import AsyncConnection
from penstock.stores.redis.wire.encoding import encoded
from penstock.stores.redis.wire.faults import ErrorReply, Lost, Step, read
from penstock.stores.redis.wire.request_batch import backoff
from penstock.stores.redis.wire.sync_connection import SyncConnection

__all__ = ["AsyncListener", "SyncListener"]

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


class SyncListener:
    """Listens to one channel for one thread, as a context manager.

    A kept connection stays subscribed to its channel (`channel`), so that a wait for a result needs no round
    trip to subscribe. Raises StoreUnavailable if the connection is lost, as messages may have been missed.
    """

    def __init__(
        self,
        address: Address,
        channel: bytes,
        take: Callable[[float, bool], tuple[SyncConnection, bool]],
        keep: Callable[[SyncConnection], None],
    ) -> None:
        self._address = address
        self.channel = channel
        #: What to do with the connection at the end; "keep" only if no more messages can be on their way.
        self.then: Literal["keep", "unsubscribe", "close"] = "unsubscribe"
        self._take = take  # (until, must it be new) → a connection, and whether it is new
        self._keep = keep  # for the next listener
        self._connection: SyncConnection | None = None

    def __enter__(self) -> Self:
        until = time.monotonic() + self._address.timeout / 1000
        tries = 0
        while True:
            try:
                self._connection = self._subscribed(until)
                return self
            except StoreUnavailable as error:
                pause = backoff(tries, first=0.05, most=2.0)
                if time.monotonic() + pause >= until:
                    gave_up = f"gave up after {format_ms(self._address.timeout)}"
                    raise StoreUnavailable(f"cannot listen: {error}; {gave_up}") from None
            time.sleep(pause)
            tries += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if kind is None and self.then != "close":
            try:
                if self.then == "unsubscribe":
                    connection.channel = None
                    # the next listener skips the answer
                    connection.send(encoded("UNSUBSCRIBE", self.channel))
                self._keep(connection)
                return
            except Lost:
                pass
        connection.close()

    def receive(self, seconds: float) -> bytes | None:
        """Return the next message; None at the timeout."""
        connection = self._connection
        assert connection is not None, "a listener listens inside its `with`"
        period = self._address.timeout / 1000
        until = time.monotonic() + seconds
        received_at = time.monotonic()
        while True:
            now = time.monotonic()
            try:
                message = connection.receive(max(0.0, min(until - now, period)))
                if message is None and now < until and time.monotonic() - received_at > period * 0.9:
                    connection.send(encoded("PING"))  # detects a dead connection
            except Lost as lost:
                self._connection = None
                connection.close()
                raise StoreUnavailable(f"{self._address.url}: {lost}") from None
            if isinstance(message, list) and message[0] == b"message" and message[1] == self.channel:
                received: bytes = message[2]
                return received
            if message is not None:
                received_at = time.monotonic()
            elif time.monotonic() >= until:
                return None
            elif time.monotonic() - received_at > period * 1.9:
                raise StoreUnavailable(f"{self._address.url}: it does not answer PING")

    def _subscribed(self, until: float) -> SyncConnection:
        connection, fresh = self._take(until, False)
        while True:
            try:
                if connection.channel is None:
                    self._subscribe(connection, until)
                else:
                    self._resume(connection)
                self.channel = connection.channel or self.channel
                return connection
            except StoreUnavailable:
                if fresh:
                    raise
            connection, fresh = self._take(until, True)  # the kept one was dead

    def _resume(self, connection: SyncConnection) -> None:
        try:
            connection.discard_pending()
        except Lost as lost:
            connection.close()
            raise StoreUnavailable(f"{self._address.url}: {lost}") from None

    def _subscribe(self, connection: SyncConnection, until: float) -> None:
        reply: Any = None
        try:
            connection.send(encoded("SUBSCRIBE", self.channel))
            while True:
                reply = connection.receive(max(until - time.monotonic(), 0.05))
                if reply is None:
                    raise StoreUnavailable(f"{self._address.url} does not answer")
                if isinstance(reply, ErrorReply):
                    raise read(str(reply), self._address.url).error or StoreError(str(reply))
                if isinstance(reply, list) and reply[:2] == [b"subscribe", self.channel]:
                    connection.channel = self.channel
                    return
        except Lost as lost:
            raise StoreUnavailable(f"{self._address.url}: {lost}") from None
        finally:
            if not (isinstance(reply, list) and reply[0] == b"subscribe"):
                connection.close()
