"""Publish requests with an idempotency key, and republish in one step; on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.core.limits import LimitChange
from penstock.stores.contract import Enqueued, Replacement
from tests.web.conftest import Served
from tests.web.test_requests_and_errors import error
from tests.web.wire import Client

KEY = ("X-Idempotency-Key", "order-17")


async def test_a_repeated_request_gets_the_first_answer(served: Served, client: Client) -> None:
    first = await client.put("/api/ns/q?tries=2", b"a", KEY)
    again = await client.put("/api/ns/q?tries=2", b"a", KEY)
    assert (again.status, again.body) == (201, first.body)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (await client.put("/api/ns/q", b"a", ("Idempotency-Key", "order-17"))).body == first.body
    for path, key in (("q", "order-18"), ("other", "order-17")):
        other = await client.put(f"/api/ns/{path}", b"a", ("X-Idempotency-Key", key))
        assert other.json["job_id"] != first.json["job_id"]
    assert (await client.put("/api/ns/q", b"a")).json["job_id"] != first.json["job_id"]
    assert (await client.get("/api/ns/q/size")).json["size"] == 3


@pytest.mark.parametrize("end", ["consumed", "recalled", "leased"])
async def test_a_key_is_remembered_after_the_job_has_ended(served: Served, client: Client, end: str) -> None:
    first = (await client.put("/api/ns/q", b"a", KEY)).json["job_id"]
    lease = "" if end == "recalled" else (await client.get("/api/ns/q?lease=true")).json["lease"]
    query = f"?lease={lease}" if end == "leased" else ""
    assert (await client.delete(f"/api/ns/q/job/{first}{query}")).status == 204
    await served.advance(86_390)
    assert (await client.put("/api/ns/q", b"a", KEY)).json["job_id"] == first
    assert (await client.get("/api/ns/q")).status == 404
    await served.advance(20)
    assert (await client.put("/api/ns/q", b"a", KEY)).json["job_id"] != first


async def test_a_repeated_bulk_request_gets_the_first_answer(client: Client) -> None:
    first = await client.put("/api/ns/q/bulk", b"[1,2,3]", KEY)
    assert len(set(first.json["job_ids"])) == 3
    assert (await client.put("/api/ns/q/bulk", b"[1,2,3]", KEY)).body == first.body
    assert (await client.get("/api/ns/q/size")).json["size"] == 3


async def test_concurrent_requests_with_one_key_store_one_job(served: Served) -> None:
    clients = [served.client() for _ in range(20)]
    answers = await asyncio.gather(*(one.put("/api/ns/q", b"a", KEY) for one in clients))
    assert len({answer.json["job_id"] for answer in answers}) == 1
    assert (await clients[0].get("/api/ns/q/size")).json["size"] == 1


async def test_a_wrong_key_is_refused(client: Client) -> None:
    for value in ("", "k" * 256):
        refused = await client.put("/api/ns/q", b"a", ("X-Idempotency-Key", value))
        assert (refused.status, refused.body) == (400, error("invalid idempotency key"))
    assert (await client.put("/api/ns/q", b"a", ("Not-Idempotency-Key", ""))).status == 201


@pytest.mark.parametrize("query", ["delay=100", "", "ttl=50"])
async def test_a_republish_is_one_step_of_the_store(
    served: Served, client: Client, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = (await client.put(f"/api/ns/q?{query}", b"a")).json["job_id"]
    asked: list[Replacement] = []
    replace_jobs = served.store.replace_jobs

    async def noted(replacements: Sequence[Replacement]) -> list[Enqueued]:
        asked.extend(replacements)
        return await replace_jobs(replacements)

    async def fail(*_: object, **__: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(served.store, "replace_jobs", noted)
        for verb in ("enqueue", "delete", "settle"):
            patched.setattr(served.store, verb, fail)
        again = (await client.put(f"/api/ns/q/job/{id}", b"b")).json["job_id"]
    assert [(one.old.id, one.new.id) for one in asked] == [(id, again)]
    assert (await client.get(f"/api/ns/q/job/{id}")).status == 404
    assert (await client.get("/api/ns/q")).data == b"b"


async def test_a_repeated_republish_is_remembered(client: Client) -> None:
    id = (await client.put("/api/ns/q", b"a")).json["job_id"]
    first = await client.put(f"/api/ns/q/job/{id}", b"b", KEY)
    assert (await client.put(f"/api/ns/q/job/{id}", b"b", KEY)).body == first.body
    assert (await client.get("/api/ns/q/size")).json["size"] == 1


async def test_a_full_queue_keeps_the_old_job_of_a_republish(served: Served, client: Client) -> None:
    id = (await client.put("/api/ns/q", b"a")).json["job_id"]
    await served.store.settings("ns.q", limits=LimitChange.of(max_size=1))
    for path in ("/api/ns/q", f"/api/ns/q/job/{id}"):
        refused = await client.put(path, b"b")
        assert (refused.status, refused.body) == (503, error("queue is full"))
        assert int(refused.headers["Retry-After"]) >= 1
    assert (await client.get("/api/ns/q")).data == b"a"
