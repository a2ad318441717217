"""Publish, consume, acknowledge, peek, size, destroy: lmstfy's handler tests as HTTP cases."""

from __future__ import annotations

import json
import os

import pytest

from penstock.core.job import AttemptError
from penstock.core.lifecycle import decide
from penstock.core.outcomes import LeaseLost
from penstock.stores.contract import Settlement
from tests.store.facts import next_jobs
from tests.web.conftest import Served
from tests.web.wire import Client


async def test_a_published_job_is_consumed_once(client: Client) -> None:
    made = await client.put("/api/ns/q2?ttl=0&tries=1", b"hello\x00\xff")
    assert made.status == 201
    assert made.json["msg"] == "published"
    found = await client.get("/api/ns/q2?ttr=10&timeout=2")
    assert found.status == 200
    elapsed = found.json["elapsed_ms"]
    assert found.body == (
        b'{"attributes":null,"data":"aGVsbG8A/w==","elapsed_ms":%d,"job_id":"%b","msg":"new job",'
        b'"namespace":"ns","queue":"q2","remain_tries":0,"ttl":0}'
    ) % (elapsed, made.json["job_id"].encode())
    assert (await client.get("/api/ns/q2")).body == b'{"msg":"no job available"}'


async def test_every_byte_comes_back(client: Client) -> None:
    body = bytes(range(256)) + os.urandom(100_000)
    await client.put("/api/ns/q", body)
    assert (await client.get("/api/ns/q")).data == body
    await client.put("/api/ns/q", b"")
    assert (await client.get("/api/ns/q")).json["data"] == ""


async def test_the_ttl_of_a_job_consumed_at_once_is_exact(client: Client) -> None:
    await client.put("/api/ns/q?ttl=10", b"x")
    assert (await client.get("/api/ns/q")).json["ttl"] == 10


async def test_the_ttl_is_rounded_to_the_nearest_second(served: Served, client: Client) -> None:
    await client.put("/api/ns/q?ttl=10", b"x")
    await served.advance(2.4)
    assert (await client.get("/api/ns/q/peek")).json["ttl"] == 8
    await served.advance(0.2)
    assert (await client.get("/api/ns/q")).json["ttl"] == 7


async def test_an_expired_job_is_gone(served: Served, client: Client) -> None:
    id = (await client.put("/api/ns/q?ttl=1", b"x")).json["job_id"]
    await served.advance(2)
    assert (await client.get("/api/ns/q")).status == 404
    assert (await client.get(f"/api/ns/q/job/{id}")).status == 404
    assert (await client.get("/api/ns/q/peek")).body == b'{"error":"the queue is empty"}'
    for body in (b"a", b"b", b"c"):  # behind expired ones, also for requests that do not wait
        await client.put("/api/ns/q?ttl=1", b"x")
        await client.put("/api/ns/q", body)
    await served.advance(2)
    assert (await client.get("/api/ns/q/peek")).data == b"a"
    assert (await client.get("/api/ns/q")).data == b"a"
    assert [job["data"] for job in (await client.get("/api/ns/q?count=5")).json] == ["Yg==", "Yw=="]


async def test_jobs_come_in_the_order_of_their_publishing(client: Client) -> None:
    bodies = [b"%d" % n for n in range(50)]
    for body in bodies:
        await client.put("/api/ns/q", body)
    assert [(await client.get("/api/ns/q")).data for _ in bodies] == bodies


async def test_a_delayed_job_comes_when_it_is_due(served: Served, client: Client) -> None:
    await client.put("/api/ns/q?delay=5", b"later")
    await client.put("/api/ns/q?delay=2", b"sooner")
    assert (await client.get("/api/ns/q/size")).json["size"] == 0
    await served.advance(1.9)
    assert (await client.get("/api/ns/q")).status == 404
    await served.advance(0.1)
    assert (await client.get("/api/ns/q?timeout=5")).data == b"sooner"
    await served.advance(3)
    assert (await client.get("/api/ns/q?timeout=5")).data == b"later"


