"""The interface as an ASGI application mounted in a FastAPI application, over uvicorn and real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.dialects.lmstfy.service import LmstfyService
from penstock.stores.memory import MemoryStore
from tests.store.facts import SOON
from tests.web.wire import Client

fastapi = pytest.importorskip("fastapi", reason="needs fastapi, which is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn, which is not installed")

TOKEN = "a-token-of-my-own-choice"


@pytest.fixture
async def service(clock: ManualClock, home: Path) -> AsyncIterator[LmstfyService]:
    store = MemoryStore(str(home), clock=clock)
    yield LmstfyService({"default": store}, fixed_tokens={"mail": frozenset({TOKEN})})
    store.close()


@pytest.fixture
async def port(service: LmstfyService) -> AsyncIterator[int]:
    """The port of the host application, which has the interface below /queue."""

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with service:
            yield

    host = fastapi.FastAPI(lifespan=lifespan)
    host.mount("/queue", service.asgi)
    host.mount("/queue-admin", service.admin_asgi)

    @host.get("/hello")
    async def hello() -> str:
        return "hello"

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(host, log_level="error", lifespan="on"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    async with asyncio.timeout(SOON):
        while not server.started:
            await asyncio.sleep(0.005)
    yield listener.getsockname()[1]
    server.should_exit = True
    await serving


@pytest.fixture
async def client(port: int) -> AsyncIterator[Client]:
    async with Client(port, TOKEN) as one:
        yield one


async def test_a_whole_round(client: Client) -> None:
    assert (await client.get("/hello")).json == "hello"
    made = await client.put("/queue/api/mail/welcome?tries=2", b"to 42")
    assert made.status == 201
    assert len(made.headers["x-request-id"]) == 26
    found = await client.get("/queue/api/mail/welcome?ttr=30&timeout=5")
    assert (found.data, found.json["job_id"]) == (b"to 42", made.json["job_id"])
    assert (await client.delete(f"/queue/api/mail/welcome/job/{made.json['job_id']}")).status == 204
    assert (await client.get("/queue/api/mail/welcome")).body == b'{"msg":"no job available"}'
    assert (await client.get("/queue/api/mail/none/at/all")).json == {"error": "api not found"}
    assert (await client.get("/queue-admin/livez")).body == b"ok\n"


async def test_a_wrong_token_and_another_site_are_refused(client: Client) -> None:
    assert (await client.get("/queue/api/other/q")).status == 401
    evil = await client.get("/queue/api/mail/q", ("Origin", "http://evil.example"))
    assert evil.status == 403


async def test_a_large_body_is_refused(client: Client) -> None:
    assert (await client.put("/queue/api/mail/q", b"x" * 1_048_576)).status == 201
    refused = await client.put("/queue/api/mail/q", b"x" * 1_048_577)
    assert (refused.status, refused.json) == (413, {"error": "body too large"})


async def test_a_large_body_is_kept_only_for_a_valid_token(
    service: LmstfyService, client: Client, port: int
) -> None:
    async with Client(port, "wrong") as other, Client(port) as nobody:
        for one, status in ((client, 201), (other, 401), (nobody, 401)):
            assert (await one.put("/queue/api/mail/q", b"x" * 500_000)).status == status
            assert (await one.put("/queue/api/mail/q", b"x")).status == status
    assert service.asgi._budget.total == 0


async def test_an_answer_to_a_client_that_is_gone_does_not_count_as_sent(
    service: LmstfyService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host application has been told, and the request has not noticed yet."""
    await client.put("/queue/api/mail/q?tries=1", b"x")
    store, asked, gone = service.backends["default"].store, asyncio.Event(), asyncio.Event()
    fetch, sent = store.fetch, list[object]()

    async def fetched(*given: Any, **options: Any) -> Any:
        found = await fetch(*given, **options)
        asked.set()
        await gone.wait()
        await asyncio.sleep(0)
        return found

    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, object]:
        if requests:
            return requests.pop()
        await asked.wait()
        gone.set()
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"x-token", TOKEN.encode())]
    scope = {"type": "http", "method": "GET", "path": "/api/mail/q", "headers": headers}
    monkeypatch.setattr(store, "fetch", fetched)
    await service.asgi(scope, receive, send)
    monkeypatch.undo()
    assert sent == []
    assert (await client.get("/queue/api/mail/q?timeout=5")).data == b"x"


async def test_a_waiting_request_is_woken_and_one_whose_client_is_gone_takes_no_job(
    service: LmstfyService, client: Client, port: int
) -> None:
    dispatcher = service.backends["default"].dispatcher

    async def until_waiting(number: int) -> None:
        async with asyncio.timeout(SOON):
            while dispatcher.waiting != number:
                await asyncio.sleep(0.001)

    gone = Client(port, TOKEN)
    await gone.send("GET", "/queue/api/mail/q?timeout=600")
    await until_waiting(1)
    await gone.close()
    await until_waiting(0)
    async with Client(port, TOKEN) as other:
        waiting = asyncio.create_task(other.get("/queue/api/mail/q?timeout=600"))
        await until_waiting(1)
        await client.put("/queue/api/mail/q?tries=1", b"x")
        assert (await waiting).json["remain_tries"] == 0


async def test_escapes_of_a_path_arrive_as_sent(client: Client) -> None:
    await client.put("/queue/api/mail/q1", b"x")
    assert (await client.get("/queue/api/mail/q0%2Cq1")).data == b"x"
