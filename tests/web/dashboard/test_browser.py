"""The dashboard in a browser: what an operator does, and no report of the content policy on any page."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Worker
from penstock.web.dashboard.pages import PAGES
from tests.web.dashboard import conftest
from tests.web.dashboard.conftest import Opened
from tests.web.dashboard.test_access import path_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_each_page_opens_without_an_error(opened: Opened) -> None:
    (task,) = opened.app.tasks.values()
    await task.using(id="each").aenqueue("nobody", options={"a": [1, {"b": "<i>"}]})
    await opened.work()
    page = await opened.page()
    for one in PAGES:
        await page.goto(opened.url + path_of(one.path, "each"))
        assert await page.evaluate("window.reports") == []
    await page.goto(opened.url + "/login")
    assert await page.title() == "Log in · Penstock"


async def test_a_failed_job_is_found_by_its_error_retried_and_seen_to_complete(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = opened.app.tasks.values()
    await task.using(id="lost", max_attempts=1).aenqueue("nobody")
    await opened.work()
    page = await opened.page()
    await page.keyboard.press("/")
    await page.keyboard.type("no mailbox")
    await page.keyboard.press("Enter")
    await page.locator("tr[data-row='mail/lost'] th a").click()
    await page.get_by_text("ValueError").first.wait_for()
    await page.get_by_role("button", name="Retry").click()
    await page.locator("#state .s-available").wait_for()
    await page.evaluate("window.stays = true")
    monkeypatch.setattr(conftest, "NO_MAILBOX", frozenset())  # somebody has mended it
    await opened.work()
    await page.locator("#state .s-completed").wait_for()  # by itself
    assert await page.evaluate("window.stays")


async def test_pages_of_one_browser_share_a_stream_which_ends_with_the_last(opened: Opened) -> None:
    pulse = opened.site.dashboard._shared.pulse
    pages = [await opened.page("/queues") for _ in range(3)]
    while pulse.followers != 1:  # until the pages have chosen one
        await asyncio.sleep(0.02)
    reads = opened.site.dashboard._shared.reads.reads
    await asyncio.sleep(1.5)
    assert pulse.followers == 1
    assert opened.site.dashboard._shared.reads.reads - reads <= 8
    for page in pages[1:]:
        await page.close()
    await pages[0].goto(opened.url + "/login")
    while pulse.followers:
        await asyncio.sleep(0.02)


async def test_a_phone_shows_pages_without_scrolling_sideways(opened: Opened) -> None:
    (task,) = opened.app.tasks.values()
    await task.using(id="phone").aenqueue("ann")
    page = await opened.page()
    await page.set_viewport_size({"width": 375, "height": 740})
    for one in PAGES:
        await page.goto(opened.url + path_of(one.path, "phone"))
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 375, (one.path, wide)


async def test_a_worker_is_seen_reports_its_stacks_and_drains(opened: Opened) -> None:
    working = asyncio.create_task(Worker(opened.app, concurrency=3).run())
    page = await opened.page("/workers")
    await page.locator("#list tbody a").first.click()
    other = await opened.page(page.url.removeprefix(opened.url))
    await page.get_by_role("button", name="Stacks").click()
    await page.locator("pre.stacks").wait_for()
    await page.locator(".crumbs a").last.click()
    await page.get_by_text("Drain…").click()
    await page.get_by_role("button", name="Drain").click()
    await asyncio.wait_for(working, 60)
    await other.get_by_text("No live worker has this id").wait_for()  # by itself
    assert await other.locator("#process, #acts").all_inner_texts() == ["", ""]


async def test_the_keyboard_and_a_phone_reach_each_page(opened: Opened) -> None:
    page = await opened.page()
    for one in PAGES:
        if one.key:
            async with page.expect_navigation(url=opened.url + one.path):
                await page.keyboard.press("g")
                await page.keyboard.press(one.key)
    (task,) = opened.app.tasks.values()
    await opened.app.aenqueue_many([task.job("ann") for _ in range(60)])
    await page.goto(opened.url + "/jobs")
    await page.keyboard.press("n")
    await page.wait_for_url("**/jobs?after=*")
    await page.set_viewport_size({"width": 375, "height": 740})
    await page.locator(".rest summary").click()
    await page.locator(".rest a", has_text="Health").click()
    await page.wait_for_url(opened.url + "/health")
