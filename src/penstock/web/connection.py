"""The HTTP/1.1 protocol of one connection: parses requests, and handles one after the other."""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from typing import Any

import httptools

from penstock.web.exchange import Exchange
from penstock.web.hosts import network_of
from penstock.web.registry import ConnectionRegistry
from penstock.web.replies import TEXT, closing, head_only, kept_alive, reply
from penstock.web.request_line import origin_form, readable

#: Seconds in which a client may read the last answer of a connection that the server closes.
_LINGER = 2.0
#: Bytes that are parsed at once, of a body and else: few requests are read beyond those that may be pending.
_BODY_STEP, _STEP = 64 * 1024, 4 * 1024
#: Bytes of a request's head that do not count as held.
_SMALL_HEAD = 1024
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE")}
_LEFT = reply(400, b"400 Bad Request: the client has ended its side of the connection", TEXT)


class _RefusedError(Exception):
    """Ends the parsing of a connection; the refusal is in `HttpConnection._refusal`."""


class HttpConnection(asyncio.Protocol):
    """One connection. The parser calls the `on_…` methods while `data_received` feeds it.

    Requests are handled one at a time, in order: a request sees what those before it have done, and no answer
    is made that has to wait for another one, and would be lost if the client leaves.
    """

    __slots__ = (
        "_begun",
        "_body",
        "_counted",
        "_discard",
        "_expected",
        "_feeding",
        "_head_size",
        "_headers",
        "_line",
        "_method",
        "_over",
        "_parser",
        "_paused",
        "_pending",
        "_proved",
        "_proving",
        "_read_by",
        "_received",
        "_refusal",
        "_rest",
        "_rests",
        "_sending",
        "_server",
        "_target",
        "_transport",
        "_waiting",
        "_write_by",
        "_write_paused",
        "address",
        "leaving",
        "network",
        "owner",
        "proved",
    )

    def __init__(self, server: ConnectionRegistry) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._feeding = self._sending = False
        self._rests = False  # the parser is freed, as soon as no part of a request is in it
        self._rest = b""  # received, and not parsed yet
        self._pending: list[Exchange] = []
        self._waiting = 0  # bytes of pending requests
        self._counted = 0  # bytes that the server counts as held
        self._refusal = b""
        self._over = False  # no further request is read
        self._paused = False
        self._write_paused = False
        #: The client's IP address; "" for a unix socket.
        self.address = ""
        #: What stands for the client before its proof: others that have the same are the same client.
        self.network = self.owner = ""
        #: Whether the owner has proved who it is.
        self.proved = False
        #: Whether the client has closed the connection, or its side of it: both look the same.
        self.leaving = False
        # when the server closes the connection, because of what the client sends or does not read (monotonic)
        self._read_by = self._write_by = math.inf
        #: What came of a request whose line is not complete; None: it is, or it began behind another request.
        self._line: bytes | None = None
        self._method = b""  # the request's, if the parser does not know it
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
        self._proved = self._proving = False

    # ── the transport ────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is one, but not by inheritance
        peer: Any = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.network = self.owner = network_of(self.address)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.leaving = self._over = True
        self._expected, self._rest = None, b""
        self._server.lost(self)
        pending, self._pending = self._pending, []
        for exchange in pending:
            if not exchange.answered:
                exchange.left()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._pause_or_resume()
        self._write_by = self._server.until(self, self._server.bounds.write_time)
        if self._transport is not None:
            self._server.unread(self, self._transport.get_write_buffer_size() + len(self._rest))

    def resume_writing(self) -> None:
        self._write_paused = False
        self._write_by = math.inf
        self._server.unread(self, 0)
        self._send()
        self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._rest = self._rest + data if self._rest else data
        if not self._feeding:
            self._feed()

    def eof_received(self) -> bool:
        """Answer what was received, but give no job: a client that has gone looks the same."""
        self.leaving = True
        if not self._rest:
            self._over = True
        for exchange in self._pending[:1]:
            if exchange.on_gone is not None:
                self.leave(exchange)
        if not self._pending and not self._rest:
            self._finish()
        if self._transport is None or self._transport.get_extra_info("sslcontext") is not None:
            return False  # a TLS connection cannot be half closed
        return bool(self._pending or self._rest)

    # ── the parser ───────────────────────────────────────────────────────────────────────────────

    def _feed(self) -> None:
        """Parse what was received, as long as there is room for requests."""
        self._feeding = True
        while self._rest and not (self._over or self._proving or self._write_paused):
            if self._pending and len(self._pending) >= self._server.bounds.pipelined:
                break
            step = _STEP if self._expected is None else _BODY_STEP
            if len(self._rest) <= step:
                data, self._rest = self._rest, b""
            else:
                data, self._rest = self._rest[:step], self._rest[step:]
            self._parse(data)
        self._feeding = False
        if self._over:
            self._rest = b""
        if self._rests:
            self._free()
        if self.leaving and not self._rest and not self._over:
            self._end_after_pending()
        if self._rest or self._paused:
            self._pause_or_resume()
            self._count()

    def _parse(self, data: bytes) -> None:
        if self._begun:
            self._received += len(data)
        else:
            self._line = b""
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end_after_pending()
        except httptools.HttpParserError:
            if self._refusal:
                self._refuse(self._refusal)
            elif not self._over:
                self._parse_again(data)
        if self._begun and not self._over:
            self._limit(data)

    def _parse_again(self, data: bytes) -> None:
        """Parse a request whose line other servers take, and the parser does not.

        Only a whole one from its first byte: what follows an error elsewhere is no request, whatever it says.
        """
        found = None if self._line is None or self._headers else readable(self._line + data)
        self._reset()
        try:
            if found is not None:
                self._method, line = found
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(line)
                return
        except httptools.HttpParserUpgrade:
            self._end_after_pending()
            return
        except httptools.HttpParserError:
            pass
        self._refuse(self._refusal or reply(400, b"400 Bad Request", TEXT))

    def _limit(self, data: bytes) -> None:
        """Limit the size and the time of a request that is not complete."""
        bounds, exchange = self._server.bounds, self._expected
        if exchange is None:
            if self._line is not None:
                self._line += data
            if self._received > bounds.head:
                self._refuse(reply(431, b"431 Request Header Fields Too Large", TEXT))
            elif self._count() and self._read_by == math.inf:
                self._read_by = self._server.until(self, bounds.head_time)
            return
        if self._received > bounds.head + bounds.discarded + exchange.size:  # names without end
            self._refuse(reply(431, b"431 Request Header Fields Too Large", TEXT))
            return
        missing = max(0, int(exchange.header(b"content-length") or 0) - exchange.size)
        until = self._server.until(self, bounds.body_time + missing / bounds.body_rate)
        self._read_by = min(self._read_by, until)

    def on_message_begin(self) -> None:
        if self._over:
            raise _RefusedError
        self._received = self._head_size = 0  # the rest is as `_reset` leaves it
        self._begun = True
        self._proved = False
        if self.proved and not self._waiting:  # else it has proved whose those are that it still holds
            self.owner, self.proved = self.network, False
        self._server.is_busy(self)

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > self._server.bounds.head:
            self._stop_parsing(reply(414, b"414 URI Too Long", TEXT))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        bounds = self._server.bounds
        if self._head_size > bounds.head or len(self._headers) >= bounds.headers:
            self._stop_parsing(reply(431, b"431 Request Header Fields Too Large", TEXT))
        if self._expected is None:  # else a field of a trailer, which says nothing about the request
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        target, headers = self._target, self._headers
        # an idle connection keeps nothing of its last request
        self._target, self._headers, self._line = b"", [], None
        if not target.startswith(b"/"):
            target, headers = origin_form(target, headers)
        path, _, query = target.partition(b"?")
        method = self._method or parser.get_method()
        self._method = b""
        exchange = Exchange(self, _METHODS.get(method) or method.decode("latin-1"), path, query)
        exchange.headers = headers
        if (size := len(target) + self._head_size) > _SMALL_HEAD:
            exchange.held = size
        if (version := parser.get_http_version()) != "1.1":
            exchange.version = version
        elif exchange.header(b"host") is None:
            self._stop_parsing(reply(400, b"400 Bad Request: missing required Host header", TEXT))
        self._expected = exchange
        self._read_by = math.inf
        length = exchange.header(b"content-length")
        size = int(length) if length else 0
        if exchange.repeats(b"host"):  # a proxy may have looked at the other one
            self._stop_parsing(reply(400, b"400 Bad Request: too many Host headers", TEXT))
        server = self._server
        self._discard = server.body_limit(exchange)
        if size > self._discard + server.bounds.discarded:
            self._hand_over_early(exchange)
            raise _RefusedError
        if self._discard and size > server.bounds.unproved:
            self._prove(exchange)
        if exchange.header(b"expect") is not None and not self._proving:
            self._go_ahead()

    def on_body(self, part: bytes) -> None:
        exchange = self._expected
        if exchange is None:
            return
        exchange.size += len(part)
        if exchange.size <= self._discard:
            self._body.append(part)
            bounds = self._server.bounds
            if exchange.size > bounds.unproved and not self._proved:
                self._prove(exchange)
            held = self._counted or self._waiting + exchange.held + exchange.size
            if held > bounds.uncounted and not self._count():
                raise _RefusedError
            return
        exchange.too_large = True
        self._body.clear()
        self._count()
        if exchange.size > self._discard + self._server.bounds.discarded:
            self._hand_over_early(exchange)
            raise _RefusedError

    def on_message_complete(self) -> None:
        exchange, self._expected = self._expected, None
        self._begun = self._proving = False  # no proof is needed any more to read on
        self._read_by = math.inf
        if exchange is None:
            return
        body, self._body = self._body, []
        exchange.body = body[0] if len(body) == 1 else b"".join(body)
        exchange.held += len(exchange.body)
        self._waiting += exchange.held
        assert self._parser is not None
        exchange.last = not self._parser.should_keep_alive()
        self._hand_over(exchange)

    # ── who sends it ─────────────────────────────────────────────────────────────────────────────

    def _prove(self, exchange: Exchange) -> None:
        """Ask whose request this is, before more of its body is read. The answer may come at once."""
        if not self._proving:
            self._proved = self._proving = True
            self._server.prove(exchange, partial(self._on_owner, exchange))
            if self._over:
                raise _RefusedError

    def _on_owner(self, exchange: Exchange, owner: str | None) -> None:
        """Read the body, or, if nobody vouches for it, throw it away, as one that is too large."""
        if self._expected is not exchange or self._over:
            return
        self._proving = False
        size, asks = int(exchange.header(b"content-length") or 0), exchange.header(b"expect") is not None
        exchange.unproved = owner is None
        if owner is not None:
            self.owner, self.proved = owner, True
        elif size > self._server.bounds.discarded or (asks and not exchange.size):
            self._hand_over_early(exchange)
        else:
            self._discard, exchange.too_large = 0, True
            self._body.clear()
        self._count()
        if not self._feeding:
            if asks and not exchange.size and not self._over:
                self._go_ahead()
            self._go_on()

    def _go_ahead(self) -> None:
        if not self._pending and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _count(self) -> bool:
        """Count what this connection holds. False if its request was refused because that is too much."""
        size, exchange = self._waiting, self._expected
        if exchange is not None:
            size += exchange.held + (0 if exchange.too_large else exchange.size)
        elif self._begun:
            size += max(self._received, self._head_size)
        if self._rest and not (self._feeding or self._proving):
            size += len(self._rest)
        if size <= self._server.bounds.uncounted:
            size = 0
        if size == self._counted == 0:
            return True
        self._counted = size
        if not self._server.budget.hold(self, size):
            self.give_up()
        return not self._over

    @property
    def unfinished(self) -> bool:
        """Whether a part of a request is missing."""
        return self._begun and not self._over

    def give_up(self) -> None:
        """Refuse the request that is arriving: requests take too much memory."""
        self._refuse(reply(503, b"503 Service Unavailable: too many bodies", TEXT))

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def answer(self, exchange: Exchange, answer: bytes) -> bool:
        """Send the answer; False if the client has closed the connection.

        All requests before it are answered. What is written to a connection that nobody has closed, as far as
        is known, counts as sent.
        """
        if exchange.answered or self._transport is None or self._transport.is_closing():
            return False
        exchange.answered = True
        exchange.reply = answer
        self._waiting -= exchange.held
        exchange.body = b""
        if not self._sending:
            self._send()
        if self._rest or self._paused:
            self._go_on()
        return True

    def leave(self, exchange: Exchange) -> None:
        """End a request that is worth nothing without its client, who has left."""
        exchange.left()
        self.answer(exchange, _LEFT)  # for one that waits for its answer, and sends nothing more

    def _send(self) -> None:
        """Send the answer that is ready, and hand over the next request, until one takes its time."""
        if self._sending or self._transport is None:
            return
        self._sending = True
        while self._pending and not self._write_paused:
            first = self._pending[0]
            if first.reply is None:
                if first.begun or self._transport.is_closing():
                    break
                first.begun = True
                self._server.handle(first)
            elif self._write(first):
                break
        self._sending = False
        if self._counted:
            self._count()
        if not self._pending and not self._begun and not self._over:
            self._server.is_idle(self)

    def _write(self, first: Exchange) -> bool:
        """Write the answer of the first request; whether it was the last one."""
        answer = first.reply
        assert answer is not None
        assert self._transport is not None
        del self._pending[0]
        if first.method == "HEAD":
            answer = head_only(answer)
        last = first.last or ((self._over or self._server.stopping) and not self._pending)
        if last:
            answer = closing(answer)
        elif first.version == "1.0":
            answer = kept_alive(answer)
        self._transport.write(answer)
        if last:
            self._finish()
        return last

    def _go_on(self) -> None:
        """Parse what has waited, now that there may be room."""
        if self._rest and not self._feeding:
            self._feed()
        else:
            self._pause_or_resume()

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
    def deadline(self) -> float:
        """When the server closes this connection (`time.monotonic`)."""
        return min(self._read_by, self._write_by)

    @property
    def idle(self) -> bool:
        """Whether no request is arriving or unanswered."""
        return not self._pending and not self._begun

    def expire(self) -> None:
        """Close the connection because its time is over; a request that is arriving is refused with 408."""
        if self.unfinished and self._write_by > time.monotonic():
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
        self._send()
        if self._waiting > self._server.bounds.uncounted:
            self._count()

    def _hand_over_early(self, exchange: Exchange) -> None:
        """Answer a request without reading the rest of its body, which is far too large or of nobody."""
        self._expected = None
        exchange.too_large = exchange.last = True
        exchange.held = 0
        self._body.clear()
        self._begun = False
        self._read_by = math.inf
        self._hand_over(exchange)

    def _stop_parsing(self, refusal: bytes) -> None:
        self._refusal = refusal
        raise _RefusedError

    def _refuse(self, refusal: bytes) -> None:
        """Answer what is no valid request, after the answers of earlier requests, and end the connection."""
        if self._over:
            return
        self._over, self._begun, self._expected = True, False, None
        self._body.clear()
        self._rest = b""
        self._read_by = math.inf
        exchange = Exchange(self, "", b"", b"")
        exchange.last = exchange.answered = True
        exchange.reply = refusal
        self._pending.append(exchange)
        self._send()

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
        if transport.can_write_eof() and not self.leaving:
            transport.write_eof()
            self._write_by = self._server.until(self, _LINGER)
        else:
            transport.close()

    def _pause_or_resume(self) -> None:
        """Read on if what was read is parsed. A client that leaves is noticed only while it is read."""
        pause = self._write_paused or len(self._rest) > self._server.bounds.head
        if pause == self._paused or self._transport is None or self._transport.is_closing():
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def __repr__(self) -> str:
        return f"<connection of {self.address or 'a client'}, {len(self._pending)} pending>"
