"""Requests of browsers: DNS rebinding and pages of other sites reach nothing, on any route."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.web.conftest import Served
from tests.web.wire import Client, Reply

Headers = Sequence[tuple[str, str]]

DATA_ROUTES = [
    *(("PUT", path) for path in ("q", "q/bulk", "q/job/ID", "q/deadletter", "q/deadletter/job/ID")),
    *(("GET", path) for path in ("q", "q/peek", "q/job/ID", "q/size", "q/deadletter", "q/deadletter/size")),
    *(("DELETE", path) for path in ("q", "q/job/ID", "q/deadletter", "q/deadletter/job/ID")),
    *(("POST", path) for path in ("q/job/ID/touch", "q/job/ID/release", "q/job/ID/bury", "none/at/all")),
]
ADMIN_ROUTES = [
    *(("GET", path) for path in ("info", "version", "metrics", "pools", "limits", "token/ns", "accesslog")),
    *(
        ("GET", path)
        for path in ("livez", "readyz", "migrations", "debug/pprof/", "none", "token/ns/t/limit")
    ),
    *(("POST", path) for path in ("token/ns?description=d", "accesslog?status=enable", "reload")),
    *(("POST", path) for path in ("token/ns/t/limit",)),
    *(("PUT", path) for path in ("token/ns/t/limit",)),
    *(("DELETE", path) for path in ("token/ns/t", "token/ns/t/limit")),
]
#: What a browser sends for a page that an attacker serves, and for one whose name leads here by DNS.
HOSTILE = {
    "a name of the attacker": [("Host", "evil.example:7777")],
    "a rebound page": [("Host", "evil.example:7777"), ("Origin", "http://evil.example:7777")],
    "a page of another site": [("Host", "localhost"), ("Origin", "http://evil.example")],
    "another port": [("Host", "localhost:7777"), ("Origin", "http://localhost:3000")],
    "a sandboxed frame": [("Host", "localhost"), ("Origin", "null")],
    "an image": [("Host", "localhost"), ("Sec-Fetch-Site", "cross-site")],
    "a sibling of the site": [("Host", "localhost"), ("Sec-Fetch-Site", "same-site")],
}


async def ask(client: Client, method: str, path: str, headers: Headers, body: bytes = b"") -> Reply:
    """A request with exactly these headers."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    await client.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    return await client.read(method)


@pytest.mark.parametrize("headers", HOSTILE.values(), ids=list(HOSTILE))
async def test_no_route_answers_a_page_of_another_site(local: Served, headers: Headers) -> None:
    client, admin = local.client(), local.admin()
    for method, path in DATA_ROUTES:
        assert (await ask(client, method, f"/api/ns/{path}", headers)).status == 403, path
    for method, path in ADMIN_ROUTES:
        assert (await ask(admin, method, f"/{path}", headers)).status == 403, path
    assert not await local.store.queues()


OWN = [("Host", "localhost:7777"), ("Origin", "http://localhost:7777"), ("Sec-Fetch-Site", "same-origin")]
JSON = ("Content-Type", "application/json; charset=utf-8")


async def test_what_a_page_changes_must_be_json(local: Served) -> None:
    """A form can send everything else from any page, without asking first."""
    client, admin = local.client(), local.admin()
    form = ("Content-Type", "application/x-www-form-urlencoded")
    for headers in ([*OWN], [*OWN, form], [*OWN, ("Content-Type", "text/plain")]):
        assert (await ask(client, "PUT", "/api/ns/q", headers, b"{}")).status == 403
        assert (await ask(admin, "POST", "/token/ns?description=d", headers, b"x=y")).status == 403
    assert (await ask(client, "PUT", "/api/ns/q", [*OWN, JSON], b"{}")).status == 201
    assert (await ask(admin, "POST", "/token/ns?description=d", [*OWN, JSON])).status == 201
    assert (await ask(client, "GET", "/api/ns/q", OWN)).data == b"{}"


async def test_a_browser_that_changes_something_says_its_page(local: Served) -> None:
    headers = [("Host", "localhost"), ("Sec-Fetch-Site", "same-origin"), JSON]
    refused = await ask(local.client(), "PUT", "/api/ns/q", headers, b"{}")
    assert (refused.status, refused.json["error"]) == (403, "a browser must send Origin")


async def test_an_address_that_a_person_has_typed_is_answered(local: Served) -> None:
    headers = [("Host", "127.0.0.1:7778"), ("Sec-Fetch-Site", "none")]
    assert (await ask(local.admin(), "GET", "/metrics", headers)).status == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7777", "127.0.0.1", "10.1.2.3:7777", "[::1]:7777"])
async def test_clients_of_lmstfy_send_no_origin_and_any_type(local: Served, host: str) -> None:
    client = local.client()
    for kind in ("text/binary", "application/x-www-form-urlencoded"):
        assert (
            await ask(client, "PUT", "/api/ns/q", [("Host", host), ("Content-Type", kind)], b"x")
        ).status == 201
    assert (await ask(client, "DELETE", "/api/ns/q", [("Host", host)])).status == 204


# --- profiles -----------------------------------------------------------------------------------


async def test_profiles_are_for_those_on_this_machine(local: Served) -> None:
    admin = local.admin()
    index = await admin.get("/debug/pprof/")
    assert index.body == b"profiles:\n  goroutine\n  heap\n  profile\n"
    assert b"penstock-promoter" in (await admin.get("/debug/pprof/goroutine?debug=2")).body
    assert b"thread MainThread" in (await admin.request("POST", "/debug/pprof/goroutine")).body
    assert b" builtins.dict\n" in (await admin.get("/debug/pprof/heap")).body
    assert b"tottime" in (await admin.get("/debug/pprof/profile?seconds=0")).body
    assert (await admin.get("/debug/pprof/cmdline")).status == 404
    assert (await admin.get("/debug/pprof/profile?seconds=x")).status == 400
    proxied = await admin.get("/debug/pprof/heap", ("X-Forwarded-For", "10.0.0.1"))
    assert proxied.status == 404
