"""The dashboard over a store in memory, as a client of ASGI and as pages of a browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from starlette.testclient import TestClient

from penstock import App
from penstock.web.access_tokens import TokenScope
from penstock.web.dashboard import Dashboard
from tests.servers.programs import server_or_skip

BASE = "http://localhost"


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
        if to == "nobody":
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
        started = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        await started.close()
