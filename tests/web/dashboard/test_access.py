"""Who may see and change what: login, rights per act, forged requests, read-only, a login of the host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from penstock import App
from penstock.core.errors import ConfigError
from penstock.testing import inline
from penstock.web.access import AccessTokens
from penstock.web.access_tokens import Right
from penstock.web.dashboard import Dashboard, Visitor
from penstock.web.dashboard.pages import ACTS, PAGES
from tests.web.dashboard.conftest import BASE, Site, form_token

NewSite = Callable[..., Site]


def path_of(path: str, id: str) -> str:
    path = path.replace("/{bulk}", "")  # the page of one has tests of its own
    parts = {"queue": "mail", "id": id, "act": "retry", "what": "arguments", "task": "send", "worker": "w1"}
    parts["ticket"] = "none"
    for name, value in parts.items():
        path = path.replace(f"{{{name}}}", value)
    return (
        path.replace("switch/retry", "switch/pause")
        .replace("intake/retry", "intake/open")
        .replace("w1/act/retry", "w1/act/quiet")
    )


def enqueued(app: App) -> str:
    (task,) = app.tasks.values()
    return task.enqueue("ann").id


def test_without_tokens_loopback_is_open_and_with_one_everybody_logs_in(site: Site) -> None:
    assert site.client.get("/").status_code == 200
    secret = site.token("ann", "operate")
    answer = site.new_client().get("/jobs?state=dead")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fjobs%3Fstate%3Ddead")
    assert site.logged_in(secret).get("/").status_code == 200


def test_a_proxy_in_between_makes_nobody_an_administrator(site: Site) -> None:
    assert site.client.get("/", headers={"X-Forwarded-For": "203.0.113.9"}).status_code == 303


def test_a_dashboard_that_is_not_told_to_be_open_asks_for_a_token(new_site: NewSite) -> None:
    assert new_site().client.get("/").status_code == 303


def test_a_login_ends_with_its_token_its_time_or_a_logout(new_site: NewSite) -> None:
    site = new_site()
    secret = site.token("ann", "operate")
    client = site.logged_in(secret)
    assert site.post(client, "/logout").status_code == 303
    assert client.get("/").status_code == 303
    client = site.logged_in(secret)
    asyncio.run(AccessTokens(site.app.store).revoke("ann"))
    other = new_site().new_client()
    other.cookies = client.cookies
    assert other.get("/").status_code == 303


@pytest.mark.parametrize(
    ("scopes", "given", "says"),
    [
        (("read",), "pst_" + "x" * 40, "not known"),
        (("read",), "<script>", "not known"),
        (("produce",), None, "no right to read"),
    ],
)
def test_a_wrong_token_opens_nothing(
    scopes: tuple[str, ...], given: str | None, says: str, new_site: NewSite
) -> None:
    site = new_site()
    secret = site.token("shop", *scopes)
    answer = site.post(site.client, "/login", "/login", token=given or secret, next="/jobs?state=dead")
    assert answer.status_code == 401
    assert says in answer.text
    assert 'name="next" value="/jobs?state=dead"' in answer.text  # where the right token leads
    assert site.client.get("/").status_code == 303


def test_each_act_is_refused_to_a_viewer_and_in_read_only_mode(new_site: NewSite) -> None:
    site = new_site()
    id = enqueued(site.app)
    viewer = site.logged_in(site.token("viewer", "read"))
    operator = site.logged_in(site.token("operator", "operate"))
    admin = site.logged_in(site.token("admin", "admin"))
    frozen = new_site(read_only=True).logged_in(site.token("frozen", "admin"))
    for act in (act for act in ACTS if act.right is not Right.READ):
        path = path_of(act.path, id)
        for client in (viewer, frozen):
            assert site.post(client, path).status_code == 403, path
        able = operator if act.right is Right.OPERATE else admin
        assert site.post(operator, path).status_code == (303 if able is operator else 403), path
        assert site.post(able, path, time="5m").status_code == 303, path


def test_a_viewer_sees_no_forms_that_change_something(new_site: NewSite) -> None:
    site = new_site()
    id = enqueued(site.app)
    viewer = site.logged_in(site.token("viewer", "read"))
    for page in PAGES:
        answer = viewer.get(path_of(page.path, id))
        assert answer.status_code in ((200, 303) if page.right is Right.READ else (403,))
        assert "/act/" not in answer.text
        assert "/switch/" not in answer.text
        assert "/jobs/change" not in answer.text


def test_rights_on_some_queues_show_and_change_no_others(new_site: NewSite) -> None:
    site = new_site()
    id = enqueued(site.app)
    client = site.logged_in(site.token("other", "operate:orders"))
    for path in ("/queues/mail", f"/jobs/mail/{id}", f"/jobs/mail/{id}/document/arguments"):
        assert client.get(path).status_code == 403
    listings = ("/", "/queues", "/jobs", "/jobs?queue=mail", f"/jobs?text={id}")
    of_all = ("/errors", "/tasks", "/tasks/send", "/workers", "/workers/w1", "/limits", "/audit", "/health")
    for path in (*listings, *of_all):
        assert "mail" not in client.get(path).text.replace('value="mail"', "").replace("queue=mail", "")
    assert client.get(f"/search?q={id}").headers["location"] == f"/jobs?text={id}"
    assert site.post(client, f"/jobs/mail/{id}/act/cancel").status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": BASE, "sec-fetch-site": "same-origin"}, 303),
        ({"host": "evil.example"}, 421),
        ({"content-type": "text/plain"}, 415),
    ],
)
def test_a_request_from_elsewhere_changes_nothing(headers: dict[str, str], status: int, site: Site) -> None:
    enqueued(site.app)
    data = f"form_token={form_token(site.client)}"
    sent = {"content-type": "application/x-www-form-urlencoded", **headers}
    assert site.client.post("/queues/mail/switch/pause", content=data, headers=sent).status_code == status


def test_a_form_needs_the_token_of_its_own_session(site: Site) -> None:
    enqueued(site.app)
    foreign = form_token(site.new_client())
    form_token(site.client)
    for given in ("", foreign, "ü"):
        answer = site.client.post("/queues/mail/switch/pause", data={"form_token": given})
        assert answer.status_code == 403
    assert site.client.get("/queues/mail/switch/pause").status_code == 404


def test_a_host_application_mounts_it_with_its_own_login(app: App) -> None:
    id = enqueued(app)

    async def login(request: Request) -> Visitor | None:
        name = request.headers.get("x-user")
        return None if name is None else Visitor.of(name, "operate" if name == "ann" else "read")

    host = Starlette(routes=[Mount("/internal/jobs", Dashboard(app, login=login))])
    client = TestClient(host, base_url="http://shop.example", follow_redirects=False)
    assert client.get("/internal/jobs/").status_code == 403
    assert client.get("/internal/jobs/login", headers={"x-user": "bob"}).status_code == 404
    page = client.get(f"/internal/jobs/jobs/mail/{id}", headers={"x-user": "ann"}).text
    assert f'action="/internal/jobs/jobs/mail/{id}/act/cancel"' in page
    assert not [
        line for line in page.splitlines() if 'href="/' in line and 'href="/internal/jobs/' not in line
    ]
    client.headers["x-user"] = "bob"
    path = f"/internal/jobs/jobs/mail/{id}/act/cancel"
    assert client.post(path, data={"form_token": form_token(client, "/internal/jobs/")}).status_code == 403
    client.headers["x-user"] = "ann"
    data = {"form_token": form_token(client, "/internal/jobs/"), "back": "//evil.example/"}
    answer = client.post(path, data=data)
    assert answer.headers["location"] == f"/internal/jobs/jobs/mail/{id}"
    assert "user:ann" in client.get(f"/internal/jobs/jobs/mail/{id}").text


def test_a_host_application_sends_people_to_its_own_login_and_back(app: App) -> None:
    people = {"ann": Visitor.of("ann", "operate"), "guest": Visitor.of("guest")}

    def login(request: Request) -> Visitor | None:
        return people.get(request.headers.get("x-user", ""))

    dashboard = Dashboard(app, login=login, login_url="/accounts/login/?by=sso")
    host = Starlette(routes=[Mount("/jobs", dashboard)])
    client = TestClient(host, base_url="http://shop.example", follow_redirects=False)
    answer = client.get("/jobs/jobs?state=dead")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/accounts/login/?by=sso&next=%2Fjobs%2Fjobs%3Fstate%3Ddead"
    assert client.get("/jobs/", headers={"x-penstock-live": "1"}).status_code == 401
    guest = client.get("/jobs/", headers={"x-user": "guest"})
    assert (guest.status_code, "may not see this dashboard" in guest.text) == (403, True)
    client.headers["x-user"] = "ann"
    data = {
        "form_token": form_token(client, "/jobs/jobs"),
        "name": "my view",
        "query": "text=a",
        "back": "/jobs/jobs?text=a",
    }
    client.headers.pop("x-user")
    ended = client.post("/jobs/jobs/views", data=data)
    assert (ended.status_code, "my view" in ended.text) == (401, True)
    assert 'href="/accounts/login/?by=sso&amp;next=%2Fjobs%2Fjobs%3Ftext%3Da"' in ended.text
    with pytest.raises(ConfigError, match="give login="):
        Dashboard(app, login_url="/accounts/login/")


def test_a_mounted_dashboard_shows_the_store_that_a_test_has_given_the_app(app: App) -> None:
    dashboard = Dashboard(app, open_to_all=True)
    client = TestClient(dashboard, base_url=BASE)
    with inline(app) as box:
        id = enqueued(app)
        assert f"/jobs/mail/{id}" in client.get("/jobs").text
        assert "s-completed" not in client.get(f"/jobs/mail/{id}").text
        box.run()
        assert "s-completed" in client.get(f"/jobs/mail/{id}").text
    assert f"/jobs/mail/{id}" not in client.get("/jobs").text
    client.get("/queues")
    reads = dashboard._shared.reads
    before = reads.reads
    client.get("/queues")
    assert reads.reads == before, "answers of the app's own store are shared again"


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "", "/%0a"]
)
def test_nobody_is_led_to_another_site(back: str, site: Site) -> None:
    enqueued(site.app)
    answer = site.post(site.client, "/queues/mail/switch/pause", back=back)
    assert answer.headers["location"] in ("/queues/mail", "/%0a")


def test_settings_that_make_no_sense_are_refused(app: App) -> None:
    for given in ({"redact": "password"}, {"session_length": 0}, {"interval": 0.1}, {"readonly": True}):
        with pytest.raises(ConfigError):
            Dashboard(app, **given)
