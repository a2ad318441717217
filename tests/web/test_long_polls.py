"""Consume requests that wait: served in order, woken by every new job, gone with their client."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import NewJob, State
from penstock.stores.contract import MOST_FETCHED, Fetched, Store
from tests.store.facts import SOON
from tests.web.conftest import Served
from tests.web.wire import Client, Reply


async def until_waiting(served: Served, number: int) -> None:
    """Until so many requests wait for a job."""
    dispatcher = served.service.backends["default"].dispatcher
    async with asyncio.timeout(SOON):
        while dispatcher.waiting != number or dispatcher._flight is not None:
            await asyncio.sleep(0.001)


async def waiting(served: Served, path: str, number: int = 1) -> tuple[Client, asyncio.Task[Reply]]:
    """A client whose request waits, as the `number`th."""
    client = served.client()
    task = asyncio.create_task(client.get(path))
    await until_waiting(served, number)
    return client, task


async def test_an_empty_queue_is_waited_for_at_least_the_timeout(client: Client) -> None:
    began = time.monotonic()
    assert (await client.get("/api/ns/q?timeout=1")).body == b'{"msg":"no job available"}'
    assert time.monotonic() - began >= 1.0


async def test_a_published_job_wakes_a_waiting_request(served: Served, client: Client) -> None:
    _, found = await waiting(served, "/api/ns/q?timeout=30")
    await client.put("/api/ns/q", b"x")
    assert (await found).data == b"x"


async def test_a_bulk_request_wakes_several_waiting_requests(served: Served, client: Client) -> None:
    found = [(await waiting(served, "/api/ns/q?timeout=30", n))[1] for n in (1, 2, 3)]
    await client.put("/api/ns/q/bulk", b"[1,2,3]")
    assert [(await one).data for one in found] == [b"1", b"2", b"3"]


async def test_requests_are_served_in_the_order_in_which_they_came(
    served: Served, client: Client, kind: str
) -> None:
    """Whatever their TTR, and whether they name one queue or several; on a cluster those of one queue."""
    paths = ["q?ttr=10&", "q?ttr=20&", "other,q?ttr=10&", "q?ttr=10&", "q,other?ttr=20&", "q?count=5&"]
    if kind == "redis-cluster":  # a fetch of several queues is a call per node
        paths = [path for path in paths if "," not in path]
    found = [
        (await waiting(served, f"/api/ns/{path}timeout=30", n))[1] for n, path in enumerate(paths, start=1)
    ]
    for n in range(len(paths)):
        await client.put("/api/ns/q", b"%d" % n)
    first = [await one for one in found[:-1]]
    assert [one.data for one in first] == [b"%d" % n for n in range(len(first))]
    (job,) = (await found[-1]).json
    assert base64.b64decode(job["data"]) == b"%d" % len(first)


async def test_a_new_request_does_not_overtake_a_waiting_one(served: Served, client: Client) -> None:
    _, found = await waiting(served, "/api/ns/q?timeout=30")
    ways = asyncio.gather(client.put("/api/ns/q", b"x"), served.client().get("/api/ns/q"))
    _, late = await ways
    assert (await found).data == b"x"
    assert late.status == 404


async def test_a_waiting_batch_gets_an_array_of_one(served: Served, client: Client) -> None:
    _, found = await waiting(served, "/api/ns/q?timeout=30&count=5")
    await client.put("/api/ns/q/bulk", b"[1,2]")
    assert len((await found).json) == 1
    assert (await client.get("/api/ns/q")).data == b"2"


async def test_the_first_queue_with_a_job_answers(served: Served, client: Client) -> None:
    _, found = await waiting(served, "/api/ns/q3,q4,q5?timeout=30")
    await client.put("/api/ns/q4", b"x")
    assert (await found).json["queue"] == "q4"
    assert served.service.backends["default"].dispatcher.waited_for == []


async def test_a_delayed_job_wakes_a_waiting_request(served: Served, client: Client) -> None:
    _, found = await waiting(served, "/api/ns/q4,q5?timeout=30")
    await client.put("/api/ns/q4?delay=3", b"later")
    await client.put("/api/ns/q5?delay=1", b"sooner")
    for seconds, body, queue in ((1, b"sooner", "q5"), (2, b"later", "q4")):
        await served.advance(seconds)
        assert ((await found).data, (await found).json["queue"]) == (body, queue)
        if queue == "q5":
            _, found = await waiting(served, "/api/ns/q4,q5?timeout=30")


async def test_a_job_that_was_not_acknowledged_wakes_a_waiting_request(
    served: Served, client: Client
) -> None:
    await client.put("/api/ns/q?tries=2", b"x")
    await client.get("/api/ns/q?ttr=5")
    _, found = await waiting(served, "/api/ns/q?timeout=30")
    await served.advance(5.1)
    assert (await found).data == b"x"


async def test_a_respawned_job_wakes_a_waiting_request(served: Served, client: Client) -> None:
    await client.put("/api/ns/q", b"x")
    await client.get("/api/ns/q?ttr=1")
    await served.advance(2)
    _, found = await waiting(served, "/api/ns/q?timeout=30")
    assert (await client.request("PUT", "/api/ns/q/deadletter")).json == {"count": 1, "msg": "respawned"}
    assert (await found).data == b"x"


async def test_a_job_of_another_producer_wakes_a_waiting_request(
    served: Served, open_store: Callable[[], Store]
) -> None:
    _, found = await waiting(served, "/api/ns/q?timeout=30")
    await open_store().enqueue([NewJob("1", "lmstfy", b"x", "ns.q", timeout=None, max_attempts=1)])
    assert (await found).data == b"x"


async def test_jobs_of_another_producer_are_not_held_up_by_publish_requests(
    served: Served, client: Client, open_store: Callable[[], Store]
) -> None:
    """Neither in the queue that is published to, nor in one that a server waits for beside it."""
    other = open_store()
    found = {(await waiting(served, f"/api/ns/{q}?timeout=30", n))[1] for n, q in enumerate("qqqqqqrr", 1)}
    for n in range(4):
        queue = "ns.r" if n % 2 else "ns.q"
        theirs = NewJob(f"theirs-{n}", "lmstfy", b"theirs", queue, timeout=None, max_attempts=1)
        await asyncio.gather(client.put("/api/ns/q", b"ours"), other.enqueue([theirs]))
    async with asyncio.timeout(SOON):
        assert sorted([(await one).data for one in found]) == [b"ours"] * 4 + [b"theirs"] * 4


async def test_two_servers_share_jobs_waits_and_tries(
    served: Served, client: Client, open_store: Callable[[], Store], clock: ManualClock
) -> None:
    other = Served(open_store(), clock)
    await other.start()
    try:
        _, found = await waiting(other, "/api/ns/q?timeout=30&ttr=5")
        id = (await client.put("/api/ns/q?tries=2", b"x")).json["job_id"]
        assert (await found).json["remain_tries"] == 1
        await served.advance(5.1)  # the TTR of a job that was consumed at the other server
        again = await client.get("/api/ns/q?ttr=5")
        assert (again.json["job_id"], again.json["remain_tries"]) == (id, 0)
        assert (await other.client().delete(f"/api/ns/q/job/{id}")).status == 204
        assert (await client.get(f"/api/ns/q/job/{id}")).status == 404
    finally:
        await other.stop()


async def test_a_client_that_is_gone_gets_no_job(served: Served, client: Client) -> None:
    gone, found = await waiting(served, "/api/ns/q?timeout=30")
    await gone.close()
    await until_waiting(served, 0)
    found.cancel()
    await client.put("/api/ns/q?tries=1", b"x")
    assert (await client.get("/api/ns/q")).json["remain_tries"] == 0


async def test_a_client_that_leaves_during_the_fetch_costs_no_try(served: Served, client: Client) -> None:
    """The fetch has leased the job when its client goes."""
    store, fetched, go = served.store, asyncio.Event(), asyncio.Event()
    fetch = store.fetch

    async def slow(*args: object, **options: object) -> object:
        found = await fetch(*args, **options)  # type: ignore[arg-type]
        fetched.set()
        await go.wait()
        return found

    id = (await client.put("/api/ns/q?tries=1", b"x")).json["job_id"]
    store.fetch = slow  # type: ignore[method-assign, assignment]
    gone = served.client()
    await gone.send("GET", "/api/ns/q?timeout=30")
    await fetched.wait()
    await gone.close()
    data_server = served.service.data_server
    async with asyncio.timeout(SOON):
        while data_server.connections > 1:
            await asyncio.sleep(0.001)
    store.fetch = fetch  # type: ignore[method-assign]
    go.set()
    found = await client.get("/api/ns/q?timeout=30")
    assert (found.json["job_id"], found.json["remain_tries"]) == (id, 0)


async def test_a_thousand_waiting_requests_are_records(served: Served, client: Client) -> None:
    """No tasks, and one wait of the store."""
    before = len(asyncio.all_tasks())
    clients = [served.client() for _ in range(300)]
    for n, one in enumerate(clients):
        await one.send("GET", f"/api/ns/q{n % 7}?timeout=60")
    await until_waiting(served, len(clients))
    assert len(asyncio.all_tasks()) - before < 10
    bodies = []
    for n, one in enumerate(clients):
        await client.put(f"/api/ns/q{n % 7}", b"%d" % n)
        bodies.append((await one.read()).data)
    assert bodies == [b"%d" % n for n in range(300)]


async def test_a_paused_queue_gives_no_job_until_it_is_resumed(served: Served, client: Client) -> None:
    await client.put("/api/ns/q", b"x")
    await served.store.settings("ns.q", paused=True)
    assert (await client.get("/api/ns/q")).status == 404
    _, found = await waiting(served, "/api/ns/q?timeout=30")
    await served.store.settings("ns.q", paused=False)
    assert (await found).data == b"x"


async def test_a_job_that_was_cancelled_while_it_ran_is_not_delivered_again(
    served: Served, client: Client
) -> None:
    await client.put("/api/ns/q?tries=5", b"x")
    await client.get("/api/ns/q?ttr=5")
    (job,) = (await served.store.list_jobs(queue="ns.q")).jobs
    await served.store.cancel([job.ref])
    await served.advance(5.1)
    assert (await client.get("/api/ns/q")).status == 404
    ended = (await served.store.get([job.ref]))[0]
    assert ended is not None
    assert ended.state is State.CANCELLED


async def test_a_server_that_stops_answers_waiting_requests(served: Served) -> None:
    client, found = await waiting(served, "/api/ns/q?timeout=30")
    stopping = asyncio.create_task(served.service.stop(5.0))
    answer = await found
    assert (answer.status, answer.json) == (404, {"msg": "no job available"})
    assert answer.headers["Connection"] == "close"
    await client.close()
    await stopping


async def test_requests_for_many_queues_get_the_jobs_of_the_last_ones_too(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that do not wait; a fetch of many queues may stop where it has found a job."""
    dispatcher, fetch = served.service.backends["default"].dispatcher, served.store.fetch
    both = asyncio.Event()

    async def when_all_are_there(*args: Any, **options: Any) -> Fetched:
        await both.wait()
        return await fetch(*args, **options)

    names = [f"q{n}" for n in range(MOST_FETCHED + 20)]
    await client.put(f"/api/ns/{names[0]}", b"x")
    await client.put(f"/api/ns/{names[-1]}", b"x")
    monkeypatch.setattr(served.store, "fetch", when_all_are_there)
    path = f"/api/ns/{','.join(names)}"
    clients = [served.client() for _ in range(4)]
    found = [asyncio.create_task(clients[0].get("/api/ns/empty"))]
    async with asyncio.timeout(SOON):
        while dispatcher._flight is None:
            await asyncio.sleep(0.001)
        found += [
            asyncio.create_task(one.get(path + end))
            for one, end in zip(clients[1:], ("", "", "?timeout=30"), strict=True)
        ]
        while len(dispatcher._new) < 3:
            await asyncio.sleep(0.001)
        both.set()
        assert [(await one).status for one in found[:3]] == [404, 200, 200]
        await client.put(f"/api/ns/{names[-1]}", b"x")
        assert (await found[3]).status == 200
