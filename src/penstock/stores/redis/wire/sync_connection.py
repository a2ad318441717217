"""A sync connection, used by one thread at a time, and the pool that they wait in between calls."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from typing import Any

import hiredis

from penstock.core.errors import StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.async_connection import not_greeted, unsent
from penstock.stores.redis.wire.connect import dial
from penstock.stores.redis.wire.encoding import packed_all
from penstock.stores.redis.wire.faults import ErrorReply, Lost, Unsent, lost_because
from penstock.stores.redis.wire.handshake import Greeting, Kind, Server

__all__ = ["ConnectionPool", "Line", "open_line"]

_NOTHING: Any = object()
_CHUNK = 65_536
_PIECE = 262_144


class Line:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.server: Server | None = None
        #: What it is subscribed to, if anything.
        self.channel: bytes | None = None
        self._sock = sock
        self._reader = hiredis.Reader(replyError=ErrorReply, notEnoughData=_NOTHING)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def ask(self, payload: bytes, count: int, until: float, patience: float = 1e9) -> list[Any]:
        """The next `count` replies. Raises Lost, or Unsent if nothing was written.

        While bytes move it takes as long as it takes; `until` ends what stands still.
        """
        stall = max(min(until - time.monotonic(), patience), 0.05)
        if self._poll.poll(0):  # nobody has asked anything: it has hung up
            raise Unsent("it closed the connection")
        try:
            self._sock.settimeout(max(until - time.monotonic(), 0.001))
            written = self._sock.send(payload)
        except OSError as error:
            raise Unsent(lost_because(error)) from None
        try:
            if written < len(payload):
                self._rest(memoryview(payload)[written:], stall)
                until = max(until, time.monotonic() + stall)
        except OSError as error:
            raise Lost(lost_because(error)) from None
        replies: list[Any] = []
        while len(replies) < count:
            replies.append(self._reply(until, stall, replies))
        return replies

    def _rest(self, payload: memoryview, stall: float) -> None:
        """Write what one call did not take, each piece within `stall` seconds."""
        self._sock.settimeout(stall)
        while payload:
            payload = payload[self._sock.send(payload[:_PIECE]) :]

    def tell(self, payload: bytes) -> None:
        """Say something that is answered by messages, if at all. Raises Lost."""
        try:
            self._sock.sendall(payload)
        except OSError as error:
            raise Lost(lost_because(error)) from None

    def hear(self, seconds: float) -> Any:
        """The next thing that the server says by itself, or None when the time is up. Raises Lost."""
        until = time.monotonic() + seconds
        while (reply := self._gets([])) is _NOTHING:
            try:
                self._read(max(until - time.monotonic(), 0.001), [])
            except TimeoutError:
                if time.monotonic() >= until:
                    return None
        return reply

    def catch_up(self) -> None:
        """Drop what came while nobody listened. Raises Lost."""
        while True:
            while self._gets([]) is not _NOTHING:
                pass
            if not self._poll.poll(0):
                return
            try:
                self._read(0.001, [])
            except TimeoutError:  # TLS has read what was no data
                return

    def close(self) -> None:
        try:
            self._sock.close()
        except OSError:  # pragma: no cover - it is gone all the same
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
            until = max(until, time.monotonic() + stall)  # something came, or went
        return reply

    def _gets(self, sofar: list[Any]) -> Any:
        try:
            return self._reader.gets()
        except hiredis.ProtocolError as error:
            raise Lost(f"what it says is not Redis's protocol ({error})", sofar) from None

    def _read(self, timeout: float, sofar: list[Any]) -> None:
        try:
            self._sock.settimeout(timeout)
            data = self._sock.recv(_CHUNK)
        except TimeoutError:
            raise
        except OSError as error:
            raise Lost(lost_because(error), sofar) from None
        if not data:
            raise Lost(lost_because(None), sofar)
        self._reader.feed(data)


def open_line(address: Address, node: Node, kind: Kind, timeout: float) -> Line:
    """A line whose server has been greeted. Raises StoreError."""
    until = time.monotonic() + timeout
    sock, said = dial(address, node, kind, timeout)
    line = Line(sock)
    try:
        greeting = Greeting(address, node, kind, said)
        payload = packed_all(greeting.commands)
        replies = line.ask(payload, len(greeting.commands), max(until, time.monotonic() + 0.1))
        line.server = greeting.read(replies)
    except (Lost, Unsent) as lost:
        lost = lost if isinstance(lost, Lost) else Lost(str(lost))
        raise not_greeted(lost, address, node, kind) from None
    finally:
        if line.server is None:
            line.close()
    return line


class ConnectionPool:
    """Lines that nobody uses now, the last used first; at most `size` are out at once."""

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._closed = False
        self._places = threading.BoundedSemaphore(size)
        self._idle: dict[tuple[Node, Kind], deque[Line]] = {}

    def enter(self, until: float) -> None:
        """Wait for a place. Raises StoreUnavailable."""
        if self._places.acquire(blocking=False):
            return
        if not self._places.acquire(timeout=max(until - time.monotonic(), 0)):
            raise StoreUnavailable(f"all {self._size} connections of this store are in use by other threads")

    def leave(self) -> None:
        self._places.release()

    def take(self, node: Node, kind: Kind) -> Line | None:
        try:
            return self._idle[node, kind].pop()
        except (KeyError, IndexError):
            return None

    def put(self, node: Node, kind: Kind, line: Line) -> None:
        if self._closed:
            line.close()
            return
        self._idle.setdefault((node, kind), deque()).append(line)

    def drop(self, node: Node) -> None:
        """Close what is idle to this server."""
        for key in list(self._idle):
            if key[0] == node:
                self._close(key)

    def close(self) -> None:
        """For good; what is out is closed when it comes back."""
        self._closed = True
        for key in list(self._idle):
            self._close(key)

    def _close(self, key: tuple[Node, Kind]) -> None:
        lines = self._idle.pop(key, deque())
        while lines:
            lines.pop().close()
