"""A sync connection, used by one thread at a time, and the pool of idle ones."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import deque
from typing import Any

import hiredis

from penstock.core.errors import StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.async_connection import handshake_error, unsent
from penstock.stores.redis.wire.connect import connect
from penstock.stores.redis.wire.encoding import encoded_all
from penstock.stores.redis.wire.faults import ErrorReply, Lost, Unsent, lost_because
from penstock.stores.redis.wire.handshake import Handshake, Kind, Server

__all__ = ["ConnectionPool", "SyncConnection", "open_sync_connection"]

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
