"""The dashboard of a store that has the core alone: what it offers works, and the rest is not offered."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import App, Worker
from penstock.stores.contract import REQUESTS, Capability
from penstock.stores.sqlite import SqliteStore
from penstock.web.dashboard.pages import ACTS, PAGES
from penstock.web.dashboard.view import lack
from tests.core_store.core_alone import CoreAlone
from tests.web.dashboard.conftest import Site

_PARTS = {"queue": "mail", "id": "x", "task": "send", "worker": "w", "bulk": "b", "what": "payload"}
_PARTS |= {"act": "pause", "ticket": "t"}
#: The pages and acts that need no more than the core.
_CORE = {"/", "/queues", "/queues/{queue}", "/limits", "/health", "/enqueue"}
_CORE |= {"/queues/{queue}/switch/{act}", "/queues/{queue}/intake/{act}"}


def _site(store: CoreAlone) -> Site:
    app = App(store=store)

    @app.task(queue="mail", name="send")
    def send(to: str) -> str:
        return to

    send.enqueue("ann")
    asyncio.run(Worker(app, burst=True).run())
    send.using(id="x").enqueue("bob")
    return Site(app, open_to_all=True, hosts=())


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db")
    yield store
    store.close()


@pytest.fixture
def site(inner: SqliteStore) -> Site:
    return _site(CoreAlone(inner))


def _path(pattern: str) -> str:
    return pattern.format(**_PARTS)


def _links(text: str) -> set[str]:
    return {link.partition("#")[0] for link in re.findall(r'(?:href|action)="(/[^"]*)"', text)}


def test_each_link_leads_to_a_page(site: Site) -> None:
    """No link of a page leads to what is not offered, and no part of a page fails."""
    left, seen = {"/"}, set[str]()
    while left:
        path = left.pop()
        seen.add(path)
        if path.startswith(("/static/", "/theme", "/search")) or "/switch/" in path or "/intake/" in path:
            continue
        answer = site.client.get(path.replace("&amp;", "&"))
        assert answer.status_code == 200, path
        for word in ("This part cannot be shown", "Not available", "failed"):
            assert word not in answer.text, path
        left |= _links(answer.text) - seen
    assert {"/", "/queues", "/queues/mail", "/limits", "/health", "/enqueue?task=send"} <= seen


def test_a_page_that_it_cannot_have_says_why(site: Site) -> None:
    wrong: dict[str, tuple[int, str]] = {}
    for pattern in sorted({page.path for page in PAGES}):
        answer = site.client.get(_path(pattern))
        if pattern in _CORE:
            right = answer.status_code == 200
        else:
            says_why = re.search(r"This store cannot [a-z ,]+\.", answer.text) is not None
            right = answer.status_code == 501 and says_why
        if not right:
            wrong[pattern] = answer.status_code, answer.text
    assert wrong == {}


def test_so_do_acts(site: Site) -> None:
    wrong: dict[str, int] = {}
    for pattern in sorted({act.path for act in ACTS}):
        status = site.post(site.client, _path(pattern)).status_code
        if (status == 501) is (pattern in _CORE) or status == 500:
            wrong[pattern] = status
    assert wrong == {}


def test_what_is_absent_is_named(site: Site) -> None:
    overview = site.client.get("/").text
    assert "This store cannot" in overview
    for absent in ("Jobs", "Errors", "Workers", "Flows", "Periodic", "Batches", "Audit log", "Activity"):
        assert f">{absent}<" not in overview
    for there in ("Queues", "Limits", "Enqueue", "Health"):
        assert f">{there}<" in overview
    queue = site.client.get("/queues/mail").text
    assert ">Pause<" in queue
    assert "Save limits" not in queue


def test_a_queue_is_paused_and_a_job_is_enqueued(site: Site) -> None:
    site.post(site.client, "/queues/mail/switch/pause")
    made = site.post(site.client, "/enqueue", page="/enqueue?task=send", task="send", **{"a.to": "cid"})
    assert made.status_code in (200, 303)
    (info,) = site.app.store.sync.queues()
    assert info.paused
    assert sum(info.counts.values()) >= 2


def test_the_login_says_that_there_are_no_tokens(inner: SqliteStore) -> None:
    closed = Site(App(store=CoreAlone(inner)), hosts=())
    answer = closed.post(closed.client, "/login", page="/login", token="pst_" + "x" * 40)
    assert answer.status_code == 401
    assert "This store cannot keep documents and logs, and so has no access tokens." in answer.text


@pytest.mark.parametrize(
    "more", [*(one for one in REQUESTS if one is not Capability.CORE), Capability.LIMITS]
)
def test_one_capability_more(inner: SqliteStore, more: Capability) -> None:
    """No page that is offered fails for want of another one."""
    store = CoreAlone(inner, more)
    site = _site(store)
    for page in PAGES:
        answer = site.client.get(_path(page.path))
        assert answer.status_code in ((200, 303, 400, 404) if lack(store, page.path) is None else (501,)), (
            page
        )
        assert "This part cannot be shown" not in answer.text, page.path
