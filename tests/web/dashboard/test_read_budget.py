"""What open pages cost the store: verbs are counted, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest

from penstock import App
from penstock.core.job import NewJob, Ref
from penstock.stores.contract import Request, Store
from penstock.web.dashboard.identification import Visitor
from penstock.web.dashboard.pages import PAGES
from penstock.web.dashboard.pages import jobs as list_page
from tests.web.dashboard.conftest import BASE, Site, example_app
from tests.web.dashboard.hostile import fill_with_hostile_text, hostile_paths

#: Verbs of the store per second of ten open dashboards, in all.
MOST = 5
#: Seconds between two events of the stream.
INTERVAL = 2.0
SEARCHES = [f"/jobs?text=order-{n}" for n in range(10)]


class Clock:
    """The clock by which the dashboard counts its reads."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("penstock.web.dashboard.shared_reads.time", SimpleNamespace(monotonic=made.monotonic))
    return made


@pytest.fixture
def long_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of 200 jobs takes 20 steps, as one of some hundred thousand jobs does."""
    monkeypatch.setattr("penstock.stores.sql.verbs.searching.SEARCH_STEP", 10)
    monkeypatch.setattr(list_page, "_PATIENCE", 60.0)


def count_verbs(store: Store) -> Counter[str]:
    """Count the calls of each verb from now on."""
    found: Counter[str] = Counter()
    ask = store.ask

    async def counted(request: Request[Any]) -> Any:
        found[request.verb] += 1
        return await ask(request)

    store.ask = counted  # type: ignore[method-assign]
    return found


async def fill(app: App) -> None:
    jobs = [NewJob(f"j{n}", "send", b'["order-%d"]' % (n % 10), "mail") for n in range(200)]
    await app.store.enqueue(jobs)


def test_a_page_counts_all_that_it_asks_of_the_store() -> None:
    app = example_app()
    asyncio.run(fill_with_hostile_text(app))
    site = Site(app, open_to_all=True, hosts=())
    site.client.get("/")
    verbs, reads, short = count_verbs(app.store), site.dashboard._shared.reads, []
    for path in (path for page in PAGES for path in hostile_paths(page.path)[-3:]):
        reads.clear()
        verbs.clear()
        before = reads.reads
        site.client.get(path)
        if verbs.total() > reads.reads - before:
            short.append((path[:50], reads.reads - before, dict(verbs)))
    app.store.close()
    assert short == []


@pytest.mark.usefixtures("long_searches")
async def test_ten_open_searches_stay_within_the_budget_and_up_to_date(app: App, clock: Clock) -> None:
    await fill(app)
    site = Site(app, open_to_all=True, hosts=())
    transport = httpx.ASGITransport(site.dashboard)
    refreshed: Counter[str] = Counter()
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        for path in SEARCHES:
            page = await client.get(path)
            assert page.text.count("<tr data-row=") == 20
            assert "Search again" in page.text
        clock.now += 100.0  # the searches themselves are paid
        verbs, began = count_verbs(app.store), clock.now
        while clock.now < began + 30.0:
            clock.now += INTERVAL
            await site.dashboard._shared.pulse._read()
            for path in SEARCHES:
                page = await client.get(path, headers={"X-Penstock-Live": "1"})
                assert page.status_code == 204 or page.text.count("<tr data-row=") == 20
                refreshed[path] += page.status_code == 200
    assert verbs.total() <= MOST * (clock.now - began)
    assert verbs["search"] == 0
    assert min(refreshed[path] for path in SEARCHES) >= 5, refreshed


@pytest.mark.usefixtures("long_searches")
def test_a_search_that_is_kept_shows_what_became_of_its_jobs(app: App, clock: Clock) -> None:
    asyncio.run(fill(app))
    scopes = ["read"]
    site = Site(app, login=lambda _: Visitor.of("ann", *scopes))

    def rows(*, live: bool = True) -> dict[str, str]:
        clock.now += 60.0
        page = site.client.get(
            "/jobs?text=order-7&state=available&state=dead&state=completed",
            headers={"X-Penstock-Live": "1"} if live else {},
        )
        return dict(re.findall(r'<tr data-row="mail/(\w+)" .*? data-state="(\w+)"', page.text))

    assert len(rows(live=False)) == 20
    refs = [Ref("mail", id) for id in ("j7", "j17", "j27")]
    asyncio.run(app.store.discard(refs[:1]))
    asyncio.run(app.store.delete(refs[1:2]))
    asyncio.run(app.store.cancel(refs[2:]))
    asyncio.run(app.store.enqueue([NewJob("later", "send", b'["order-7"]', "mail")]))
    found = rows()
    assert found["j7"] == "dead"
    assert len(found) == 18
    assert not found.keys() & {"j17", "j27", "later"}
    client = site.client
    assert "later" in client.get("/jobs?text=order-7", headers={"X-Penstock-Part": "1"}).text
    assert len(site.dashboard._shared.found_lists._lists) == 1  # parts of a search evict no open page
    assert "later" in rows(live=False)
    scopes[:] = ["read:other"]
    assert rows() == {}


def test_short_searches_stay_live(site: Site) -> None:
    asyncio.run(fill(site.app))
    assert "Search again" not in site.client.get("/jobs?text=later").text
    asyncio.run(site.app.store.enqueue([NewJob("later", "send", queue="mail")]))
    page = site.client.get("/jobs?text=later", headers={"X-Penstock-Live": "1"})
    assert page.text.count("<tr data-row=") == 1


def test_a_new_queue_has_its_page_at_once_and_wrong_names_cost_little(clock: Clock, site: Site) -> None:
    assert site.client.get("/queues/fresh").status_code == 404
    asyncio.run(site.app.store.enqueue([NewJob("one", "send", queue="fresh")]))
    assert site.client.get("/queues/fresh").status_code == 200
    verbs = count_verbs(site.app.store)  # the clock stands still
    assert {site.client.get(f"/queues/none-{n}").status_code for n in range(30)} == {404}
    assert verbs["queues"] <= 5
