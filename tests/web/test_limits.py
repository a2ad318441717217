"""Limits of tokens: the admin API for them, and what is refused beyond them, on every store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import StoreUnavailable
from penstock.stores.contract import Store
from tests.web.conftest import Served
from tests.web.test_requests_and_errors import error
from tests.web.wire import Client, Reply

TOKEN = "01F4CKPFY8XYVH6WVEQB3747CW"
PATH = f"/token/ns/{TOKEN}/limit"


@pytest.fixture
async def guarded(open_store: Callable[[], Store], clock: ManualClock) -> AsyncIterator[Served]:
    """The service that needs tokens, with one of the command line."""
    one = Served(open_store(), clock, need_tokens=True, fixed_tokens={"ns": frozenset({TOKEN})})
    await one.start()
    yield one
    await one.stop()


async def limited(served: Served, body: str, method: str = "POST") -> Reply:
    return await served.admin().request(method, PATH, body.encode())


def refusal(action: str) -> bytes:
    return b'{"msg":"token(%b) %b reach the limit rate, please retry later"}' % (
        TOKEN.encode(),
        action.encode(),
    )


async def test_a_limiter_is_added_set_shown_and_removed(guarded: Served) -> None:
    admin = guarded.admin()
    assert [(await admin.get(path)).body for path in (PATH, "/limits")] == [b"null", b"[]"]
    assert (await admin.get(PATH)).status == 404
    made = await limited(guarded, '{"read":1, "WRITE":2, "interval":3, "other":"x"} and more')
    assert (made.status, made.body) == (201, b'{"limiter":{"read":1,"write":2,"interval":3}}')
    again = await limited(guarded, '{"read":5,"interval":5}')
    assert (again.status, again.body) == (500, error(f"throttler token({TOKEN}) has already exists"))
    assert (await limited(guarded, '{"read":5,"interval":5}', "PUT")).status == 200
    assert (await admin.get(PATH)).body == b'{"read":5,"write":0,"interval":5}'
    assert (await admin.request("PUT", f"/token/ns/other:{TOKEN}/limit", b'{"write":9,"interval":1}')).json
    assert (await admin.get("/limits?force_update=true")).body == (
        b'[{"namespace":"ns","token":"%b","limiter":{"read":5,"write":0,"interval":5}},'
        b'{"namespace":"ns","token":"other:%b","limiter":{"read":0,"write":9,"interval":1}}]'
    ) % (TOKEN.encode(), TOKEN.encode())
    for _ in range(2):
        gone = await admin.delete(PATH)
        assert (gone.status, gone.body) == (200, b'{"msg":"success"}')
    assert (await admin.get(PATH)).status == 404


async def test_a_deleted_token_has_no_limiter(guarded: Served) -> None:
    await limited(guarded, '{"read":1,"interval":1}')
    assert (await guarded.admin().delete(f"/token/ns/{TOKEN}")).status == 204
    assert (await guarded.admin().get(PATH)).status == 404


async def test_publish_requests_beyond_the_limit_are_refused(guarded: Served) -> None:
    await limited(guarded, '{"write":3,"interval":1}')
    client = guarded.client(TOKEN)
    made = [
        await client.put("/api/ns/q", b"x"),
        await client.put("/api/ns/q/bulk", b"[1,2,3]"),
        await client.put("/api/ns/q", b"x"),
    ]
    assert [one.status for one in made] == [201] * 3
    for path in ("/api/ns/q", "/api/ns/q?tries=x", "/api/ns/q/bulk"):
        refused = await client.put(path, b"[1]")
        assert (refused.status, refused.body) == (429, refusal("produce"))
    id = made[0].json["job_id"]
    assert (await client.put(f"/api/ns/q/job/{id}", b"y")).status == 201
    assert [(await client.get("/api/ns/q")).status for _ in range(5)] == [200] * 5
    await guarded.advance(1.001)
    assert [(await client.put("/api/ns/q", b"x")).status for _ in range(4)] == [201] * 3 + [429]


async def test_consume_requests_beyond_the_limit_are_refused(guarded: Served) -> None:
    await limited(guarded, '{"read":3,"interval":60}')
    client = guarded.client(TOKEN)
    await client.put("/api/ns/q/bulk", b"[1,2,3,4,5]")
    found = [
        await client.get("/api/ns/q?count=2"),
        await client.get("/api/ns/q"),
        await client.get("/api/ns/q"),
    ]
    assert [one.status for one in found] == [200] * 3
    refused = await client.get("/api/ns/q")
    assert (refused.status, refused.body) == (429, refusal("consume"))
    assert (await client.get("/api/ns/q/peek")).status == 200
    assert (await client.get("/api/ns/q/size")).json["size"] == 1


async def test_requests_that_do_nothing_do_not_count(guarded: Served) -> None:
    await limited(guarded, '{"read":2,"write":2,"interval":60}')
    client = guarded.client(TOKEN)
    assert [(await client.get("/api/ns/q")).status for _ in range(5)] == [404] * 5
    assert [(await client.put("/api/ns/q?tries=0", b"x")).status for _ in range(5)] == [400] * 5
    gone = guarded.client(TOKEN)
    await gone.send("GET", "/api/ns/q?timeout=30")
    dispatcher = guarded.service.backends["default"].dispatcher
    while not dispatcher.waiting:
        await client.get("/api/ns/q/size")
    await gone.close()
    while dispatcher.waiting:
        await client.get("/api/ns/q/size")
    assert [(await client.put("/api/ns/q", b"x")).status for _ in range(3)] == [201, 201, 429]
    assert [(await client.get("/api/ns/q")).status for _ in range(3)] == [200, 200, 429]


async def test_servers_share_limits(
    guarded: Served, open_store: Callable[[], Store], clock: ManualClock
) -> None:
    other = Served(open_store(), clock, need_tokens=True, fixed_tokens={"ns": frozenset({TOKEN})})
    await other.start()
    try:
        await limited(guarded, '{"write":4,"interval":60}')
        client, status = other.client(TOKEN), [201]
        one = guarded.client(TOKEN)
        assert (await one.put("/api/ns/q", b"x")).status == 201
        while status[-1] == 201:  # for at most 100 ms, in which the other server does not know the limit
            status.append((await client.put("/api/ns/q", b"x")).status)
        assert status[-1] == 429
        assert (await one.put("/api/ns/q", b"x")).status == 429
        await guarded.admin().delete(PATH)
        assert (await one.put("/api/ns/q", b"x")).status == 201
    finally:
        await other.stop()


async def test_other_tokens_have_their_own_limits(guarded: Served) -> None:
    await limited(guarded, '{"write":1,"interval":60}')
    admin = guarded.admin()
    tokens = [(await admin.request("POST", "/token/ns?description=d")).json["token"] for _ in range(2)]
    await admin.request("PUT", f"/token/ns/{tokens[0]}/limit", b'{"write":2,"interval":60}')
    one, other, free = (guarded.client(token) for token in (TOKEN, *tokens))
    assert [(await one.put("/api/ns/q", b"x")).status for _ in range(2)] == [201, 429]
    assert [(await other.put("/api/ns/q", b"x")).status for _ in range(3)] == [201, 201, 429]
    assert [(await free.put("/api/ns/q", b"x")).status for _ in range(3)] == [201, 201, 201]


async def test_a_permit_of_a_window_that_is_over_adds_nothing_to_the_next(local: Served) -> None:
    limits = local.service.limits
    limits.give_back("quota", time.monotonic() - 0.001)
    assert not limits._returned
    limits.give_back("quota", time.monotonic() + 60)
    assert limits._returned["quota"][0] == 1


@pytest.fixture
async def admin(local: Served) -> Client:
    return local.admin()


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"", 400, b'{"error":{}}'),
        (b"{", 400, b'{"error":{}}'),
        (b"[1]", 400, b'{"error":{}}'),
        (b"[" * 50_000, 400, b'{"error":{}}'),
        (b'{"read":"1"}', 400, b'{"error":{}}'),
        (b'{"read":1.5}', 400, b'{"error":{}}'),
        (b'{"read":true}', 400, b'{"error":{}}'),
        (b'{"read":9223372036854775808}', 400, b'{"error":{}}'),
        (b'{"read":%b}' % (b"9" * 5_000), 400, b'{"error":{}}'),
        (b"null", 400, b'{"limiter":{"read":0,"write":0,"interval":0}}'),
        (b'{"read":null,"interval":1}', 400, b'{"limiter":{"read":0,"write":0,"interval":1}}'),
        (b'{"read":1}', 400, b'{"error":"interval should be \\u003e 0"}'),
        (b'{"read":1,"interval":-1}', 500, b'{"error":"limiter interval should be \\u003e 0"}'),
        (
            b'{"read":-1,"interval":1}',
            500,
            b'{"error":"the read and write of limiter can\'t be \\u003c= 0 at the same time"}',
        ),
    ],
)
async def test_a_wrong_limiter_is_refused(
    admin: Client, method: str, body: bytes, status: int, expected: bytes
) -> None:
    answer = await admin.request(method, PATH, body)
    assert (answer.status, answer.body) == (status, expected)


async def test_the_largest_limiter_is_none(guarded: Served) -> None:
    largest = 2**63 - 1
    made = await limited(guarded, f'{{"read":{largest},"write":{largest},"interval":{largest}}}')
    assert made.status == 201
    client = guarded.client(TOKEN)
    assert (await client.put("/api/ns/q", b"x")).status == 201
    assert (await client.get("/api/ns/q")).status == 200


async def test_a_body_that_is_too_large_is_refused(admin: Client) -> None:
    assert (await admin.request("PUT", PATH, b" " * 70_000)).status == 413


@pytest.mark.parametrize("verb", ["document_versions", "documents", "take_quota"])
async def test_a_failing_store_is_an_internal_error(
    guarded: Served, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    await limited(guarded, '{"write":1,"interval":60}')
    for backend in guarded.service.backends.values():
        monkeypatch.setattr(backend.store, verb, fail)
    answer = await guarded.client(TOKEN).put("/api/ns/q", b"x")
    assert (answer.status, answer.body) == (500, error("internal error"))
    assert (await guarded.client(TOKEN).get("/api/ns/q/size")).json["size"] == 0