async def test_a_job_that_is_not_acknowledged_comes_back_until_its_tries_are_spent(
    served: Served, client: Client
) -> None:
    id = (await client.put("/api/ns/q?tries=2", b"x")).json["job_id"]
    await client.put("/api/ns/q?tries=1", b"behind it")
    first = await client.get("/api/ns/q?ttr=5")
    assert (first.json["job_id"], first.json["remain_tries"]) == (id, 1)
    await served.advance(5.1)
    assert (await client.get("/api/ns/q/size")).json["size"] == 2
    assert (await client.get("/api/ns/q?ttr=100")).data == b"behind it"  # a retry goes to the tail
    again = await client.get("/api/ns/q?ttr=5&timeout=5")
    assert (again.json["job_id"], again.json["remain_tries"]) == (id, 0)
    await served.advance(5.1)
    assert (await client.get("/api/ns/q")).status == 404
    assert (await client.get("/api/ns/q/deadletter")).json["deadletter_head"] == id


async def test_two_consumers_have_their_own_ttr(served: Served, client: Client) -> None:
    for body in (b"short", b"long"):
        await client.put("/api/ns/q?tries=5", body)
    await client.get("/api/ns/q?ttr=2")
    await client.get("/api/ns/q?ttr=9")
    await served.advance(2.1)
    assert (await client.get("/api/ns/q?ttr=100")).data == b"short"
    assert (await client.get("/api/ns/q")).status == 404
    await served.advance(7)
    assert (await client.get("/api/ns/q")).data == b"long"


async def test_an_acknowledged_job_does_not_come_back(served: Served, client: Client) -> None:
    id = (await client.put("/api/ns/q?tries=9", b"x")).json["job_id"]
    await client.get("/api/ns/q?ttr=1")
    done = await client.delete(f"/api/ns/q/job/{id}")
    assert (done.status, done.body) == (204, b"")
    assert not {"Content-Type", "Content-Length", "Transfer-Encoding"} & done.headers.keys()
    await served.advance(5)
    assert (await client.get("/api/ns/q")).status == 404
    assert (await client.get("/api/ns/q/deadletter/size")).json["size"] == 0


@pytest.mark.parametrize(
    "state", ["delayed", "ready", "reserved", "dead", "acknowledged", "unknown", "elsewhere"]
)
async def test_a_job_can_be_deleted_in_every_state(served: Served, client: Client, state: str) -> None:
    id = (await client.put(f"/api/ns/q?delay={9 if state == 'delayed' else 0}", b"x")).json["job_id"]
    if state in ("reserved", "dead", "acknowledged"):
        await client.get("/api/ns/q?ttr=1")
    if state == "dead":
        await served.advance(2)
    if state == "acknowledged":
        await client.delete(f"/api/ns/q/job/{id}")
    target = {"unknown": "/api/ns/q/job/none", "elsewhere": f"/api/ns/other/job/{id}"}
    assert (await client.delete(target.get(state, f"/api/ns/q/job/{id}"))).status == 204
    await served.advance(20)
    found = await client.get("/api/ns/q")
    assert found.status == (200 if state in ("unknown", "elsewhere") else 404)
    assert (await client.get("/api/ns/q/deadletter/size")).json["size"] == 0


async def test_peeking_changes_nothing(client: Client) -> None:
    ids = [(await client.put("/api/ns/q?tries=3", b"%d" % n)).json["job_id"] for n in range(3)]
    for _ in range(2):
        head = await client.get("/api/ns/q/peek")
        assert (head.json["job_id"], head.json["remain_tries"]) == (ids[0], 3)
        assert "msg" not in head.json
        one = await client.get(f"/api/ns/q/job/{ids[1]}")
        assert (one.data, one.json["remain_tries"]) == (b"1", 0)
    assert (await client.get("/api/ns/q/size")).json == {"namespace": "ns", "queue": "q", "size": 3}


async def test_a_job_is_shown_in_every_state(served: Served, client: Client) -> None:
    id = (await client.put("/api/ns/q?delay=5&ttl=60", b"x")).json["job_id"]
    path = f"/api/ns/q/job/{id}"
    assert (await client.get(path)).json["ttl"] == 60
    await served.advance(5)
    assert (await client.get(path)).json["ttl"] == 55
    await client.get("/api/ns/q?ttr=1&timeout=5")
    assert (await client.get(path)).data == b"x"
    await served.advance(2)
    assert (await client.get(path)).json["ttl"] == 0  # a dead letter has none
    assert (await client.get(f"/api/ns/other/job/{id}")).body == b'{"error":"job not found"}'


