"""The connections of a listener: which are idle, which have a deadline, how much memory their bodies take."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from penstock.web.access_log import AccessLog
from penstock.web.bounds import HttpBounds
from penstock.web.exchange import Exchange, Handler
from penstock.web.replies import reply

__all__ = ["ConnectionRegistry"]

_log = logging.getLogger("penstock.web")

#: Interval (s) at which deadlines are checked.
_CHECK_EVERY = 0.5


class _Closable(Protocol):
    """A connection, as the registry knows it."""

    deadline: float | None

    def expire(self) -> None: ...

    def abort(self) -> None: ...

    def stop(self) -> None: ...


class ConnectionRegistry:
    """What the connections of one listener share. `handler` and `body_limit` as for `HttpServer`."""

    def __init__(
        self,
        handler: Handler,
        body_limit: Callable[[Exchange], int],
        bounds: HttpBounds,
        access_log: AccessLog | None = None,
    ) -> None:
        self._handler = handler
        self._access_log = access_log
        self.body_limit = body_limit
        self.bounds = bounds
        self.stopping = False
        self.all_closed = asyncio.Event()
        self._connections: set[_Closable] = set()
        self._idle: dict[_Closable, None] = {}  # the longest idle first
        self._limited: set[_Closable] = set()  # those with a deadline
        self._held: dict[Exchange, int] = {}  # bytes of bodies in memory, by request
        self._bodies = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def stop_all(self) -> None:
        """Close each connection when its requests are answered."""
        self.all_closed.clear()
        for connection in list(self._connections):
            connection.stop()

    def abort_all(self) -> None:
        """Close all connections now."""
        for connection in list(self._connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()

    def opened(self, connection: _Closable) -> None:
        """Note a new connection; close the longest idle one if there are too many."""
        self._connections.add(connection)
        self._idle[connection] = None
        if len(self._connections) > self.bounds.connections:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.abort()
        if self.stopping:
            connection.abort()

    def lost(self, connection: _Closable) -> None:
        """Note the end of a connection."""
        self._connections.discard(connection)
        self._idle.pop(connection, None)
        self._limited.discard(connection)
        if not self._connections:
            self.all_closed.set()

    def is_busy(self, connection: _Closable) -> None:
        """Note that the connection has an unanswered request."""
        self._idle.pop(connection, None)

    def is_idle(self, connection: _Closable) -> None:
        """Note that all requests of the connection are answered."""
        self._idle[connection] = None

    def handle(self, exchange: Exchange) -> None:
        """Call the handler. An error of it is answered with 500 and an empty body."""
        if self._access_log is not None and self._access_log.enabled:
            self._access_log.watch(exchange)
        try:
            self._handler(exchange)
        except Exception:  # noqa: BLE001  # boundary: an error in one request must not end the connection of others
            _log.exception("%s %s failed", exchange.method, exchange.path.decode("latin-1"))
            exchange.answer(reply(500, b"", b""))

    def count_body(self, exchange: Exchange, size: int) -> bool:
        """Count received bytes of a body; False if all bodies together are too large."""
        if self._bodies + size > self.bounds.bodies:
            return False
        self._bodies += size
        self._held[exchange] = self._held.get(exchange, 0) + size
        return True

    def forget_body(self, exchange: Exchange) -> None:
        """Stop counting the body of a request that is answered or lost."""
        if self._held:
            self._bodies -= self._held.pop(exchange, 0)

    def limit_time(self, connection: _Closable, seconds: float | None) -> None:
        """Close the connection after this time, unless another call changes that; None: no limit."""
        if seconds is None:
            connection.deadline = None
            self._limited.discard(connection)
            return
        connection.deadline = time.monotonic() + seconds
        self._limited.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY, self._check_deadlines)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        late = [one for one in self._limited if one.deadline is not None and one.deadline <= now]
        for connection in late:
            self._limited.discard(connection)
            connection.expire()
        self._timer = None
        if self._limited:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY, self._check_deadlines)
