"""Every check of a request, in lmstfy's order, with lmstfy's bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.job import Ref, State
from penstock.dialects.lmstfy.names import is_ours, split_queue, store_queue
from tests.web.conftest import Served
from tests.web.wire import Client

MIB = 1_048_576
LONG = "n" * 256
NAMESPACE = "namespace name contains forbidden characters"
QUEUE = "queue name contains forbidden characters"


def error(text: str) -> bytes:
    return json.dumps({"error": text}, separators=(",", ":")).encode()


CASES: list[tuple[str, str, int, str]] = [
    # names
    ("PUT", "/api//q", 400, NAMESPACE),
    ("PUT", "/api/n.s/q", 400, NAMESPACE),
    ("GET", "/api/n%20s/q", 400, NAMESPACE),
    ("PUT", "/api/ns/q%0A", 400, QUEUE),
    ("PUT", "/api/ns/_q", 400, QUEUE),
    ("PUT", "/api/ns/q%C3%A9", 400, QUEUE),
    ("PUT", "/api/ns/a,b", 400, QUEUE),
    ("GET", "/api/ns/a;b", 400, QUEUE),
    ("PUT", f"/api/ns/{LONG}", 400, "namespace or queue name too long"),
    ("GET", f"/api/{LONG}/q/peek", 400, "namespace or queue name too long"),
    ("GET", "/api/ns/,", 400, "invalid queue name(s)"),
    # publish
    ("PUT", "/api/ns/q?delay=x", 400, "invalid delay"),
    ("PUT", "/api/ns/q?delay=-1", 400, "invalid delay"),
    ("PUT", "/api/ns/q?delay=+1", 400, "invalid delay"),
    ("PUT", "/api/ns/q?delay=1_0", 400, "invalid delay"),
    ("PUT", "/api/ns/q?delay=%D9%A1", 400, "invalid delay"),
    ("PUT", "/api/ns/q?delay=1%0A", 400, "invalid delay"),
    ("PUT", "/api/ns/q?delay=4294967296", 400, "invalid delay"),
    ("PUT", "/api/ns/q?ttl=", 400, "invalid ttl"),
    ("PUT", "/api/ns/q?ttl=1.5", 400, "invalid ttl"),
    ("PUT", "/api/ns/q?ttl=x&ttl=1", 400, "invalid ttl"),
    ("PUT", "/api/ns/q?ttl=4&delay=5", 400, "ttl is shorter than delay"),
    ("PUT", "/api/ns/q?tries=65536", 400, "invalid tries"),
    ("PUT", "/api/ns/q?tries=0", 400, "tries shouldn't be zero"),
    ("PUT", "/api/ns/q?delay=x&ttl=x&tries=x", 400, "invalid delay"),
    # consume
    ("GET", "/api/ns/q?ttr=x", 400, "invalid ttr"),
    ("GET", "/api/ns/q?timeout=4294967296", 400, "invalid timeout"),
    ("GET", "/api/ns/q?count=0", 400, "invalid count"),
    ("GET", "/api/ns/q?count=101", 400, "invalid count"),
    ("GET", "/api/ns/q?count=", 400, "invalid count"),
    ("GET", "/api/ns/,?count=0", 400, "invalid count"),
    # absent
    ("GET", "/api/ns/q/job/x", 404, "job not found"),
    ("GET", "/api/ns/q/peek", 404, "the queue is empty"),
    # unknown routes
    *(
        (method, path, 404, "api not found")
        for method, path in [
            ("POST", "/api/ns/q"),
            ("PATCH", "/api/ns/q"),
            ("OPTIONS", "/api/ns/q"),
            ("GET", "/"),
            ("GET", "/api"),
            ("GET", "/api/ns"),
            ("POST", "/api/ns/"),
            ("GET", "/api/ns/q/"),
            ("GET", "/api/ns/q/job/"),
            ("GET", "/api/ns/q/bulk"),
            ("PUT", "/api/ns/q/peek"),
            ("GET", "/api/ns/a%2Fb"),
            ("GET", "/api/ns/q/deadletter/size/x"),
            ("GET", "/metrics"),
            ("GET", "/token/ns"),
            ("GET", "/API/ns/q"),
        ]
    ),
]


@pytest.mark.parametrize(("method", "path", "status", "text"), CASES)
async def test_a_request_is_refused_as_by_lmstfy(
    local: Served, method: str, path: str, status: int, text: str
) -> None:
    client = local.client()
    answer = await client.request(method, path)
    assert (answer.status, answer.body) == (status, error(text))
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert len(answer.headers["X-Request-Id"]) == 26
    assert (await client.request("GET", "/api/ns/q/size")).status == 200  # the connection is still usable


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/ns/q?ttl=4294967295&delay=4294967295&tries=65535", 201),
        ("/api/ns/q?ttl=5&delay=5", 201),
        ("/api/ns/q?ttl=0&delay=9", 201),
        ("/api/ns/q?ttl=1&ttl=x", 201),  # the first value counts
        ("/api/ns/q?unknown=x&tries=007", 201),
        ("/api/-_/q_-", 201),
        (f"/api/{'n' * 255}/{'q' * 255}", 201),
        ("/api/%6e%73/q", 201),
    ],
)
async def test_a_request_is_accepted(local: Served, path: str, status: int) -> None:
    assert (await local.client().put(path, b"x")).status == status


async def test_a_list_of_queues_may_be_long_and_begin_with_an_underscore(local: Served) -> None:
    names = ",".join(f"queue-{n}" for n in range(2_000))
    assert (await local.client().get(f"/api/ns/_x,{names}")).json == {"msg": "no job available"}
    assert (await local.client().get(f"/api/ns/{LONG}")).json == {"msg": "no job available"}


# --- bodies -------------------------------------------------------------------------------------


async def test_a_body_may_have_a_mebibyte(local: Served) -> None:
    client = local.client()
    assert (await client.put("/api/ns/q", b"x" * MIB)).status == 201
    refused = await client.put("/api/ns/q", b"x" * (MIB + 1))
    assert (refused.status, refused.body) == (413, b'{"error":"body too large"}')
    assert (await client.get("/api/ns/q/size")).json["size"] == 1
    assert (await client.put("/api/ns/q?ttl=x", b"x" * (MIB + 1))).status == 400


BULK: Sequence[tuple[bytes, int, str]] = [
    (b"", 400, "request body should be an array of objects"),
    (b"{}", 400, "request body should be an array of objects"),
    (b'"x"', 400, "request body should be an array of objects"),
    (b"[1]x", 400, "request body should be an array of objects"),
    (b"[1,]", 400, "request body should be an array of objects"),
    (b"[" * 500_000, 400, "request body should be an array of objects"),
    (b"[]", 400, "no jobs"),
    (b" null ", 400, "no jobs"),
    (b"[" + b",".join([b"1"] * 65) + b"]", 400, "too many jobs"),
    (b'["' + b"x" * MIB + b'"]', 413, "job too large"),
]


@pytest.mark.parametrize(("body", "status", "text"), BULK, ids=range(len(BULK)))
async def test_a_wrong_bulk_request_stores_nothing(
    local: Served, body: bytes, status: int, text: str
) -> None:
    client = local.client()
    answer = await client.put("/api/ns/q/bulk", body)
    assert (answer.status, answer.body) == (status, error(text))
    assert (await client.get("/api/ns/q/size")).json["size"] == 0


async def test_sixty_four_large_jobs_are_one_bulk_request(local: Served) -> None:
    element = b'"' + b"x" * (MIB - 2) + b'"'
    made = await local.client().put("/api/ns/q/bulk", b"[" + b",".join([element] * 64) + b"]")
    assert len(made.json["job_ids"]) == 64


async def test_bodies_of_other_requests_are_ignored(local: Served) -> None:
    """A reused handle of PHP's curl sends the body of an earlier publish request again."""
    client = local.client()
    form = [("Content-Type", "application/x-www-form-urlencoded")]
    made = await client.request("PUT", "/api/ns/q", b"token=x&a=b", form)
    assert (await client.request("GET", "/api/ns/q/size", b"x" * 100_000, form)).json["size"] == 1
    assert (await client.request("GET", "/api/ns/q", b"token=x", form)).data == b"token=x&a=b"
    id = made.json["job_id"]
    assert (await client.request("DELETE", f"/api/ns/q/job/{id}", b"body", form)).status == 204


