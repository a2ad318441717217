"""The connections of a listener: which are idle, which have a deadline, how much memory they take."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from penstock.web.access_log import AccessLog
from penstock.web.bounds import HttpBounds, RequestBudget
from penstock.web.exchange import Exchange, Handler, Prove
from penstock.web.replies import reply

_log = logging.getLogger("penstock.web")

#: Interval (s) at which deadlines are checked.
_CHECK_EVERY = 0.5


class _Closable(Protocol):
    """A connection, as the registry knows it."""

    network: str
    owner: str
    proved: bool

    @property
    def deadline(self) -> float: ...

    @property
    def unfinished(self) -> bool: ...

    def give_up(self) -> None: ...

    def expire(self) -> None: ...

    def abort(self) -> None: ...

    def stop(self) -> None: ...


class ConnectionRegistry:
    """What the connections of one listener share. `handler`, `body_limit` and `prove` as for `HttpServer`."""

    def __init__(
        self,
        handler: Handler,
        body_limit: Callable[[Exchange], int],
        bounds: HttpBounds,
        access_log: AccessLog | None = None,
        prove: Prove | None = None,
    ) -> None:
        self._handler = handler
        self._access_log = access_log
        self.body_limit = body_limit
        self.prove = prove or _by_address
        self.bounds = bounds
        self.budget = RequestBudget(bounds.requests, bounds.requests_of_one)
        self.stopping = False
        self.all_closed = asyncio.Event()
        self._connections: dict[_Closable, None] = {}  # the oldest first
        self._by_network: Counter[str] = Counter()
        self._idle: dict[_Closable, None] = {}  # the longest idle first
        self._limited: set[_Closable] = set()  # those with a deadline
        self._unread: dict[_Closable, int] = {}  # bytes of answers, the longest unread first
        self._all_unread = 0
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
        """Note a new connection; close one if there are too many."""
        self._connections[connection] = None
        self._by_network[connection.network] += 1
        self._idle[connection] = None
        if len(self._connections) > self.bounds.connections:
            self._make_room(connection)
        if self.stopping:
            connection.abort()

    def _make_room(self, new: _Closable) -> None:
        """Close one of the address that has most: the longest idle, or the oldest that is still sending."""
        crowded = self._by_network.most_common(1)[0][0]
        idle = (one for one in self._idle if one.network == crowded and one is not new)
        slow = (one for one in self._connections if one.network == crowded and one.unfinished)
        closed = next(idle, None) or next(slow, new)
        self._idle.pop(closed, None)
        closed.abort()

    def lost(self, connection: _Closable) -> None:
        """Note the end of a connection."""
        if connection in self._connections:
            del self._connections[connection]
            self._by_network[connection.network] -= 1
            if not self._by_network[connection.network]:
                del self._by_network[connection.network]
        self._idle.pop(connection, None)
        self._limited.discard(connection)
        self.budget.hold(connection, 0)
        self.unread(connection, 0)
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
            _log.exception("%s %s failed", exchange.method, exchange.shown_path)
            exchange.answer(reply(500, b"", b""))

    def unread(self, connection: _Closable, size: int) -> None:
        """Note the bytes that a client has not read. If that is too much, the longest unread are given up."""
        self._all_unread += size - self._unread.pop(connection, 0)
        if size:
            self._unread[connection] = size
        while self._all_unread > self.bounds.answers:
            oldest = next(iter(self._unread))
            self._all_unread -= self._unread.pop(oldest)
            oldest.abort()

    def until(self, connection: _Closable, seconds: float) -> float:
        """The instant after this time, at which the connection's `deadline` is looked at."""
        self._limited.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY, self._check_deadlines)
        return time.monotonic() + seconds

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for connection in list(self._limited):
            if connection.deadline <= now:
                self._limited.discard(connection)
                connection.expire()
            elif connection.deadline == math.inf:
                self._limited.discard(connection)
        self._timer = None
        if self._limited:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY, self._check_deadlines)


def _by_address(exchange: Exchange, then: Callable[[str | None], None]) -> None:
    then(exchange.address)
