"""An async connection that many callers share: requests go out at once, replies are matched to callers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ssl
import sys
import termios
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.connect import Abortable, connect_async, settings, where
from penstock.stores.redis.wire.encoding import encoded_all
from penstock.stores.redis.wire.faults import ErrorReply, Lost, Unsent, cannot_connect, lost_because, read
from penstock.stores.redis.wire.handshake import Handshake, Kind, Server

__all__ = ["AsyncConnection", "handshake_error", "open_async_connection"]

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


def handshake_error(
    lost: Lost | Unsent, replies: list[Any], address: Address, node: Node, kind: Kind
) -> StoreError:
    """The error for a connection that broke during its handshake: the server's error reply, if any."""
    there = where(address, node, kind)
    for reply in replies:
        if isinstance(reply, ErrorReply):
            error = read(str(reply), there).error
            if error is not None:
                return error
    tls, options = settings(address, kind)
    if isinstance(lost.cause, ssl.SSLError):
        return cannot_connect(lost.cause, there, waited=0)
    if node.port == 0 or (kind == "sentinel" and not tls):
        return StoreUnavailable(f"{there}: {lost}")
    if not tls:
        return StoreUnavailable(f"{there}: {lost} (if that port speaks TLS, use rediss://)")
    if options.get("ssl_certfile"):
        return StoreUnavailable(f"{there}: {lost}")
    hint = "if it requires a client certificate, give ?ssl_certfile= and ssl_keyfile="
    return StoreUnavailable(f"{there}: {lost} ({hint})")
