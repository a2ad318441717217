"""The dashboard inside FastAPI and Django applications, under a path and with their logins."""

from __future__ import annotations

import subprocess
import sys

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


DJANGO = """
import asyncio

from django.conf import settings
from django.http import HttpResponse
from django.urls import path
settings.configure(SECRET_KEY="x" * 50, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["shop.example"])
urlpatterns = [path("hello", lambda request: HttpResponse("hello"))]
from django.core.asgi import get_asgi_application
import httpx2 as httpx
from penstock import App
from penstock.web.dashboard import Dashboard

dashboard = Dashboard(App("memory://"), open_to_all=True)
django_application = get_asgi_application()

async def application(scope, receive, send):
    if scope["type"] == "http" and scope["path"].startswith("/jobs/"):
        await dashboard({**scope, "root_path": "/jobs"}, receive, send)
    else:
        await django_application(scope, receive, send)

async def main():
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client:
        assert (await client.get("/hello")).text == "hello"
        page = await client.get("/jobs/")
        assert page.status_code == 200, page.text
        assert 'href="/jobs/queues"' in page.text
        assert (await client.get("/jobs/queues")).status_code == 200

asyncio.run(main())
"""


@pytest.mark.system
def test_django_sends_one_path_to_it() -> None:
    pytest.importorskip("django", reason="needs django, which is not installed")
    done = subprocess.run([sys.executable, "-c", DJANGO], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
