"""Listening for messages: one connection for all channels of an event loop (`Ear`), one per waiting thread.

A message is a wake-up call, never the only news of something: what is published while nobody is connected is
not heard, and `lost` says when that may have been so.
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
from penstock.stores.redis.wire.async_connection import Link
from penstock.stores.redis.wire.encoding import packed
from penstock.stores.redis.wire.faults import ErrorReply, Lost, Step, read
from penstock.stores.redis.wire.request_batch import backoff
from penstock.stores.redis.wire.sync_connection import Line

__all__ = ["Ear", "SyncListener"]

Hear = Callable[[bytes], None]


class _Channel:
    """Who listens to one channel."""

    __slots__ = ("hear", "lost", "ready")

    def __init__(self, hear: Hear, lost: Callable[[], None], ready: asyncio.Future[None]) -> None:
        self.hear = hear
        self.lost = lost
        self.ready = ready


class Ear:
    """The listening connection of one event loop; it comes to be with the first channel, and comes back."""

    def __init__(self, address: Address, connect: Callable[[], Awaitable[Link]]) -> None:
        self._address = address
        self._connect = connect
        self._channels: dict[bytes, _Channel] = {}
        self._link: Link | None = None
        self._life: asyncio.Task[None] | None = None
        self._trouble: StoreError | None = None
        self._tries = 0

    async def listen(self, channel: bytes, hear: Hear, lost: Callable[[], None]) -> None:
        """From its return on nothing is missed without `lost` being called. Raises StoreError."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ready.add_done_callback(_seen)
        mine = self._channels[channel] = _Channel(hear, lost, ready)
        if self._link is not None and self._link.alive:
            self._link.tell(packed("SUBSCRIBE", channel))
        elif self._life is None or self._life.done():
            self._life = asyncio.create_task(self._live())
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

    def leave(self, why: str) -> None:
        """Connect anew: what is to be heard is said elsewhere by now."""
        if self._link is not None:
            self._link.close(why)

    def close(self) -> None:
        if self._life is not None:
            self._life.cancel()
        self._refuse(StoreUnavailable("the store was closed"))
        self._channels.clear()
        if self._link is not None:
            self._link.close("the store was closed")

    def let_go(self) -> None:
        """Its loop is closed."""
        if self._link is not None:
            self._link.let_go()

    def _forget(self, channel: bytes, mine: _Channel) -> None:
        if self._channels.get(channel) is mine:
            del self._channels[channel]
            if self._link is not None and self._link.alive:
                self._link.tell(packed("UNSUBSCRIBE", channel))

    async def _live(self) -> None:
        """Be connected, for ever, while anybody listens."""
        while self._channels:
            try:
                link = self._link = await self._connect()
            except StoreError as error:
                self._trouble = error
                if not isinstance(error, StoreUnavailable):
                    self._refuse(error)
            else:
                await self._stay(link)
            await asyncio.sleep(backoff(self._tries, first=0.05, most=2.0))
            self._tries += 1

    async def _stay(self, link: Link) -> None:
        """Until the link is lost; now and then make sure that it is not silent because it is dead."""
        gone = asyncio.Event()
        link.on_lost = gone.set
        link.on_message = self._message
        if self._channels:
            link.tell(packed("SUBSCRIBE", *self._channels))
        period = self._address.timeout / 1000
        # of a Cluster any node will do, and nothing else would tell that this one is dead
        calm = period * (0.9 if self._address.mode == "cluster" else 1.9)
        while link.alive:
            try:
                async with asyncio.timeout(period / 2):
                    await gone.wait()
            except TimeoutError:
                silent = time.monotonic() - link.heard
                if silent > calm + period / 2:
                    link.close(f"nothing was heard for {silent:.1f} s")
                elif silent > calm:
                    link.tell(packed("PING"))
        self._trouble = StoreUnavailable(f"{self._address.url}: {link.lost}")

    def _message(self, message: Any) -> None:
        if isinstance(message, ErrorReply):
            meaning = read(str(message), self._address.url)
            if meaning.error is not None and meaning.step is Step.FINAL:
                self._refuse(meaning.error)
            elif self._link is not None:
                self._link.close(str(message))
            return
        if not isinstance(message, list) or len(message) != 3:
            return  # a PONG
        channel = self._channels.get(message[1])
        if channel is None:
            return
        if message[0] == b"message":
            channel.hear(message[2])
        elif message[0] == b"subscribe":
            self._tries = 0
            if not channel.ready.done():
                channel.ready.set_result(None)
            else:
                channel.lost()

    def _refuse(self, error: StoreError) -> None:
        for channel in list(self._channels.values()):
            if not channel.ready.done():
                channel.ready.set_exception(error)


