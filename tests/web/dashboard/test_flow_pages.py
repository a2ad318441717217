"""Pages of flows, durable steps, periodic entries and batches: what they show, and what their forms do."""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import App, Batch, Worker
from penstock.app.periodic import of_task
from penstock.core.flow import FlowState
from penstock.core.job import Ref
from penstock.core.schedule import Schedule
from penstock.inspector import Inspector
from penstock.workflows import chain, chord, current_flow
from tests.web.dashboard.conftest import Site
from tests.web.dashboard.test_pages import PAYLOADS


@pytest.fixture
def app() -> Iterator[App]:
    made = App("memory://")

    @made.task(queue="shop", max_attempts=1)
    async def fetch(n: int) -> int:
        if n == 13:
            raise ValueError("page 13 is <gone>")
        return n

    @made.task(queue="shop")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @made.task(queue="secret")
    async def report(number: int) -> str:
        return f"{number}"

    @made.task(queue="shop", retention="1h")
    async def order(order_id: str) -> str:
        flow = current_flow()
        await flow.step("charge", lambda: {"id": order_id, "token": "hunter2"})
        data = await flow.wait_for("packed", key=order_id, timeout="3d")
        return f"closed {data}"

    @made.task(queue="shop", batch=Batch(max_size=10, max_wait="1h"))
    async def index(docs: list[int]) -> int:
        return len(docs)

    when = Schedule.of("*/10 9-17 * * MON-FRI", tz="Europe/Berlin")
    asyncio.run(made.store.put_entries([of_task(report, when, name="office", args=(1,))]))
    made.fetch, made.total, made.report, made.order, made.index = made.tasks.values()  # type: ignore[attr-defined]
    yield made
    made.store.close()


def run_all(app: App) -> None:
    asyncio.run(Worker(app, concurrency=4, burst=True).run())


def state_of(app: App, id: str) -> FlowState:
    (info,) = app.store.sync.get_flows([Ref("shop", id)])
    assert info is not None
    return info.state


def nodes_in(page: str) -> list[str]:
    return re.findall(r'<tr id="n(\d+)"', page)


def test_a_flow_shows_its_graph_its_failures_and_the_same_as_a_table(site: Site, app: Any) -> None:
    chord([app.fetch.job(n) for n in range(2, 22)], then=app.total).enqueue(
        id="crawl", name="nightly", policy="finish"
    )
    run_all(app)
    listed = site.client.get("/flows?state=failed").text
    assert 'href="/flows/shop/crawl">nightly</a>' in listed
    assert "No flow is running" in site.client.get("/flows?state=running").text
    page = site.client.get("/flows/shop/crawl").text
    assert "15 more members" in page
    assert "page 13 is &lt;gone&gt;" in page
    assert nodes_in(page) == [str(n) for n in range(22)]
    assert page.count('class="box k-node') == 6
    opened = html.unescape(re.findall(r'href="([^"]*open=[^"]*)"', page)[0])
    assert site.client.get(opened).text.count('class="box k-node') == 21
    assert "cannot be shown" in site.client.get("/flows?state=zombie").text
    for odd in ("first=9999999", "first=-1", "first=x", "open=x", "open=99"):
        assert site.client.get(f"/flows/shop/crawl?{odd}").status_code == 200


def test_a_flow_is_retried_run_again_and_cancelled(site: Site, app: Any) -> None:
    chain(app.fetch.job(13), app.report).enqueue(id="c", keep_nodes="1h")
    run_all(app)
    page = site.client.get("/flows/shop/c").text
    assert "Retry failed" in page
    site.post(site.client, "/flows/shop/c/act/retry")
    assert state_of(app, "c") is FlowState.RUNNING
    assert "Run again" not in site.client.get("/flows/shop/c").text
    site.post(site.client, "/flows/shop/c/act/rerun", node="0")
    assert "it can run again from a node after it has ended" in site.client.get("/flows/shop/c").text
    site.post(site.client, "/flows/shop/c/act/cancel")
    assert state_of(app, "c") is FlowState.CANCELLED
    assert "flow is cancelled" in site.client.get("/flows/shop/c").text
    site.post(site.client, "/flows/shop/c/act/rerun", node="0")
    assert state_of(app, "c") is FlowState.RUNNING
    for node in ("", "x", "-1", "9" * 30):
        site.post(site.client, "/flows/shop/c/act/rerun", node=node)
        assert "Give the number of the node" in site.client.get("/flows").text
    assert "There is no flow" in _after(site, "/flows/shop/none/act/cancel")


