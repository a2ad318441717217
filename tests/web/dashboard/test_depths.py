"""The depths of queues in the dashboard: the chart of ready jobs, and queues that grow."""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from penstock import App
from penstock.core.clock import ManualClock
from penstock.core.job import NewJob, State
from penstock.inspector import QueueView
from penstock.stores.contract import Resolution
from penstock.stores.memory import MemoryStore
from penstock.web.dashboard.pulse import Depth
from penstock.web.dashboard.rows import queue_rows
from penstock.web.dashboard.view import View
from tests.web.dashboard.conftest import Site

MINUTE = 60_000


def marks(site: Site, path: str, title: str = "Ready jobs") -> dict[str, str]:
    """What a pointer finds in the known values of a chart, by time."""
    page = html.unescape(site.client.get(path).text)
    chart = page[page.index(f"<figcaption>{title}") :]
    found = re.findall(r"<title>([^<]+?) · ([^<]+)</title>", chart[: chart.index("</figure>")])
    return {at: says for at, says in found if "–" not in says}


async def fill(app: App, number: int, queue: str = "mail") -> None:
    await app.store.enqueue([NewJob(f"{queue}-{number}-{n}", "send", queue=queue) for n in range(number)])


def stored_site() -> tuple[Site, ManualClock]:
    """A dashboard over samples of three minutes, the first two hours ago and the last a minute ago.

    The store's clock shows the start of the next minute: no other one begins during a test.
    """
    now = (time.time_ns() // 1_000_000 // MINUTE + 1) * MINUTE
    clock = ManualClock(now - 110 * MINUTE)
    app = App(store=MemoryStore(clock=clock))

    async def sample() -> None:
        for number, minutes in ((3, 80), (40, 29), (100, 1)):
            await fill(app, number)
            await app.store.sample_depths()
            clock.advance(minutes * MINUTE)

    asyncio.run(sample())
    return Site(app, open_to_all=True, hosts=()), clock


def test_the_chart_of_ready_jobs_shows_stored_samples_and_gaps() -> None:
    site, _ = stored_site()
    for path in ("/", "/queues/mail"):
        assert list(marks(site, f"{path}?range=2h").values()) == ["ready 3", "ready 43", "ready 143"]
        assert list(marks(site, path).values()) == ["ready 43", "ready 143"]
    assert all(says.startswith("mean ") for says in marks(site, "/?range=24h").values())
    assert "peak 143" in " ".join(marks(site, "/queues/mail?range=24h").values())


def test_enqueued_jobs_are_a_line_over_the_attempts() -> None:
    site, _ = stored_site()
    for path in ("/", "/queues/mail"):
        says = list(marks(site, f"{path}?range=2h", "Attempts").values())
        assert says == [f"ok 0 · failed 0 · enqueued {number}" for number in (43, 100, 0)]
    assert 'class="line c-first"' in site.client.get("/").text.partition("<figcaption>Wait")[0]


def test_the_newest_minute_and_the_gaps_are_what_the_dashboard_has_seen() -> None:
    site, clock = stored_site()
    depths, now = site.dashboard._shared.pulse.depths, clock.now()
    asyncio.run(site.app.store.sample_depths())
    seen = ((30, 1), (5, 50), (0, 7), (0, 9))  # minutes ago, and ready jobs
    depths.extend(Depth(now - ago * MINUTE, {"mail": ready}) for ago, ready in seen)
    assert list(marks(site, "/queues/mail").values())[-4:] == ["ready 43", "ready 50", "ready 143", "ready 9"]


@pytest.mark.parametrize("state", State)
def test_each_job_of_a_queue_is_in_one_column(site: Site, state: State) -> None:
    view = cast("View", SimpleNamespace(shared=site.dashboard._shared))
    queue = QueueView("q", {state: 3})
    (row,) = queue_rows(view, [queue])
    numbers = [row.ready, row.running, row.later, row.dead, row.finished]
    assert sorted(numbers) == [0, 0, 0, 0, 3], state


def test_a_queue_that_grows_needs_attention_also_after_a_restart(site: Site) -> None:
    asyncio.run(fill(site.app, 10))
    asyncio.run(fill(site.app, 100, "calm"))
    asyncio.run(site.app.store.sample_depths())
    assert "grows" not in site.client.get("/").text
    asyncio.run(fill(site.app, 21))
    asyncio.run(fill(site.app, 24, "calm"))
    site.dashboard._shared.reads.clear()
    says = html.unescape(site.client.get("/").text)
    assert "mail</b> <span>grows: 31 jobs ready, 10 on average in the last 10 minutes" in says
    assert "calm</b> grows" not in says


async def test_a_served_dashboard_samples_unless_it_is_read_only(
    new_site: Callable[..., Site], app: App
) -> None:
    await fill(app, 1)
    for read_only, samples in ((True, 0), (False, 1)):
        with new_site(open_to_all=True, hosts=(), read_only=read_only).dashboard.running():
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert len((await app.store.read_depths(Resolution.DAY, span=1)).rows) == samples
