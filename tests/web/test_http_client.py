"""Connections of the HTTP client stay open, and one that the server has closed is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.web.http_client import HttpClient

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request with the next of `answers`; b"" closes the connection instead."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.connections = 0
        self.requests = 0

    async def start(self) -> HttpClient:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.client = HttpClient(f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}")
        return self.client

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                answer = self.answers.pop(0)
                if not answer:
                    return
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        self.client.close()
        self._server.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    one = Server()
    await one.start()
    yield one
    await one.stop()


async def test_a_connection_is_used_again(server: Server) -> None:
    server.answers = [OK, OK, b"HTTP/1.1 204 No Content\r\n\r\n", LAST, OK]
    for method in ("GET", "PUT", "DELETE", "GET"):
        await server.client.request(method, "/")
        assert server.connections == 1
    assert (await server.client.request("GET", "/")).body == b"ok"
    assert server.connections == 2


async def test_a_request_on_a_connection_that_was_closed_is_sent_again_once(server: Server) -> None:
    server.answers = [OK, b"", OK]
    for _ in range(2):
        assert (await server.client.request("GET", "/")).body == b"ok"
    assert (server.connections, server.requests) == (2, 3)
    server.answers = [b"", b""]
    with pytest.raises(ConnectionError):
        await server.client.request("GET", "/")
    assert server.requests == 5


async def test_a_request_that_may_have_been_served_is_not_repeated(server: Server) -> None:
    server.answers = [OK, b"", OK]
    await server.client.request("GET", "/")
    with pytest.raises(ConnectionError):
        await server.client.request("PUT", "/")
    assert (await server.client.request("PUT", "/")).body == b"ok"
