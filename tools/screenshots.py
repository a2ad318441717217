"""Pictures of every page of the dashboard, from the data of `penstock demo --serve`.

`python -m tools.screenshots [--out DIR] [--only NAME...]` opens each page of the page table, light and dark,
on a desktop and on a phone; the page of a job for each state. A page with parts in its path is opened where a
link of another page leads to it. Pages that are wider than the screen are named, and the status is 1 then.
The pictures of docs/images are made too, unless only some pages are asked for.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from playwright.sync_api import Browser, Page, sync_playwright
from starlette.routing import compile_path

from penstock.core.job import State
from penstock.web.dashboard.pages import PAGES

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
#: Bytes of a picture in the documentation.
SMALL = 150_000
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
THEMES = ("light", "dark")
#: Pages in a special state, besides those of the table.
EXTRA = {
    "login": "/login",
    "enqueue-form": "/enqueue?task=shop.charge_card",
    "jobs-dead": "/jobs?state=dead",
    "jobs-none": "/jobs?text=nothing+has+this",
    "change": "/jobs/change?act=retry&state=dead&queue=webhooks",
    "schedule": "/periodic?cron=*/10+9-17+*+*+MON-FRI&tz=Europe/Berlin",
    "entry-frequent": "/periodic/stock/bestsellers",
    "missing": "/jobs/payments/none",
}
#: Pages on which a button is pressed first.
PRESSED = {"stacks": "Ask for stacks"}
#: Where links to pages with parts in their path are looked for first: a failed job shows more than others.
SEEDS = (
    "/jobs?state=dead&queue=payments&order=oldest",
    "/jobs?state=running",
    "/flows",
    "/",
    "/queues",
    "/enqueue",
)
#: Whether a page is wider than the screen, or a table on a phone has to be scrolled sideways.
WIDE = """() => [document.documentElement, ...document.querySelectorAll(".scroll")].some(
    (one) => one.scrollWidth > one.clientWidth && !(innerWidth > 760 && one.matches(".scroll")))"""
#: The pictures of the documentation: file, page, theme, size.
SHOWN = (
    ("overview.png", "overview", "light", "desktop"),
    ("job.png", "job", "dark", "desktop"),
    ("queue.png", "queue", "light", "desktop"),
    ("enqueue.png", "enqueue-form", "dark", "desktop"),
    ("phone.png", "overview", "dark", "phone"),
)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "screenshots")
    parser.add_argument("--only", nargs="*", default=[], help="names of pages")
    parser.add_argument("--url", help="a dashboard that runs already")
    parser.add_argument("--wait", type=float, default=20.0, help="seconds in which workers fill the charts")
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, _served(given.url, given.wait) as url:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        places = {**_places(browser, url), **_jobs(browser, url), **EXTRA}
        chosen = {name: path for name, path in places.items() if not given.only or name in given.only}
        wide = []
        for theme in THEMES:
            for size in SIZES:
                wide += _photograph(browser, url, chosen, theme, size, given.out)
        browser.close()
    for says in wide:
        print(f"wider than the screen: {says}", file=sys.stderr)
    return (0 if given.only else _publish(given.out)) or bool(wide)


@contextmanager
def _served(url: str | None, wait: float) -> Iterator[str]:
    if url is not None:
        yield url.rstrip("/")
        return
    command = [sys.executable, "-m", "penstock", "demo", "--serve", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            address = json.loads(demo.stdout.readline())["dashboard"]
            time.sleep(wait)
            yield address.rstrip("/")
        finally:
            demo.send_signal(signal.SIGTERM)


def _chromium() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise SystemExit("No chromium here: apt install chromium")
    return found


# ── where each page is ───────────────────────────────────────────────────────────────────────────


def _places(browser: Browser, url: str) -> dict[str, str]:
    """The path of each page of the table: its own, or that of the first link that leads to it."""
    patterns = {page.name: compile_path(page.path)[0] for page in PAGES if page.name != "search"}
    found = {page.name: page.path for page in PAGES if page.name in patterns and "{" not in page.path}
    page, seen, waiting = browser.new_page(), set[str](), [*SEEDS, *found.values()]
    while waiting and len(found) < len(patterns) and len(seen) < 60:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        for link in _links(page, url, path):
            for name, pattern in patterns.items():
                if name not in found and pattern.match(urlsplit(link).path):
                    found[name] = link
                    waiting.append(link)
    if "worker" in found:
        found["stacks"] = f"{found['worker']}/stacks"
    page.close()
    for name in sorted(patterns.keys() - found.keys()):
        print(f"no link leads to the page {name!r}", file=sys.stderr)
    return {page.name: found[page.name] for page in PAGES if page.name in found}


def _jobs(browser: Browser, url: str) -> dict[str, str]:
    """The page of a job of each state."""
    page, found = browser.new_page(), dict[str, str]()
    for state in State:
        # an import is still running when its picture is taken
        queue = "&queue=imports" if state is State.RUNNING else ""
        links = _links(page, url, f"/jobs?state={state.value}&order=oldest&column=task{queue}")
        own = [link for link in links if link.startswith("/jobs/")]
        found |= {f"job-{state.value}": own[0]} if own else {}
    page.close()
    return found


def _links(page: Page, url: str, path: str) -> list[str]:
    page.goto(url + path)
    links: list[str] = page.eval_on_selector_all(
        "main a[href]", "all => all.map(a => a.getAttribute('href'))"
    )
    return [link for link in links if urljoin(url, link).startswith(url) and link.startswith("/")]


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────


def _photograph(
    browser: Browser, url: str, places: dict[str, str], theme: str, size: str, out: Path
) -> list[str]:
    """Take the pictures; return the names of those that are wider than the screen."""
    width, height = SIZES[size]
    more: dict[str, Any] = {"is_mobile": True, "has_touch": True} if size == "phone" else {}
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        **more,
    )
    page, wide = context.new_page(), []
    for name, path in places.items():
        page.goto(url + path)
        if name in PRESSED:
            page.get_by_role("button", name=PRESSED[name]).click()
        page.wait_for_timeout(300)
        if page.evaluate(WIDE):
            wide.append(f"{name} {theme} {size}")
        file = out / f"{name}-{theme}-{size}.png"
        page.screenshot(path=file, full_page=True)
        page.screenshot(path=out / "first" / file.name)
    context.close()
    return wide


def _publish(out: Path) -> int:
    """Copy the pictures of the documentation; says which are too large."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    large = []
    for file, name, theme, size in SHOWN:
        made = out / "first" / f"{name}-{theme}-{size}.png"
        shutil.copyfile(made, IMAGES / file)
        if (IMAGES / file).stat().st_size > SMALL:
            large.append(file)
    for file in large:
        print(f"docs/images/{file} has more than {SMALL:,} bytes", file=sys.stderr)
    print(f"{len(list(out.glob('*.png')))} pictures in {out}, {len(SHOWN)} in docs/images")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