def _seen(ready: asyncio.Future[None]) -> None:
    """A refusal that nobody waits for any more is no news to the loop."""
    if not ready.cancelled():
        ready.exception()


class SyncListener:
    """One channel, heard by one thread; `with` it.

    A kept line stays subscribed to the channel that it has, and `channel` says which: a wait for a result
    needs no round trips for that. Raises StoreUnavailable when the connection is lost: something may have
    been missed.
    """

    def __init__(
        self,
        address: Address,
        channel: bytes,
        take: Callable[[float, bool], tuple[Line, bool]],
        keep: Callable[[Line], None],
    ) -> None:
        self._address = address
        self.channel = channel
        #: What becomes of the line: "keep" it as it is where nothing more can be on its way.
        self.then: Literal["keep", "unsubscribe", "close"] = "unsubscribe"
        self._take = take  # until when; must it be a fresh one → a line, and whether it is
        self._keep = keep  # for the next listener
        self._line: Line | None = None

    def __enter__(self) -> Self:
        until = time.monotonic() + self._address.timeout / 1000
        tries = 0
        while True:
            try:
                self._line = self._subscribed(until)
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
        line, self._line = self._line, None
        if line is None:
            return
        if kind is None and self.then != "close":
            try:
                if self.then == "unsubscribe":
                    line.channel = None
                    # what this is answered with is skipped by who listens next
                    line.tell(packed("UNSUBSCRIBE", self.channel))
                self._keep(line)
                return
            except Lost:
                pass
        line.close()

    def hear(self, seconds: float) -> bytes | None:
        """The next message, or None when the time is up."""
        line = self._line
        assert line is not None, "a listener listens inside its `with`"
        period = self._address.timeout / 1000
        until = time.monotonic() + seconds
        heard_at = time.monotonic()
        while True:
            now = time.monotonic()
            try:
                message = line.hear(max(0.0, min(until - now, period)))
                if message is None and now < until and time.monotonic() - heard_at > period * 0.9:
                    line.tell(packed("PING"))  # is it silent because it is dead?
            except Lost as lost:
                self._line = None
                line.close()
                raise StoreUnavailable(f"{self._address.url}: {lost}") from None
            if isinstance(message, list) and message[0] == b"message" and message[1] == self.channel:
                heard: bytes = message[2]
                return heard
            if message is not None:
                heard_at = time.monotonic()
            elif time.monotonic() >= until:
                return None
            elif time.monotonic() - heard_at > period * 1.9:
                raise StoreUnavailable(f"{self._address.url}: nothing was heard of it, not even a PONG")

    def _subscribed(self, until: float) -> Line:
        line, fresh = self._take(until, False)
        while True:
            try:
                if line.channel is None:
                    self._subscribe(line, until)
                else:
                    self._resume(line)
                self.channel = line.channel or self.channel
                return line
            except StoreUnavailable:
                if fresh:
                    raise
            line, fresh = self._take(until, True)  # the kept one had died

    def _resume(self, line: Line) -> None:
        try:
            line.catch_up()
        except Lost as lost:
            line.close()
            raise StoreUnavailable(f"{self._address.url}: {lost}") from None

    def _subscribe(self, line: Line, until: float) -> None:
        reply: Any = None
        try:
            line.tell(packed("SUBSCRIBE", self.channel))
            while True:
                reply = line.hear(max(until - time.monotonic(), 0.05))
                if reply is None:
                    raise StoreUnavailable(f"{self._address.url} does not answer")
                if isinstance(reply, ErrorReply):
                    raise read(str(reply), self._address.url).error or StoreError(str(reply))
                if isinstance(reply, list) and reply[:2] == [b"subscribe", self.channel]:
                    line.channel = self.channel
                    return
        except Lost as lost:
            raise StoreUnavailable(f"{self._address.url}: {lost}") from None
        finally:
            if not (isinstance(reply, list) and reply[0] == b"subscribe"):
                line.close()
