"""What an operator does in a browser: enqueue, mend, pause, find out why a job waits, and log in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from penstock import App, Worker
from penstock.web.access_tokens import Right
from penstock.web.dashboard.pages import ACTS
from tests.web.dashboard.conftest import LISTEN, Opened, Site, serving
from tests.web.dashboard.test_access import path_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Send a form from the page as a script of the visitor would, with the token of the visitor's session.
FORGE = """
async (paths) => {
  const form_token = document.querySelector("[name=form_token]").value;
  const fields = {form_token, task: "send", "a.to": "eve", time: "5m", act: "delete"};
  const given = () => ({method: "POST", body: new URLSearchParams(fields), redirect: "manual"});
  const send = (path) => fetch(path, given());
  return Promise.all(paths.map(async (path) => [path, (await send(path)).status]));
}
"""


def shop() -> App:
    app = App("memory://")
    app.state.gate = asyncio.Event()

    @app.task(name="pack", queue="boxes", max_attempts=1)
    async def pack(order: int, note: str = "", gift: bool = False) -> str:
        if order <= 0:
            raise ValueError(f"there is no order {order}")
        return f"packed {order}: {note}"

    @app.task(name="send", queue="mail")
    async def send(to: str) -> str:
        return to

    @app.task(name="drive", queue="vans")
    async def drive(to: str) -> str:
        await app.state.gate.wait()
        return to

    return app


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncIterator[tuple[Site, str]]:
    app = shop()
    async with serving(Site(app, open_to_all=True, hosts=(), interval=1.0)) as served_one:
        yield served_one
    app.store.close()


@asynccontextmanager
async def working(app: App) -> AsyncIterator[None]:
    running = asyncio.create_task(Worker(app, concurrency=4).run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def completes(page: Any, opened: Opened) -> None:
    """The job of the page is seen to complete by a page that nobody loads again."""
    await page.locator("#state .s-available").wait_for()
    await page.evaluate("window.stays = true")
    async with working(opened.app):
        await page.locator("#state .s-completed").wait_for()
    assert await page.evaluate("window.stays")


async def test_a_task_is_enqueued_with_a_wrong_value_then_right_and_completes(opened: Opened) -> None:
    page = await opened.page("/tasks")
    await page.get_by_role("link", name="enqueue pack").click()
    order, note = page.locator("#a-order"), page.locator("#a-note")
    await order.fill("many")
    await note.fill("fragile\nthis side up")
    await page.locator("#a-gift").select_option("true")
    await page.get_by_role("button", name="Enqueue").click()
    await page.locator("#a-order-e").get_by_text("Expected `int`, got `str`").wait_for()
    assert await order.get_attribute("aria-invalid") == "true"
    assert await order.input_value() == "many"
    assert await note.input_value() == "fragile\nthis side up"
    assert await page.locator("#a-gift").input_value() == "true"
    assert await page.locator(".wrong").count() == 1
    assert "boxes" not in [queue.name for queue in await opened.app.store.queues()]
    await order.fill("7")
    await page.get_by_role("button", name="Enqueue").click()
    await completes(page, opened)
    await page.locator("#result").get_by_text("packed 7: fragile").wait_for()


async def test_a_dead_job_is_found_by_its_error_retried_with_other_arguments_and_completes(
    opened: Opened,
) -> None:
    await opened.app.tasks["pack"].using(id="lost").aenqueue(0, note="for ann")
    await opened.work()
    page = await opened.page()
    for keys in ("/", *"there is no order 0", "Enter"):
        await page.keyboard.press(keys)
    await page.locator("tr[data-row='boxes/lost'] th a").click()
    own = page.locator("#errors pre", has_text='raise ValueError(f"there is no order {order}")')
    assert await own.is_visible()
    assert "test_operator.py" in await own.inner_text()
    libraries = page.locator("#errors .traceback details", has_text="frame")
    assert [await one.get_attribute("open") for one in await libraries.all()] == [None]  # folded
    await page.get_by_role("link", name="Edit and retry").click()
    assert await page.locator("#a-note").input_value() == "for ann"
    await page.locator("#a-order").fill("3")
    await page.get_by_role("button", name="Retry with these arguments").click()
    await page.get_by_text("jobs.edit by anonymous").wait_for()
    await completes(page, opened)
    await page.locator("#result").get_by_text("packed 3: for ann").wait_for()
    assert await opened.app.store.find("lost") == []  # the copy has taken its place


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(opened: Opened) -> None:
    pack, send = opened.app.tasks["pack"], opened.app.tasks["send"]
    async with working(opened.app):
        await (await pack.aenqueue(1)).aresult(timeout=60)
        page = await opened.page("/queues/boxes")
        await page.get_by_role("button", name="Pause").click()
        await page.locator("#flags .f-paused").wait_for()
        kept = await pack.aenqueue(2)
        for name in ("ann", "bob"):
            await (await send.aenqueue(name)).aresult(timeout=60)  # the worker goes on with others
        assert await kept.astatus() == "available"
        await page.locator("#totals a", has_text="available 1").wait_for()  # by itself
        await page.get_by_role("button", name="Resume").click()
        assert await kept.aresult(timeout=60) == "packed 2: "
        await page.locator("#flags .f-paused").wait_for(state="detached")


async def test_a_job_says_why_it_waits_and_goes_on_when_that_is_mended(opened: Opened) -> None:
    drive = opened.app.tasks["drive"]
    await opened.app.aenqueue_raw("mail", b"{}", "print", id="unknown")
    async with working(opened.app):
        await drive.using(id="first").aenqueue("Rome")
        page = await opened.page("/queues")
        await page.get_by_role("link", name="vans").click()  # listed by itself, if it was not there yet
        await page.locator("#totals .s-running").wait_for()
        await page.get_by_label("Running at most").fill("1")
        await page.get_by_role("button", name="Save limits").click()
        await page.get_by_text("Set for vans: max running 1.").wait_for()
        await drive.using(id="second").aenqueue("Oslo")
        await page.goto(opened.url + "/jobs/vans/second")
        await page.locator(
            "#why", has_text="1 of 1 job of the queue runs (max_running), held by first"
        ).wait_for()
        other = await opened.page("/jobs/mail/unknown")
        await other.locator("#why", has_text="o worker here knows the task 'print'").wait_for()
        opened.app.state.gate.set()
        await page.bring_to_front()
        await page.locator("#state .s-completed").wait_for()


async def test_a_wrong_token_a_viewer_and_an_operator_log_in(browser: Any) -> None:
    app = shop()
    await app.tasks["pack"].using(id="lost").aenqueue(0)
    await app.tasks["send"].using(id="waits").aenqueue("ann")
    await Worker(app, queues=["boxes"], burst=True).run()
    site = Site(app, hosts=(), interval=1.0)
    secrets = [await asyncio.to_thread(site.token, right, right) for right in ("read", "operate")]
    async with serving(site) as (_, url):
        context = await browser.new_context()
        context.set_default_timeout(30_000)
        await context.add_init_script(LISTEN)
        opened = Opened(site, context, url)
        page = await opened.page("/jobs/boxes/lost")

        async def log_in(secret: str) -> None:
            await page.get_by_label("Access token").fill(secret)
            await page.get_by_role("button", name="Log in").click()

        await log_in("pst_" + "x" * 40)
        await page.get_by_role("alert").get_by_text("not known").wait_for()
        await log_in(secrets[0])
        await page.wait_for_url(url + "/jobs/boxes/lost")
        for path in ("/queues/mail", "/enqueue", "/tasks", "/jobs/boxes/lost"):
            await page.goto(url + path)
            assert await page.locator("main form[method=post] button:enabled").count() == 0, path
            assert await page.get_by_role("link", name="Enqueue").count() == 0
        changing = [path_of(act.path, "waits") for act in ACTS if act.right is not Right.READ]
        forged = await page.evaluate(FORGE, ["/jobs/boxes/lost/act/retry", *changing])
        assert {status for _, status in forged} == {403}, forged
        queues = {one.name: one for one in await app.store.queues()}
        assert not queues["mail"].paused
        assert [job.state for id in ("lost", "waits") for job in await app.store.find(id)] == [
            "dead",
            "available",
        ]
        await page.get_by_role("button", name="Log out").click()
        await page.goto(url + "/jobs/boxes/lost")
        await log_in(secrets[1])
        await page.get_by_role("button", name="Retry", exact=True).click()
        await page.locator("#state .s-available").wait_for()
        await page.get_by_text("jobs.retry by token:operate").wait_for()
        assert await page.evaluate("window.reports") == []
        assert [said for said in opened.errors if "401" not in said and "403" not in said] == []
        await context.close()
    app.store.close()
