"""The HTTP server: framing, order of answers, bounds, deadlines, hostile input, stopping."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.web.bounds import DEFAULT_BOUNDS, HttpBounds
from penstock.web.exchange import Exchange
from penstock.web.group_commit import GroupCommit
from penstock.web.hosts import HostRule
from penstock.web.replies import TEXT, reply
from penstock.web.server import HttpServer
from tests.store.facts import SOON
from tests.web.conftest import Served
from tests.web.wire import Client, request_bytes

GET = request_bytes("GET", "/now")
SMALL = HttpBounds(
    head=2_000,
    headers=20,
    discarded=10_000,
    unproved=4_000,
    requests=5_000,
    requests_of_one=5_000,
    uncounted=500,
    answers=1_000_000,
    pipelined=4,
    connections=5,
    head_time=0.05,
    body_time=0.05,
    body_rate=10**9,
    write_time=0.05,
)

Start = Callable[..., Awaitable[int]]


class Pages:
    """Answers `/now` at once and `/later` when it is told to; echoes bodies of at most 3 000 bytes."""

    def __init__(self) -> None:
        self.later: list[Exchange] = []
        self.gone = 0

    def handle(self, exchange: Exchange) -> None:
        if exchange.path == b"/later":
            exchange.on_gone = self.count_gone
            self.later.append(exchange)
        elif exchange.path == b"/error":
            raise ValueError("an error in a handler")
        elif exchange.too_large:
            exchange.answer(reply(413, b"too large", TEXT))
        else:
            exchange.answer(reply(200, exchange.body or b"now", TEXT))

    def count_gone(self) -> None:
        self.gone += 1

    async def until_later(self, number: int) -> None:
        async with asyncio.timeout(SOON):
            while len(self.later) < number:
                await asyncio.sleep(0.001)


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
async def start(pages: Pages) -> AsyncIterator[Start]:
    """Starts the server with some bounds; returns its port."""
    servers: list[HttpServer] = []

    async def start(bounds: HttpBounds = DEFAULT_BOUNDS) -> int:
        server = HttpServer(pages.handle, body_limit=lambda _: 3_000, bounds=bounds)
        servers.append(server)
        return await server.listen("127.0.0.1", 0)

    yield start
    for server in servers:
        await server.stop(0.1)


async def exchanged(port: int, data: bytes) -> bytes:
    """Everything that the server answers until it ends the connection."""
    async with Client(port) as client:
        await client.write(data)
        async with asyncio.timeout(SOON):
            return await client.rest()


async def test_a_connection_is_used_again(start: Start) -> None:
    async with Client(await start()) as client:
        for _ in range(3):
            answer = await client.get("/now")
            assert (answer.status, answer.body) == (200, b"now")
            assert {"Content-Type", "Date", "Content-Length"} <= answer.headers.keys()
            assert "Connection" not in answer.headers


async def test_answers_come_in_the_order_of_the_requests(start: Start, pages: Pages) -> None:
    async with Client(await start()) as client:
        await client.write(request_bytes("GET", "/later") + GET + request_bytes("GET", "/later") + GET)
        for n, body in enumerate((b"first", b"second")):
            await pages.until_later(n + 1)
            pages.later[n].answer(reply(200, body, TEXT))
        assert [(await client.read()).body for _ in range(4)] == [b"first", b"now", b"second", b"now"]


async def test_a_request_is_handled_when_those_before_it_are_answered(start: Start, pages: Pages) -> None:
    async with Client(await start()) as client, Client(await start()) as other:
        await client.write(request_bytes("GET", "/later") * 3)
        await pages.until_later(1)
        assert (await other.get("/now")).body == b"now"
        assert len(pages.later) == 1
        pages.later[0].answer(reply(200, b"first", TEXT))
        await pages.until_later(2)


async def test_a_request_may_come_byte_by_byte(start: Start) -> None:
    async with Client(await start()) as client:
        for byte in request_bytes("PUT", "/now", b"body"):
            await client.write(bytes([byte]))
        assert (await client.read()).body == b"body"


async def test_a_chunked_body_is_read(start: Start) -> None:
    async with Client(await start()) as client:
        head = b"PUT /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.write(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert (await client.read()).body == b"abcde"


async def test_a_client_that_asks_first_is_told_to_send_its_body(start: Start) -> None:
    async with Client(await start()) as client:
        head = request_bytes("PUT", "/now", b"", [("Expect", "100-continue")])
        await client.write(head.replace(b"Content-Length: 0", b"Content-Length: 4"))
        assert (await client.read()).status == 100
        await client.write(b"body")
        assert (await client.read()).body == b"body"


async def test_a_head_request_gets_no_body(start: Start) -> None:
    async with Client(await start()) as client:
        answer = await client.request("HEAD", "/now")
        assert (answer.headers["Content-Length"], answer.body) == ("3", b"")
        assert (await client.get("/now")).body == b"now"


async def test_a_connection_ends_if_the_client_wants_it(start: Start) -> None:
    port = await start()
    for data in (
        request_bytes("GET", "/now", b"", [("Connection", "close")]) + GET,
        b"GET /now HTTP/1.0\r\n\r\n" + GET,
    ):
        answer = await exchanged(port, data)
        assert answer.count(b"200 OK") == 1
        assert b"Connection: close\r\n" in answer
    async with Client(port) as client:
        await client.write(b"GET /now HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2)
        for _ in range(2):
            assert (await client.read()).headers["Connection"] == "keep-alive"


async def test_an_error_in_a_handler_is_a_500(start: Start) -> None:
    async with Client(await start()) as client:
        answer = await client.get("/error")
        assert (answer.status, answer.body) == (500, b"")
        assert (await client.get("/now")).status == 200


async def test_a_client_that_is_gone_is_noticed(start: Start, pages: Pages) -> None:
    client = Client(await start())
    await client.send("GET", "/later")
    await pages.until_later(1)
    await client.close()
    async with asyncio.timeout(SOON):
        while not pages.gone:
            await asyncio.sleep(0.001)
    assert not pages.later[0].answer(reply(200, b"late", TEXT))


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"x" * 3_000 + b" HTTP/1.1\r\n", b"414"),
        (b"GET /now HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 3_000 + b"\r\n\r\n", b"431"),
        (b"GET /now HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 30 + b"\r\n", b"431"),
        (b"GET /now HTTP/1.1\r\n\r\n", b"400"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
        (b"GET /now HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"GET /now HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", b"400"),
        (b"PUT /now HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", b"400"),
        (b"PUT /now HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n", b"413"),
        # request smuggling: two lengths, or a length that the next hop would read in another way
        (
            b"PUT /now HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\n",
            b"400",
        ),
        (b"PUT /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"PUT /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"GET /now HTTP/1.1\r\nHost: a\r\n folded: x\r\n\r\n", b"400"),
        (b"GET /now HTTP/1.1\r\nHost: a\r\nA: b\x00c\r\n\r\n", b"400"),
        # too slow
        (b"GET /now HT", b"408"),
        (b"PUT /now HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc", b"408"),
    ],
)
async def test_a_request_beyond_the_bounds_ends_its_connection(
    start: Start, data: bytes, status: bytes
) -> None:
    port = await start(SMALL)
    answer = await exchanged(port, data)
    assert answer.startswith(b"HTTP/1.1 " + status), answer
    assert b"Connection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1 ") == 1
    async with Client(port) as client:
        assert (await client.get("/now")).status == 200


async def test_a_body_that_is_too_large_is_thrown_away(start: Start) -> None:
    async with Client(await start(SMALL)) as client:
        assert (await client.put("/now", b"x" * 3_000)).status == 200
        assert (await client.put("/now", b"x" * 3_001)).status == 413
        chunk = b"%x\r\n%b\r\n" % (4_000, b"x" * 4_000)
        head = b"PUT /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.write(head + chunk * 2 + b"0\r\n\r\n")
        assert (await client.read()).status == 413
        assert (await client.get("/now")).status == 200
        await client.write(head + chunk * 5)
        assert (await client.read()).headers["Connection"] == "close"


async def test_all_bodies_together_are_bounded(start: Start) -> None:
    port = await start(SMALL)
    unfinished = [Client(port) for _ in range(2)]
    head = b"PUT /now HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n"
    for client in unfinished:
        await client.write(head + b"x" * 2_900)
    answers = [await client.rest() for client in unfinished]
    for client in unfinished:
        await client.close()
    assert sorted(answer[9:12] for answer in answers) == [b"408", b"503"]
    async with Client(port) as client:
        assert (await client.put("/now", b"x" * 3_000)).status == 200


async def test_many_requests_at_once_are_answered_in_turn(start: Start) -> None:
    async with Client(await start(SMALL)) as client:
        await client.write(GET * 500)
        assert [(await client.read()).body for _ in range(500)] == [b"now"] * 500


async def test_the_longest_idle_connection_makes_room(start: Start) -> None:
    port = await start(SMALL)
    clients = [Client(port) for _ in range(7)]
    for client in clients:
        assert (await client.get("/now")).status == 200
    assert [await client.rest() for client in clients[:2]] == [b"", b""]
    assert (await clients[2].get("/now")).status == 200
    for client in clients:
        await client.close()


async def test_random_bytes_do_no_harm(start: Start) -> None:
    port = await start(SMALL)
    drawn = random.Random(7)
    for _ in range(100):
        data = bytearray(request_bytes("PUT", "/now", b"abc", [("A", "b")]))
        for _ in range(drawn.randrange(1, 8)):
            data[drawn.randrange(len(data))] = drawn.randrange(256)
        async with Client(port) as client:
            await client.write(bytes(data))
            await client.close()
    async with Client(port) as client:
        assert (await client.get("/now")).status == 200


# --- stopping -----------------------------------------------------------------------------------


async def test_a_server_that_stops_answers_what_it_has_read(pages: Pages) -> None:
    server = HttpServer(pages.handle, body_limit=lambda _: 3_000)
    port = await server.listen("127.0.0.1", 0)
    idle, busy, arriving = Client(port), Client(port), Client(port)
    assert (await idle.get("/now")).status == 200
    await busy.send("GET", "/later")
    await pages.until_later(1)
    await arriving.write(b"PUT /now HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo")
    async with asyncio.timeout(SOON):
        while server.connections < 3:
            await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0)
    stopping = asyncio.create_task(server.stop(SOON))
    assert await idle.rest() == b""
    await arriving.write(b"dy")
    assert (await arriving.read()).body == b"body"
    pages.later[0].answer(reply(200, b"later", TEXT))
    answer = await busy.read()
    assert (answer.body, answer.headers["Connection"]) == (b"later", "close")
    for client in (idle, busy, arriving):
        await client.close()
    await stopping
    with pytest.raises(ConnectionRefusedError):
        await Client(port).get("/now")


# --- hosts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "origin", "accepted"),
    [
        ("localhost", None, True),
        ("LOCALHOST:7777", None, True),
        ("127.0.0.1:7777", None, True),
        ("[::1]:7777", None, True),
        ("penstock.internal:1", None, True),
        ("attacker.example", None, False),
        ("127.0.0.1.attacker.example", None, False),
        ("", None, False),
        ("localhost:7777", "http://localhost:7777", True),
        ("localhost:7777", "http://attacker.example", False),
        ("localhost:7777", "null", False),
    ],
)
def test_hosts_and_origins(host: str, origin: str | None, accepted: bool) -> None:
    assert HostRule(["Penstock.internal"]).accepts(host, origin) is accepted


def test_a_listener_that_is_open_to_all_accepts_every_host() -> None:
    rule = HostRule(open_to_all=True)
    assert rule.accepts("anything.example", None)
    assert not rule.accepts("anything.example", "http://attacker.example")


async def test_another_host_is_refused_on_both_listeners(local: Served) -> None:
    for port in (local.port, local.admin_port):
        answer = await exchanged(
            port, b"GET /api/ns/q HTTP/1.1\r\nHost: attacker.example\r\nConnection: close\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 403")


# --- group commit -------------------------------------------------------------------------------


async def test_items_of_one_turn_are_sent_together() -> None:
    sent: list[list[int]] = []
    answers: list[int | BaseException] = []

    async def send(items: list[int]) -> list[int | BaseException]:
        sent.append(items)
        await asyncio.sleep(0)
        if 13 in items:
            raise ValueError("thirteen")
        return [item * 2 for item in items]

    commit = GroupCommit(send, limit=3, most=100)
    for item in (1, 2, 3, 4):
        commit.put(item, answers.append)
    await commit.drained()
    commit.put(5, answers.append, weight=200)
    commit.put(6, answers.append)
    commit.put(13, answers.append)
    await commit.drained()
    assert sent == [[1, 2, 3], [4], [5], [6, 13]]
    assert answers[:5] == [2, 4, 6, 8, 10]
    assert [type(one) for one in answers[5:]] == [ValueError, ValueError]
