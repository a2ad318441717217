"""Pages that stay open: what they show stays true, and nothing is done twice."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.job import NewJob
from penstock.core.schedule import NewEntry, Schedule
from tests.web.dashboard.conftest import Opened

playwright = pytest.importorskip("playwright.async_api", reason="needs playwright, which is not installed")
expect = playwright.expect

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: The clock of the browser goes on by some time at once.
PASS = "(ms) => { const now = Date.now; Date.now = () => now() + ms; }"
#: A second click before the answer to the first one.
TWICE = "(button) => { button.click(); setTimeout(() => button.click(), 100); }"
_HOUR = 3_600_000


async def test_a_change_before_the_page_listens_is_shown(opened: Opened) -> None:
    pulse, listens = opened.site.dashboard._shared.pulse, asyncio.Event()

    async def later(route: Any) -> None:
        await listens.wait()
        await route.continue_()

    await opened.context.route("**/events", later)
    page = await opened.page("/queues")
    await opened.app.store.enqueue([NewJob("early", "send", b'["ann"]', "early")])
    while "early" not in [queue.name for queue in pulse.latest.queues]:
        pulse._wake.set()
        await pulse.next(1.0)
    listens.set()
    await expect(page.locator("main a[href='/queues/early']").first).to_be_visible()


async def test_what_was_not_there_appears_and_what_is_in_use_stays(opened: Opened) -> None:
    store = opened.app.store
    first, listed = await opened.page("/"), await opened.page("/queues")
    await store.enqueue([NewJob("one", "send", b'["ann"]', "fresh")])
    for page in (first, listed):
        await page.bring_to_front()
        await expect(page.locator("main a[href='/queues/fresh']").first).to_be_visible()
    queue = await opened.page("/queues/fresh")
    limit = queue.locator("#l-max_size")
    await limit.fill("77")
    await limit.blur()
    await opened.app.store.settings("fresh", paused=True)
    await expect(queue.locator("#acts")).to_contain_text("Resume")
    await expect(limit).to_have_value("77")


async def test_facts_that_change_by_time_alone_come_also_under_a_resting_pointer(opened: Opened) -> None:
    page = await opened.page("/periodic")
    await page.locator("main .card, main .empty").first.hover()
    entry = NewEntry("nightly", NewJob("x", "send", b"[]", "mail"), Schedule("every 30s"))
    await opened.app.store.put_entries([entry])
    await page.evaluate(PASS, 16_000)
    await expect(page.locator("main")).to_contain_text("nightly")
    await opened.app.store.delete_entries([entry.ref])


async def test_ages_do_not_depend_on_the_clock_of_the_browser(opened: Opened) -> None:
    await opened.app.store.enqueue([NewJob("old", "send", b'["ann"]', "clocks")])
    await opened.context.add_init_script(f"({PASS})({_HOUR})")
    page = await opened.page("/jobs/clocks/old")
    age = page.locator("#timeline time").first
    await expect(age).to_have_text(re.compile(r"^(now|\d s ago)$"))


async def test_a_job_that_is_deleted_elsewhere_is_said_to_be_gone(opened: Opened) -> None:
    job = NewJob("gone", "send", b'["ann"]', "ended")
    await opened.app.store.enqueue([job])
    page = await opened.page("/jobs/ended/gone")
    await opened.app.store.delete([job.ref])
    await expect(page.locator("button.live")).to_have_text("gone")
    assert opened.errors.pop().count("404")  # the browser says so itself


async def test_a_double_click_does_an_act_once(opened: Opened) -> None:
    store = opened.app.store
    jobs = [NewJob(f"d{n}", "send", b'["ann"]', "twice") for n in range(3)]
    await store.enqueue(jobs)
    await store.discard([job.ref for job in jobs])
    sent: list[str] = []
    page = await opened.page("/jobs?queue=twice&state=dead")
    page.on("request", lambda asked: "static" not in asked.url and sent.append(f"{asked.method} {asked.url}"))
    await page.route("**/jobs/**", slowly)
    await page.locator("td.pick input").first.check()
    await page.locator("#picked button", has_text="Retry").evaluate(TWICE)
    await expect(page.locator("#toasts")).to_contain_text("retried")
    assert not [one for one in sent if "GET" in one and "/jobs/change" in one]
    await page.goto(f"{opened.url}/jobs/twice/d0")
    await page.locator("button", has_text="Duplicate").evaluate(TWICE)
    await expect(page.locator(".flash")).to_contain_text("d0")
    assert len([one for one in sent if "POST" in one]) == 2, sent


async def slowly(route: Any) -> None:
    await asyncio.sleep(0.2)
    await route.continue_()


async def test_a_page_without_its_store_comes_back_and_one_that_was_open_stays(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> Any:
        raise StoreUnavailable("no route to it")

    monkeypatch.setattr("penstock.web.dashboard.dashboard._AGAIN", 1)
    await opened.app.store.enqueue([NewJob("one", "send", b'["ann"]', "away")])
    before = await opened.page("/queues/away")
    with monkeypatch.context() as patched:
        patched.setattr(type(opened.app.store), "queues", away)
        opened.site.dashboard._shared.reads.clear()
        await expect(before.locator("button.live")).to_have_class(re.compile("lost"))
        page = await opened.page("/queues/away")
        await expect(page.locator("main")).to_contain_text("no route to it. This page is loaded again")
    await expect(page.locator("h1")).to_contain_text("away")
    await expect(before.locator("#totals")).to_contain_text("available")
    opened.errors = [one for one in opened.errors if "503" not in one]  # the browser says so itself
