"""What users of other dashboards ask for, and where those have failed: tests named by it.

Some have a file of their own. Ask 4, a job from a form with typed fields, and edit-and-retry: test_enqueue.py
and test_operator.py. Ask 5, rights per act on the server: test_access.py. Ask 7, large flows in bounded
parts, and the trap of hostile cron expressions: test_flow_pages.py.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from penstock import App
from penstock.core.errors import StoreUnavailable
from penstock.core.job import NewJob, Ref, State
from penstock.inspector import BulkActs, BulkState, Inspector, bulk_acts
from penstock.stores.contract import Store
from penstock.web.dashboard.pages import jobs as list_page
from tests.web.dashboard.conftest import Opened, Site

in_browser = pytest.mark.asyncio(loop_scope="session")


async def put(app: App, queue: str, *ids: str, dead: bool = False, **facts: Any) -> list[Ref]:
    """Jobs of the task `send` in a queue of the test's own."""
    name = next(iter(app.tasks))
    facts = {"payload": b'["ann"]', **facts}
    jobs = [NewJob(task=name, queue=queue, id=id, **facts) for id in ids]
    await app.store.enqueue(jobs)
    refs = [job.ref for job in jobs]
    if dead:
        await app.store.discard(refs, reason="no mailbox")
    return refs


async def counts(store: Store, queue: str) -> dict[str, int]:
    found = await Inspector(store).queue(queue)
    assert found is not None
    return {state: n for state, n in found.counts.items() if n}


def many(n: int) -> list[str]:
    return [f"j{number}" for number in range(n)]


# ── the ten asks ─────────────────────────────────────────────────────────────────────────────────


@in_browser
async def test_ask_1_search_by_arguments_goes_on_by_itself_and_can_be_stopped(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_page, "_PATIENCE", 0.0)  # one step of 500 jobs per answer
    await put(opened.app, "haystack", "oldest", payload=b'["the needle"]')
    await put(opened.app, "haystack", *many(2_000))
    go, asked = asyncio.Event(), asyncio.Event()

    async def held(route: Any) -> None:
        asked.set()
        await go.wait()
        await route.continue_()

    page = await opened.page()
    await page.route("**/jobs?*after=*", held)
    await page.goto(f"{opened.url}/jobs?queue=haystack&text=needle")
    await asked.wait()
    await page.get_by_text("Searched 500 of about 2,001 jobs").wait_for()
    await page.get_by_role("button", name="Stop").click()
    go.set()
    await page.get_by_text("Searched 1,000 of about 2,001 jobs: 0 found").wait_for()
    await page.get_by_role("link", name="Continue").click()
    await page.get_by_text("Searched all jobs: 1 found").wait_for()
    assert await page.locator("tr[data-row='haystack/oldest']").is_visible()
    await Inspector(opened.app.store).purge("haystack")


def test_ask_1_search_goes_on_without_script(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_page, "_PATIENCE", 0.0)
    asyncio.run(put(site.app, "mail", "oldest", payload=b'["the needle"]'))
    asyncio.run(put(site.app, "mail", *many(1_000)))
    path, says, pages = "/jobs?text=needle", [], ""
    while path:
        text = site.client.get(path).text
        pages += text
        says += re.findall(r"Searched ([\d,]+) of about", text)
        found = re.search(r'href="([^"]+)" rel="next"', text)
        path = found[1].replace("&amp;", "&") if found else ""
    assert says[:2] == ["500", "1,000"]
    assert pages.count('data-row="mail/oldest"') == 1


def test_ask_2_selected_or_all_failed_jobs_are_retried_with_their_exact_arguments(site: Site) -> None:
    exact = b'[12345678901234567890, 1.10, "\\u00fc"]'
    refs = asyncio.run(put(site.app, "mail", "a", "b", "c", dead=True, payload=exact))
    page = site.client.get("/jobs?state=dead").text
    assert [f'value="mail/{id}"' in page for id in "abc"] == [True] * 3
    answer = site.post(site.client, "/jobs/change", act="retry", job="mail/a", back="/jobs?state=dead")
    assert answer.headers["location"] == "/jobs?state=dead"
    assert "Job a: retried (was dead)." in site.client.get("/jobs?state=dead").text
    review = site.client.get("/jobs/change?act=retry&state=dead").text
    assert "2</b> jobs match" in review
    send_to = re.search(r'action="(/jobs/change\?[^"]+)"', review)
    assert send_to is not None
    answer = site.post(site.client, send_to[1].replace("&amp;", "&"))
    asyncio.run(ended(site.app.store, answer.headers["location"].removeprefix("/bulk/")))
    jobs = asyncio.run(site.app.store.get(refs))
    assert [(job.state, job.spec.payload) for job in jobs if job] == [(State.AVAILABLE, exact)] * 3


async def ended(store: Store, id: str) -> None:
    """Do the steps of a bulk act, as the process that has begun it."""
    acts = BulkActs(store)
    while (bulk := await acts.get(id)) is not None and bulk.state is BulkState.RUNNING:
        await acts.step(id, bulk.holder or "w")


