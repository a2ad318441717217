"""What visitors with other rights, other dashboards, machines with other clocks and host applications see."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Literal

import pytest

from penstock import App, Worker
from penstock.core.clock import ManualClock, SystemClock
from penstock.core.job import NewJob
from penstock.stores.connect import connect
from penstock.stores.contract import JobFilter, SearchPage, WorkerInfo
from penstock.web.dashboard import Dashboard
from penstock.web.dashboard.json_tree import Redaction, json_tree
from penstock.workflows import chain
from tests.web.dashboard.conftest import Site, form_token
from tests.web.dashboard.hostile import HtmlCheck
from tests.web.dashboard.test_streams import Stream

NewSite = Callable[..., Site]
_TEN_MINUTES = 600_000


class EarlyClock(SystemClock):
    """The clock of a store whose machine is ten minutes ahead of that of the dashboard."""

    def now(self) -> int:
        return super().now() + _TEN_MINUTES


# ── other visitors ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def flow(site: Site) -> Site:
    """A flow whose second job died in a queue that not everybody may read."""

    @site.app.task(name="payroll", queue="secret", max_attempts=1)
    def payroll(to: str) -> None:
        raise ValueError(f"no salary for {to}")

    (send, *_) = site.app.tasks.values()
    chain(send.job("ann"), payroll).enqueue(id="f", policy="ignore", keep_nodes="1h")
    asyncio.run(Worker(site.app, concurrency=1, burst=True).run())
    return site


def test_a_node_in_a_queue_of_others_shows_neither_its_task_nor_its_error(flow: Site) -> None:
    assert "no salary" in flow.client.get("/flows/mail/f").text
    for scope in ("operate:mail", "read:mail"):
        page = flow.logged_in(flow.token(scope.replace(":", "-"), scope)).get("/flows/mail/f").text
        assert "in a queue that you may not read" in page
        assert "salary" not in page
        assert "payroll" not in page


def test_an_answer_for_one_visitor_is_filtered_for_the_next(flow: Site) -> None:
    listed = flow.client.get("/jobs?queue=mail").text
    path = re.findall(r'data-href="(/jobs/mail/[^"]+)"', listed)[0]
    ann, bob = (
        flow.logged_in(flow.token(name, scope)) for name, scope in (("ann", "read"), ("bob", "read:mail"))
    )
    assert "/jobs/secret/" in ann.get(path).text
    assert "secret" not in bob.get(path).text


def test_a_late_worker_is_named_to_those_who_may_read_its_queues() -> None:
    clock = ManualClock()
    store = connect("memory://", clock=clock)
    asyncio.run(store.announce(WorkerInfo("w1", "bank-7", 1, clock.now(), ("secret",), (), 4)))
    clock.advance(45_000)
    site = Site(store)  # type: ignore[arg-type]
    for scope, named in (("read", True), ("read:mail", False)):
        page = site.logged_in(site.token(f"t{named}", scope)).get("/").text
        assert ("worker on bank-7 was last seen 45 s ago" in page) is named
    store.close()


def test_the_filter_of_workers_does_not_tell_the_names_of_queues_of_others(site: Site) -> None:
    now = SystemClock().now()
    asyncio.run(site.app.store.announce(WorkerInfo("w1", "web-1", 1, now, ("mail", "payroll"), (), 4)))
    client = site.logged_in(site.token("ann", "read:mail"))
    shown = {part: "web-1" in client.get(f"/workers?name={part}").text for part in ("mail", "web", "pay")}
    assert shown == {"mail": True, "web": True, "pay": False}


def test_tasks_of_queues_of_others_are_not_offered_and_viewers_see_no_forms(flow: Site) -> None:
    operator = flow.logged_in(flow.token("ann", "operate:mail"))
    assert "send" in operator.get("/enqueue").text
    assert "payroll" not in operator.get("/enqueue").text
    assert operator.get("/enqueue?task=payroll").status_code == 404
    answer = flow.post(operator, "/enqueue", task="payroll", **{"a.to": "ann", "o.queue": "mail"})
    assert answer.status_code == 404
    assert flow.logged_in(flow.token("bob", "read")).get("/enqueue").status_code == 403


def test_a_job_does_not_name_its_flow_in_a_queue_of_others(site: Site) -> None:
    (send,) = site.app.tasks.values()

    @site.app.task(queue="secret")
    def salary(of: str) -> str:
        return of

    chain(salary.job("ann"), send).enqueue(id="raise-of-ann")
    asyncio.run(Worker(site.app, concurrency=1, burst=True).run())
    (path,) = re.findall(r'data-href="(/jobs/mail/[^"]+)"', site.client.get("/jobs?queue=mail").text)
    assert "/flows/secret/raise-of-ann" in site.client.get(path).text
    page = site.logged_in(site.token("bob", "read:mail")).get(path).text
    assert "s-completed" in page
    assert "secret" not in page
    assert "raise-of-ann" not in page


def test_batches_are_looked_for_in_the_queues_that_the_visitor_may_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cursor of a search over all queues may name one of them."""
    asked, search = [], site.app.store.search

    async def watched(filter: JobFilter, **given: Any) -> SearchPage:
        asked.append(filter.queues)
        return await search(filter, **given)

    monkeypatch.setattr(site.app.store, "search", watched)
    site.app.store.sync.enqueue([NewJob(queue, "send", b"{}", queue) for queue in ("secret", "mail")])
    assert "No batch is kept." in site.logged_in(site.token("ann", "read:mail")).get("/batches").text
    assert "No batch is kept." in site.logged_in(site.token("bob", "read:none")).get("/batches").text
    assert asked == [("mail",)]


