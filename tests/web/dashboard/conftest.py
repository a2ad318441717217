"""The dashboard over a store in memory, as a client of ASGI and as pages of a browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
from starlette.testclient import TestClient

from penstock import App, Worker
from penstock.web.access_tokens import TokenScope
from penstock.web.dashboard import Dashboard
from penstock.web.sockets import bind_tcp
from tests.servers.programs import server_or_skip

BASE = "http://localhost"


#: Who gets no mail in these tests: such jobs fail.
NO_MAILBOX = frozenset({"nobody"})
#: The names of http://jobs.example lead to this machine, as plain http from elsewhere.
_OPTIONS = ["--no-sandbox", "--host-resolver-rules=MAP *.example 127.0.0.1"]


class Site:
    """A dashboard, the app behind it, and clients with and without a login."""

    def __init__(self, app: App, **given: Any) -> None:
        self.app = app
        self.dashboard = Dashboard(app, **given)
        self.client = self.new_client()

    def new_client(self) -> TestClient:
        return TestClient(self.dashboard, base_url=BASE, follow_redirects=False)

    def token(self, name: str, *scopes: str) -> str:
        tokens = self.dashboard._identification.tokens  # others see a new token within 100 ms
        made = tokens.create(name, [TokenScope.of(text) for text in scopes])
        return asyncio.run(made)[1]

    def logged_in(self, secret: str) -> TestClient:
        client = self.new_client()
        answer = client.post("/login", data={"token": secret, "form_token": form_token(client, "/login")})
        assert answer.status_code == 303, answer.text
        return client

    def post(self, client: TestClient, path: str, page: str = "/", **fields: str) -> Any:
        """Send a form with the token of a page."""
        return client.post(path, data={**fields, "form_token": form_token(client, page)})


def form_token(client: TestClient, page: str = "/") -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', client.get(page).text)
    assert found is not None
    return found[1]


def example_app(url: str = "memory://") -> App:
    app = App(url)

    @app.task(queue="mail", retention="1h")
    def send(to: str, password: str = "", options: dict[str, Any] | None = None) -> str:
        if to in NO_MAILBOX:
            raise ValueError(f"there is no mailbox {to!r}")
        return to

    return app


@pytest.fixture
def app() -> Iterator[App]:
    made = example_app()
    yield made
    made.store.close()


@pytest.fixture
def new_site(app: App) -> Callable[..., Site]:
    return lambda **given: Site(app, **given)


@pytest.fixture
def site(new_site: Callable[..., Site]) -> Site:
    """A dashboard that is open to everybody, as on loopback."""
    return new_site(open_to_all=True, hosts=())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    """Debian's Chromium, one for all tests of a process."""
    program = server_or_skip("chromium", "chromium-browser", "google-chrome")
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=program, args=_OPTIONS)
        yield started
        await started.close()


LISTEN = """
window.reports = [];
addEventListener("securitypolicyviolation", (e) => reports.push(e.violatedDirective + " " + e.blockedURI));
"""


@asynccontextmanager
async def serving(site: Site) -> AsyncIterator[tuple[Site, str]]:
    (sockets,) = bind_tcp("127.0.0.1", 0)
    config = uvicorn.Config(site.dashboard, lifespan="off", log_config=None, ws="none", loop="none")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets))
    try:
        with site.dashboard.running():
            yield site, f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    finally:
        site.dashboard.close()
        server.should_exit = True
        await running


class Opened:
    """A served dashboard, and a context of the browser whose errors are collected."""

    def __init__(self, site: Site, context: Any, url: str) -> None:
        self.site = site
        self.context = context
        self.url = url
        self.errors: list[str] = []

    @property
    def app(self) -> App:
        return self.site.app

    async def page(self, path: str = "/") -> Any:
        page = await self.context.new_page()
        page.on("console", lambda said: said.type in ("error", "warning") and self.errors.append(said.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        await page.goto(self.url + path)
        return page

    async def work(self) -> None:
        await Worker(self.app, concurrency=2, burst=True).run()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncIterator[tuple[Site, str]]:
    app = example_app()
    site = Site(app, open_to_all=True, hosts=("jobs.example",), interval=1.0)
    async with serving(site) as served_one:
        yield served_one
    app.store.close()


@pytest_asyncio.fixture(loop_scope="session")
async def opened(browser: Any, served: tuple[Site, str]) -> AsyncIterator[Opened]:
    site, url = served
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(30_000)
    await context.add_init_script(LISTEN)
    found = Opened(site, context, url)
    yield found
    reports = [one for page in context.pages for one in await page.evaluate("window.reports")]
    await context.close()
    assert found.errors == []
    assert reports == []