def test_ask_3_a_large_queue_is_listed_and_counted_without_reading_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(put(site.app, "mail", *many(3_000), dead=True))
    store, steps = type(site.app.store), []
    search = store.search

    async def counted(*given: Any, **facts: Any) -> Any:
        page = await search(*given, **facts)
        steps.append(page.seen)
        return page

    monkeypatch.setattr(store, "search", counted)
    page = site.client.get("/jobs?state=dead").text
    assert "All 3,000 that match" in page
    assert "3,000</b> jobs match" in site.client.get("/jobs/change?act=delete&state=dead").text
    assert sum(steps) <= 2 * 51 + 11 + 2  # a page of rows, a sample, and a look whether there are more


@in_browser
async def test_ask_3_an_open_page_asks_again_only_after_the_answer(opened: Opened) -> None:
    page = await opened.page("/jobs?queue=slow")
    asked, go = 0, asyncio.Event()

    async def held(route: Any) -> None:
        nonlocal asked
        asked += 1
        await go.wait()
        await route.continue_()

    await page.route("**/jobs?queue=slow", held)
    pulse = opened.site.dashboard._shared.pulse
    for n in range(2):
        await put(opened.app, "slow", f"s{n}")
        before = pulse.latest.number
        while pulse.latest.number < before + 2:
            await pulse.next(5)
    assert asked == 1
    go.set()
    await page.locator("tr[data-row='slow/s1']").wait_for()


def test_ask_6_a_big_payload_fills_neither_the_list_nor_the_page_of_its_job(site: Site) -> None:
    big = b'[[%b], {"id": 12345678901234567890}]' % b",".join([b'"%s"' % (b"x" * 1000)] * 1_000)
    asyncio.run(put(site.app, "mail", "big", payload=big))
    assert len(site.client.get("/jobs").text) < 30_000
    page = site.client.get("/jobs/mail/big").text
    assert len(page) < 700_000
    assert "more</a></div>" in page
    assert "12345678901234567890" in site.client.get("/jobs/mail/big/document/arguments").text