# ── other clocks ─────────────────────────────────────────────────────────────────────────────────


def test_ages_and_bounds_are_counted_by_the_clock_of_the_store() -> None:
    store = connect("memory://", clock=EarlyClock())
    asyncio.run(store.enqueue([NewJob("one", "t", queue="mail")]))
    asyncio.run(store.announce(WorkerInfo("w", "host", 1, EarlyClock().now(), ("mail",), ("t",), 1)))
    site = Site(store, open_to_all=True, hosts=())  # type: ignore[arg-type]
    page = site.client.get("/jobs").text
    shown = re.search(r'<time datetime="[^"]+" title="[^"]+">([^<]+)</time>', page)
    assert shown is not None
    assert shown[1] in ("now", "1 s ago", "2 s ago")
    now = re.search(r'data-now="(\d+)"', page)
    assert now is not None
    assert abs(int(now[1]) - EarlyClock().now()) < 5_000
    assert "was last seen" not in site.client.get("/").text
    assert '<b id="count" data-count="1"' in site.client.get("/jobs/change?act=cancel&task=t").text
    assert "No job matches" not in site.client.get("/jobs?since=1m").text
    store.close()


def test_a_store_that_does_not_tell_its_time_is_taken_to_have_ours(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent() -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr("penstock.web.dashboard.shared_reads._CLOCK_PATIENCE", 0.01)
    monkeypatch.setattr(site.dashboard._clock, "_read", silent)
    assert site.client.get("/").status_code == 200


# ── other dashboards, and a host application ─────────────────────────────────────────────────────


def test_a_login_at_one_dashboard_is_known_to_another_at_once(new_site: NewSite) -> None:
    one, other = new_site(), new_site()
    secret = one.token("ann", "read")
    earlier = other.logged_in(secret)
    assert earlier.get("/").status_code == 200  # it has just read the logins
    client = other.new_client()
    client.cookies = one.logged_in(secret).cookies
    assert client.get("/").status_code == 200


async def test_streams_are_short_where_nobody_says_that_the_server_stops(app: App) -> None:
    dashboard = Dashboard(app, open_to_all=True, hosts=())
    dashboard._shared.pulse._interval = 0.001
    short = await Stream(dashboard).started()
    await short.ended()
    assert short.bodies.qsize() < 20
    with dashboard.running():
        stream = await Stream(dashboard).started()
        for _ in range(20):
            await stream.event()
        dashboard.close()
        await stream.ended()


# ── many people, large texts ─────────────────────────────────────────────────────────────────────


def test_people_who_look_around_do_not_keep_open_pages_from_refreshing(site: Site) -> None:
    live = {"X-Penstock-Live": "1"}
    for _ in range(20):
        site.dashboard._shared.reads.clear()
        site.client.get("/")
    assert site.client.get("/", headers=live).status_code == 200
    for _ in range(20):
        site.dashboard._shared.reads.clear()
        last = site.client.get("/", headers=live).status_code
    assert last == 204


def test_a_long_name_in_arguments_is_cut_as_a_long_text_is() -> None:
    found = json_tree(b'{"%s": 1}' % (b"n" * 500_000), Redaction(()))
    assert found is not None
    assert len(found.children[0].name or "") < 5_000


def test_what_stands_beside_a_long_list_is_shown_too() -> None:
    found = json_tree(
        b'{"rows": [%s], "name": "x", "more": {"a": 1}}' % b",".join([b"[1,2]"] * 5_000), Redaction(())
    )
    assert found is not None
    rows, name, more = found.children
    assert (rows.size, rows.children[-1].kind, name.text, more.children[0].text) == (5_000, "more", "x", "1")
    assert rows.children[-1].size == 5_000 - (len(rows.children) - 1)


def test_a_large_document_is_a_link_away(site: Site) -> None:
    site.app.store.sync.enqueue([NewJob("j", "send", b'{"rows": [%s]}' % b",".join([b"1"] * 500), "mail")])
    page = site.client.get("/jobs/mail/j").text
    assert '<a href="/jobs/mail/j/document/arguments">… 400 more</a>' in page


def test_a_header_leads_to_the_jobs_that_have_it_unless_it_is_hidden(site: Site) -> None:
    headers = {"tenant": "a&b", "x-token": "hunter2", "a=b": "c"}
    site.app.store.sync.enqueue([NewJob("j", "send", b"{}", "mail", headers=headers)])
    page = site.client.get("/jobs/mail/j").text
    assert page.count("/jobs?header=") == 1
    (path,) = re.findall(r'href="(/jobs\?header=[^"]+)"', page)
    assert 'data-row="mail/j"' in site.client.get(path).text


def test_a_hidden_value_that_does_not_fit_any_more_stays_hidden() -> None:
    app = App("memory://")

    @app.task(name="open_door", queue="mail")
    def open_door(token: Literal["a", "b"], pin: int) -> None: ...

    app.store.sync.enqueue([NewJob("j", "open_door", b'{"token":"hunter2","pin":1}', "mail", delay=60_000)])
    site = Site(app, open_to_all=True, hosts=())
    answer = site.post(site.client, "/jobs/mail/j/edit", "/jobs/mail/j/edit", **{"a.token": "", "a.pin": "2"})
    assert "hunter2" not in answer.text
    assert "which is hidden, does not fit" in answer.text
    app.store.close()


# ── what others plant ────────────────────────────────────────────────────────────────────────────


def test_a_message_in_a_cookie_of_another_host_of_the_domain_is_not_shown(site: Site) -> None:
    site.app.store.sync.enqueue([NewJob("j", "send", b"{}", "mail")])
    site.client.get("/")
    name = f"{site.dashboard._cookie}-said"
    site.client.cookies.set(name, "done%7C%2Fqueues%2Fmail%2Fswitch%2Fpause%7CYou%20have%20won")
    assert "You have won" not in site.client.get("/").text
    site.client.cookies.delete(name)
    site.post(site.client, "/queues/mail/switch/pause")
    page = site.client.get("/").text
    assert "mail is paused" in page
    assert 'action="/queues/mail/switch/resume"' in page


# ── a login that has ended ───────────────────────────────────────────────────────────────────────


def test_what_was_entered_is_not_lost_with_the_login(
    new_site: NewSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.web.dashboard.identification._SESSION_CACHE", 0.0)
    site = new_site()
    client = site.logged_in(site.token("ann", "operate"))
    fields = {
        "form_token": form_token(client, "/enqueue?task=x"),
        "a.note": "a <long> letter",
        "back": "/jobs",
    }
    asyncio.run(site.dashboard._identification.tokens.revoke("ann"))
    answer = client.post("/enqueue", data=fields)
    assert answer.status_code == 401
    assert "a &lt;long&gt; letter" in answer.text
    assert 'href="/login?next=%2Fjobs"' in answer.text
    assert HtmlCheck.of(answer.text).faults == []
    forged = site.new_client().post("/enqueue", data=fields)
    assert (forged.status_code, "letter" in forged.text) == (403, False)
