"""Sync connections, each used by one thread at a time; the pool of idle ones; a waiting thread's listener."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self

import hiredis

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.formats import format_ms
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.async_connection import unsent
from penstock.stores.redis.wire.calls import backoff, encoded, encoded_all
from penstock.stores.redis.wire.connect import Handshake, Kind, Server, connect, handshake_error
from penstock.stores.redis.wire.faults import ErrorReply, Lost, Unsent, lost_because, read

_NOTHING: Any = object()
_CHUNK = 65_536
_PIECE = 262_144
#: The socket has no room or no bytes at this moment.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
#: How long to wait until a small command fits into the send buffer (seconds).
_SEND_TIMEOUT = 5.0


class SyncConnection:
    """A connection of the pool.

    Its socket does not block, and `poll` waits: 4 system calls per request; a socket with a timeout needs 7.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.server: Server | None = None
        #: The channel that it is subscribed to.
        self.channel: bytes | None = None
        self._sock = sock
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._reader = hiredis.Reader(replyError=ErrorReply, notEnoughData=_NOTHING)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def ask(self, payload: bytes, count: int, until: float, patience: float = 1e9) -> list[Any]:
        """Send the payload and return the next `count` replies. Raises Lost; Unsent if nothing was written.

        `until` is the deadline of a call during which no bytes move; while bytes move there is none.
        """
        stall = max(min(until - time.monotonic(), patience), 0.05)
        if self._poll.poll(0):  # readable before anything was sent
            self._check_open()
        try:
            written = self._sock.send(payload if len(payload) <= _PIECE else memoryview(payload)[:_PIECE])
        except _NOT_NOW:
            written = 0  # as far as we know: TLS may have written a part of it
        except OSError as error:
            raise Unsent(lost_because(error), cause=error) from None
        if written < len(payload):
            self._send_rest(memoryview(payload)[written:], stall)
            until = max(until, time.monotonic() + stall)
        replies: list[Any] = []
        while len(replies) < count:
            replies.append(self._reply(until, stall, replies))
        return replies

    def _check_open(self) -> None:
        """Raise Unsent if the server has closed the connection, or has sent what nobody asked for.

        Bytes of TLS alone, as the session tickets that follow its handshake, are read.
        """
        replies: list[Any] = []
        try:
            self._read(0, [])
            while (reply := self._gets([])) is not _NOTHING:
                replies.append(reply)
        except TimeoutError:
            return
        except Lost as lost:
            raise Unsent(str(lost), cause=lost.cause) from None
        raise Unsent("it sent a reply that was not asked for", replies)

    def _send_rest(self, payload: memoryview, stall: float) -> None:
        """Send the rest of a payload, each piece within `stall` seconds. Raises Lost."""
        writable = select.poll()
        writable.register(self._sock, select.POLLOUT)
        try:
            while payload:
                try:
                    payload = payload[self._sock.send(payload[:_PIECE]) :]
                except _NOT_NOW as error:
                    waits_for = self._poll if isinstance(error, ssl.SSLWantReadError) else writable
                    if not waits_for.poll(1000 * stall):
                        raise TimeoutError(f"it has taken no byte for {stall:.1f} s") from None
        except OSError as error:
            raise Lost(lost_because(error), cause=error) from None

    def send(self, payload: bytes) -> None:
        """Send without expecting replies; messages may follow. Raises Lost."""
        self._send_rest(memoryview(payload), _SEND_TIMEOUT)

    def receive(self, seconds: float) -> Any:
        """The next message of the server; None at the timeout. Raises Lost."""
        until = time.monotonic() + seconds
        while (reply := self._gets([])) is _NOTHING:
            try:
                self._read(max(until - time.monotonic(), 0.001), [])
            except TimeoutError:
                if time.monotonic() >= until:
                    return None
        return reply

    def discard_pending(self) -> None:
        """Discard messages that arrived without a listener. Raises Lost."""
        while True:
            while self._gets([]) is not _NOTHING:
                pass
            try:
                self._read(0, [])
            except TimeoutError:
                return

    def close(self) -> None:
        try:
            self._sock.close()
        except OSError:  # pragma: no cover - it is closed anyway
            pass

    def _reply(self, until: float, stall: float, sofar: list[Any]) -> Any:
        left = 0
        while (reply := self._gets(sofar)) is _NOTHING:
            wait = min(until - time.monotonic(), stall)
            try:
                self._read(max(wait, 0.001), sofar)
            except TimeoutError:
                before, left = left, unsent(self._sock)
                if left in (0, before):
                    raise Lost(f"it has not answered for {max(wait, 0):.1f} s", sofar) from None
            until = max(until, time.monotonic() + stall)  # bytes moved
        return reply

    def _gets(self, sofar: list[Any]) -> Any:
        try:
            return self._reader.gets()
        except hiredis.ProtocolError as error:
            raise Lost(f"its reply is not in Redis's protocol ({error})", sofar) from None

    def _read(self, timeout: float, sofar: list[Any]) -> None:
        """Feed the reader with the next bytes. Raises Lost.

        Raises TimeoutError if none come within `timeout` seconds.
        """
        data = None
        while data is None:
            decrypted = self._tls is not None and self._tls.pending()
            if not decrypted and not self._poll.poll(1000 * timeout):
                raise TimeoutError
            try:
                data = self._sock.recv(_CHUNK)
            except _NOT_NOW:  # TLS has read a part of a record, or one without data
                continue
            except OSError as error:
                raise Lost(lost_because(error), sofar, error) from None
        if not data:
            raise Lost(lost_because(None), sofar)
        self._reader.feed(data)


