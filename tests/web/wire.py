"""A small HTTP client for tests, on a socket of its own: it sends exact bytes and shows exact answers."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Client", "Reply", "request_bytes"]


@dataclass(frozen=True)
class Reply:
    """An answer: its status, its headers by their names as sent, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> bytes:
        """The body of the job that is shown."""
        return base64.b64decode(self.json["data"])


def request_bytes(
    method: str, path: str, body: bytes = b"", headers: Sequence[tuple[str, str]] = ()
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body or method in ("PUT", "POST"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Client:
    """One connection: to a port, or to a Unix socket at `path`; with TLS if `tls` is given."""

    def __init__(
        self, port: int, token: str = "", *, path: Path | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.port = port
        self.token = token
        self._path = path
        self._tls = tls
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            if self._path is not None:
                self._streams = await asyncio.open_unix_connection(self._path, limit=2**24)
            else:
                self._streams = await asyncio.open_connection(
                    "127.0.0.1", self.port, limit=2**24, ssl=self._tls
                )
        return self._streams

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: Sequence[tuple[str, str]] = ()
    ) -> Reply:
        """Send a request and read its answer."""
        await self.send(method, path, body, headers)
        return await self.read(method)

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Send a request, and do not wait for its answer."""
        given = [*headers, *([("X-Token", self.token)] if self.token else [])]
        await self.write(request_bytes(method, path, body, given))

    async def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        _, writer = await self._connected()
        writer.write(data)
        await writer.drain()

    async def read(self, method: str = "GET") -> Reply:
        """Read the next answer."""
        reader, _ = await self._connected()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        status = int(first.split(" ")[1])
        headers = dict(line.split(": ", 1) for line in lines)
        sizes = [value for name, value in headers.items() if name.lower() == "content-length"]
        size = 0 if method == "HEAD" or not sizes else int(sizes[0])
        return Reply(status, headers, await reader.readexactly(size))

    async def certificate(self) -> bytes:
        """The certificate of the server, as DER."""
        _, writer = await self._connected()
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        reader, _ = await self._connected()
        return await reader.read()

    async def put(self, path: str, body: bytes = b"", *headers: tuple[str, str]) -> Reply:
        return await self.request("PUT", path, body, headers)

    async def get(self, path: str, *headers: tuple[str, str]) -> Reply:
        return await self.request("GET", path, b"", headers)

    async def delete(self, path: str) -> Reply:
        return await self.request("DELETE", path)
