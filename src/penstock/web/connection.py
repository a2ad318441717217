"""The HTTP/1.1 protocol of one connection: parses requests, sends answers in the order of the requests."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools

from penstock.web.exchange import Exchange
from penstock.web.registry import ConnectionRegistry
from penstock.web.replies import TEXT, closing, head_only, kept_alive, reply

__all__ = ["HttpConnection"]

#: Seconds in which a client may read the last answer of a connection that the server closes.
_LINGER = 2.0
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE")}


class _RefusedError(Exception):
    """Ends the parsing of a connection; the refusal is in `HttpConnection._refusal`."""


class HttpConnection(asyncio.Protocol):
    """One connection. The parser calls the `on_…` methods while `data_received` feeds it."""

    __slots__ = (
        "_allowed",
        "_begun",
        "_body",
        "_discard",
        "_expected",
        "_feeding",
        "_head_size",
        "_headers",
        "_limited",
        "_over",
        "_parser",
        "_paused",
        "_pending",
        "_received",
        "_refusal",
        "_rests",
        "_server",
        "_target",
        "_transport",
        "_write_paused",
        "closed",
        "deadline",
    )

    def __init__(self, server: ConnectionRegistry) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._feeding = False
        self._rests = False  # the parser is freed, as soon as no part of a request is in it
        self._pending: list[Exchange] = []
        self._refusal = b""
        self._over = False  # no further request is read
        self._paused = False
        self._write_paused = False
        self.closed = False
        #: When the server closes this connection (`time.monotonic`); None: not because of time.
        self.deadline: float | None = None
        #: Time (s) that the client has for what it sends now, if no deadline is set for it yet; 0: none.
        self._allowed = 0.0
        self._limited = False  # whether there is a deadline for what it sends
        self._reset()

    def _reset(self) -> None:
        self._received = 0  # bytes of this request, after those that it began with
        self._begun = False
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        self._body: list[bytes] = []
        self._expected: Exchange | None = None
        self._discard = 0

    # ── the transport ────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is one, but not by inheritance
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._server.lost(self)
        if self._expected is not None:
            self._server.forget_body(self._expected)
        pending, self._pending = self._pending, []
        for exchange in pending:
            self._server.forget_body(exchange)
            if not exchange.answered:
                if exchange.on_gone is not None:
                    exchange.on_gone()
                exchange.ended(0)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._server.limit_time(self, self._server.bounds.write_time)
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._server.limit_time(self, None)
        self._pause_or_resume()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._begun:
            self._received += len(data)
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        self._feeding = True
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end_after_pending()
        except httptools.HttpParserError:
            self._refuse(self._refusal or reply(400, b"400 Bad Request", TEXT))
        self._feeding = False
        if self._rests:
            self._free()
        if self._begun and self._received > self._most_received():
            self._refuse(reply(431, b"431 Request Header Fields Too Large", TEXT))
        if self._allowed and not self._over:  # the request is not complete
            self._server.limit_time(self, self._allowed)
            self._allowed, self._limited = 0.0, True
        self._pause_or_resume()

    def eof_received(self) -> bool:
        """Close the connection, unless it has only requests that are answered at once anyway."""
        self._end_after_pending()
        if self._transport is not None and self._transport.get_extra_info("sslcontext") is not None:
            return False  # a TLS connection cannot be half closed
        return bool(self._pending) and not any(exchange.on_gone for exchange in self._pending)

    # ── the parser ───────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        if self._over:
            raise _RefusedError
        self._reset()
        self._begun = True
        self._server.is_busy(self)
        self._allowed = self._server.bounds.head_time

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > self._server.bounds.head:
            self._stop_parsing(reply(414, b"414 URI Too Long", TEXT))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        bounds = self._server.bounds
        if self._head_size > bounds.head or len(self._headers) >= bounds.headers:
            self._stop_parsing(reply(431, b"431 Request Header Fields Too Large", TEXT))
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        path, _, query = self._target.partition(b"?")
        method = parser.get_method()
        exchange = Exchange(self, _METHODS.get(method) or method.decode("latin-1"), path, query)
        exchange.headers = self._headers
        if (version := parser.get_http_version()) != "1.1":
            exchange.version = version
        elif exchange.header(b"host") is None:
            self._stop_parsing(reply(400, b"400 Bad Request: missing required Host header", TEXT))
        self._expected = exchange
        length = exchange.header(b"content-length")
        size = int(length) if length else 0
        server = self._server
        self._discard = server.body_limit(exchange)
        if size > self._discard + server.bounds.discarded:
            self._hand_over_early(exchange)
        self._allowed = server.bounds.body_time + size / server.bounds.body_rate
        if exchange.header(b"expect") is not None and not self._pending and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, part: bytes) -> None:
        exchange = self._expected
        if exchange is None:
            return
        exchange.size += len(part)
        if exchange.size <= self._discard:
            if not self._server.count_body(exchange, len(part)):
                self._stop_parsing(reply(503, b"503 Service Unavailable: too many bodies", TEXT))
            self._body.append(part)
            return
        exchange.too_large = True
        self._body.clear()
        self._server.forget_body(exchange)
        if exchange.size > self._discard + self._server.bounds.discarded:
            self._hand_over_early(exchange)

    def on_message_complete(self) -> None:
        exchange, self._expected = self._expected, None
        self._begun = False
        self._allowed = 0.0
        if self._limited:
            self._server.limit_time(self, None)
            self._limited = False
        if exchange is None:
            return
        body, self._body = self._body, []
        exchange.body = body[0] if len(body) == 1 else b"".join(body)
        assert self._parser is not None
        exchange.last = not self._parser.should_keep_alive()
        self._hand_over(exchange)

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def answer(self, exchange: Exchange, answer: bytes) -> bool:
        """Send the answer as soon as all earlier requests of this connection are answered."""
        if self.closed or exchange.answered:
            return False
        exchange.answered = True
        exchange.reply = answer
        self._server.forget_body(exchange)
        if self._pending[0] is exchange:
            self._send()
            self._pause_or_resume()
        return True

    def _send(self) -> None:
        ready: list[bytes] = []
        last = False
        while self._pending and not last:
            first = self._pending[0]
            if first.reply is None:
                break
            del self._pending[0]
            answer = first.reply
            if first.method == "HEAD":
                answer = head_only(answer)
            last = first.last or ((self._over or self._server.stopping) and not self._pending)
            if last:
                answer = closing(answer)
            elif first.version == "1.0":
                answer = kept_alive(answer)
            ready.append(answer)
        if self._transport is None or not ready:
            return
        self._transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
        if last:
            self._finish()
        elif not self._pending and not self._begun:
            self._server.is_idle(self)

    def rest(self) -> None:
        """Free the parser, 1 KB, while a request waits."""
        self._rests = True
        if not self._feeding:
            self._free()

    def stop(self) -> None:
        """Read no further request; close the connection when the pending ones are answered."""
        if self._begun and not self._pending:
            return  # a request is just arriving: it is answered, and then the connection closes
        if self.idle and self._transport is not None:
            self._transport.close()
        else:
            self._end_after_pending()

    @property
    def address(self) -> str:
        """The client's IP address; "" for a unix socket."""
        peer: Any = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    @property
    def idle(self) -> bool:
        """Whether no request is arriving or unanswered."""
        return not self._pending and not self._begun

    def expire(self) -> None:
        """Close the connection because its time is over; a request that is arriving is refused with 408."""
        if self._begun and not self._over:
            self._refuse(reply(408, b"408 Request Timeout", TEXT))
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _free(self) -> None:
        self._rests = False
        if not self._begun:
            self._parser = None
            self._reset()

    def _hand_over(self, exchange: Exchange) -> None:
        if exchange.last or self._server.stopping:
            self._over = exchange.last = True
        self._pending.append(exchange)
        self._server.handle(exchange)

    def _hand_over_early(self, exchange: Exchange) -> None:
        """Answer a request whose body is far too large without reading the rest of it."""
        self._expected = None
        exchange.too_large = exchange.last = True
        self._body.clear()
        self._begun = False
        self._hand_over(exchange)
        raise _RefusedError

    def _most_received(self) -> int:
        """Bytes of the request that may have been received by now: names without end stay in the parser."""
        exchange, bounds = self._expected, self._server.bounds
        if exchange is None:
            return bounds.head
        return bounds.head + bounds.discarded + exchange.size

    def _stop_parsing(self, refusal: bytes) -> None:
        self._refusal = refusal
        raise _RefusedError

    def _refuse(self, refusal: bytes) -> None:
        """Answer what is no valid request, after the answers of earlier requests, and end the connection."""
        if self._over:
            return
        if self._expected is not None:
            self._server.forget_body(self._expected)
            self._expected = None
        self._over, self._begun = True, False
        self._server.limit_time(self, None)
        exchange = Exchange(self, "", b"", b"")
        exchange.last = True
        self._pending.append(exchange)
        self.answer(exchange, refusal)

    def _end_after_pending(self) -> None:
        self._over = True
        if not self._pending:
            self._finish()

    def _finish(self) -> None:
        """Close the connection, after the client had time to read the last answer."""
        self._over = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
            self._server.limit_time(self, _LINGER)
        else:
            transport.close()

    def _pause_or_resume(self) -> None:
        pause = self._write_paused or (len(self._pending) >= self._server.bounds.pipelined and not self._over)
        if pause == self._paused or self._transport is None or self.closed:
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def __repr__(self) -> str:
        return f"<connection of {self.address or 'a client'}, {len(self._pending)} pending>"
