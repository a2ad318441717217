"""The handlers of a listener as an ASGI application, to be mounted in an application of somebody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from penstock.web.access_log import AccessLog
from penstock.web.bounds import DEFAULT_BOUNDS, HttpBounds, RequestBudget
from penstock.web.exchange import Exchange, Handler, Prove
from penstock.web.replies import TEXT, reply

_log = logging.getLogger("penstock.web")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class AsgiApp:
    """Answers HTTP requests below the path at which it is mounted. `body_limit`, `prove` as for `HttpServer`.

    It has no lifespan of its own: what stands behind the handler is started by the host application.
    Connections, deadlines and the size of headers are bounded by the server of the host application.
    """

    def __init__(
        self,
        handler: Handler,
        body_limit: Callable[[Exchange], int],
        *,
        bounds: HttpBounds = DEFAULT_BOUNDS,
        access_log: AccessLog | None = None,
        prove: Prove | None = None,
    ) -> None:
        self._handler = handler
        self._body_limit = body_limit
        self._bounds = bounds
        self._access_log = access_log
        self._prove = prove
        self._budget = RequestBudget(bounds.requests, bounds.requests_of_one)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application answers only HTTP requests, not {scope['type']}")
        connection = _AsgiConnection(scope)
        exchange = Exchange(connection, scope["method"], _path(scope), scope.get("query_string", b""))
        exchange.headers = [
            (bytes(name).lower(), bytes(value).strip(b" \t")) for name, value in scope["headers"]
        ]
        exchange.version = scope.get("http_version", "1.1")
        try:
            if not await self._read_body(exchange, connection, receive):
                return
            self._handle(exchange, connection)
            if not connection.answered.done():
                await _answer_or_disconnect(exchange, connection, receive)
        finally:
            self._budget.hold(connection, 0)
        if connection.answered.done():
            await _send(exchange, connection.answered.result(), send)

    def _handle(self, exchange: Exchange, connection: _AsgiConnection) -> None:
        connection.unfinished = False
        if connection.given_up:
            exchange.answer(reply(503, b"503 Service Unavailable: too many bodies", TEXT))
            return
        if self._access_log is not None and self._access_log.enabled:
            self._access_log.watch(exchange)
        try:
            self._handler(exchange)
        except Exception:  # noqa: BLE001  # boundary: as the listener answers an error of a handler
            _log.exception("%s %s failed", exchange.method, exchange.shown_path)
            exchange.answer(reply(500, b"", b""))

    async def _read_body(self, exchange: Exchange, connection: _AsgiConnection, receive: Receive) -> bool:
        """Read the body up to the limit of its route; False if the client is gone."""
        limit = self._body_limit(exchange)
        parts: list[bytes] = []
        more = True
        proved = self._prove is None
        while more and not connection.given_up:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            exchange.size += len(part)
            if exchange.size <= limit and exchange.size > self._bounds.unproved and not proved:
                proved, limit = True, await self._proved(exchange, connection, limit)
            if exchange.size <= limit:
                parts.append(part)
                if exchange.size > self._bounds.uncounted:
                    self._budget.hold(connection, exchange.size)
                continue
            exchange.too_large = True
            parts.clear()
            if exchange.size > limit + self._bounds.discarded:
                break
        exchange.body = b"".join(parts)
        return True

    async def _proved(self, exchange: Exchange, connection: _AsgiConnection, limit: int) -> int:
        """The largest body that this sender may send: 0 for one without a valid token."""
        assert self._prove is not None
        owner: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._prove(exchange, lambda found: None if owner.done() else owner.set_result(found))
        found = await owner
        connection.owner, connection.proved = found or connection.owner, found is not None
        exchange.unproved = found is None
        return 0 if found is None else limit


class _AsgiConnection:
    """The connection of one request, as the request knows it."""

    def __init__(self, scope: Scope) -> None:
        client = scope.get("client")
        self.address = self.owner = str(client[0]) if client else ""
        self.given_up = self.proved = False
        self.receiving: asyncio.Future[MutableMapping[str, Any]] | None = None
        self._left = False
        self.unfinished = True
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answer(self, exchange: Exchange, answer: bytes) -> bool:
        if self.leaving or self.answered.done():
            return False
        exchange.answered = True
        self.answered.set_result(answer)
        return True

    @property
    def leaving(self) -> bool:
        """Whether the client is gone, as far as the server of the host application has said."""
        told = self.receiving
        if not self._left and told is not None and told.done() and not told.cancelled():
            self._left = told.exception() is None and told.result()["type"] == "http.disconnect"
        return self._left

    def close(self) -> None:
        """The client is gone, or the host application has cancelled the request."""
        self._left = True

    def give_up(self) -> None:
        self.given_up, self.unfinished = True, False

    def leave(self, exchange: Exchange) -> None:
        exchange.left()

    def rest(self) -> None:
        """Nothing to free: the parser is that of the host application's server."""


async def _answer_or_disconnect(exchange: Exchange, connection: _AsgiConnection, receive: Receive) -> None:
    """Wait for the answer, or until the client is gone: then nothing is fetched for it any more."""
    told = connection.receiving = asyncio.ensure_future(receive())
    try:
        while not connection.answered.done():
            await asyncio.wait((connection.answered, told), return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                return
            if told.result()["type"] == "http.disconnect":
                return
            told = connection.receiving = asyncio.ensure_future(receive())
    finally:  # also if the host application cancels the request
        told.cancel()
        if not connection.answered.done():
            connection.close()
            exchange.left()


async def _send(exchange: Exchange, answer: bytes, send: Send) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = []
    for line in lines:
        name, _, value = line.partition(b":")
        if name.lower() != b"date":  # the server of the host application adds it
            headers.append((name.lower(), value.strip()))
    await send({"type": "http.response.start", "status": int(first[9:12]), "headers": headers})
    await send({"type": "http.response.body", "body": b"" if exchange.method == "HEAD" else body})


def _path(scope: Scope) -> bytes:
    """The path of a request below the mount point, as sent if the server says it."""
    root: str = scope.get("root_path", "")
    raw: bytes | None = scope.get("raw_path")
    path = quote(scope["path"]).encode() if raw is None else raw.partition(b"?")[0]
    for mounted in (quote(root).encode(), root.encode()):
        if mounted and path.startswith(mounted):
            return path[len(mounted) :] or b"/"
    return path
