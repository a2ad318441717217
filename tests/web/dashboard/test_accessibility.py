"""Accessibility: axe finds no violation on any page of the dashboard of `penstock demo --serve`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from axe_playwright_python.async_playwright import Axe
from starlette.routing import compile_path

from penstock.web.dashboard.pages import PAGES

#: Besides the pages of the table.
FORMS = ["/login", "/enqueue?task=shop.charge_card", "/jobs?state=dead"]
#: Where the links to pages with parts in their path are looked for. A failed job has more links than others.
SEEDS = [
    "/jobs?state=dead&queue=payments&order=oldest",
    "/jobs/orders/order-7001/steps",
    "/flows",
    "/workers",
    "/periodic",
]
#: Pages which no link leads to: what a worker answers, and the redirect of a search.
NOT_LINKED = {"stacks", "search"}
#: How each page is looked at, one after the other without a reload, and the rules of each: all that axe has
#: for a desktop, and those that depend on looks or fingers for a dark phone.
LOOKS: list[tuple[str, dict[str, int], dict[str, Any]]] = [
    ("light", {"width": 1280, "height": 800}, {}),
    (
        "dark",
        {"width": 390, "height": 844},
        {"runOnly": ["color-contrast", "scrollable-region-focusable", "target-size"]},
    ),
]
#: Nothing changes while axe looks, and there is no audio to wait for.
PAUSE = "localStorage.setItem('penstock-paused', '1')"
OPTIONS = {"resultTypes": ["violations"], "preload": False}
#: Contrast takes most of axe's time. It is measured once for all elements of a kind with the same colours and
#: font before the same backgrounds; `seen` has the answers (null: axe cannot tell), also from page to page.
REMEMBER = """
window.seen = new Map();
const check = axe._audit.checks["color-contrast"], evaluate = check.evaluate;
const styleOf = (one, ...names) => names.map((name) => getComputedStyle(one)[name]).join();
const behind = (one) =>
  one ? styleOf(one, "backgroundColor", "backgroundImage", "opacity") + "/" + behind(one.parentElement) : "";
check.evaluate = function (one, ...given) {
  const own = styleOf(one, "color", "fontSize", "fontWeight");
  const looks = [one.tagName, one.className, own, behind(one)].join();
  if (!seen.has(looks)) {
    const answer = evaluate.call(this, one, ...given);
    if (answer === false) return answer;
    seen.set(looks, answer ?? null);
  }
  return seen.get(looks) ?? undefined;
};
null // a function would be called at once
"""
RUN = """async ([options, known]) => {
  window.seen = new Map([...seen, ...known]);
  const { violations } = await axe.run(options);
  return [violations, [...seen]];
}"""


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.asyncio(loop_scope="session")
async def test_axe_finds_no_violation_on_any_page(browser: Any) -> None:
    found: set[str] = set()
    script = Axe().axe_script + REMEMBER
    known: list[Any] = []
    with demo() as url:
        context = await browser.new_context(reduced_motion="reduce", is_mobile=True, has_touch=True)
        await context.add_init_script(PAUSE)
        page = await context.new_page()
        for path in [*page_paths(url).values(), *FORMS]:
            await page.goto(url + path)
            if path.endswith("/stacks"):
                await page.get_by_role("button", name="Ask for stacks").click()
                await page.locator("pre.stacks").wait_for()
            await page.evaluate(script)
            for colours, size, rules in LOOKS:
                await page.emulate_media(color_scheme=colours)
                await page.set_viewport_size(size)
                violations, known = await page.evaluate(RUN, [OPTIONS | rules, known])
                for one in violations:
                    nodes = [node["html"][:160] for node in one["nodes"][:3]]
                    found.add(f"{path} {colours}: {one['id']}: {nodes}")
        await context.close()
    assert not found, "\n".join(sorted(found))


@contextmanager
def demo() -> Iterator[str]:
    command = [sys.executable, "-m", "penstock", "demo", "--serve", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["dashboard"].rstrip("/")
        finally:
            process.terminate()


def page_paths(url: str) -> dict[str, str]:
    """The path of each page: its own, or the first link that leads to it."""
    patterns = {page.name: compile_path(page.path)[0] for page in PAGES if page.name not in NOT_LINKED}
    found = {page.name: page.path for page in PAGES if page.name in patterns and "{" not in page.path}
    found["steps"] = SEEDS[1]
    until_workers_run(url)
    waiting = [*SEEDS, *found.values()]
    for path in waiting:
        if len(found) == len(patterns):
            break
        for link in links_of(url, path):
            for name, pattern in patterns.items():
                if name not in found and pattern.match(urlsplit(link).path):
                    found[name] = link
                    waiting.append(link)
    assert patterns.keys() == found.keys()
    return {**found, "stacks": f"{found['worker']}/stacks"}


def until_workers_run(url: str) -> None:
    for path in (
        "/workers",
        "/periodic",
        "/flows",
    ):  # entries are declared by workers, flows begin after them
        while not any(link.startswith(f"{path}/") for link in links_of(url, path)):
            time.sleep(0.2)


def links_of(url: str, path: str) -> list[str]:
    with urllib.request.urlopen(urljoin(url, path), timeout=30) as answer:
        main = answer.read().decode().partition("<main")[2]
    return [link.replace("&amp;", "&") for link in re.findall(r'href="(/[^"]*)"', main)]
