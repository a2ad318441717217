"""When an answer counts as delivered: a consumer that leaves before it loses no job and no try."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.core.job import Job
from penstock.web.connection import HttpConnection
from penstock.web.exchange import Exchange
from penstock.web.replies import TEXT, reply
from penstock.web.server import HttpServer
from tests.store.facts import SOON
from tests.web.conftest import Served
from tests.web.test_long_polls import until_waiting
from tests.web.wire import Client, request_bytes

CONSUME = request_bytes("GET", "/api/ns/q?timeout=30")


@pytest.fixture
async def fetches(served: Served, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """An event that lets fetches of the store return, which have leased their jobs before."""
    may_return = asyncio.Event()
    original = served.store.fetch

    async def fetch(*given: Any, **options: Any) -> Any:
        found = await original(*given, **options)
        await may_return.wait()
        return found

    monkeypatch.setattr(served.service.backends["default"].dispatcher._store, "fetch", fetch)
    yield may_return
    may_return.set()


async def jobs(served: Served) -> list[Job]:
    return [job for page in [await served.store.list_jobs(queue="ns.q")] for job in page.jobs]


async def idle(served: Served) -> None:
    """Until no fetch is under way and no job is being given back."""
    dispatcher = served.service.backends["default"].dispatcher
    await dispatcher.idle()
    async with asyncio.timeout(SOON):
        while dispatcher._tasks:
            await asyncio.wait(list(dispatcher._tasks))


async def sent_and_ended(client: Client, data: bytes) -> None:
    """Send this, and end the client's side of the connection."""
    await client.write(data)
    _, writer = await client._connected()
    writer.write_eof()


async def test_a_consumer_that_leaves_while_its_job_is_fetched_loses_no_try(
    served: Served, client: Client, fetches: asyncio.Event
) -> None:
    await client.put("/api/ns/q?tries=1", b"x")
    leaving = served.client()
    await sent_and_ended(leaving, CONSUME)
    async with asyncio.timeout(SOON):
        answer = await leaving.rest()
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"has ended its side" in answer
    fetches.set()
    await idle(served)
    (job,) = await jobs(served)
    assert (job.state.value, job.attempt) == ("available", 0)
    assert (await client.get("/api/ns/q")).data == b"x"


async def test_a_waiting_consumer_that_ends_its_side_gets_no_job(served: Served, client: Client) -> None:
    leaving = served.client()
    await leaving.write(CONSUME)
    await until_waiting(served, 1)
    await sent_and_ended(leaving, b"")
    await until_waiting(served, 0)
    await client.put("/api/ns/q?tries=1", b"x")
    assert (await client.get("/api/ns/q")).json["remain_tries"] == 0


async def test_a_consume_request_behind_a_waiting_one_takes_no_job_before_its_turn(
    served: Served, client: Client
) -> None:
    leaving = served.client()
    await leaving.write(CONSUME + request_bytes("GET", "/api/ns/other?timeout=30"))
    await until_waiting(served, 1)
    await client.put("/api/ns/other?tries=1", b"x")
    await leaving.close()
    await until_waiting(served, 0)
    assert (await client.get("/api/ns/other")).data == b"x"


async def test_a_consume_request_read_after_the_end_gets_no_job(served: Served, client: Client) -> None:
    leaving = served.client()
    publish = request_bytes("PUT", "/api/ns/q?tries=1", b"x")
    await sent_and_ended(leaving, publish + CONSUME)
    async with asyncio.timeout(SOON):
        answers = await leaving.rest()
    assert [one[:3] for one in answers.split(b"HTTP/1.1 ")[1:]] == [b"201", b"400"]
    await idle(served)
    assert (await client.get("/api/ns/q")).data == b"x"


async def test_a_client_that_ends_its_side_gets_its_other_answers(served: Served) -> None:
    """As `nc` sends what it reads from a pipe, also more than is in memory at once."""
    client = served.client()
    publish = request_bytes("PUT", "/api/ns/q", b"x")
    await sent_and_ended(client, publish * 200 + request_bytes("GET", "/api/ns/q/size"))
    async with asyncio.timeout(SOON):
        answers = await client.rest()
    assert answers.count(b"HTTP/1.1 201 ") == 200
    assert answers.endswith(b'"size":200}')
    assert answers.count(b"Connection: close") == 1


async def test_a_publish_request_is_done_before_the_next_one(served: Served, client: Client) -> None:
    consume = request_bytes("GET", "/api/ns/q")
    for _ in range(5):
        await client.write(request_bytes("PUT", "/api/ns/q", b"x") + consume + consume)
        assert [(await client.read()).status for _ in range(3)] == [201, 200, 404]


class ClosingTransport(asyncio.Transport):
    """A transport whose connection breaks, which its protocol is told of later."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing


async def test_an_answer_to_a_broken_connection_does_not_count_as_sent() -> None:
    """Between the error of the socket and `connection_lost` the event loop may do other things."""
    asked: list[Exchange] = []
    ends: list[int] = []
    connection = HttpConnection(HttpServer(asked.append)._registry)
    transport = ClosingTransport()
    connection.connection_made(transport)
    connection.data_received(request_bytes("GET", "/x"))
    (exchange,) = asked
    exchange.on_end = ends.append
    transport.closing = True
    assert not exchange.answer(reply(200, b"lost", TEXT))
    assert (transport.written, ends) == (b"", [0])
    connection.connection_lost(None)
    assert ends == [0]
