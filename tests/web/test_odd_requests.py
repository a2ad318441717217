"""Requests that are spelled in unusual ways: each means one thing, the same as to other servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.web.connection import HttpConnection
from penstock.web.exchange import Exchange
from penstock.web.replies import TEXT, reply
from penstock.web.server import HttpServer
from tests.store.facts import SOON
from tests.web.conftest import Served
from tests.web.test_client_budgets import Transport, transport
from tests.web.test_http_protocol import exchanged
from tests.web.wire import Client, request_bytes


class Seen:
    """A server that notes the requests which it has understood."""

    def __init__(self) -> None:
        self.requests: list[Exchange] = []
        self.bodies: list[bytes] = []
        self.server = HttpServer(self.handle, body_limit=lambda _: 3_000)
        self.port = 0

    def handle(self, exchange: Exchange) -> None:
        self.requests.append(exchange)
        self.bodies.append(exchange.body)
        exchange.answer(reply(200, b"seen", TEXT))

    async def get(self, data: bytes) -> Exchange:
        """The request that these bytes are to the server."""
        async with Client(self.port) as client, asyncio.timeout(SOON):
            await client.write(data)
            assert (await client.read()).body == b"seen"
            await client.write(request_bytes("GET", "/next"))  # on the same connection
            assert (await client.read()).body == b"seen"
        return self.requests[-2]


@pytest.fixture
async def seen() -> AsyncIterator[Seen]:
    one = Seen()
    one.port = await one.server.listen("127.0.0.1", 0)
    yield one
    await one.server.stop(0.1)


async def test_fields_after_a_chunked_body_are_no_headers(seen: Seen) -> None:
    head = b"PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Token\r\n\r\n"
    request = await seen.get(head + b"3\r\nabc\r\n0\r\nX-Token: t\r\nHost: b\r\nIdempotency-Key: k\r\n\r\n")
    assert [name for name, _ in request.headers] == [b"host", b"transfer-encoding", b"trailer"]
    assert (request.header(b"x-token"), request.header(b"host"), seen.bodies[0]) == (None, "a", b"abc")


async def test_fields_after_a_body_count_towards_the_bound_of_headers(seen: Seen) -> None:
    head = b"PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    answer = await exchanged(seen.port, head + b"A: b\r\n" + b"B: " + b"x" * 70_000 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("target", ["/x", "http://a/x"])
async def test_two_host_headers_are_refused(seen: Seen, version: str, target: str) -> None:
    data = f"GET {target} HTTP/{version}\r\nHost: a\r\nA: b\r\nHost: a\r\n\r\n".encode()
    answer = await exchanged(seen.port, data)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert seen.requests == []


@pytest.mark.parametrize("sent", [b" v ", b"\tv\t", b"v   ", b"v \t "])
async def test_blanks_around_a_value_do_not_belong_to_it(seen: Seen, sent: bytes) -> None:
    request = await seen.get(b"GET /x HTTP/1.1\r\nHost: a\r\nX-Token:" + sent + b"\r\n\r\n")
    assert request.header(b"x-token") == "v"


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        (b"http://b:80/x/y?z=1", b"/x/y", b"z=1", "b:80"),
        (b"HTTP://b", b"/", b"", "b"),
        (b"https://b?z", b"/", b"z", "b"),
        (b"/http://b/x", b"/http://b/x", b"", "a"),
    ],
)
async def test_a_target_may_be_a_whole_address(
    seen: Seen, target: bytes, path: bytes, query: bytes, host: str
) -> None:
    """Its host stands for the header, also for the rule that keeps pages of other names away."""
    request = await seen.get(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (request.path, request.query, request.header(b"host")) == (path, query, host)


@pytest.mark.parametrize("pieces", [1, 2])
async def test_bytes_beyond_ascii_in_a_target_are_read_as_escaped(seen: Seen, pieces: int) -> None:
    data = "GET /ž?q=日本&x=%C5 HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    if pieces == 1:
        request = await seen.get(data)
    else:  # the line whole, the headers later
        async with Client(seen.port) as client:
            await client.write(data[:-10])
            await client.write(data[-10:])
            assert (await client.read()).status == 200
        (request,) = seen.requests
    assert (request.path, request.query) == (b"/%C5%BE", b"q=%E6%97%A5%E6%9C%AC&x=%C5")


@pytest.mark.parametrize("method", ["FOO", "get", "PLAY", "X-!#$%&'*+.^_`|~", "PATCH", "PURGE"])
async def test_any_word_is_a_method(seen: Seen, method: str) -> None:
    request = await seen.get(f"{method} /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi".encode())
    assert (request.method, request.path, seen.bodies[0]) == (method, b"/x", b"hi")


@pytest.mark.parametrize("line", [b"F\xc5O /x HTTP/1.1", b"FOO", b"FOO  HTTP/1.1", b" /x HTTP/1.1", b"FOO x"])
async def test_a_line_that_is_no_request_is_refused(seen: Seen, line: bytes) -> None:
    answer = await exchanged(seen.port, line + b"\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert seen.requests == []


async def test_a_request_is_not_seen_twice_when_the_next_one_is_broken(seen: Seen) -> None:
    good = request_bytes("GET", "/x")
    for broken in (b"FOO /y HTTP/1.1\r\n\r\n", "GET /ž HTTP/1.1\r\nA: \0\r\n\r\n".encode()):
        answer = await exchanged(seen.port, good + broken)
        assert [one[:3] for one in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]
    assert [one.path for one in seen.requests] == [b"/x", b"/x"]


ODD = "GET /ž HTTP/1.1\r\nHost: a\r\n\r\n".encode()
HEAD = b"PUT /x HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("pieces", "answers", "paths"),
    [
        # behind a request whose line was read in another way
        ([ODD + b"PUR", b"X /y HTTP/1.1\r\nHost: a\r\n\r\n"], [b"200", b"400"], [b"/%C5%BE"]),
        ([ODD + ODD[:6], ODD[6:]], [b"200", b"400"], [b"/%C5%BE"]),
        # in headers, in a line that came alone, in a body
        ([HEAD + b"A: b\r\n", ODD], [b"400"], []),
        ([HEAD[:17], HEAD[17:] + b"A: b\r\n", ODD], [b"400"], []),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", ODD], [b"400"], []),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n", ODD], [b"400"], []),
        # the end of the connection is no error
        ([ODD[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"], [b"200"], [b"/%C5%BE"]),
    ],
)
async def test_what_follows_an_error_is_no_request(
    seen: Seen, pieces: list[bytes], answers: list[bytes], paths: list[bytes]
) -> None:
    """Else a proxy and this server would not agree on how many requests there are."""
    connection = HttpConnection(seen.server._registry)
    connection.connection_made(Transport("1.2.3.4"))
    for piece in pieces:
        connection.data_received(piece)
    connection.connection_lost(None)
    found = transport(connection).written
    assert [one[:3] for one in found.split(b"HTTP/1.1 ")[1:]] == answers
    assert [one.path for one in seen.requests] == paths


# --- lmstfy's interface --------------------------------------------------------------------------


async def test_they_are_answered_as_by_lmstfy(local: Served) -> None:
    client = local.client()
    unknown = await client.request("FOO", "/api/ns/q")
    assert (unknown.status, unknown.json) == (404, {"error": "api not found"})
    for target in ("/api/ns/q?x=ž", "http://localhost/api/ns/q"):
        await client.write(f"PUT {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx".encode())
        assert (await client.read()).status == 201
    away = b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await exchanged(local.port, away)
    assert answer.startswith(b"HTTP/1.1 403 ")


async def test_a_token_of_no_namespace_can_be_deleted(local: Served) -> None:
    """As by lmstfy's router, whose names of namespaces may be empty between slashes."""
    admin = local.admin()
    assert (await admin.delete("/token//T")).status == 204
    assert (await admin.get("/token//T/limit")).status == 404
    assert (await admin.get("/token//T/limit")).body == b"null"
