"""A connection of uvicorn that bounds heads of requests, idle connections, and clients that do not read.

Uvicorn reads a head of any size for any time, and waits for ever for a client that does not read its answer.
With too many connections it refuses requests, also if all others are idle.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections import Counter

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.web.hosts import network_of

#: The longest head of a request (bytes): the request line and all headers.
_LONGEST_HEAD = 64 * 1024
#: Seconds in which a new connection sends a head, in which a begun head has to be complete, and in which the
#: rest of a body has to come that nobody waits for.
_PATIENCE = 20.0
#: Number of connections below uvicorn's limit at which one is closed for a new one: the new one counts before
#: the old one has gone.
_SPARE = 50
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedConnection(HttpToolsProtocol):
    """Closes its connection if a head is too large or too late, if a body is still sent long after its
    answer, or if an answer is not read.

    Of too many connections, one closes that waits for a request or the rest of one: of the address that has
    most of these, the one that has waited longest.

    Also if a request follows that for an event stream, which has no end: uvicorn reads nothing more then, and
    would not see that the client has gone.
    """

    _in_head, _in_body = True, False
    _size = 0
    _late: TimerHandle | None = None
    _unread = 0
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._begin_head()
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency - _SPARE:
            self._make_room()

    def _make_room(self) -> None:
        waiting = [one for one in self.connections if isinstance(one, BoundedConnection) and one.waits]
        if waiting:
            number = Counter(one.network for one in waiting)
            min(waiting, key=lambda one: (-number[one.network], one._since)).transport.abort()

    @property
    def network(self) -> str:
        """What stands for the client; "" for a Unix socket."""
        return network_of(self.client[0]) if self.client else ""

    @property
    def waits(self) -> bool:
        """Whether no complete request is unanswered."""
        return not self.transport.is_closing() and (
            self._in_body or self.cycle is None or self.cycle.response_complete
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._size += len(data)
        super().data_received(data)
        if self._in_head and self._size > _LONGEST_HEAD and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        before = self.cycle
        if before is not None and not before.response_complete and before.scope["path"].endswith("/events"):
            self.transport.abort()
        else:
            self._in_body = True
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._end_head()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        if self._in_body and self._late is None:  # its data would put off the end of an idle connection
            self._late = self.loop.call_later(_PATIENCE, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection. One that still has to read is given time while it reads."""
        unread = self.transport.get_write_buffer_size()
        if unread and not self.transport.is_closing() and unread != self._unread:
            self._unread = unread
            handle = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = handle
        elif unread:
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _begin_head(self) -> None:
        self._in_head, self._size = True, 0
        if self._late is None:
            self._late = self.loop.call_later(_PATIENCE, self.transport.abort)

    def _end_head(self) -> None:
        self._in_head = False
        if self._late is not None:
            self._late.cancel()
            self._late = None