def open_sync_connection(address: Address, node: Node, kind: Kind, timeout: float) -> SyncConnection:
    """Connect and shake hands. Raises StoreError."""
    until = time.monotonic() + timeout
    sock, said = connect(address, node, kind, timeout)
    connection = SyncConnection(sock)
    try:
        handshake = Handshake(address, node, kind, said)
        payload = encoded_all(handshake.commands)
        replies = connection.ask(payload, len(handshake.commands), max(until, time.monotonic() + 0.1))
        connection.server = handshake.read(replies)
    except (Lost, Unsent) as lost:
        raise handshake_error(lost, lost.replies, address, node, kind) from None
    finally:
        if connection.server is None:
            connection.close()
    return connection


class ConnectionPool:
    """Idle connections, the last used first; at most `size` are in use at once."""

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._closed = False
        #: One entry per connection that may still be used: a deque costs a tenth of a semaphore.
        self._permits = deque([None] * size)
        self._waiting = 0
        self._permit_came = threading.Condition()
        self._idle: dict[tuple[Node, Kind], deque[SyncConnection]] = {}

    def enter(self, until: float) -> None:
        """Wait until a connection may be used. Raises StoreUnavailable."""
        if self._has_permit():
            return
        with self._permit_came:
            self._waiting += 1  # before the next look: `leave` puts its permit back and then looks here
            try:
                came = self._permit_came.wait_for(self._has_permit, max(until - time.monotonic(), 0))
            finally:
                self._waiting -= 1
        if not came:
            raise StoreUnavailable(f"all {self._size} connections of this store are in use by other threads")

    def leave(self) -> None:
        self._permits.append(None)
        if self._waiting:
            with self._permit_came:
                self._permit_came.notify()

    def _has_permit(self) -> bool:
        try:
            self._permits.pop()
        except IndexError:
            return False
        return True

    def take(self, node: Node, kind: Kind) -> SyncConnection | None:
        try:
            return self._idle[node, kind].pop()
        except (KeyError, IndexError):
            return None

    def put(self, node: Node, kind: Kind, connection: SyncConnection) -> None:
        if self._closed:
            connection.close()
            return
        self._idle.setdefault((node, kind), deque()).append(connection)

    def drop(self, node: Node) -> None:
        """Close the idle connections to this server."""
        for key in list(self._idle):
            if key[0] == node:
                self._close(key)

    def close(self) -> None:
        """Close the pool permanently; connections in use are closed when they are put back."""
        self._closed = True
        for key in list(self._idle):
            self._close(key)

    def _close(self, key: tuple[Node, Kind]) -> None:
        connections = self._idle.pop(key, deque())
        while connections:
            connections.pop().close()


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
