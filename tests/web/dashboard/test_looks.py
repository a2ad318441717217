"""What pages look like with long names, on small screens, on paper and to the keyboard, in a browser."""

from __future__ import annotations

import pytest

from penstock.core.job import AttemptError, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Settlement, Share, Store
from penstock.workflows import Flow
from tests.web.dashboard.conftest import Opened

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = "warehouse.inventory.tasks.reconcile_stock_levels_with_the_catalogue_of_an_external_supplier"
QUEUE = "europe-west-4.production.warehouse-inventory-synchronisation-critical"
TRACEBACK = """Traceback (most recent call last):
  File "/usr/lib/python3.11/asyncio/tasks.py", line 1, in wait_for
    await inner
  File "/srv/shop/tasks.py", line 2, in reconcile
    raise ValueError("no stock")
ValueError: no stock
"""
#: Parts that have to be scrolled sideways.
WIDE = """() => [document.documentElement, ...document.querySelectorAll(".scroll")]
    .filter((one) => one.scrollWidth > one.clientWidth).length"""


async def die_long(store: Store, id: str) -> None:
    """Store a dead job with long names and a traceback."""
    await store.enqueue([NewJob(id, LONG, b"{}", QUEUE)])
    (job,) = (await store.fetch([Share(QUEUE, 1, 1)], limit=1, lease=60_000, worker="w", token=id)).jobs
    error = AttemptError(1, 0, "ValueError", "no stock", TRACEBACK)
    await store.settle([Settlement(job.lease, Transition(State.DEAD, error=error, keep=3_600_000))])


async def test_a_long_name_takes_lines_and_not_the_room_of_other_columns(opened: Opened) -> None:
    await die_long(opened.app.store, "long")
    page = await opened.page()
    for path in ("/", "/queues", "/jobs", f"/queues/{QUEUE}", "/errors", "/tasks"):
        await page.goto(opened.url + path)
        assert await page.evaluate(WIDE) == 0, path


async def test_the_keys_are_listed_and_every_one_of_the_navigation(opened: Opened) -> None:
    page = await opened.page("/queues")
    await page.keyboard.press("?")
    shown = await page.locator("#keys").inner_text()
    for key in await page.eval_on_selector_all(".side nav [data-key]", "all => all.map(a => a.dataset.key)"):
        assert f"g {key}\n" in shown
    await page.keyboard.press("Escape")
    assert not await page.locator("#keys").is_visible()
    await page.get_by_role("button", name="Keys").click()
    assert await page.locator("#keys").is_visible()
    await page.keyboard.press("?")
    assert not await page.locator("#keys").is_visible()


async def test_a_menu_that_is_higher_than_a_phone_is_scrolled(opened: Opened) -> None:
    page = await opened.page("/jobs")
    await page.set_viewport_size({"width": 320, "height": 568})
    await page.locator(".narrow").click()
    await page.locator(".job-filters summary").click()
    box = await page.locator(".job-filters .pop").bounding_box()
    assert box is not None
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 568


async def test_a_high_graph_begins_at_its_first_node(opened: Opened) -> None:
    (one,) = opened.app.tasks.values()

    @opened.app.task(queue="mail")
    def count(to: str) -> str:
        return to

    flow = Flow()
    first = flow.add(one.job("first"))
    for n in range(24):  # branches that differ are not folded
        flow.add(count if n % 2 else one, after=first)
    handle = await flow.aenqueue()
    page = await opened.page()
    await page.set_viewport_size({"width": 390, "height": 400})
    await page.goto(f"{opened.url}/flows/mail/{handle.id}")
    graph, box = page.locator("#graph"), page.locator("#graph .box").first
    assert await graph.evaluate("one => one.scrollHeight > one.clientHeight")
    inside, around = await box.bounding_box(), await graph.bounding_box()
    assert inside is not None
    assert around is not None
    assert around["y"] <= inside["y"] <= around["y"] + around["height"] - inside["height"]


async def test_paper_has_the_frames_that_a_screen_folds(opened: Opened) -> None:
    await die_long(opened.app.store, "printed")
    page = await opened.page(f"/jobs/{QUEUE}/printed")
    folded = page.locator(".traceback details pre")
    assert not await folded.is_visible()
    await page.emulate_media(media="print")
    assert await folded.is_visible()
    assert not await page.locator(".side").is_visible()
