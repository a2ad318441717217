"""An async connection that many callers share: calls go out as they come, replies find their callers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.connect import dial_async, where
from penstock.stores.redis.wire.encoding import packed_all
from penstock.stores.redis.wire.faults import ErrorReply, Lost, Unsent, lost_because, read
from penstock.stores.redis.wire.handshake import Greeting, Kind, Server

__all__ = ["Link", "not_greeted", "open_link"]

#: How often a busy link looks for calls that are overdue (seconds).
_WATCH = 0.25
_NOTHING: Any = object()


class _Caller:
    """Who waits for the next `count` replies."""

    __slots__ = ("count", "future", "replies", "sent", "until")

    def __init__(self, future: asyncio.Future[list[Any]], count: int, sent: float, until: float) -> None:
        self.future = future
        self.count = count
        self.sent = sent
        self.until = until
        self.replies: list[Any] = []


class Link(asyncio.Protocol):
    """One connection of one event loop, given up when nothing came or went for `patience` seconds."""

    def __init__(self, writer: asyncio.StreamWriter, *, patience: float) -> None:
        self.lost: str = ""
        self.server: Server | None = None
        self.on_lost: Callable[[], None] | None = None
        self.on_message: Callable[[Any], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # kept: a forgotten one closes the transport
        self._transport = writer.transport
        self._patience = patience
        self._callers: deque[_Caller] = deque()
        self._reader = hiredis.Reader(replyError=ErrorReply, notEnoughData=_NOTHING)
        self.heard = time.monotonic()
        self._moved = 0.0  # when we last saw that bytes of ours went out
        self._left = 0  # how many had not, then
        self._watch: asyncio.TimerHandle | None = None
        self._transport.set_protocol(self)

    @property
    def alive(self) -> bool:
        return not self.lost and not self._transport.is_closing()

    def ask(self, payload: bytes, count: int, until: float) -> asyncio.Future[list[Any]]:
        """The next `count` replies. The future fails with Lost; raises Unsent if nothing was written."""
        if not self.alive:
            raise Unsent(self.lost or "the connection is closed")
        now = time.monotonic()
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        caller = _Caller(future, count, now, until)
        self._callers.append(caller)
        self._transport.write(payload)
        if self._watch is None:
            self._watch = self._loop.call_later(_WATCH, self._look_after)
        if until - now < 4 * _WATCH:
            timer = self._loop.call_later(max(until - now, 0), self._overdue, caller)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def tell(self, payload: bytes) -> None:
        """Say something that is answered by messages, if at all."""
        if self.alive:
            self._transport.write(payload)

    def close(self, why: str = "it was closed") -> None:
        """Now; who still waits is told."""
        if not self.lost:
            self._gone(why)
        self._transport.abort()

    def let_go(self) -> None:
        """Its loop is closed: nobody can be told. The socket is closed with the last reference to it."""
        self.lost = "its event loop is closed"
        with contextlib.suppress(RuntimeError):
            self._transport.abort()

    # ── what the loop says ──

    def data_received(self, data: bytes) -> None:
        self.heard = time.monotonic()
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
            self.close(f"what it says is not Redis's protocol ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost:
            self._gone(lost_because(exc))

    def _gone(self, why: str) -> None:
        self.lost = why
        if self._watch is not None:
            self._watch.cancel()
        callers, self._callers = self._callers, deque()
        for caller in callers:
            if not caller.future.done():
                caller.future.set_exception(Lost(why, caller.replies))
        if self.on_lost is not None:
            self.on_lost()

    def _look_after(self) -> None:
        """Now and then while somebody waits: is anybody overdue, does anything still come or go?"""
        self._watch = None
        if not self._callers:
            return
        now = time.monotonic()
        left = self._transport.get_write_buffer_size() + unsent(self._transport.get_extra_info("socket"))
        if left != self._left:
            self._left, self._moved = left, now
        silent = now - max(self.heard, self._moved, self._callers[0].sent)
        if silent >= self._patience:
            self.close(f"it has not answered for {silent:.1f} s")
            return
        for caller in self._callers:
            if caller.until <= now:
                self._overdue(caller)
        self._watch = self._loop.call_later(_WATCH, self._look_after)

    def _overdue(self, caller: _Caller) -> None:
        """Its time is up; but while bytes move, its own or those of who was first, it is only late."""
        now = time.monotonic()
        if now - max(self.heard, self._moved) < min(self._patience, caller.until - caller.sent):
            return
        if not caller.future.done():
            waited = now - caller.sent
            caller.future.set_exception(Lost(f"it has not answered within {waited:.2g} s", caller.replies))


def unsent(sock: Any) -> int:
    """How many bytes the system has taken, and the other end has not; 0 where it does not say."""
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError, AttributeError):
        return 0


async def open_link(address: Address, node: Node, kind: Kind, timeout: float) -> Link:
    """A link whose server has been greeted. Raises StoreError."""
    started = time.monotonic()
    patience = address.timeout / 2000
    if kind == "waits":
        patience += address.wait_timeout / 1000
    writer, said = await dial_async(address, node, kind, timeout)
    link = Link(writer, patience=max(patience, 0.1))
    try:
        greeting = Greeting(address, node, kind, said)
        payload = packed_all(greeting.commands)
        until = max(started + timeout, time.monotonic() + 0.1)
        replies = await link.ask(payload, len(greeting.commands), until)
        link.server = greeting.read(replies)
    except Lost as lost:
        raise not_greeted(lost, address, node, kind) from None
    finally:
        if link.server is None:
            link.close()
    return link


def not_greeted(lost: Lost, address: Address, node: Node, kind: Kind) -> StoreError:
    """A connection that broke before we knew who is there: its last words say why, if there were any."""
    there = where(address, node, kind)
    for reply in lost.replies:
        if isinstance(reply, ErrorReply):
            error = read(str(reply), there).error
            if error is not None:
                return error
    if address.tls or kind == "sentinel" or node.port == 0:
        return StoreUnavailable(f"{there}: {lost}")
    return StoreUnavailable(f"{there}: {lost} (if that port speaks TLS, use rediss://)")