def _after(site: Site, path: str, **fields: str) -> str:
    answer = site.post(site.client, path, **fields)
    assert answer.status_code == 303
    return str(site.client.get(answer.headers["location"]).text)


def test_nodes_in_queues_of_others_are_hidden_and_protect_the_flow(site: Site, app: Any) -> None:
    chain(app.fetch.job(1), app.report).enqueue(id="c")
    client = site.logged_in(site.token("ann", "operate:shop"))
    page = client.get("/flows/shop/c").text
    assert "in a queue that you may not read" in page
    assert "/jobs/secret/" not in page
    assert site.post(client, "/flows/shop/c/act/cancel").status_code == 303
    assert "queues on which you have no right" in client.get("/flows").text
    assert state_of(app, "c") is FlowState.RUNNING
    assert client.get("/periodic/secret/office").status_code == 403
    assert "office" not in client.get("/periodic").text


def test_a_signal_is_sent_to_the_job_that_waits_for_it(site: Site, app: Any) -> None:
    app.order.using(id="o").enqueue("7")
    app.order.using(id="other").enqueue("8")
    run_all(app)
    path = "/jobs/shop/o/steps"
    assert site.client.get("/flows/shop/o").headers["location"] == path
    page = site.client.get(path).text
    assert "Signal <bdi>packed</bdi>" in page
    assert "charge" in page
    assert "hunter2" not in page
    assert "waits for the signal <b><bdi>packed</bdi></b> with the key <b><bdi>7</bdi></b>" in (
        site.client.get("/flows").text
    )
    job = site.client.get("/jobs/shop/o").text
    assert "signal packed" in job
    assert "wait!" not in job
    send = "/jobs/shop/o/steps"
    for data in ('{"a":', "[1,\n2", "NaN", "</textarea>"):
        back = site.post(site.client, send, name="packed", key="7", data=data).text
        assert "The data is not JSON, and nothing was sent" in back
        assert f">\n{html.escape(data)}</textarea>" in back.replace("&#34;", "&quot;")
        assert 'aria-describedby="data-' in back
    deep = site.post(site.client, send, name="packed", key="7", data="[" * 5_000 + "]" * 5_000)
    assert (deep.status_code, "The data is nested too deeply" in deep.text) == (200, True)
    for name, key in (("packed", "8"), ("other", "7"), ("", "")):
        assert "does not wait for this signal any more" in _after(site, send, name=name, key=key, data="1")
    viewer = site.logged_in(site.token("viewer", "read"))
    assert "textarea" not in viewer.get(path).text
    assert site.post(viewer, send, name="packed", key="7").status_code == 403
    operator = site.logged_in(site.token("ann", "operate:shop"))
    site.post(operator, send, name="packed", key="7", data='{"n": 12345678901234567890}')
    run_all(app)
    page = operator.get(path).text
    assert "the job has received it" in page
    assert "12345678901234567890" in page
    assert "flows.signal" in operator.get("/jobs/shop/o").text
    assert "Signal <bdi>packed</bdi>" in operator.get("/jobs/shop/other/steps").text


def test_a_signal_reaches_no_job_of_the_same_id_in_a_queue_of_others(site: Site, app: Any) -> None:
    app.order.using(id="o").enqueue("7")
    app.order.using(id="o", queue="secret").enqueue("7")
    run_all(app)
    client = site.logged_in(site.token("ann", "operate:shop"))
    site.post(client, "/jobs/shop/o/steps", name="packed", key="7")
    assert "Another queue, on which you have no right" in client.get("/jobs/shop/o/steps").text


