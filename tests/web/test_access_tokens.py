"""Native tokens on every store: their scopes, expiry and rates, on all routes of both listeners."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.core.clock import ManualClock
from penstock.core.limits import Rate
from penstock.dialects.lmstfy.requests import Action, find_route
from penstock.inspector import AuditFilter
from penstock.stores.contract import Store
from penstock.web.access import AccessTokens
from penstock.web.access_tokens import Right, TokenScope
from tests.web.conftest import Served
from tests.web.test_requests_and_errors import error
from tests.web.wire import Client

#: All routes of the data API, by their actions.
DATA_ROUTES = {
    Action.PUBLISH: ("PUT", "/api/ns/q"),
    Action.BULK: ("PUT", "/api/ns/q/bulk"),
    Action.REPUBLISH: ("PUT", "/api/ns/q/job/x"),
    Action.CONSUME: ("GET", "/api/ns/q"),
    Action.PEEK: ("GET", "/api/ns/q/peek"),
    Action.PEEK_JOB: ("GET", "/api/ns/q/job/x"),
    Action.ACK: ("DELETE", "/api/ns/q/job/x"),
    Action.SIZE: ("GET", "/api/ns/q/size"),
    Action.DESTROY: ("DELETE", "/api/ns/q"),
    Action.DEAD_HEAD: ("GET", "/api/ns/q/deadletter"),
    Action.RESPAWN: ("PUT", "/api/ns/q/deadletter"),
    Action.DELETE_DEAD: ("DELETE", "/api/ns/q/deadletter"),
    Action.DEAD_SIZE: ("GET", "/api/ns/q/deadletter/size"),
    Action.TOUCH: ("POST", "/api/ns/q/job/x/touch"),
    Action.RELEASE: ("POST", "/api/ns/q/job/x/release"),
    Action.BURY: ("POST", "/api/ns/q/job/x/bury"),
    Action.DEAD_LIST: ("GET", "/api/ns/q/deadletter/job"),
    Action.RESPAWN_JOB: ("PUT", "/api/ns/q/deadletter/job/x"),
    Action.DELETE_DEAD_JOB: ("DELETE", "/api/ns/q/deadletter/job/x"),
}
ADMIN_ROUTES = [
    ("POST", "/token/ns?description=d"),
    ("GET", "/token/ns"),
    ("DELETE", "/token/ns/t"),
    ("GET", "/limits"),
    *((method, "/token/ns/t/limit") for method in ("GET", "POST", "PUT", "DELETE")),
]
OPEN_ADMIN_ROUTES = ("/pools", "/info", "/version", "/metrics", "/livez", "/readyz")


@pytest.fixture
async def guarded(open_store: Callable[[], Store], clock: ManualClock) -> AsyncIterator[Served]:
    """The service that needs tokens for everything."""
    one = Served(open_store(), clock, need_tokens=True, public_sizes=False, need_admin=True)
    await one.start()
    yield one
    await one.stop()


async def made(served: Served, *scopes: str, name: str = "", **more: object) -> str:
    """A new token, made as the command line makes it: on the store alone."""
    tokens = AccessTokens(served.store)
    _, secret = await tokens.create(
        name or f"t{len(await tokens.all())}",
        [TokenScope.of(scope) for scope in scopes],
        **more,  # type: ignore[arg-type]
    )
    return secret


async def accepted(client: Client, method: str, path: str) -> int:
    """The status of a request of a token that is new to its server."""
    return (await client.request(method, path)).status


def test_every_route_is_walked() -> None:
    assert (
        DATA_ROUTES.keys()
        == {action for action in Action if action.rights}
        == set(Action) - {Action.REDIRECT}
    )
    for action, (method, path) in DATA_ROUTES.items():
        route = find_route(method, path.encode())
        assert route is not None
        assert route.action is action


async def test_every_route_needs_a_valid_token_with_the_right(guarded: Served) -> None:
    old = await made(guarded, "admin", expires_in=60_000)
    await guarded.advance(61)
    secrets = {right: await made(guarded, right) for right in Right}
    await accepted(guarded.client(secrets[Right.READ]), "GET", "/api/ns/q/size")
    wrong = secrets[Right.ADMIN][:-1] + ("0" if secrets[Right.ADMIN][-1] != "0" else "1")
    for action, (method, path) in DATA_ROUTES.items():
        nothing = await guarded.client().request(method, path)
        assert (nothing.status, nothing.body) == (401, error("token not found")), path
        refused = await guarded.client(wrong).request(method, path)
        assert (refused.status, refused.body) == (401, error("invalid token")), path
        expired = await guarded.client(old).request(method, path)
        assert (expired.status, expired.body) == (401, error("the token 't0' has expired")), path
        for right, secret in secrets.items():
            answer = await guarded.client(secret).request(method, path)
            if may(right, action):
                assert answer.status not in (401, 403), (path, right)
            else:
                assert answer.status == 403, (path, right)
                assert b"has no right to" in answer.body
    for method, path in ADMIN_ROUTES:
        for token in ("", wrong, old):
            refused = await send_admin(guarded, method, path, token)
            assert refused == 401, path
        for right, secret in secrets.items():
            expected = right is Right.ADMIN
            assert (await send_admin(guarded, method, path, secret) not in (401, 403)) == expected, (
                path,
                right,
            )
    for path in OPEN_ADMIN_ROUTES:
        assert await send_admin(guarded, "GET", path, "") == 200


async def send_admin(served: Served, method: str, path: str, token: str) -> int:
    body = b'{"read":1,"interval":1}' if method in ("POST", "PUT") else b""
    headers = [("Authorization", f"Bearer {token}")] if token else []
    return (await served.admin().request(method, path, body, headers)).status


def may(right: Right, action: Action) -> bool:
    included = {Right.ADMIN: set(Right), Right.OPERATE: {Right.OPERATE, Right.READ}}
    return included.get(right, {right}).issuperset(action.rights)


async def test_a_scope_is_for_its_queues(guarded: Served) -> None:
    secret = await made(guarded, "produce:mail.*,ns.a", "consume,produce:ns.b")
    client = guarded.client(secret)
    assert await accepted(client, "PUT", "/api/mail/any") == 201
    assert (await client.put("/api/ns/a", b"x")).status == 201
    assert (await client.put("/api/ns/b", b"x")).status == 201
    for path in ("/api/ns/c", "/api/mails/a", "/api/mail2/a", "/api/ns/aa"):
        assert (await client.put(path, b"x")).status == 403
    assert (await client.get("/api/ns/b")).status == 200
    for path in ("/api/ns/a", "/api/ns/a,b", "/api/ns/b,a"):
        refused = await client.get(path)
        assert refused.status == 403
        assert b"has no right to consume on ns." in refused.body
    assert (await client.put("/api/ns/b/job/x", b"y")).status == 201


async def test_a_token_is_given_in_three_places(guarded: Served) -> None:
    secret = await made(guarded, "produce")
    assert await accepted(guarded.client(secret), "PUT", "/api/ns/q") == 201
    plain = guarded.client()
    assert (await plain.put(f"/api/ns/q?token={secret}", b"x")).status == 201
    assert (await plain.put("/api/ns/q", b"x", ("Authorization", f"Bearer {secret}"))).status == 201
    assert (await guarded.client(f"default:{secret}").put("/api/ns/q", b"x")).status == 201
    assert (await guarded.client(f"other:{secret}").put("/api/ns/q", b"x")).status == 404


async def test_all_servers_see_a_new_and_a_revoked_token(
    guarded: Served, open_store: Callable[[], Store], clock: ManualClock
) -> None:
    other = Served(open_store(), clock, need_tokens=True)
    await other.start()
    try:
        secret = await made(guarded, "produce", name="deploy")
        clients = [guarded.client(secret), other.client(secret)]
        for client in clients:
            assert await accepted(client, "PUT", "/api/ns/q") == 201
        assert await AccessTokens(guarded.store).revoke("deploy")
        for client in clients:
            status = 201
            while status == 201:  # for at most 100 ms
                status = (await client.put("/api/ns/q", b"x")).status
            assert status == 401
    finally:
        await other.stop()


async def test_a_rate_holds_for_all_servers_together(
    guarded: Served, open_store: Callable[[], Store], clock: ManualClock
) -> None:
    other = Served(open_store(), clock, need_tokens=True)
    await other.start()
    try:
        secret = await made(guarded, "produce", "read", name="slow", rate=Rate(3.0, 60_000))
        first, second = guarded.client(secret), other.client(secret)
        assert await accepted(first, "PUT", "/api/ns/q") == 201
        assert await accepted(second, "PUT", "/api/ns/q") == 201
        assert (await first.get("/api/ns/q/size")).status == 200
        for client in (first, second):
            refused = await client.put("/api/ns/q", b"x")
            assert (refused.status, refused.body) == (
                429,
                error("the token 'slow' has reached its rate of 3/min"),
            )
            assert 1 <= int(refused.headers["Retry-After"]) <= 60
        await guarded.advance(61)
        assert (await first.put("/api/ns/q", b"x")).status == 201
    finally:
        await other.stop()


async def test_only_a_hash_is_stored_and_no_token_is_logged_or_counted(
    guarded: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = await made(guarded, "produce,operate", name="deploy", rate=Rate(20.0, 60_000))
    await accepted(guarded.client(secret), "PUT", "/api/ns/q")
    answers = []
    for method, path in [*DATA_ROUTES.values()] * 2:
        for client, query in ((guarded.client(secret), ""), (guarded.client(), f"?token={secret}")):
            answers.append((await client.request(method, path + query)).body)
    answers.append((await guarded.admin().get("/metrics")).body)
    answers += [one.body for one in (await guarded.store.documents("tokens")).documents]
    answers += [one.body for one in (await guarded.store.read_log("audit")).entries]
    answers.append(caplog.text.encode())
    assert any(b"429" in answer for answer in answers)
    assert not any(secret.encode() in answer for answer in answers)


async def test_an_act_of_an_operator_is_in_the_audit_log(guarded: Served) -> None:
    secret = await made(guarded, "operate", name="deploy")
    client = guarded.client(secret)
    assert await accepted(client, "DELETE", "/api/ns/q") == 204
    await client.put("/api/ns/q/deadletter?limit=3")
    await client.delete("/api/ns/q/deadletter?limit=nonsense")  # does nothing
    await client.get("/api/ns/q/deadletter")  # changes nothing
    root = await made(guarded, "admin", name="root")
    assert await accepted(guarded.client(root), "PUT", "/api/ns/q") == 201
    assert (
        await send_admin(guarded, "POST", "/token/ns?description=d&token=01F4CKPFY8XYVH6WVEQB3747CW", root)
        == 201
    )
    log = guarded.service.backends["default"].audit_log
    found = [one async for one in log.newest_first()]
    acts = [(one.entry.who, one.entry.act, one.entry.to, one.entry.status, one.entry.facts) for one in found]
    assert acts == [
        ("token:root", "lmstfy.token.create", "ns", 201, {}),
        ("token:deploy", "dead.retry", "ns.q", 200, {"limit": "3"}),
        ("token:deploy", "queue.destroy", "ns.q", 204, {}),
    ]
    assert {one.entry.address for one in found} == {"127.0.0.1"}
    assert [one.number for one in found] == [3, 2, 1]
    by_root = AuditFilter(who="token:root")
    assert [one.entry.act async for one in log.newest_first(by_root)] == ["lmstfy.token.create"]