async def test_text_is_escaped_as_by_go(local: Served) -> None:
    client = local.client()
    headers = [("Enable-Job-Version", "YES"), ("Job-Attr-A", '<&>\u2028é"\\')]
    await client.request("PUT", "/api/ns/q", b"x", headers)
    shown = (await client.get("/api/ns/q/peek")).body
    assert '{"a":"\\u003c\\u0026\\u003e\\u2028é\\"\\\\"}'.encode() in shown


# --- redirects ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/ns/", 301),
        ("DELETE", "/api/ns/", 307),
        ("GET", "/api/ns/q/job//", 301),
        ("GET", "/api/ns/q/peek/", 301),
        ("GET", "/api/ns/q/size/", 301),
        ("GET", "/api/ns/q/job/x/", 301),
        ("PUT", "/api/ns/q/bulk/", 307),
        ("PUT", "/api/ns/q/deadletter/", 307),
        ("DELETE", "/api/ns/q/job/x/", 307),
        ("GET", "/api/ns/q/deadletter/size/", 301),
    ],
)
async def test_a_slash_too_many_is_redirected(local: Served, method: str, path: str, status: int) -> None:
    answer = await local.client().request(method, f"{path}?a=b")
    assert (answer.status, answer.headers["Location"]) == (status, f"{path[:-1]}?a=b")
    assert "X-Request-Id" not in answer.headers


