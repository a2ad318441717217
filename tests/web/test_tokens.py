"""Tokens and the admin API, on every store; and what is refused without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import StoreUnavailable
from penstock.dialects.lmstfy.names import MOST_NAME
from penstock.dialects.lmstfy.settings import LmstfySettings
from penstock.encryption import Cipher, Keyring
from penstock.stores.contract import Store
from penstock.stores.encrypted import encrypted_store
from penstock.stores.memory import MemoryStore
from tests.web.conftest import Served
from tests.web.test_requests_and_errors import error
from tests.web.wire import Client

ROUTES = [
    ("PUT", "/api/ns/q"),
    ("PUT", "/api/ns/q/bulk"),
    ("PUT", "/api/ns/q/job/x"),
    ("GET", "/api/ns/q"),
    ("GET", "/api/ns/q/peek"),
    ("GET", "/api/ns/q/job/x"),
    ("DELETE", "/api/ns/q/job/x"),
    ("DELETE", "/api/ns/q"),
    ("GET", "/api/ns/q/deadletter"),
    ("PUT", "/api/ns/q/deadletter"),
    ("DELETE", "/api/ns/q/deadletter"),
]
SIZES = [("GET", "/api/ns/q/size"), ("GET", "/api/ns/q/deadletter/size")]
TOKEN = "01F4CKPFY8XYVH6WVEQB3747CW"
FORM = ("Content-Type", "application/x-www-form-urlencoded")


@pytest.fixture
async def guarded(open_store: Callable[[], Store], clock: ManualClock) -> AsyncIterator[Served]:
    """The service that needs tokens, with one of the command line."""
    one = Served(
        open_store(), clock, need_tokens=True, fixed_tokens={"fixed": frozenset({"of-the-command-line"})}
    )
    await one.start()
    yield one
    await one.stop()


async def made(served: Served, path: str = "/token/ns?description=d", body: bytes = b"") -> str:
    answer = await served.admin().request("POST", path, body, [FORM])
    assert answer.status == 201, answer
    return str(answer.json["token"])


async def test_no_route_answers_without_a_valid_token(guarded: Served) -> None:
    other = await made(guarded, "/token/other?description=d")
    for method, path in ROUTES:
        nothing = await guarded.client().request(method, path)
        assert (nothing.status, nothing.body) == (401, error("token not found")), path
        for token in ("wrong", other, ":wrong", "default:wrong", "\xe9"):
            refused = await guarded.client(token).request(method, path)
            assert (refused.status, refused.body) == (401, error("invalid token")), path
        unknown = await guarded.client(f"nowhere:{other}").request(method, path)
        assert (unknown.status, unknown.body) == (404, error("pool not found")), path


async def test_sizes_are_public_as_in_lmstfy(guarded: Served) -> None:
    for method, path in SIZES:
        assert (await guarded.client().request(method, path)).status == 200
        assert (await guarded.client("nowhere:x").request(method, path)).status == 404


async def test_a_token_opens_its_namespace(guarded: Served) -> None:
    token = await made(guarded)
    assert len(token) == 26
    for given in (token, f"default:{token}", f":{token}"):
        assert (await guarded.client(given).put("/api/ns/q", b"x")).status == 201
    by_query = guarded.client()
    assert (await by_query.put(f"/api/ns/q?token={token}", b"x")).status == 201
    assert (await by_query.put(f"/api/ns/q?token={token}", b"x", ("X-Token", ""))).status == 201
    assert (await by_query.put(f"/api/ns/q?token={token}", b"x", ("X-Token", "wrong"))).status == 401
    for namespace, part in (("n", f"s{token}"), (f"ns{token[0]}", token[1:]), ("n", token), ("NS", token)):
        assert (await guarded.client(part).put(f"/api/{namespace}/q", b"x")).status == 401
    assert (await guarded.client("of-the-command-line").put("/api/fixed/q", b"x")).status == 201
    assert (await guarded.client("of-the-command-line").put("/api/ns/q", b"x")).status == 401


async def test_a_token_may_have_any_letters(guarded: Served) -> None:
    token = "schlüssel-für-die-post"
    assert await made(guarded, f"/token/ns?description=%C3%A4&token={quote(token)}") == token
    assert (await guarded.client(token).put("/api/ns/q", b"x")).status == 201
    assert (await guarded.client().put(f"/api/ns/q?token={quote(token)}", b"x")).status == 201
    for query in ("description=%ff", f"description=d&token=%ff{quote(token)}"):
        assert (await guarded.admin().request("POST", f"/token/ns?{query}")).status == 400


async def test_lengths_are_counted_in_bytes(guarded: Served) -> None:
    long, token = "%C3%BC" * 128, "%C3%BC" * 10
    assert await made(guarded, f"/token/ns?description=d&token={token}") == "\u00fc" * 10
    for namespace, query, says in (
        ("ns", f"description=d&token={token[6:]}x", "the user token was too short"),
        (long, "description=d", "the namespace name was too long"),
    ):
        refused = await guarded.admin().request("POST", f"/token/{namespace}?{query}")
        assert (refused.status, refused.body) == (400, error(says))
    for path in (f"/api/{long}/q/peek", f"/api/ns/{long}/peek"):
        refused = await guarded.client("of-the-command-line").get(path)
        assert (refused.status, refused.body) == (400, error("namespace or queue name too long"))


async def test_a_token_of_ones_own_is_made_once(guarded: Served) -> None:
    body = f"description=test&token={TOKEN}".encode()
    answer = await guarded.admin().request("POST", "/token/test-ns", body, [FORM])
    assert answer.status == 201
    assert answer.body == b'{\n    "token": "%b"\n}' % TOKEN.encode()
    again = await guarded.admin().request("POST", "/token/test-ns", body, [FORM])
    assert (again.status, again.body) == (400, error("the token has already existed"))
    assert await made(guarded, f"/token/other?description=d&token={TOKEN}") == TOKEN


async def test_tokens_are_listed(guarded: Served) -> None:
    admin = guarded.admin()
    assert (await admin.get("/token/ns")).body == b'{\n    "tokens": {}\n}'
    first, second = await made(guarded), await made(guarded, "/token/ns?description=other+one")
    assert (await admin.get("/token/ns")).json == {"tokens": {first: "d", second: "other one"}}
    listed = await admin.get("/token/ns?pool=default")
    assert listed.json == {"tokens": {f"default:{first}": "d", f"default:{second}": "other one"}}
    assert (await admin.get("/token/ns?pool=no")).body == error("the pool was not exists")


async def test_a_deleted_token_is_refused_by_every_server(
    guarded: Served, open_store: Callable[[], Store], clock: ManualClock
) -> None:
    token = await made(guarded)
    other = Served(open_store(), clock, need_tokens=True)
    await other.start()
    try:
        assert (await other.client(token).put("/api/ns/q", b"x")).status == 201
        for _ in range(2):
            assert (await guarded.admin().delete(f"/token/ns/{token}")).status == 204
        assert (await guarded.client(token).put("/api/ns/q", b"x")).status == 401
        client, status = other.client(token), 201
        while status == 201:  # for at most 100 ms
            status = (await client.put("/api/ns/q", b"x")).status
        assert status == 401
    finally:
        await other.stop()


async def test_a_new_token_is_accepted_by_every_server_at_once(
    guarded: Served, open_store: Callable[[], Store], clock: ManualClock
) -> None:
    known = await made(guarded)
    other = Served(open_store(), clock, need_tokens=True)
    await other.start()
    try:
        for _ in range(5):
            assert (await other.client(known).put("/api/ns/q", b"x")).status == 201  # it has read all tokens
            new = await made(guarded)
            assert (await other.client(new).put("/api/ns/q", b"x")).status == 201
            newer = await made(guarded)
            assert newer in (await other.admin().get("/token/ns")).json["tokens"]
    finally:
        await other.stop()


async def test_wrong_tokens_share_a_look_at_the_store(
    admitting: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(admitting)
    tokens, answers, looks = admitting.service.tokens, [], []
    begun, go_on = asyncio.Event(), asyncio.Event()
    real = admitting.store.document_versions

    async def hold(kinds: Sequence[str]) -> list[int]:
        looks.append(kinds)
        begun.set()
        await go_on.wait()
        return await real(kinds)

    monkeypatch.setattr(admitting.store, "document_versions", hold)
    tokens.check("default", "ns", "the-first-wrong-one", answers.append)
    await begun.wait()
    for n in range(1_000):
        tokens.check("default", "ns", f"wrong-{n}", answers.append)
    go_on.set()
    await tokens._stored._misses.drained()
    assert answers == [False] * 1_001
    assert len(looks) == 2, "those that came after the begin of a look share the next one"


@pytest.fixture
async def admitting(clock: ManualClock, home: Path) -> AsyncIterator[Served]:
    """The service that needs tokens over a store in memory, and another store for these tokens."""
    jobs, tokens = MemoryStore(f"{home}/jobs", clock=clock), MemoryStore(f"{home}/tokens", clock=clock)
    one = Served(jobs, clock, admin_store=tokens, need_tokens=True)
    one.store = tokens
    await one.start()
    yield one
    await one.stop()
    for store in (jobs, tokens):
        store.close()


async def unavailable(*_: object, **__: object) -> list[int]:
    raise StoreUnavailable("away")


async def never(*_: object, **__: object) -> list[int]:
    await asyncio.Event().wait()
    return []


@pytest.mark.parametrize("answer", [unavailable, never])
async def test_known_tokens_work_while_their_store_is_away(
    admitting: Served, monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Awaitable[list[int]]]
) -> None:
    token = await made(admitting)
    client = admitting.client(token)
    assert (await client.put("/api/ns/q", b"x")).status == 201
    cache = "penstock.web.document_cache"
    monkeypatch.setattr(f"{cache}._PATIENCE", 0.01)
    real = admitting.store.document_versions
    monkeypatch.setattr(admitting.store, "document_versions", answer)
    for cached in (admitting.service.tokens._stored, admitting.service.limits._stored):
        monkeypatch.setattr(cached, "_fresh", 0.0)
    for _ in range(20):
        assert (await client.put("/api/ns/q", b"x")).status == 201
    if answer is unavailable:
        assert (await admitting.client("unknown").put("/api/ns/q", b"x")).status == 500
        monkeypatch.setattr(f"{cache}._LASTS", 0.0)  # a minute has passed
        assert (await client.put("/api/ns/q", b"x")).status == 500
        monkeypatch.setattr(admitting.store, "document_versions", real)
        assert (await client.put("/api/ns/q", b"x")).status == 201


async def test_a_token_that_was_deleted_here_is_refused_while_its_store_is_away(
    admitting: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await made(admitting)
    client = admitting.client(token)
    assert (await client.put("/api/ns/q", b"x")).status == 201
    assert (await admitting.admin().delete(f"/token/ns/{token}")).status == 204
    monkeypatch.setattr(admitting.store, "document_versions", unavailable)
    assert (await client.put("/api/ns/q", b"x")).status == 500


async def test_tokens_are_no_jobs_of_lmstfy(guarded: Served) -> None:
    await made(guarded)
    assert (await guarded.admin().get("/info")).body == b"{}\n"
    assert (await guarded.client().get("/api/lmstfy/tokens/size")).json["size"] == 0


@pytest.fixture
async def admin(local: Served) -> Client:
    return local.admin()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/token/ns", "invalid description"),
        ("/token/ns?description=", "invalid description"),
        ("/token/ns?description=d&token=short", "the user token was too short"),
        (f"/token/{'n' * (MOST_NAME + 1)}?description=d", "the namespace name was too long"),
        ("/token/n.s?description=d", "namespace name contains forbidden characters"),
        ("/token/ns?description=d&pool=no", "the pool was not exists"),
        (f"/token/ns?description=d&token=no:{'t' * 20}", "the pool was not exists"),
    ],
)
async def test_a_wrong_token_request_is_refused(admin: Client, path: str, text: str) -> None:
    answer = await admin.request("POST", path)
    assert (answer.status, answer.body) == (400, error(text))


async def test_a_form_counts_more_than_the_query(admin: Client) -> None:
    await admin.request("POST", "/token/ns?description=query", b"description=form", [FORM])
    assert list((await admin.get("/token/ns")).json["tokens"].values()) == ["form"]
    await admin.request("POST", "/token/other?description=query", b"description=ignored")
    assert list((await admin.get("/token/other")).json["tokens"].values()) == ["query"]


async def test_the_admin_listener_shows_pools_queues_and_version(local: Served) -> None:
    admin, client = local.admin(), local.client()
    assert (await admin.get("/pools")).body == b'[\n    "default"\n]'
    await client.put("/api/ns/a", b"x")
    await client.put("/api/ns/b", b"x")
    info = await admin.get("/info")
    assert info.body == b'{\n    "ns": [\n        "a",\n        "b"\n    ]\n}\n'
    assert info.headers["Content-Type"].startswith("text/plain")
    assert (await admin.get("/info?pool=no")).body == b""
    assert (await admin.get("/version")).json.keys() == {"build_commit", "build_date", "version"}


@pytest.mark.parametrize(
    "path", ["/", "/metric", "/accesslogs", "/debug/pprof/trace", "/token/ns/t/limits", "/api/ns/q"]
)
async def test_an_unknown_path_of_the_admin_listener(admin: Client, path: str) -> None:
    answer = await admin.get(path)
    assert (answer.status, answer.body) == (404, b"404 page not found")
    assert answer.headers["Content-Type"] == "text/plain"


async def test_a_slash_too_many_is_redirected_by_the_admin_listener(admin: Client) -> None:
    for path in ("/pools/", "/token/ns/", "/version/"):
        answer = await admin.get(path)
        assert (answer.status, answer.headers["Location"]) == (301, path[:-1])


async def test_accounts_guard_the_routes_of_tokens(clock: ManualClock) -> None:
    store = MemoryStore("accounts", clock=clock)
    one = Served(store, clock, accounts={"admin": "secret"})
    await one.start()
    try:
        for method, path in [
            ("POST", "/token/ns?description=d"),
            ("GET", "/token/ns"),
            ("DELETE", "/token/ns/t"),
            ("GET", "/limits"),
            *((method, "/token/ns/t/limit") for method in ("GET", "POST", "PUT", "DELETE")),
        ]:
            for given in ([], [("Authorization", "Basic YWRtaW46d3Jvbmc=")], [("Authorization", "Basic é")]):
                refused = await one.admin().request(method, path, b"", given)
                assert (refused.status, refused.body) == (401, b"")
                assert refused.headers["WWW-Authenticate"] == 'Basic realm="Authorization Required"'
        allowed = await one.admin().request(
            "GET", "/token/ns", b"", [("Authorization", "Basic YWRtaW46c2VjcmV0")]
        )
        assert allowed.status == 200
        for path in ("/pools", "/info", "/version", "/metrics", "/livez", "/readyz"):
            assert (await one.admin().get(path)).status == 200
    finally:
        await one.stop()
        store.close()


async def test_sizes_may_need_a_token(clock: ManualClock) -> None:
    store = MemoryStore("sizes", clock=clock)
    one = Served(store, clock, need_tokens=True, public_sizes=False)
    await one.start()
    try:
        for method, path in SIZES:
            assert (await one.client().request(method, path)).body == error("token not found")
    finally:
        await one.stop()
        store.close()


async def test_tokens_and_jobs_are_encrypted_if_the_store_has_a_key(clock: ManualClock) -> None:
    inner = MemoryStore("encrypted", clock=clock)
    store = encrypted_store(inner, Cipher(Keyring([bytes(32)])), "")
    one = Served(store, clock, need_tokens=True)
    await one.start()
    try:
        client = one.client(await made(one, f"/token/ns?description=d&token={TOKEN}"))
        await client.put("/api/ns/q", b"a secret")
        stored = [job.spec.payload for job in (await inner.list_jobs()).jobs]
        stored += [one.body for one in (await inner.documents("lmstfy.tokens")).documents]
        assert len(stored) == 2
        assert not any(text in payload for payload in stored for text in (TOKEN.encode(), b"secret"))
        assert (await client.get("/api/ns/q")).data == b"a secret"
    finally:
        await one.stop()
        store.close()


@pytest.mark.parametrize("public", [True, False])
async def test_names_of_queues_may_need_an_account(clock: ManualClock, public: bool) -> None:
    store = MemoryStore("info", clock=clock)
    one = Served(store, clock, accounts={"admin": "secret"}, public_info=public)
    await one.start()
    try:
        account = [("Authorization", "Basic YWRtaW46c2VjcmV0")]
        for path in ("/info", "/pools", "/migrations"):
            assert (await one.admin().get(path)).status == (200 if public else 401)
            assert (await one.admin().request("GET", path, b"", account)).status == 200
        for path in ("/debug/pprof/", "/debug/pprof/heap"):
            assert (await one.admin().get(path)).status == 401
            assert (await one.admin().request("GET", path, b"", account)).status == 200
        for path in ("/metrics", "/version", "/livez"):
            assert (await one.admin().get(path)).status == 200
    finally:
        await one.stop()
        store.close()


async def test_an_act_that_fails_midway_is_in_the_audit_log(
    local: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(local.service.limits, "remove", fail)
    monkeypatch.setattr(local.service.backends["default"].store, "purge", fail)
    assert (await local.admin().request("DELETE", "/token/ns/t")).status == 500
    assert (await local.client().request("DELETE", "/api/ns/q")).status == 500
    log = local.service.backends["default"].audit_log
    found = [(one.entry.act, one.entry.status) async for one in log.newest_first()]
    assert found == [("queue.destroy", 500), ("lmstfy.token.delete", 500)]


async def test_a_reload_leaves_the_switch_of_the_access_log(local: Served) -> None:
    local.service.apply(LmstfySettings())
    await local.admin().request("POST", "/accesslog?status=enable")
    local.service.apply(LmstfySettings())
    assert (await local.admin().get("/accesslog")).json == {"status": "enabled"}
    local.service.apply(LmstfySettings(access_log=True))
    local.service.apply(LmstfySettings(access_log=False))
    assert (await local.admin().get("/accesslog")).json == {"status": "disabled"}
    local.service.operations.adopt([False, True])  # as another process of the server was switched
    assert (await local.admin().get("/accesslog")).json == {"status": "enabled"}
    local.service.apply(LmstfySettings(access_log=True))
    local.service.operations.adopt([False, False])  # under a setting that is no more
    assert (await local.admin().get("/accesslog")).json == {"status": "enabled"}
