"""Attacks on the dashboard: markup in stored text, forged and oversized requests, foreign sites, sessions.

The tests open each page and each act of the tables, so those that are added are attacked, too.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from starlette.testclient import TestClient

from penstock import App
from penstock.core.job import NewJob
from penstock.stores.contract import JobFilter
from penstock.web.access import AccessTokens
from penstock.web.dashboard.pages import ACTS, PAGES
from penstock.web.dashboard.security import CONTENT_POLICY
from tests import servers
from tests.store.facts import TEST_FOLDER, key_prefix
from tests.web.dashboard.conftest import Site, form_token
from tests.web.dashboard.hostile import EVIL, HtmlCheck, fill_with_hostile_text, hostile_paths

NewSite = Callable[..., Site]

#: Verbs of a store that change something.
WRITES = frozenset(
    (
        *("enqueue", "cancel", "discard", "complete", "retry", "reschedule", "delete"),
        *("change_jobs", "edit_jobs", "move_jobs"),
        *("replace_jobs", "purge", "settings", "drop", "prune", "flush_batch", "announce", "retire"),
        *("fetch", "settle", "extend", "promote", "reclaim", "put_flow", "add_to_flow", "change_flow"),
        *("tick", "advance_flows", "put_entries", "pause_entries", "delete_entries"),
        *("change_documents", "take_quota", "append_log", "record_steps", "await_signals"),
        *("send_signals", "add_stats", "sample_depths"),
    )
)
#: Values that cost time, overflow or leave their place if they are taken at their word.
BOMBS = (
    "9" * 20_000,
    "9" * 25 + "d",
    "(a+)+$" * 300 + "a" * 300,
    "%_" * 1_500,
    "*?[a-" * 600,
    "0 0 1--100000000 * *",
    "*/1" * 300 + " * * * *",
    "1e309/s",
    "-1",
    "nan",
    "../../../etc/passwd",
    "\x00\u202e\U0001f600",
    "[" * 3_000,
    EVIL,
)
ELSEWHERE = (
    "https://evil.example/",
    "//evil.example/",
    "///evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/\t/evil.example",
    "javascript:alert(1)",
    "data:text/html,x",
    "/%0d%0aLocation:%20https://evil.example",
    "/\r\nSet-Cookie: a=b",
    "%2F%2Fevil.example",
    "http:evil.example",
    "/.//evil.example",
    " //evil.example",
    "@evil.example",
)


@pytest.fixture(params=["memory", "sqlite", pytest.param("redis", marks=pytest.mark.server)])
def hostile(request: pytest.FixtureRequest, home: Path) -> Iterator[Site]:
    """An open dashboard over a store whose every text tries to become markup."""
    url = {"memory": "memory://", "sqlite": f"sqlite:///{home}/jobs.db"}.get(request.param)
    if url is None:
        url = f"{servers.SHARED_REDIS.get().url}?prefix={key_prefix(home)}"
    app = App(url)
    asyncio.run(fill_with_hostile_text(app))
    yield Site(app, open_to_all=True, hosts=())
    app.store.close()
    if servers.SHARED_REDIS.started:
        servers.remove_keys([servers.SHARED_REDIS.started], having=TEST_FOLDER)


def turned(html: str) -> list[str]:
    """Texts whose direction of writing could change what stands beside them."""
    own = re.sub(r"(?s)<(bdi|pre|textarea|option)\b[^>]*>[^<]*|<input\b[^>]*>", "", html)
    return [own[max(0, one.start() - 60) : one.start()] for one in re.finditer("\u202e", own)]


def paths_of(table: Any) -> list[str]:
    return [path for one in table for path in hostile_paths(one.path)]


# ── text ─────────────────────────────────────────────────────────────────────────────────────────


def test_no_stored_or_asked_text_becomes_markup_on_any_page(hostile: Site) -> None:
    opened = 0
    for path in paths_of(PAGES):
        answer = hostile.client.get(path)
        assert answer.status_code in (200, 303, 400, 404), (path, answer.status_code)
        assert HtmlCheck.of(answer.text).faults == [], path
        assert "x-evil" not in answer.headers
        assert turned(answer.text) == [], path
        opened += answer.status_code == 200
    assert opened > len(PAGES)


def test_no_form_of_any_page_falls_for_hostile_values(site: Site) -> None:
    asyncio.run(fill_with_hostile_text(site.app))
    client, sent = site.client, set()
    token = form_token(client)
    began, left, shapes = time.process_time(), paths_of(PAGES), set[str]()
    while left:
        path = left.pop()
        page = HtmlCheck.of(client.get(path).text)
        for link in page.links:  # pages with other queries have other forms
            shape = re.sub(r"=[^&]*", "", link) if "?" in link else ""
            if shape and not link.startswith(("#", "/jobs?")) and shape not in shapes:
                shapes.add(shape)
                left.append(link)
        for method, action, fields in page.forms:
            names = [name for name, _ in fields if name not in ("form_token", "back")]
            act = (method, action.replace(path, ""), *names)
            if act in sent or action == "/logout":
                continue
            sent.add(act)
            for n, bomb in enumerate(BOMBS):
                values = dict(fields)
                chosen = names if n % 2 else names[n // 2 % len(names) :][:1] if names else []
                most = 20_000 // (len(chosen) or 1)  # of all in one address, as servers accept it
                given = {**values, **dict.fromkeys(chosen, bomb[:most])}
                if method == "get":
                    answer = client.get(f"{action or urlsplit(path).path}", params=given)
                else:
                    given["form_token"] = token
                    answer = client.post(action, data=given)
                assert answer.status_code in (200, 303, 400, 403, 404, 409, 413, 414, 422), (action, given)
                where = answer.headers.get("location", "/")
                assert where.startswith("/"), where
                assert not where.startswith("//"), where
                assert HtmlCheck.of(answer.text).faults == []
    assert len(sent) > 5
    took = (time.process_time() - began) / (len(sent) * len(BOMBS))
    assert took < 0.25  # a request, also the slowest kind of them


def test_names_hide_values_also_in_what_is_not_quite_json(site: Site) -> None:
    payload = b'{"password":"hunter2","half":"\\ud800"}'
    site.app.store.sync.enqueue([NewJob("half", "t", payload, "mail")])
    for path in ("/jobs/mail/half", "/jobs/mail/half/document/arguments"):
        page = site.client.get(path)
        assert page.status_code == 200
        assert "hunter2" not in page.text
        assert "aHVudGVyMg" not in page.text
        assert "\\ud800" in page.text


# ── forged requests ──────────────────────────────────────────────────────────────────────────────


def test_each_act_needs_the_token_of_its_session_and_a_page_of_this_site(site: Site) -> None:
    asyncio.run(fill_with_hostile_text(site.app))
    other = form_token(site.new_client())
    own = form_token(site.client)
    paths = [*(path for act in ACTS for path in hostile_paths(act.path)[:2]), "/logout", "/theme", "/login"]
    before = asyncio.run(everything(site.app))
    for path in paths:
        for token in ("", other, own[:-1], own + "0", "\x00", "ü"):
            assert site.client.post(path, data={"form_token": token}).status_code in (403, 404), path
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            answer = site.client.post(path, data={"form_token": own}, headers=headers)
            assert answer.status_code == 403, path
        as_json = site.client.post(path, json={"form_token": own})
        assert as_json.status_code in (404, 415)
        multipart = site.client.post(path, data={"form_token": own}, files={"f": b"x"})
        assert multipart.status_code in (404, 415)
    assert asyncio.run(everything(site.app)) == before


async def everything(app: App) -> list[Any]:
    """What acts would change: jobs and their states, queues, entries, workers, the audit log."""
    store = app.store
    jobs = await store.search(JobFilter(), limit=100)
    log = await store.read_log("audit", limit=100)
    return [
        [(hit.job.ref, hit.job.state) for hit in jobs.hits],
        [(q.name, q.counts, q.paused) for q in await store.queues()],
        (await store.entries()).entries,
        [entry.number for entry in log.entries],
    ]


def test_reading_pages_changes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(fill_with_hostile_text(site.app))
    store, called = site.app.store, []

    def watched(name: str) -> Callable[..., Any]:
        was = getattr(store, name)

        async def call(*given: Any, **named: Any) -> Any:
            called.append(name)
            return await was(*given, **named)

        return call

    for name in WRITES:
        monkeypatch.setattr(store, name, watched(name))
    for path in [*paths_of(PAGES), *paths_of(ACTS), "/logout", "/login", "/theme"]:
        for method in ("GET", "HEAD"):
            assert site.client.request(method, path).status_code < 500, path
    assert called == []


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "FOO"])
def test_other_methods_are_refused(method: str, site: Site) -> None:
    for path in ("/", "/jobs", "/events", "/logout", f"/static/{site.dashboard.assets.version}/live.js"):
        answer = site.client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


# ── headers and addresses ────────────────────────────────────────────────────────────────────────


def test_every_answer_has_the_headers_that_protect_it(site: Site) -> None:
    client, static = site.client, f"/static/{site.dashboard.assets.version}"
    token = form_token(client)
    answers = {
        200: client.get("/"),
        204: None,
        303: client.get("/search"),
        400: client.post("/theme", data={"form_token": token, **{f"f{n}": "" for n in range(10_000)}}),
        403: client.post("/theme", data={"theme": "dark"}),
        404: client.get("/nothing"),
        405: client.put("/"),
        413: client.post("/theme", data={"form_token": token, "x": "x" * 300_000}),
        414: client.get("/jobs?text=" + "x" * 33_000),
        415: client.post("/theme", content=b"x"),
        421: client.get("/", headers={"host": "evil.example"}),
    }
    found = [(status, answer) for status, answer in answers.items() if answer is not None]
    found += [(200, client.get(f"{static}/live.js")), (404, client.get(f"{static}/none.js"))]
    found += [(200, client.head("/events")), (400, client.get("/%0a"))]
    site.token("ann", "read")
    found += [(303, site.new_client().get("/")), (401, site.new_client().get("/events"))]
    for status, answer in found:
        assert answer.status_code == status, answer.text
        assert answer.headers["content-security-policy"] == CONTENT_POLICY
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        kept = answer.headers["cache-control"]
        assert kept == ("no-store" if not answer.url.path.endswith("/live.js") else kept)
    shared = client.get(f"{static}/live.js")
    assert "set-cookie" not in shared.headers  # it may be kept by proxies


@pytest.mark.parametrize(
    "name",
    [
        "../settings.py",
        "..%2fsettings.py",
        "..%2f..%2f..%2f..%2fetc%2fpasswd",
        "%252e%252e%252fsettings.py",
        "..%5csettings.py",
        "..\\settings.py",
        "%2fetc%2fpasswd",
        "/etc/passwd",
        "live.js%00.css",
        "./live.js/../../settings.py",
        "%c0%ae%c0%ae%c0%afsettings.py",
    ],
)
def test_assets_are_no_way_to_other_files(name: str, site: Site) -> None:
    for version in (site.dashboard.assets.version, "..", "%2e%2e", "x"):
        answer = site.client.get(f"/static/{version}/{name}")
        assert answer.status_code in (303, 400, 404)
        assert "root:" not in answer.text
        assert "REDACTED" not in answer.text


@pytest.mark.parametrize("where", ELSEWHERE)
def test_login_and_forms_lead_to_no_other_site(where: str, new_site: NewSite) -> None:
    site = new_site()
    secret = site.token("ann", "operate")
    for given in (where, quote(where, safe="")):
        page = site.new_client().get("/login", params={"next": given})
        assert HtmlCheck.of(page.text).faults == []
        client = site.new_client()
        answers = [
            site.post(client, "/login", "/login", token=secret, next=given),
            site.post(client, "/theme", theme="dark", back=given),
        ]
        for answer in answers:
            assert answer.status_code == 303
            led = answer.headers["location"]
            assert re.match(r"/(?![/\\])", led), led
            assert "evil.example" not in (urlsplit(led).netloc or "")
            assert len(answer.headers.get_list("location")) == 1
            assert "a=b" not in answer.headers.get("set-cookie", "")


@pytest.mark.parametrize("path", ["//evil.example/", "///evil.example", "/%2fevil.example/a"])
def test_the_login_page_of_a_host_application_gets_no_other_site_to_lead_back_to(
    path: str, new_site: NewSite
) -> None:
    client = new_site(login=lambda _: None, login_url="/sso").client
    asked = client.build_request("GET", "http://localhost/")
    asked.url = asked.url.copy_with(raw_path=path.encode())
    assert client.send(asked).headers["location"] == "/sso?next=%2F"
    assert client.get("/jobs?state=dead").headers["location"] == "/sso?next=%2Fjobs%3Fstate%3Ddead"


def test_headers_of_hosts_and_proxies_do_not_reach_pages_or_links(new_site: NewSite) -> None:
    site = new_site()
    client = site.logged_in(site.token("ann", "operate"))
    plain = client.get("/queues").text
    poison = {
        "host": "evil.example",
        "x-forwarded-host": "evil.example",
        "x-forwarded-proto": "javascript",
        "x-forwarded-prefix": "//evil.example",
        "x-original-url": "/logout",
        "x-rewrite-url": "/logout",
        "forwarded": "host=evil.example;proto=https",
    }
    poisoned, clock = client.get("/queues", headers=poison).text, r'data-now="\d+"'
    assert re.sub(clock, "", poisoned) == re.sub(clock, "", plain)
    answer = site.new_client().get("/queues/", headers=poison)
    assert answer.headers["location"] == "/login?next=%2Fqueues%2F"
    doubled = [("host", "localhost"), ("host", "evil.example")]
    assert client.get("/queues", headers=doubled).status_code == 400


def test_every_header_of_a_proxy_closes_an_open_dashboard(site: Site) -> None:
    assert site.client.get("/").status_code == 200
    for name in ("via", "forwarded", "x-forwarded-for", "x-forwarded-proto", "x-real-ip", "cf-connecting-ip"):
        assert site.new_client().get("/", headers={name: "203.0.113.9"}).status_code == 303


@pytest.mark.parametrize("host", ["203.0.113.9", "203.0.113.9:8080", "[2001:db8::1]:80", "0.0.0.0"])
def test_a_host_that_is_not_this_machine_closes_an_open_dashboard_on_loopback(host: str, site: Site) -> None:
    assert site.new_client().get("/", headers={"host": host}).status_code == 303


async def test_a_request_of_http_1_0_is_that_of_a_proxy_and_closes_an_open_dashboard(site: Site) -> None:
    status = dict[str, int]()

    async def asked(version: str) -> None:
        async def send(message: Any) -> None:
            status.setdefault(version, message.get("status"))

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "raw_path": b"/",
            "root_path": "",
            "scheme": "http",
        }
        scope |= {"query_string": b"", "headers": [(b"host", b"127.0.0.1:8080")], "http_version": version}
        await site.dashboard({**scope, "server": ("127.0.0.1", 8080)}, receive, send)  # type: ignore[arg-type]

    await asked("1.1")
    await asked("1.0")
    assert status == {"1.1": 200, "1.0": 303}


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────


def session_of(client: TestClient) -> str:
    return next(value for name, value in client.cookies.items() if not name.endswith("-said"))


def test_a_login_takes_a_new_cookie_and_a_logout_ends_it(new_site: NewSite) -> None:
    site = new_site()
    secret = site.token("ann", "operate")
    client = site.new_client()
    token = form_token(client, "/login")
    planted = session_of(client)
    answer = client.post("/login", data={"token": secret, "form_token": token})
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "samesite=lax" in answer.headers["set-cookie"].lower()
    used = session_of(client)
    assert used != planted
    assert site.post(client, "/logout").status_code == 303
    for cookie in (planted, used):
        thief = site.new_client()
        thief.cookies.set(next(name for name in client.cookies), cookie)
        assert thief.get("/jobs").status_code == 303


def test_a_session_ends_with_its_token_and_another_token_of_its_name_does_not_revive_it(
    new_site: NewSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.web.dashboard.identification._SESSION_CACHE", 0.0)
    monkeypatch.setattr("penstock.web.dashboard.shared_reads.SharedReads.may_refresh", lambda _: True)
    site = new_site()
    client = site.logged_in(site.token("ann", "operate"))
    assert client.get("/jobs").status_code == 200
    asyncio.run(AccessTokens(site.app.store).revoke("ann"))
    assert client.get("/jobs").status_code == 303
    assert client.get("/jobs", headers={"x-penstock-live": "1"}).status_code == 401
    site.token("ann", "admin")
    assert client.get("/jobs").status_code == 303


def test_the_logins_of_one_token_are_bounded(new_site: NewSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.web.dashboard.identification._MAX_SESSIONS_PER_TOKEN", 3)
    site = new_site()
    secret = site.token("ann", "read")
    other = site.logged_in(site.token("bob", "read"))
    clients = [site.logged_in(secret) for _ in range(5)]
    page = asyncio.run(site.app.store.documents("dashboard-sessions"))
    assert len(page.documents) == 4
    assert other.get("/").status_code == clients[-1].get("/").status_code == 200
    assert clients[0].get("/").status_code == 303


def test_many_wrong_logins_are_refused_and_the_right_token_still_opens(new_site: NewSite) -> None:
    site = new_site()
    secret = site.token("ann", "read")
    client = site.new_client()
    token = form_token(client, "/login")

    def tried(given: str) -> int:
        return client.post("/login", data={"token": given, "form_token": token}).status_code

    statuses = [tried("pst_" + "x" * 40) for _ in range(25)]
    assert statuses == [401] * 20 + [429] * 5
    assert tried(secret) == 303


def test_a_cookie_of_any_form_is_no_login_and_no_fault(new_site: NewSite) -> None:
    site = new_site()
    name = next(iter(site.client.get("/login").cookies))
    for value in ("", "x", "x" * 3_000, "%00", '"', "a=b", "\u00e9"):
        header = {"cookie": f"{name}={value}; {name}-said=done|{EVIL[:20]}; penstock-theme=x".encode()}
        answer = site.new_client().get("/", headers=header)
        assert answer.status_code == 303
        page = site.new_client().get("/login", headers=header)
        assert HtmlCheck.of(page.text).faults == []
        assert 'data-theme="system"' in page.text


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────


def test_large_requests_are_refused_early(site: Site) -> None:
    client, token = site.client, form_token(site.client)
    for n, status in ((10_000, 400), (60_000, 413)):
        data = {"form_token": token, **dict.fromkeys((f"f{k}" for k in range(n)), "")}
        assert client.post("/theme", data=data).status_code == status
    declared = {"content-type": "application/x-www-form-urlencoded", "content-length": "1000000000000"}
    assert client.post("/theme", content=b"x=1", headers=declared).status_code == 413
    assert client.get("/jobs?" + "&".join(f"a{n}=1" for n in range(900))).status_code == 200
    assert client.get("/" + "x" * 2_500).status_code == 414


def test_the_page_of_a_long_query_does_not_repeat_it_without_bound(site: Site) -> None:
    page = site.client.get("/jobs?text=" + "x" * 30_000 + "".join(f"&state={s}" for s in ("dead", "running")))
    assert page.status_code == 200
    assert len(page.text) < 2_000_000
