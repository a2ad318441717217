"""What pages show and what their forms do; untrusted text; headers; assets."""

from __future__ import annotations

import asyncio
import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import App, Worker
from penstock.core.errors import StoreUnavailable
from penstock.core.formats import instant
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import Transition
from penstock.inspector import Inspector
from penstock.stores.contract import Finding, Level, Resolution, SearchPage, Settlement, Share, Store
from penstock.web.dashboard.charts import area_chart
from penstock.web.dashboard.formats import ago, compact, percent
from penstock.web.dashboard.identification import Visitor
from penstock.web.dashboard.json_tree import Redaction, json_text
from penstock.web.dashboard.pages import PAGES
from penstock.web.dashboard.rendering import sentence
from penstock.web.dashboard.security import CONTENT_POLICY
from tests.web.dashboard.conftest import Site
from tests.web.dashboard.test_access import path_of

PAYLOADS = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "{{ 7*7 }}",
    "javascript:alert(1)",
)


def run_all(app: App) -> None:
    asyncio.run(Worker(app, concurrency=2, burst=True).run())


@pytest.fixture
def ran(site: Site) -> Site:
    """A site with a dead job and a completed one."""
    (task,) = site.app.tasks.values()
    task.using(max_attempts=1, id="failed").enqueue("nobody", password="hunter2")
    task.using(id="fine").enqueue("ann", options={"token": "hunter2", "n": 12345678901234567890})
    run_all(site.app)
    return site


def test_each_page_opens_with_its_headers(ran: Site) -> None:
    for page in PAGES:
        answer = ran.client.get(path_of(page.path, "failed"))
        assert answer.status_code in (200, 303), page.path
        assert answer.headers["content-security-policy"] == CONTENT_POLICY
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "style=" not in answer.text
        assert not re.search(r"\son\w+=", answer.text)


def test_a_dead_job_is_found_by_its_error_understood_and_retried(ran: Site) -> None:
    client = ran.client
    assert "1 job died in the last 24 hours" in client.get("/").text
    found = client.get("/jobs?text=no mailbox").text
    assert "/jobs/mail/failed" in found
    assert "/jobs/mail/fine" not in found
    page = client.get("/jobs/mail/failed").text
    assert "ValueError" in page
    assert "frames of libraries" in page or "frame of libraries" in page
    answer = ran.post(client, "/jobs/mail/failed/act/retry")
    assert answer.headers["location"] == "/jobs/mail/failed"
    page = client.get("/jobs/mail/failed").text
    assert "Job failed: retried (was dead)." in page
    assert "jobs.retry by anonymous" in page
    assert "Job failed: retried" not in client.get("/jobs/mail/failed").text


def test_a_page_that_is_not_there_keeps_the_navigation(ran: Site) -> None:
    for path in ("/jobs/mail/none", "/nothing"):
        answer = ran.client.get(path)
        assert answer.status_code == 404
        assert 'aria-label="Pages"' in answer.text, path


def test_reasons_of_a_job_say_when_as_people_do(ran: Site) -> None:
    (task,) = ran.app.tasks.values()
    task.using(delay="3d", id="later").enqueue("ann")
    page = ran.client.get("/jobs/mail/later").text
    assert re.search(r'<p class="why">It is due <time [^>]*>in 3 d</time>\.</p>', page)
    overdue = sentence(1_800_000_060_000, f"it was due at {instant(1_800_000_000_000)}")
    assert re.fullmatch("It was due <time [^>]*>1 min ago</time>\\.", overdue)


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0.9, "now"), (59.4, "59 s"), (100, "2 min"), (80 * 60, "1 h"), (259_195, "3 d"), (9e7, "2.9 years")],
)
def test_times_are_rounded_to_the_nearest_unit(seconds: float, says: str) -> None:
    at = 1_800_000_000_000
    says = says if says == "now" else f"{says} ago"
    assert ago(at, 1_800_000_000_000 + round(seconds * 1000)) == says


@pytest.mark.parametrize(
    ("share", "says"),
    [(1.0, "100 %"), (0.994, "99 %"), (0.0996, "10 %"), (0.091, "9.1 %"), (0.0059, "0.59 %")],
)
def test_shares_are_percentages_without_an_exponent(share: float, says: str) -> None:
    assert percent(share) == says