@in_browser
async def test_ask_8_ten_thousand_dead_jobs_are_counted_retried_and_aborted(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(opened.app, "graves", *many(10_000), dead=True)
    steps = iter([0.0])  # one that takes the act; after the next, which changes 100 jobs, it waits
    monkeypatch.setattr(bulk_acts, "pause_after_step", lambda *_: next(steps, 60.0))
    page = await opened.page("/jobs?queue=graves&state=dead")
    await page.get_by_text("All 10,000 that match").wait_for()
    await page.get_by_role("button", name="Retry").click()
    await page.get_by_text("10,000 jobs match").wait_for()
    assert await counts(opened.app.store, "graves") == {"dead": 10_000}
    await page.get_by_role("button", name="Retry 10,000 jobs").click()
    await page.locator("#progress").get_by_text("100 retried").wait_for()  # by itself
    await page.get_by_text("Abort…").click()
    await page.get_by_role("button", name="Abort").click()
    await page.locator("#state").get_by_text("aborted").wait_for()
    assert await counts(opened.app.store, "graves") == {"available": 100, "dead": 9_900}
    await page.goto(f"{opened.url}/bulk")
    assert "aborted" in await page.locator("#bulk tbody tr").first.inner_text()
    opened.site.dashboard._shared.bulk_steps.stop()  # or it would wait for the rest of the minute
    await Inspector(opened.app.store).purge("graves")


def test_ask_8_an_act_on_everything_is_refused(site: Site) -> None:
    asyncio.run(put(site.app, "mail", "a"))
    for act in ("cancel", "complete", "delete", "discard", "move", "duplicate"):
        page = site.client.get(f"/jobs/change?act={act}").text
        assert f"This would {act} every job" in page
        assert 'action="/jobs/change' not in page
        answer = site.post(site.client, f"/jobs/change?act={act}", to="mail")
        assert answer.headers["location"] == "/"
    assert asyncio.run(BulkActs(site.app.store).all()) == []


def test_ask_9_filters_are_links_that_can_be_named_reversed_and_negated(site: Site) -> None:
    asyncio.run(put(site.app, "mail", "a", "b"))
    asyncio.run(put(site.app, "other", "c"))
    (name,) = site.app.tasks

    def rows(query: str) -> list[str]:
        return re.findall(r'data-row="([^"]+)"', site.client.get(f"/jobs?{query}").text)

    assert rows("order=oldest") == rows("order=newest")[::-1] == ["mail/a", "mail/b", "other/c"]
    assert rows("not-queue=mail&not-queue=none") == ["other/c"]
    assert rows("not-state=dead&not-state=running&queue=mail") == ["mail/b", "mail/a"]
    assert rows(f"not-task=x&not-task={name}") == []
    query = "queue=mail&state=available&since=24h&order=oldest"
    page = site.client.get(f"/jobs?{query}").text
    for href in re.findall(r'<a[^>]* href="/jobs\?([^"]+)"', page):  # each link keeps the rest of the filter
        assert "since=24h" in href, href
    site.post(site.client, "/jobs/views", name="Mail <now>", query=query, back=f"/jobs?{query}")
    page = site.client.get("/jobs").text
    assert f'href="/jobs?{query.replace("&", "&amp;")}">Mail &lt;now&gt;</a>' in page
    assert "Mail &lt;now&gt;</small>" in site.client.get(f"/jobs?{query}").text
    site.post(site.client, "/jobs/views/remove", name="Mail <now>")
    assert "Mail" not in site.client.get("/jobs").text.split("<nav")[2]


@in_browser
async def test_ask_9_the_time_range_stays_for_the_other_pages(opened: Opened) -> None:
    page = await opened.page("/jobs?since=24h&state=dead")
    await page.goto(f"{opened.url}/queues")
    await page.locator(".side nav a", has_text="Jobs").first.click()
    assert page.url == f"{opened.url}/jobs?since=24h"
    await page.select_option("#f-since", "")
    await page.wait_for_url(re.compile(r"/jobs\??$"))
    await page.goto(f"{opened.url}/queues")
    assert await page.locator(".side nav a", has_text="Jobs").first.get_attribute("href") == "/jobs"


@in_browser
async def test_ask_10_a_list_that_is_read_moves_no_row_and_counts_new_ones(opened: Opened) -> None:
    await put(opened.app, "read", "first")
    page = await opened.page("/jobs?queue=read")
    await page.locator("tr[data-row='read/first']").hover()
    await put(opened.app, "read", *many(3))
    await page.get_by_role("button", name="3 new").wait_for()
    assert await page.locator("#jobs tbody tr").count() == 1
    await opened.app.store.cancel([Ref("read", "first")])
    await page.locator("tr[data-row='read/first'] .s-cancelled").wait_for()  # in its place
    await page.get_by_role("button", name="3 new").click()
    assert await page.locator("#jobs tbody tr").count() == 4
    await put(opened.app, "read", "later")
    await page.mouse.move(5, 5)
    await page.locator("tr[data-row='read/later']").wait_for()  # nobody reads it


# ── the traps ────────────────────────────────────────────────────────────────────────────────────


@in_browser
async def test_trap_links_and_ids_are_copied_over_plain_http(opened: Opened) -> None:
    await put(opened.app, "copied", "one", "two")
    url = opened.url.replace("127.0.0.1", "jobs.example")
    page = await opened.page()
    await page.goto(f"{url}/jobs?queue=copied&order=oldest")
    assert await page.evaluate("[isSecureContext, typeof navigator.clipboard]") == [False, "undefined"]
    await page.get_by_role("button", name="Copy link").click()
    await page.get_by_role("button", name="Copied").wait_for()
    field = page.locator("#q")
    await field.press("Control+v")
    assert await field.input_value() == f"{url}/jobs?queue=copied&order=oldest"
    for box in await page.locator("td.pick input").all():
        await box.check()
    await page.get_by_role("button", name="Copy ids").click()
    await page.locator("#toasts").get_by_text("Copied").wait_for()
    await field.fill("")
    await field.press("Control+v")
    assert (await field.input_value()).split() == ["copied/one", "copied/two"]
    opened.errors = [one for one in opened.errors if "Opener-Policy header has been ignored" not in one]


def test_trap_names_with_slashes_and_dots_are_names_in_addresses(site: Site) -> None:
    odd = NewJob(task="../a/b.c?x=1&y#z", queue="..", id=".", payload=b"[]")
    asyncio.run(site.app.store.enqueue([odd]))
    page = site.client.get("/jobs", params={"task": odd.task}).text
    assert 'href="/jobs/!../!."' in page
    assert site.client.get("/jobs/!../!.").status_code == 200
    assert site.client.get("/jobs/change?act=cancel&job=../.").text.count("b.c?x=1&amp;y#z") == 1
    site.post(site.client, "/jobs/change?act=cancel", job="../.")
    assert asyncio.run(counts(site.app.store, "..")) == {"cancelled": 1}
    for path in ("/jobs/%2e%2e/%2e", "/bulk/..%2f..%2fetc", "/jobs/undo/..%2f"):
        assert site.client.get(path).status_code in (200, 404)


def test_trap_a_card_that_fails_leaves_the_rest_of_the_page(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(put(site.app, "mail", "a", "b", dead=True))

    async def broken(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the index is <gone>")

    monkeypatch.setattr(type(site.app.store), "search", broken)
    monkeypatch.setattr(BulkActs, "all", broken)
    for path in ("/jobs?text=a", "/jobs/change?act=retry&text=a", "/bulk"):
        page = site.client.get(path)
        assert page.status_code == 200
        assert "the index is &lt;gone&gt;" in page.text
    assert 's-dead">dead</span> <b>2</b>' in site.client.get("/jobs").text
