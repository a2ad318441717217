"""Requests that are meant to do harm: no crash, no way into other queues, the right status."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.core.job import NewJob
from tests.web.conftest import Served

PIECES = (
    *("api", "ns", "q", "job", "bulk", "peek", "size", "deadletter", "token", "limit", "metrics", "x", ""),
    *(
        "..",
        ".",
        "%2e%2e",
        "%2F",
        "%00",
        "%0d%0aX:%20y",
        "%c0%ae",
        "%ff",
        "%ED%A0%80",
        "\xe9",
        "*",
        "~",
        "%25",
    ),
    *(
        "ns.q",
        "lmstfy.tokens",
        "a,b",
        ",",
        "{0}",
        "$(id)",
        "'; drop table jobs; --",
        "n" * 300,
        "_",
        "__proto__",
    ),
)
QUERIES = (
    *("", "delay=1", "ttl=0", "tries=9", "ttr=1", "timeout=0", "count=100", "limit=1", "pool=x", "token=x"),
    *("count=%00", "ttl=" + "9" * 5_000, "delay=%", ";;;", "&&&&", "=" * 100, "tries=-0", "description=%ff"),
)
BODIES = (
    *(b"", b"x", b"[]", b"[1,2]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000),
    *(b"[" + b"[" * 900 + b"]" * 900 + b"]", b"[" + b"1" * 100_000 + b"]", b'["\\ud800"]', b"[1e999999]"),
    *(b'{"read":1e999,"interval":1}', b'{"read":' + b"9" * 10_000 + b"}", b"description=d&token=%00%ff"),
)
HEADERS = (
    *(("X-Token", "x"), ("X-Token", ":"), ("X-Token", "\xff"), ("Authorization", "Basic !!!")),
    *(("Content-Type", "application/x-www-form-urlencoded"), ("Enable-Job-Version", "YES")),
    *(("Job-Attr-" + "k" * 500, "v" * 500), ("Job-Attr-", "v"), ("Connection", "upgrade"), ("Range", "x")),
)


async def test_random_requests_are_answered_and_do_no_harm(local: Served) -> None:
    """On both listeners: each gets an answer that is no internal error, and the server goes on."""
    await local.store.enqueue([NewJob("1", "t", b"x", "other"), NewJob("2", "t", b"x", "lmstfy.tokens~x")])
    drawn = random.Random(5)
    clients = [local.client(), local.admin()]
    for _ in range(1_500):
        client = drawn.choice(clients)
        first = "api" if client is clients[0] else "token"
        path = "/" + "/".join([first, *drawn.choices(PIECES, k=drawn.randint(0, 5))])
        query = "&".join(drawn.choices(QUERIES, k=drawn.randint(0, 3)))
        method = drawn.choice(["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "TRACE"])
        headers = drawn.choices(HEADERS, k=drawn.randint(0, 3))
        text = f"{path.replace(' ', '%20')}?{query}"
        line = f"{method} {text} HTTP/1.1\r\nHost: localhost\r\n".encode("latin-1")
        body = drawn.choice(BODIES)
        lines = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers)
        await client.write(line + lines + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        try:
            async with asyncio.timeout(60):
                answer = await client.read(method)
        except asyncio.IncompleteReadError:
            pytest.fail(f"no answer: {method} {text[:200]} {headers} {body[:50]!r}")
        assert answer.status < 500, (method, text[:200], headers, body[:50], answer)
        if answer.headers.get("Connection") == "close":
            await client.close()
    for queue, id in (("other", "1"), ("lmstfy.tokens~x", "2")):
        assert [job.id for job in (await local.store.list_jobs(queue=queue)).jobs] == [id]


@pytest.mark.parametrize(
    "path",
    [
        "/api/ns/../other/q",
        "/api/ns/..%2fother%2fq",
        "/api/other/%2e%2e/ns/q",
        "/api/ns.q/x",
        "/api/ns%2Eother/q",
        "/api/ns/q%00",
        "/api/ns%00/q",
        "/api/ns/q%c0%aeq",
        "/api/ns/other.q",
        "/api/ns//q",
        "//api/ns/q",
        "/api/ns\\q",
        "/api/ns/q~x",
        "/api/ns/q:x",
    ],
)
async def test_no_name_reaches_another_queue(local: Served, path: str) -> None:
    answer = await local.client().put(path, b"x")
    assert answer.status in (400, 404)
    assert await local.store.queues() == []


async def test_a_body_of_100_megabytes_is_not_read(local: Served) -> None:
    client = local.client()
    await client.write(b"PUT /api/ns/q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n")
    answer = await client.read()
    assert (answer.status, answer.headers["Connection"]) == (413, "close")
    assert await client.rest() == b""


async def test_hundreds_of_slow_connections_hinder_nobody(local: Served) -> None:
    slow = [local.client() for _ in range(400)]
    for client in slow:
        await client.write(b"PUT /api/ns/q HTTP/1.1\r\nHost: localhost\r\nContent-Len")
    assert (await local.client().put("/api/ns/q", b"x")).status == 201
    assert local.service.data_server.connections == 401
    for client in slow:
        await client.close()
