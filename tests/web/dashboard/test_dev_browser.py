"""`penstock dev` in a browser: a job is seen to run, and an open page shows why the app cannot be loaded."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_dev import CODE, Dev

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.system]

GATED = (
    CODE
    + """
import pathlib

@app.task
async def drive(to: str) -> str:
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.05)
    return f"at {to}"
"""
)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    made = Dev(tmp_path, GATED)
    yield made
    made.process.send_signal(signal.SIGINT)
    made.process.wait(20)
    made.close()


async def test_a_job_is_seen_to_run_and_an_open_page_shows_broken_code(dev: Dev, browser: Any) -> None:
    context = await browser.new_context()
    context.set_default_timeout(30_000)
    page = await context.new_page()
    await page.goto(dev.facts["dashboard"])
    await page.get_by_role("link", name="choose a task").click()
    await page.get_by_role("link", name="tasks.drive").click()
    await page.locator("#a-to").fill("Rome")
    await page.get_by_role("button", name="Enqueue").click()
    await page.locator("#state .s-running").wait_for()
    (dev.code.parent / "go").touch()
    await page.locator("#result").get_by_text("at Rome").wait_for()  # by itself
    dev.code.write_text(GATED + "def (")
    await page.get_by_text("SyntaxError: invalid syntax").wait_for()  # also by itself
    dev.code.write_text(GATED)
    await page.locator("#result").get_by_text("at Rome").wait_for()  # at the same page
    await context.close()
