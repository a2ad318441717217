"""Changes of several jobs: rights, undo, the keyboard, what a dead dashboard leaves; views; print."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest

from penstock import App
from penstock.core.job import Ref, State
from penstock.core.lifecycle import Transition
from penstock.inspector import BulkActs, BulkState, Inspector, JobAct, bulk_acts
from penstock.stores.contract import JobFilter, Settlement, Share
from penstock.web.dashboard.background import BulkSteps
from tests.web.dashboard.conftest import Opened, Site
from tests.web.dashboard.test_asks import counts, in_browser, many, put
from tests.web.dashboard.test_pages import PAYLOADS

MINUTE = 60_000
DEAD = JobFilter(states=(State.DEAD,))


def undo_in(page: str) -> str:
    found = re.search(r'action="([^"]+)"><input[^>]+>\s*<input[^>]+>\s*<button class="undo', page)
    assert found is not None
    return found[1]


def test_an_operator_of_some_queues_changes_only_those(new_site: Callable[..., Site]) -> None:
    site = new_site()
    for queue in ("mail", "orders"):
        asyncio.run(put(site.app, queue, "a", "b", dead=True))
    client = site.logged_in(site.token("some", "operate:mail", "read:orders"))
    assert client.get("/jobs").text.count('form="picked"') == 2
    assert site.post(client, "/jobs/change", act="retry", job="orders/a").status_code == 403
    assert client.get("/jobs/change?act=retry&job=orders/a").status_code == 403
    assert site.post(client, "/jobs/change?act=move", job="mail/a", to="orders").status_code == 403
    assert client.get("/jobs/change?act=retry&queue=orders").status_code == 403
    assert "2</b> jobs match" in client.get("/jobs/change?act=retry&state=dead").text
    address = site.post(client, "/jobs/change?act=retry&state=dead").headers["location"]
    started = asyncio.run(BulkActs(site.app.store).get(address.removeprefix("/bulk/")))
    assert started is not None
    assert started.filter.queues == ("mail",)
    other = site.logged_in(site.token("other", "operate:orders"))
    assert other.get(address).status_code == 404
    assert address not in other.get("/bulk").text
    site.post(other, "/bulk/abort", id=started.id)
    assert "no such bulk act that you may abort" in other.get("/").text
    assert site.logged_in(site.token("viewer", "read")).get(address).status_code == 200


def test_an_act_on_selected_jobs_is_undone_once(site: Site) -> None:
    asyncio.run(put(site.app, "mail", "a", "b", dead=True))
    asyncio.run(put(site.app, "mail", "c"))
    data = {"act": "retry", "job": ["mail/a", "mail/b", "mail/none"], "back": "/jobs"}
    form_token = re.search(r'name="form_token" value="(\w+)"', site.client.get("/jobs").text)
    assert form_token is not None
    site.client.post("/jobs/change", data={**data, "form_token": form_token[1]})
    page = site.client.get("/jobs").text
    assert "2 retried; 1 no such job." in page
    undo = undo_in(page)
    site.post(site.client, undo, "/queues")
    assert "Undone for 2 of 2 jobs." in site.client.get("/jobs").text
    assert asyncio.run(counts(site.app.store, "mail")) == {"dead": 2, "available": 1}
    for late in (undo, "/jobs/undo/nothing"):
        site.post(site.client, late, "/queues")
        assert "too late to undo" in site.client.get("/jobs").text
    acts = [one.entry.act for one in asyncio.run(Inspector(site.app.store).job("mail/a"))[0].acts]
    assert acts == ["jobs.undo", "jobs.retry"]


def test_at_most_once_jobs_that_have_started_are_said_and_can_be_left_out(site: Site) -> None:
    asyncio.run(put(site.app, "mail", "once", at_most_once=True, max_attempts=1))
    asyncio.run(put(site.app, "mail", "plain"))

    async def fail() -> None:
        store = site.app.store
        fetched = await store.fetch([Share("mail", 2, 2)], limit=2, lease=MINUTE, worker="w", token="t")
        end = Transition(State.DEAD, keep=MINUTE)
        await store.settle([Settlement(job.lease, end) for job in fetched.jobs])

    asyncio.run(fail())
    for path in ("/jobs/change?act=retry&job=mail/once&job=mail/plain", "/jobs/change?act=retry&queue=mail"):
        page = site.client.get(path).text
        assert "at-most-once and started: each would start again" in page
        assert 'name="spare"' in page
    assert 'name="spare"' not in site.client.get("/jobs/change?act=cancel&queue=mail").text
    address = site.post(site.client, "/jobs/change?act=retry&queue=mail", spare="on").headers["location"]
    started = asyncio.run(BulkActs(site.app.store).get(address.removeprefix("/bulk/")))
    assert started is not None
    assert started.spare_at_most_once
    asyncio.run(BulkActs(site.app.store).abort(started.id, by="ann"))
    form_token = re.search(r'name="form_token" value="(\w+)"', site.client.get("/jobs").text)
    assert form_token is not None
    data = {"act": "retry", "job": ["mail/once", "mail/plain"], "back": "/jobs", "spare": "on"}
    site.client.post("/jobs/change", data={**data, "form_token": form_token[1]})
    assert asyncio.run(counts(site.app.store, "mail"))["dead"] == 1


def test_a_pause_is_undone(site: Site) -> None:
    asyncio.run(put(site.app, "mail", "a"))
    site.post(site.client, "/queues/mail/switch/pause")
    site.post(site.client, undo_in(site.client.get("/queues/mail").text), "/jobs")
    (queue,) = asyncio.run(Inspector(site.app.store).queues())
    assert not queue.paused


def test_an_act_on_one_job_is_undone_on_its_page(site: Site) -> None:
    asyncio.run(put(site.app, "mail", "a", dead=True))
    site.post(site.client, "/jobs/mail/a/act/retry")
    site.post(site.client, undo_in(site.client.get("/jobs/mail/a").text))
    asyncio.run(put(site.app, "mail", "b"))
    site.post(site.client, "/jobs/mail/b/act/move", to="other")
    page = site.client.get("/jobs/other/b").text
    assert site.post(site.client, undo_in(page), back="/jobs/other/b").headers["location"] == "/jobs/mail/b"
    assert asyncio.run(counts(site.app.store, "mail")) == {"dead": 1, "available": 1}


def test_acts_with_arguments_ask_for_them_and_say_what_is_wrong(site: Site) -> None:
    asyncio.run(put(site.app, "mail", "a"))
    for act, wrong, says in (
        ("reschedule", {"delay": "soon"}, "Due in"),
        ("move", {"to": "<b>"}, "cannot be a queue"),
        ("nothing", {}, "Choose what to do"),
    ):
        site.post(site.client, f"/jobs/change?act={act}", job="mail/a", **wrong)
        assert says in site.client.get("/").text
    site.post(site.client, "/jobs/change?act=move", job="mail/a", to="later")
    site.post(site.client, "/jobs/change?act=reschedule", job="later/a", delay="1h")
    assert asyncio.run(counts(site.app.store, "later")) == {"scheduled": 1}


def test_an_act_that_cannot_do_anything_says_so(site: Site) -> None:
    asyncio.run(put(site.app, "mail", "a"))
    assert "does nothing to running jobs" in site.client.get("/jobs/change?act=retry&state=running").text
    assert "no longer exist" in site.client.get("/jobs/change?act=retry&job=mail/none").text
    assert "needs its queue" in site.client.get("/jobs/change?act=retry&job=none").text


def test_untrusted_text_of_filters_and_views_is_text(site: Site) -> None:
    asyncio.run(put(site.app, "mail", "a", dead=True))
    for evil in PAYLOADS:
        query = {"act": "retry", "text": evil, "task": evil, "header": f"h={evil}", "not-task": evil}
        site.post(site.client, "/jobs/views", name=evil, query=f"text={evil}")
        address = site.post(site.client, "/jobs/change?act=discard&state=available", reason=evil).headers
        asyncio.run(BulkActs(site.app.store).abort(address["location"][6:], by=evil))
        for path in ("/jobs", "/jobs/change", "/bulk", address["location"]):
            text = site.client.get(path, params=query).text
            assert "<script>alert" not in text
            assert "<img" not in text
            assert 'href="javascript' not in text


def test_values_of_hidden_headers_are_hidden_in_bulk_acts(site: Site) -> None:
    filter = JobFilter(headers={"authorization": "hunter2"})
    bulk = asyncio.run(BulkActs(site.app.store).start(JobAct.RETRY, filter, by="ann"))
    for path in ("/bulk", f"/bulk/{bulk.id}"):
        assert "authorization=hidden" in site.client.get(path).text
        assert "hunter2" not in site.client.get(path).text
    log = site.client.get("/audit").text
    assert f'href="/bulk/{bulk.id}"' in log
    assert "authorization=(7 characters)" in log


def test_views_are_bounded_and_garbage_is_none(site: Site) -> None:
    for n in range(21):
        site.post(site.client, "/jobs/views", name=f"view {n}", query=f"text={n}")
    assert "20 views are saved" in site.client.get("/").text
    site.post(site.client, "/jobs/views/remove", name="view 0")
    site.post(site.client, "/jobs/views", name="long", query=f"text={'x' * 4000}")
    assert "too long for a browser" in site.client.get("/").text
    site.post(site.client, "/jobs/views", name="all", query="")
    assert "Choose a filter" in site.client.get("/").text
    assert (
        site.client.get("/jobs", headers={"cookie": "penstock-views=%ff&a=b=c&=&&x=%3Cb"}).status_code == 200
    )


async def test_a_bulk_act_goes_on_if_its_dashboard_dies(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_acts, "_HELD", 20)  # ms, until another process may continue
    pauses: Iterator[float] = iter([0.0])
    monkeypatch.setattr(bulk_acts, "pause_after_step", lambda *_: next(pauses, 60.0))
    await put(app, "mail", *many(1_000), dead=True)
    acts = BulkActs(app.store)
    bulk = await acts.start(JobAct.RETRY, DEAD, by="ann")
    first, second = BulkSteps(app.store, allowed=True), BulkSteps(app.store, allowed=True)
    first.wake()
    while (await counts(app.store, "mail")).get("available") != 100:
        await asyncio.sleep(0)
    assert first._task is not None
    first._task.cancel()
    pauses = iter([0.0] * 100)
    second.wake()
    while (now := await acts.get(bulk.id)) is not None and now.state is BulkState.RUNNING:
        await asyncio.sleep(0)
    second.stop()
    assert await counts(app.store, "mail") == {"available": 1_000}
    frozen = BulkSteps(app.store, allowed=False)
    frozen.wake()
    assert frozen._task is None


@in_browser
async def test_jobs_are_selected_by_keys_changed_at_once_and_given_back(opened: Opened) -> None:
    await put(opened.app, "keys", *many(4), dead=True)
    page = await opened.page("/jobs?queue=keys&order=oldest")
    await page.locator("tr[data-row='keys/j0'] input").check()
    for key in ("j", "j", "Shift+X"):  # also from a box
        await page.keyboard.press(key)
    await page.get_by_text("3 selected").wait_for()
    await page.get_by_role("button", name="Retry", exact=True).click()
    await page.locator("#toasts").get_by_text("3 retried").wait_for()
    assert await page.locator("#jobs .s-available").count() == 3
    await page.keyboard.press("u")
    await page.locator("#toasts").get_by_text("Undone for 3 of 3 jobs.").wait_for()
    assert await counts(opened.app.store, "keys") == {"dead": 4}
    assert await page.locator("#jobs tbody .s-dead").count() == 4
    await page.locator("#jobs .all").check()
    await page.get_by_role("button", name="Cancel").click()  # it cannot be given back, so it asks
    await page.get_by_role("heading", name="Cancel 4 selected jobs").wait_for()


@in_browser
async def test_the_keyboard_comes_back_to_its_row(opened: Opened) -> None:
    await put(opened.app, "walk", *many(4), dead=True)
    page = await opened.page("/jobs?queue=walk&state=dead&order=oldest")
    here = page.locator("#jobs tr.at")
    for key in ("j", "j", "Enter"):
        await page.keyboard.press(key)
    await page.wait_for_url("**/jobs/walk/j1")
    await page.go_back()
    assert await here.get_attribute("data-row") == "walk/j1"
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/jobs/walk/j1")
    await opened.app.store.retry([Ref("walk", "j1")])  # it leaves the list
    await page.go_back()
    assert await here.get_attribute("data-row") == "walk/j2"
    await page.keyboard.press("j")
    assert await here.get_attribute("data-row") == "walk/j3"


@in_browser
async def test_a_list_prints_without_controls_and_rests_if_asked_to(opened: Opened) -> None:
    await put(opened.app, "printed", "one")
    page = await opened.page("/jobs?queue=printed")
    await page.emulate_media(media="print")
    assert not await page.locator("#picked, td.pick, .filters").first.is_visible()
    assert await page.locator("tr[data-row='printed/one'] th").is_visible()
    await page.emulate_media(media="screen", reduced_motion="reduce")
    moves = "one.getAnimations().length || parseFloat(getComputedStyle(one).transitionDuration) > 0"
    still = f"[...document.querySelectorAll('*')].filter((one) => {moves}).length"
    await page.evaluate("document.querySelector('#jobs tbody tr').classList.add('fresh')")
    assert await page.evaluate(still) == 0
