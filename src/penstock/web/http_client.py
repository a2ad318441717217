"""A small HTTP/1.1 client for requests from one server to another, on connections that stay open."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

#: The largest answer that is read.
_MOST = 256 * 1024 * 1024
#: Requests that are sent again if an open connection ends before it has brought a part of the answer.
_REPEATABLE = ("GET", "HEAD", "DELETE")


@dataclass
class HttpAnswer:
    """An answer. Names of headers are in lower case."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpClient:
    """Sends requests to one server, on at most `limit` connections. Raises OSError, also if time is over."""

    def __init__(self, url: str, *, limit: int = 8) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self._free: list[_Stream] = []
        self._slots = asyncio.Semaphore(limit)

    async def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        within: float = 10.0,
    ) -> HttpAnswer:
        """Send a request and read its answer. Raises TimeoutError after `within` seconds."""
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", f"Host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body or method in ("PUT", "POST"):
            lines.append(f"Content-Length: {len(body)}")
        data = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        async with self._slots:
            try:
                async with asyncio.timeout(within):
                    return await self._answered(method, data)
            except TimeoutError:
                raise TimeoutError(f"{self._authority} did not answer within {within:g} s") from None
            except (EOFError, httptools.HttpParserError) as error:
                raise ConnectionError(f"{self._authority}: the answer broke off: {error}") from error

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._free:
            self._free.pop().close()

    async def _answered(self, method: str, data: bytes) -> HttpAnswer:
        """Send a request on a free connection, and once more if that one was closed while it was idle."""
        while self._free:
            stream = self._free.pop()
            if stream.closed:
                stream.close()
                continue
            try:
                return await self._exchange(stream, data)
            except (EOFError, ConnectionError):
                if stream.answering or method not in _REPEATABLE:
                    raise
                break
        return await self._exchange(await self._open(), data)

    async def _open(self) -> _Stream:
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        return _Stream(reader, writer)

    async def _exchange(self, stream: _Stream, data: bytes) -> HttpAnswer:
        done = False
        try:
            answer = await stream.exchange(data)
            done = True
        finally:
            if done and stream.reusable:
                self._free.append(stream)
            else:
                stream.close()
        return answer


class _Stream:
    """One connection; the parser calls the `on_…` methods."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = HttpAnswer()
        self._parts: list[bytes] = []
        self._done = False
        self._size = 0
        self._parser: Any = None
        self.reusable = False
        self.answering = False  # whether a part of the answer has come

    @property
    def closed(self) -> bool:
        """Whether the server is known to have closed the connection."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def exchange(self, data: bytes) -> HttpAnswer:
        self._answer, self._parts, self._done, self._size = HttpAnswer(), [], False, 0
        self.reusable = self.answering = False
        parser = self._parser = httptools.HttpResponseParser(self)
        self._writer.write(data)
        await self._writer.drain()
        while not self._done:
            received = await self._reader.read(65_536)
            if not received:
                raise EOFError("the connection was closed")
            self.answering = True
            parser.feed_data(received)
        self._answer.status = parser.get_status_code()
        self._answer.body = b"".join(self._parts)
        return self._answer

    def close(self) -> None:
        self._writer.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > _MOST:
            raise ConnectionError("the answer is too large")
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive()  # after this call the parser says no
        self._done = True