@pytest.mark.parametrize("line_break", ["%0d%0a", "%0D%0A", "%0a"])
async def test_a_redirect_keeps_escapes(local: Served, line_break: str) -> None:
    path = f"/api/x{line_break}Set-Cookie:%20e=1"
    for slash in ("/", "%2F", "%2f"):
        answer = await local.client().get(path + slash)
        assert (answer.status, answer.headers["Location"]) == (301, path)
        assert "Set-Cookie" not in answer.headers
    token = f"/token/x{line_break}Set-Cookie:%20e=1"
    answer = await local.admin().get(f"{token}/")
    assert (answer.status, answer.headers["Location"]) == (301, token)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("PUT", ""), ("POST", "/touch?lease=1-a"), ("POST", "/release?lease=1-a")],
)
async def test_an_id_that_is_no_text_is_refused_alone(local: Served, method: str, path: str) -> None:
    bad, good = await asyncio.gather(
        local.client().request(method, f"/api/ns/q/job/%ff{path}"),
        local.client().request("DELETE", "/api/ns/q/job/none"),
    )
    assert (bad.status, good.status) == (400, 204)


async def test_half_an_escape_is_a_bad_request(local: Served) -> None:
    for client in (local.client(), local.admin()):
        answer = await client.get("/api/ns/q/job/%zz")
        assert (answer.status, answer.body) == (400, b"400 Bad Request")
        assert answer.headers["Connection"] == "close"


# --- the store fails ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "method", "path"),
    [
        ("enqueue", "PUT", "/api/ns/q"),
        ("enqueue", "PUT", "/api/ns/q/bulk"),
        ("fetch", "GET", "/api/ns/q"),
        ("fetch", "GET", "/api/ns/q?count=5&timeout=9"),
        ("delete", "DELETE", "/api/ns/q/job/x"),
        ("get", "GET", "/api/ns/q/job/x"),
        ("queues", "GET", "/api/ns/q/size"),
        ("search", "GET", "/api/ns/q/peek"),
        ("search", "GET", "/api/ns/q/deadletter"),
        ("search", "PUT", "/api/ns/q/deadletter"),
        ("purge", "DELETE", "/api/ns/q"),
        ("replace_jobs", "PUT", "/api/ns/q/job/x"),
        ("settle", "DELETE", "/api/ns/q/job/x?lease=1-a"),
        ("extend", "POST", "/api/ns/q/job/x/touch?lease=1-a"),
        ("get", "POST", "/api/ns/q/job/x/bury?lease=1-a"),
        ("settle", "POST", "/api/ns/q/job/x/release?lease=1-a&freeze_tries=true"),
        ("search", "GET", "/api/ns/q/deadletter/job"),
    ],
)
async def test_a_failing_store_is_an_internal_error(
    local: Served, monkeypatch: pytest.MonkeyPatch, verb: str, method: str, path: str
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    client = local.client()
    with monkeypatch.context() as patched:
        patched.setattr(local.store, verb, fail)
        answer = await client.request(method, path, b"[1]" if method == "PUT" else b"")
    assert (answer.status, answer.body) == (500, b'{"error":"internal error"}')
    assert (await client.put("/api/ns/q", b"x")).status == 201


async def test_a_full_queue_asks_to_come_back(served: Served, client: Client) -> None:
    from penstock.core.limits import LimitChange

    await client.put("/api/ns/q", b"x")
    await served.store.settings("ns.q", limits=LimitChange(max_size=2))
    assert (await client.put("/api/ns/q/bulk", b"[1,2]")).status == 503  # the first one is stored
    full = await client.put("/api/ns/q", b"x")
    assert (full.status, full.body) == (503, b'{"error":"queue is full"}')
    assert int(full.headers["Retry-After"]) >= 1
    assert (await client.get("/api/ns/q/size")).json["size"] == 2


async def test_a_part_of_the_store_that_is_away_fails_the_acknowledgements_of_its_queues_alone(
    local: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = local.store.delete

    async def fail(refs: Sequence[Ref], **options: Any) -> list[State | None]:
        if any(ref.queue == "ns.away" for ref in refs):
            raise StoreUnavailable("away")
        return await delete(refs, **options)

    client = local.client()
    id = (await client.put("/api/ns/here", b"x")).json["job_id"]
    monkeypatch.setattr(local.store, "delete", fail)
    found: dict[str, object] = {}
    for queue in ("away", "here"):  # in one turn, so in one call
        local.service.backends["default"].remove(Ref(f"ns.{queue}", id), partial(found.__setitem__, queue))
    while len(found) < 2:
        await client.get("/api/ns/here/size")
    assert found["here"] is None
    assert isinstance(found["away"], StoreUnavailable)
    assert (await client.get(f"/api/ns/here/job/{id}")).status == 404


# --- names --------------------------------------------------------------------------------------


def test_a_queue_of_the_store_stands_for_one_namespace_and_queue() -> None:
    assert store_queue("ns", "q") == "ns.q"
    assert split_queue("ns.q") == ("ns", "q")
    assert split_queue("default") is None
    assert not is_ours("default")
    assert split_queue(store_queue("n" * 100, "q" * 154)) == ("n" * 100, "q" * 154)
    long = store_queue("n" * 255, "q" * 255)
    assert len(long) <= 255
    assert is_ours(long)
    assert long != store_queue("n" * 255, "q" * 254)
