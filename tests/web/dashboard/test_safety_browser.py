"""Attacks on the dashboard in a browser: stored text, pages of other sites, and what its policy refuses."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.web.dashboard.pages import PAGES
from tests.web.dashboard.conftest import LISTEN, Opened, Site, example_app, serving
from tests.web.dashboard.hostile import fill_with_hostile_text, hostile_paths

playwright = pytest.importorskip("playwright.async_api", reason="needs playwright, which is not installed")
PlaywrightError = playwright.Error

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_no_text_of_a_job_runs_in_the_browser(browser: Any) -> None:
    app = example_app()
    await fill_with_hostile_text(app)
    async with serving(Site(app, open_to_all=True, hosts=())) as (site, url):
        context = await browser.new_context()
        context.set_default_timeout(15_000)
        await context.add_init_script(LISTEN)
        opened, shown = Opened(site, context, url), []
        page = await opened.page()
        page.on("dialog", lambda dialog: shown.append(dialog.message))
        for path in [path for one in PAGES for path in hostile_paths(one.path)[:2]]:
            answer = await page.goto(url + path)
            assert answer.status in (200, 400, 404), path
            assert await page.evaluate("window.reports") == [], path
            assert await page.locator("main img, main script, main svg[onload]").count() == 0
        await page.goto(f"{url}/jobs/mail/dead")
        assert await page.evaluate("fetch('/jobs').then(() => 'same origin')") == "same origin"
        for attack in (
            "document.body.innerHTML = '<b>x</b>'",
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=alert(1)>')",
            "setTimeout('alert(1)')",
            "trustedTypes.createPolicy('mine', {createHTML: (text) => text})",
        ):
            with pytest.raises(PlaywrightError, match=r"Trusted|policy|policies|violates"):
                await page.evaluate(attack)
        framed = await context.new_page()
        await framed.set_content(f"<iframe src='{url}/'></iframe>")
        assert "Overview" not in await framed.frames[-1].content()
        assert shown == []
        await context.close()
    app.store.close()