def test_a_large_flow_is_read_in_bounded_parts(site: Site, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chord([app.fetch.job(n) for n in range(3_000)], then=app.total).enqueue(id="big")
    read: list[int] = []
    verb = type(app.store).flow_nodes

    async def counted(store: Any, ref: Ref, indexes: Any, **options: Any) -> Any:
        assert options == {"results": False}
        read.append(len(indexes))
        return await verb(store, ref, indexes, **options)

    monkeypatch.setattr(type(app.store), "flow_nodes", counted)
    page = site.client.get("/flows/shop/big?first=1000").text
    assert sum(read) <= 240
    assert nodes_in(page)[::199] == ["1000", "1199"]
    assert "nodes 1,000 to 1,199 of 3,002" in page
    assert "195 more members" in page
    assert 'href="/flows/shop/big?first=1200"' in page
    assert 'class="box k-join' in page  # the join, although its number is 3000


def test_an_entry_is_shown_in_words_triggered_paused_and_resumed(site: Site, app: Any) -> None:
    words = "every 10 minutes from 09:00 to 17:59, Monday to Friday"
    page = site.client.get("/periodic").text
    assert words in page
    assert "Europe/Berlin" in page
    path = "/periodic/secret/office"
    page = site.client.get(path).text
    assert f"<b>{words}</b>" in page
    assert re.search(r"(CET|CEST)", page)
    assert "triggered: job office@" in _after(site, f"{path}/switch/trigger")
    assert "office: paused" in _after(site, f"{path}/switch/pause")
    assert "The entry is paused" in site.client.get(path).text
    assert "office: resumed" in _after(site, f"{path}/switch/resume")
    assert "There is no periodic entry" in _after(site, "/periodic/secret/none/switch/pause")
    assert site.client.get("/periodic/secret/none").headers["location"] == "/periodic?name=none"
    assert "No entry has" in site.client.get("/periodic?name=none").text


def test_an_expression_is_explained_and_a_hostile_one_refused_at_once(site: Site) -> None:
    shown = site.client.get("/periodic", params={"cron": "0 3 * * *", "tz": "Europe/Berlin"}).text
    assert "every day at 03:00" in shown
    began = time.process_time()
    for cron in ("0 0 1--100000000 * *", "* " * 5_000, "0 0 30 2 *", "@never", "<script>alert(1)</script>"):
        page = site.client.get("/periodic", params={"cron": cron}).text
        assert any(one in page for one in ("cannot be shown", 'class="failed"', "address is too long"))
        assert "<script>alert" not in page
    assert 'class="failed"' in site.client.get("/periodic?cron=@daily&tz=Mars/Olympus").text
    assert time.process_time() - began < 2


def test_a_search_for_started_batches_says_how_far_it_came(
    site: Site, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.stores.sql.verbs.searching.SEARCH_STEP", 1)
    app.enqueue_many([app.fetch.job(n) for n in range(6)])
    page = site.client.get("/batches").text
    assert "None of these jobs is a batch" in page
    assert "Looked at the newest 4 jobs; there are more." in page
    (link,) = re.findall(r'data-key="n" href="([^"]+)"', page)
    assert "No other batch is kept" in site.client.get(html.unescape(link)).text


def test_batches_are_shown_and_started(site: Site, app: Any) -> None:
    for n in range(3):
        app.index.using(batch_key="ann").enqueue(n)
    chord([app.fetch.job(n) for n in range(4)], then=app.total).enqueue(name="a group")
    page = site.client.get("/batches").text
    assert "when full" in page
    assert "a group" in page
    (task,) = re.findall(r'name="task" value="([^"]+)"', page)
    start = "/queues/shop/batches/start"
    assert "collects no such batch" in _after(site, start, task=html.unescape(task), key="bob")
    answer = site.post(site.client, start, task=html.unescape(task), key="ann")
    assert re.fullmatch(r"/jobs/shop/.*\.batch", answer.headers["location"])
    run_all(app)
    page = site.client.get("/batches").text
    assert "No batch collects" in page
    (batch,) = asyncio.run(Inspector(app.store).started_batches()).batches
    assert batch.spec.batch_terms is not None
    assert (len(batch.members), batch.spec.batch_terms.key, batch.state) == (3, "ann", "completed")
    assert answer.headers["location"] in page


@pytest.mark.parametrize("evil", PAYLOADS)
def test_untrusted_text_is_text_in_flows_steps_and_signals(site: Site, app: Any, evil: str) -> None:
    chain(app.fetch.job(1), app.report).enqueue(name=evil, id="f")
    app.order.using(id="o").enqueue(evil)
    app.index.using(batch_key=evil).enqueue(1)
    run_all(app)
    for path in (
        "/flows",
        "/flows/shop/f",
        "/jobs/shop/o/steps",
        "/batches",
        f"/periodic?name={evil}",
        f"/periodic?cron={evil}&tz={evil}",
    ):
        text = site.client.get(path).text
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "49" not in re.findall(r">49<", text)
        assert 'href="javascript' not in text
