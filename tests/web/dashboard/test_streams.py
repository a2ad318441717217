"""Event streams and shared reads: bounded, ended with their login, and true again after an outage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2 as httpx
import pytest

from penstock import App
from penstock.core.errors import StoreUnavailable
from penstock.core.job import NewJob
from penstock.inspector import Inspector
from penstock.inspector.statistics import StatsInspector
from penstock.web.dashboard import Dashboard, Visitor
from penstock.web.dashboard.pulse import Pulse
from penstock.web.dashboard.shared_reads import SharedReads
from tests.servers.single import redis_server
from tests.store.facts import SOON
from tests.web.dashboard.conftest import Site

NewSite = Callable[..., Site]


class Stream:
    """A browser that listens to /events, and can go away."""

    def __init__(self, dashboard: Dashboard, cookie: str = "") -> None:
        self.status = 0
        self.bodies: asyncio.Queue[bytes] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._started = asyncio.Event()
        headers = [(b"host", b"localhost")] + ([(b"cookie", cookie.encode())] if cookie else [])
        scope = {"type": "http", "method": "GET", "path": "/events", "raw_path": b"/events", "root_path": ""}
        scope |= {"headers": headers, "query_string": b"", "scheme": "http", "http_version": "1.1"}
        self.task = asyncio.create_task(dashboard(scope, self._receive, self._send))  # type: ignore[arg-type]

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._started.set()
        else:
            self.bodies.put_nowait(message.get("body", b""))

    async def started(self) -> Stream:
        async with asyncio.timeout(SOON):
            await self._started.wait()
        return self

    async def event(self, **wanted: bool) -> None:
        """Wait for an event with these facts."""
        async with asyncio.timeout(4 * SOON):
            while True:
                _, _, data = (await self.bodies.get()).partition(b"data: ")
                if data and wanted.items() <= json.loads(data).items():
                    return

    async def leave(self) -> None:
        self._gone.set()
        async with asyncio.timeout(SOON):
            await self.task

    async def ended(self) -> None:
        async with asyncio.timeout(SOON):
            await self.task


@pytest.fixture
async def pulse(app: App) -> AsyncIterator[Pulse]:
    made = Pulse(Inspector(app.store), 0.01)
    yield made
    made.close()


async def test_a_stream_ends_when_its_browser_goes_and_leaves_nothing(site: Site) -> None:
    pulse = site.dashboard._shared.pulse
    before = len(asyncio.all_tasks())
    streams = [await Stream(site.dashboard).started() for _ in range(5)]
    async with asyncio.timeout(SOON):
        while pulse.followers < 5:
            await asyncio.sleep(0)
    for stream in streams:
        await stream.leave()
    assert pulse.followers == 0
    assert site.dashboard._streams._open.total() == 0
    async with asyncio.timeout(SOON):
        while len(asyncio.all_tasks()) > before:  # the cancelled reader needs some turns
            await asyncio.sleep(0)


async def test_the_number_of_streams_is_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.web.dashboard.pulse._MOST_OF_ONE", 3)
    pulse = site.dashboard._shared.pulse
    streams = [await Stream(site.dashboard).started() for _ in range(3)]
    async with asyncio.timeout(SOON):
        while pulse.followers < 3:
            await asyncio.sleep(0)
    refused = await Stream(site.dashboard).started()
    assert refused.status == 503
    await refused.ended()
    await streams.pop().leave()
    again = await Stream(site.dashboard).started()
    assert again.status == 200
    for stream in (*streams, again):
        await stream.leave()


async def test_many_streams_that_begin_at_once_are_bounded_as_well(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.web.dashboard.pulse._MOST_OF_ONE", 3)
    streams = [Stream(site.dashboard) for _ in range(10)]
    for stream in streams:
        await stream.started()
    assert sorted(stream.status for stream in streams) == [200] * 3 + [503] * 7
    for stream in streams:
        await stream.leave()
    assert site.dashboard._streams._open.total() == 0


async def test_a_stream_ends_with_its_login(new_site: NewSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.web.dashboard.identification._SESSION_CACHE", 0.0)
    monkeypatch.setattr("penstock.web.dashboard.pulse._CHECKED", 1)
    site = new_site(interval=1.0)
    site.dashboard._shared.pulse._interval = 0.01
    client = await asyncio.to_thread(lambda: site.logged_in(site.token("ann", "read")))
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    stream = await Stream(site.dashboard, cookie).started()
    async with asyncio.timeout(SOON):
        while b"event: state" not in await stream.bodies.get():
            pass
    await site.dashboard._identification.tokens.revoke("ann")
    await stream.ended()


async def test_a_fault_in_one_read_ends_no_stream(pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> Any:
        raise ValueError("a fault")

    with pulse.followed():
        assert (await pulse.next(SOON)) is not None
        with monkeypatch.context() as patched:
            patched.setattr(Inspector, "queues", broken)
            async with asyncio.timeout(SOON):
                while not (seen := await pulse.next(SOON)) or not seen.error:
                    pass
            assert seen.changed  # pages say so
        async with asyncio.timeout(SOON):
            while not (seen := await pulse.next(SOON)) or seen.error:
                pass
        assert seen.changed


async def test_requests_for_one_answer_share_it_and_its_error() -> None:
    reads, asked = SharedReads(), 0

    async def read() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        if asked == 1:
            raise StoreUnavailable("it is away")
        return asked

    tries = await asyncio.gather(*(reads.get("q", read) for _ in range(20)), return_exceptions=True)
    assert asked == 1
    assert all(isinstance(one, StoreUnavailable) for one in tries)
    assert await asyncio.gather(*(reads.get("q", read) for _ in range(20))) == [2] * 20
    assert reads._pending == {}


async def test_an_answer_that_a_change_has_overtaken_is_not_kept() -> None:
    reads, go, answers = SharedReads(), asyncio.Event(), ["old", "new"]

    async def read() -> str:
        answer = answers.pop(0)
        await go.wait()
        return answer

    first = asyncio.create_task(reads.get("q", read))
    await asyncio.sleep(0)
    reads.clear()
    go.set()
    assert await first == "old"
    assert await reads.get("q", read) == "new"


async def test_a_cancelled_request_passes_its_turn_on() -> None:
    reads, go = SharedReads(), asyncio.Event()

    async def read() -> str:
        await go.wait()
        return "read"

    first = asyncio.create_task(reads.get("q", read))
    second = asyncio.create_task(reads.get("q", read))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    go.set()
    assert await second == "read"
    assert reads._pending == {}


async def test_answers_are_forgotten_when_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, now = SharedReads(), 100.0
    monkeypatch.setattr("penstock.web.dashboard.shared_reads.time.monotonic", lambda: now)

    async def read() -> bytes:
        return b"x"

    for n in range(10):
        await reads.get(n, read)
    now += 2.0
    await reads.get("later", read)
    assert list(reads._kept) == ["later"]


async def test_the_parts_of_a_page_do_not_each_wait_for_a_store_that_is_away(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("it is away")

    async def silent(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("penstock.web.dashboard.view._BRIEF", 0.01)
    monkeypatch.setattr(Inspector, "queues", away)
    monkeypatch.setattr(StatsInspector, "tasks", silent)
    monkeypatch.setattr(StatsInspector, "periods", silent)
    site = Site(app, login=lambda _: Visitor.of("ann", "read"))
    async with asyncio.timeout(SOON):
        page = await fetched(site, "/")
    assert page.status_code == 200
    assert page.text.count("it is away") >= 3


async def fetched(site: Site, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(site.dashboard)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get(path)


@pytest.mark.server
async def test_pages_say_that_redis_is_away_and_go_on_when_it_is_back() -> None:
    server = redis_server()
    app = App(f"{server.url}?timeout=500ms")
    site = Site(app, open_to_all=True, hosts=())
    site.dashboard._shared.pulse._interval = 0.05
    await app.store.enqueue([NewJob("one", "t", queue="mail")])
    stream = await Stream(site.dashboard).started()
    await stream.event(error=False)
    server.kill()
    await stream.event(error=True)
    pages = await asyncio.gather(
        *(fetched(site, path) for path in ("/", "/queues", "/jobs", "/jobs/mail/one") * 5)
    )
    assert {page.status_code for page in pages} <= {200, 503}
    assert all("does not answer" in page.text for page in pages)
    server.launch()
    server.wait_ready()
    await stream.event(error=False, changed=True)
    await app.store.enqueue([NewJob("two", "t", queue="mail")])
    assert (await fetched(site, "/jobs/mail/two")).status_code == 200
    await stream.leave()
    app.store.close()
    server.close()
