"""The dashboard inside a FastAPI application, under a path and with its login.

The tests of examples/fastapi_shop and examples/django_site mount it with logins by session.
"""

from __future__ import annotations

import httpx2 as httpx
import pytest
from starlette.requests import Request

from penstock import App
from penstock.web.dashboard import Dashboard, Visitor
from penstock.web.dashboard.pages import PAGES
from tests.web.dashboard.hostile import HtmlCheck, fill_with_hostile_text, hostile_paths


async def test_fastapi_mounts_it_under_a_path_with_its_own_login(app: App) -> None:
    fastapi = pytest.importorskip("fastapi", reason="needs fastapi, which is not installed")

    async def login(request: Request) -> Visitor | None:
        return Visitor.of("ann", "operate") if request.headers.get("x-user") == "ann" else None

    host = fastapi.FastAPI()
    host.mount("/internal/jobs", Dashboard(app, login=login))

    @host.get("/hello")
    async def hello() -> str:
        return "hello"

    await fill_with_hostile_text(app)
    transport = httpx.ASGITransport(host)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client:
        assert (await client.get("/hello")).json() == "hello"
        assert (await client.get("/internal/jobs/")).status_code == 403
        client.headers["x-user"] = "ann"
        for path in (path for page in PAGES for path in hostile_paths(page.path)[-2:]):
            page = await client.get(f"/internal/jobs{path}", follow_redirects=True)
            assert page.status_code in (200, 404), path
            assert page.url.path.startswith("/internal/jobs/")
            assert HtmlCheck.of(page.text, "/internal/jobs/").faults == [], path
        style = await client.get(HtmlCheck.asset(page.text, "dashboard.css"))
        assert style.headers["content-type"] == "text/css; charset=utf-8"
