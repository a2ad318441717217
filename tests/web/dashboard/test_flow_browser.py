"""A flow in a browser: an operator follows it to the signal that it waits for, and sends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import App, Worker
from penstock.workflows import chain, current_flow, immutable
from tests.web.dashboard.conftest import LISTEN, Opened, Site, serving

pytestmark = pytest.mark.asyncio(loop_scope="session")


def shop() -> App:
    app = App("memory://")

    @app.task(queue="mail")
    async def check(order_id: int) -> int:
        return order_id

    @app.task(queue="mail")
    async def order(order_id: int) -> str:
        boxes = await current_flow().wait_for("packed", key=order_id, timeout="3d", of=int)
        return f"{boxes} boxes"

    @app.task(queue="mail")
    async def close(order_id: int) -> None: ...

    canvas = chain(immutable(check.job(7)), immutable(order.job(7)), immutable(close.job(7)))
    canvas.enqueue(id="order-7", name="order 7")
    return app


async def test_a_flow_is_followed_to_its_signal_which_is_sent(browser: Any) -> None:
    app = shop()
    site = Site(app, open_to_all=True, hosts=(), interval=1.0)
    async with serving(site) as (_, url):
        working = asyncio.create_task(Worker(app).run())
        context = await browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(30_000)
        await context.add_init_script(LISTEN)
        opened = Opened(site, context, url)
        page = await opened.page("/")
        await page.keyboard.press("g")
        await page.keyboard.press("f")
        await page.get_by_role("link", name="order 7").click()
        await page.locator("#graph .box.w-suspended").wait_for()
        assert await page.locator("#nodes tr[data-row]").count() == 3
        await page.evaluate("window.stays = true")
        await page.get_by_text("Send it…", exact=True).click()
        await page.get_by_text("Send it as JSON…", exact=True).click()
        form = page.locator("details:has(> summary:text-is('Send it as JSON…'))")
        data = form.get_by_label("Data of the signal")
        await data.fill("{2")
        await form.get_by_role("button", name="Send packed").click()
        assert "This is not JSON" in await data.evaluate("one => one.validationMessage")
        assert await page.evaluate("window.stays")  # nothing was sent
        await data.fill("2")
        await form.get_by_role("button", name="Send packed").click()
        await page.get_by_text("the job has received it").wait_for()
        await page.locator("#state .s-completed").wait_for()  # by itself
        await page.locator("#graph .k-node.s-completed").nth(2).wait_for()
        assert opened.errors == []
        assert await page.evaluate("window.reports") == []
        await context.close()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    app.store.close()