def test_what_was_measured_as_nothing_is_a_line_and_no_gap() -> None:
    by, series = Resolution.MINUTE, (("ready", "first", float),)
    measured = area_chart([(0, 0.0), (60_000, 0.0)], series, by=by, shown=compact)
    unknown = area_chart([(0, None)], series, by=by, shown=compact)
    assert (measured.empty, measured.top, unknown.empty) == (False, "0", True)


def test_errors_and_warnings_of_the_doctor_need_attention(
    ran: Site, new_site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checkup(_: Any) -> list[Finding]:
        return [
            Finding(Level.ERROR, "memory", "full: new jobs are refused"),
            Finding(Level.WARNING, "access", "no password"),
            Finding(Level.FINE, "server", "9.9"),
        ]

    monkeypatch.setattr(type(ran.app.store), "checkup", checkup)
    ran.app.store.sync.enqueue([NewJob("waits", "send", queue="unserved")])
    says = ran.client.get("/").text
    assert '<a href="/health"><b>memory</b> <span>full: new jobs are refused</span>' in says
    assert '<a href="/health"><b>health</b> <span>1 warning of the doctor: access</span>' in says
    assert says.count("<b>unserved</b>") == 1  # by its own rule, not by the doctor again
    other = new_site(login=lambda _: Visitor.of("ann", "read:mail")).client.get("/").text
    assert "memory" not in other


def test_an_error_of_the_store_offers_the_same_page_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(type(site.app.store), "get", away)
    page = site.client.get("/jobs/mail/one?a=b")
    assert page.status_code == 503
    assert '<a class="button" href="/jobs/mail/one?a=b">Try again</a>' in page.text


def test_secrets_are_hidden_and_numbers_are_exact(ran: Site) -> None:
    for path in ("failed", "failed/document/arguments", "fine", "fine/document/arguments"):
        text = ran.client.get(f"/jobs/mail/{path}").text
        assert "hunter2" not in text
        assert "hidden" in text
        assert path.startswith("failed") or "12345678901234567890" in text
    assert "/jobs/mail/failed" in ran.client.get("/jobs?text=password").text
    for text in ("hunter2", "hunter", '"password":"h'):  # nor can they be guessed by a search
        assert "/jobs/mail/" not in ran.client.get("/jobs", params={"text": text}).text, text
    assert "values of this header are hidden" in ran.client.get("/jobs?header=Authorization=x").text
    assert json_text(b'{"a":1.10,"b":[1e400,{}],"c":{"PIN":1}}', Redaction(["pin"])) == (
        '{\n  "a": 1.10,\n  "b": [\n    1e400,\n    {}\n  ],\n  "c": {\n    "PIN": "hidden"\n  }\n}'
    )


def test_a_queue_is_paused_limited_and_reset(ran: Site) -> None:
    client, path = ran.client, "/queues/mail"
    ran.post(client, f"{path}/switch/pause")
    assert "mail</b> <span>paused" in client.get("/").text
    ran.post(client, f"{path}/limits", path, max_running="7", was_max_running="", rate="100/min", was_rate="")
    (queue,) = asyncio.run(Inspector(ran.app.store).queues())
    assert (queue.limits.max_running, str(queue.limits.rate), queue.paused) == (7, "100/min", True)
    answer = ran.post(client, f"{path}/limits", path, max_running="lots", was_max_running="7")
    assert answer.status_code == 303
    assert "is not a whole number" in client.get(path).text
    ran.post(client, f"{path}/reset")
    (queue,) = asyncio.run(Inspector(ran.app.store).queues())
    assert queue.limits.max_running is None


def test_filters_are_the_address_of_the_list(ran: Site) -> None:
    def listed(query: str) -> set[str]:
        return set(re.findall(r'data-row="mail/([^"]+)"', ran.client.get(f"/jobs?{query}").text))

    assert listed("") == {"failed", "fine"}
    assert listed("state=dead&state=running") == {"failed"}
    assert listed("queue=other") == set()
    assert listed("order=ended&since=1h&time=ended") == {"failed", "fine"}
    page = ran.client.get("/jobs?state=dead&text=mailbox&column=task&column=worker").text
    assert 'value="mailbox"' in page
    assert 'href="/jobs?state=dead&amp;text=mailbox' not in page  # the state that is chosen is taken away
    for wrong in (
        "state=zombie",
        "since=soon",
        "header=x",
        "flow=x",
        "after=garbage",
    ):
        answer = ran.client.get(f"/jobs?{wrong}")
        assert answer.status_code == 200
        assert "cannot be shown" in answer.text, wrong


def test_a_list_names_the_queues_that_it_could_not_search(ran: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Store.search

    async def without_a_part(self: Store, *args: Any, **options: Any) -> SearchPage:
        return replace(await search(self, *args, **options), away=("orders",))

    monkeypatch.setattr(Store, "search", without_a_part)
    page = ran.client.get("/jobs?text=nowhere").text
    assert "Not searched, because its part of the store does not answer: orders." in page


def test_an_order_that_the_states_do_not_have_is_not_offered_and_not_kept(ran: Site) -> None:
    for query, orders in (("order=due&state=dead", 4), ("order=ended&not-state=dead", 2), ("order=ended", 6)):
        page = ran.client.get(f"/jobs?{query}").text
        assert "cannot be shown" not in page
        assert page.count("<option", page.index('id="f-order"'), page.index('class="columns"')) == orders, (
            query
        )
    assert 'data-row="mail/failed"' in ran.client.get("/jobs?order=due&state=dead").text


def test_search_leads_to_a_job_a_queue_a_task_or_text(ran: Site) -> None:
    def led(text: str) -> str:
        return str(ran.client.get("/search", params={"q": text}).headers["location"])

    assert led("failed") == "/jobs/mail/failed"
    assert led("mail/fine") == "/jobs/mail/fine"
    assert led("mail") == "/queues/mail"
    assert led("no mailbox") == "/jobs?text=no+mailbox"
    assert led("../../etc/passwd") == "/jobs?text=..%2F..%2Fetc%2Fpasswd"
    assert led("") == "/jobs"


def test_untrusted_text_is_text_everywhere(site: Site) -> None:
    store = site.app.store
    (task,) = site.app.tasks.values()
    for n, evil in enumerate(PAYLOADS):
        task.using(id=f"x{n}", headers={"h": evil}).enqueue(evil, options={evil: evil})

    async def fail() -> None:
        fetched = await store.fetch(
            [Share("mail", 9, 9)], limit=9, lease=60_000, worker=PAYLOADS[0], token="t"
        )
        from penstock.core.job import AttemptError

        for job in fetched.jobs:
            error = AttemptError(1, job.enqueued_at, PAYLOADS[1], PAYLOADS[0], PAYLOADS[0])
            dead = Transition(State.DEAD, reason=PAYLOADS[0], error=error)
            await store.settle([Settlement(job.lease, dead)])

    asyncio.run(fail())
    paths = [path_of(page.path, f"x{n}") for page in PAGES for n in range(len(PAYLOADS))]
    for path in [
        *paths,
        *(f"/jobs?text={evil}&task={evil}&worker={evil}" for evil in PAYLOADS),
        "/jobs/mail/%3Cb%3E",
    ]:
        text = site.client.get(path).text
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "49" not in re.findall(r"\{\{ 7\*7 \}\}|>49<", text)


def test_names_of_dots_have_a_page(site: Site) -> None:
    (task,) = site.app.tasks.values()
    task.using(id="..", queue=".").enqueue("ann")
    assert 'href="/jobs/!./!.."' in site.client.get("/jobs").text
    assert site.client.get("/jobs/!./!..").status_code == 200


def test_a_card_fails_alone(ran: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the disk is <gone>")

    monkeypatch.setattr(type(ran.app.store), "read_stats", broken)
    page = ran.client.get("/").text
    assert "the disk is &lt;gone&gt;" in page
    assert 'href="/queues/mail"' in page


def test_assets_are_small_and_old_versions_have_the_current_ones(site: Site) -> None:
    assets = site.dashboard.assets
    assert assets.size(".js") < 40_000
    assert assets.size(".css") < 20_000
    current = site.client.get(f"/static/{assets.version}/dashboard.css")
    old = site.client.get("/static/0.0.1-abc/dashboard.css")
    assert current.content == old.content
    assert "immutable" in current.headers["cache-control"]
    assert old.headers["cache-control"] == "no-cache"
    plain = site.client.get(f"/static/{assets.version}/live.js", headers={"accept-encoding": "identity"})
    assert gzip.compress(plain.content)
    for name in ("..%2f..%2fsettings.py", "dashboard.py", "../settings.py", ".."):
        assert site.client.get(f"/static/x/{name}").status_code in (303, 404, 200)
        assert "REDACTED" not in site.client.get(f"/static/x/{name}").text


def test_style_sheets_and_scripts_are_of_this_site_alone() -> None:
    folder = Path(__file__).resolve().parents[3] / "src/penstock/web/dashboard/assets"
    for file in folder.iterdir():
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML =" not in text