async def test_destroying_a_queue_removes_its_ready_jobs_only(served: Served, client: Client) -> None:
    await client.put("/api/ns/q?tries=2", b"reserved")
    await client.get("/api/ns/q?ttr=3")
    await client.put("/api/ns/q?delay=5", b"delayed")
    ready = (await client.put("/api/ns/q", b"ready")).json["job_id"]
    assert (await client.delete("/api/ns/q")).status == 204
    assert (await client.get("/api/ns/q")).status == 404
    assert (await client.get(f"/api/ns/q/job/{ready}")).status == 404
    await served.advance(3.1)
    assert (await client.get("/api/ns/q?timeout=5")).data == b"reserved"
    await served.advance(2)
    assert (await client.get("/api/ns/q?timeout=5")).data == b"delayed"


async def test_namespaces_are_apart(client: Client) -> None:
    await client.put("/api/a/q", b"of a")
    assert (await client.get("/api/b/q")).status == 404
    assert (await client.get("/api/a/q")).data == b"of a"


async def test_the_longest_names_are_apart(served: Served, client: Client) -> None:
    ns, q = "n" * 255, "q" * 254
    await client.put(f"/api/{ns}/{q}a", b"a")
    await client.put(f"/api/{ns}/{q}b", b"b")
    found = await client.get(f"/api/{ns}/{q}b")
    assert (found.data, found.json["queue"], found.json["namespace"]) == (b"b", f"{q}b", ns)
    await client.put(f"/api/{ns}/{q}c?delay=5", b"c")
    await served.advance(5)
    assert (await client.get(f"/api/{ns}/{q}c")).data == b"c"


# --- bulk, republish ----------------------------------------------------------------------------


async def test_a_bulk_request_keeps_each_element_as_it_was_sent(client: Client) -> None:
    elements = [
        b'"hi"',
        b"null",
        b'"\\ud800 \\\\udfff"',
        b'{ "a" : 1e400,  "a":2}',
        b'"\\u003c\xc3\xa9"',
        b"[1,  2]",
        b"1.0",
    ]
    made = await client.put("/api/ns/q/bulk?tries=3", b" [" + b" ,\n".join(elements) + b"] ")
    assert (made.status, made.json["msg"], len(made.json["job_ids"])) == (201, "published", 7)
    found = [await client.get("/api/ns/q") for _ in elements]
    assert [one.data for one in found] == elements
    assert [one.json["job_id"] for one in found] == made.json["job_ids"]


async def test_a_republished_job_has_a_new_id(served: Served, client: Client) -> None:
    for state in ("reserved", "ready", "delayed", "gone"):
        delay = 50 if state == "delayed" else 0
        old = (await client.put(f"/api/ns/{state}?delay={delay}&ttl=100", b"x")).json["job_id"]
        if state == "reserved":
            await client.get(f"/api/ns/{state}")
        if state == "gone":
            await client.delete(f"/api/ns/{state}/job/{old}")
        new = await client.put(f"/api/ns/{state}/job/{old}?ttl=10", b"y")
        assert (new.status, new.json["msg"]) == (201, "published")
        assert (await client.get(f"/api/ns/{state}/job/{old}")).status == 404
        found = await client.get(f"/api/ns/{state}")
        assert (found.json["job_id"], found.data, found.json["ttl"]) == (new.json["job_id"], b"y", 10)
        assert (await client.get(f"/api/ns/{state}")).status == 404


async def test_a_refused_republish_keeps_the_old_job(client: Client) -> None:
    old = (await client.put("/api/ns/q", b"x")).json["job_id"]
    assert (await client.put(f"/api/ns/q/job/{old}?ttl=x", b"y")).status == 400
    assert (await client.get("/api/ns/q")).data == b"x"


# --- attributes ---------------------------------------------------------------------------------


async def test_attributes_come_back_with_jobs_of_version_1(client: Client) -> None:
    long = ("Job-Attr-" + "K" * 300, "v" * 300)
    attributes = [("Job-Attr-Hello", "world"), ("job-attr-FOO", "bar"), ("Job-Attr-Empty", ""), long]
    made = await client.put("/api/ns/q", b"x", ("Enable-Job-Version", "yes"), *attributes)
    assert len(made.json["job_id"]) == 27
    assert made.json["job_id"][0] == "1"
    expected = {"foo": "bar", "hello": "world", "k" * 32: "v" * 128}
    assert (await client.get("/api/ns/q/peek")).json["attributes"] == expected
    assert (await client.get("/api/ns/q")).json["attributes"] == expected


async def test_the_values_of_attributes_are_cut_after_128_bytes(client: Client) -> None:
    """In the middle of a letter, as by lmstfy: each byte that is left of it is a replacement character."""
    text = "a" * 126 + "\N{EURO SIGN}"
    await client.put("/api/ns/q", b"x", ("Enable-Job-Version", "yes"), ("Job-Attr-A", text))
    assert (await client.get("/api/ns/q")).json["attributes"] == {
        "a": "a" * 126 + "\N{REPLACEMENT CHARACTER}" * 2
    }


async def test_attributes_of_jobs_of_version_0_are_ignored(client: Client) -> None:
    made = await client.put("/api/ns/q", b"x", ("Enable-Job-Version", "NO"), ("Job-Attr-Foo", "bar"))
    assert len(made.json["job_id"]) == 26
    assert (await client.get("/api/ns/q")).json["attributes"] is None


async def test_sixteen_attributes_are_allowed(client: Client) -> None:
    versioned = ("Enable-Job-Version", "YES")
    sixteen = [(f"Job-Attr-A{n}", "v") for n in range(16)]
    assert (await client.put("/api/ns/q", b"x", versioned, *sixteen)).status == 201
    refused = await client.put("/api/ns/q", b"x", versioned, *sixteen, ("Job-Attr-B", "v"))
    assert (refused.status, refused.json) == (400, {"error": "too many attributes, cannot exceed 16"})


# --- batches and several queues -----------------------------------------------------------------


async def test_a_batch_takes_what_there_is(client: Client) -> None:
    for n in range(4):
        await client.put("/api/ns/q", b"%d" % n)
    first = await client.get("/api/ns/q?count=3&timeout=1")
    assert [job["data"] for job in first.json] == ["MA==", "MQ==", "Mg=="]
    assert len((await client.get("/api/ns/q?count=3")).json) == 1
    nothing = await client.get("/api/ns/q?count=3")
    assert (nothing.status, nothing.json) == (404, {"msg": "no job available"})


async def test_a_count_of_one_is_no_array(client: Client) -> None:
    await client.put("/api/ns/q", b"x")
    assert (await client.get("/api/ns/q?count=1")).data == b"x"


async def test_queues_are_served_in_the_order_of_the_list(client: Client) -> None:
    for queue in ("q1", "q2", "q3"):
        await client.put(f"/api/ns/{queue}", queue.encode())
    found = [await client.get("/api/ns/q3,q1,,q2,q3") for _ in range(3)]
    assert [one.json["queue"] for one in found] == ["q3", "q1", "q2"]
    for queue in ("q1", "q2"):
        await client.put(f"/api/ns/{queue}", b"a")
        await client.put(f"/api/ns/{queue}", b"b")
    batch = await client.get("/api/ns/q2%2Cq1?count=3")
    assert [job["queue"] for job in batch.json] == ["q2", "q2", "q1"]


async def test_a_delivery_with_frozen_tries_spends_none(served: Served, client: Client) -> None:
    await client.put("/api/ns/q?tries=1", b"x")
    assert (await client.get("/api/ns/q?ttr=1&freeze_tries=true")).json["remain_tries"] == 1
    await served.advance(2)
    assert (await client.get("/api/ns/q?freeze_tries=junk&timeout=5")).json["remain_tries"] == 0


async def test_a_lost_job_costs_a_try_whoever_takes_it_back(served: Served, client: Client) -> None:
    """Also a worker of Penstock that serves the same queue: the fetch has started the attempt."""
    for body in (b"a", b"b"):
        await client.put("/api/ns/q?tries=2", body)
    await client.get("/api/ns/q?ttr=1")
    await served.service.stop()
    served.clock.advance(2_000)
    found = await served.store.reclaim(["ns.q"], limit=9, lease=1_000, worker="w", token="t")
    (job,) = found.jobs
    assert job.spec.fetch_starts
    lost = LeaseLost(AttemptError.bounded(job.attempt, found.now, "LeaseLost", ""), started=False)
    await served.store.settle([Settlement(job.lease, decide(job, lost, found.now))])
    queued = (await next_jobs(served.store, "ns.q")).jobs
    assert [(one.spec.payload, one.attempt) for one in queued] == [(b"b", 0), (b"a", 1)]


async def test_ids_show_when_and_with_what_delay_they_were_made(client: Client) -> None:
    from penstock.dialects.lmstfy.names import elapsed_ms

    id = (await client.put("/api/ns/q?delay=258&ttl=300", b"")).json["job_id"]
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    number = 0
    for digit in id:
        number = number * 32 + digits.index(digit)
    assert number.to_bytes(17, "big")[-4:] == (258).to_bytes(4, "little")
    assert elapsed_ms(id, elapsed_ms("0" * 26, 0)) == 0
    assert json.dumps(id).isascii()
