"""Large jobs over a slow connection: while bytes move, no deadline ends a transfer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock.core.ids import mint
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import Transition
from penstock.errors import EnqueueUnknown
from penstock.stores.contract import EnqueueStatus, Settled, Settlement, Share
from penstock.stores.redis.store import RedisStore
from penstock.verify.servers.proxy import Proxy
from tests.servers import RedisServer, remove_keys

pytestmark = [pytest.mark.slow]

MB = 1 << 20
#: 30 MB take 7.5 s, and a call that stands still is given up after 3 s: longer than a busy machine stalls.
WIRE, TIMEOUT = 4 * MB, "6s"


@pytest.fixture
def wire(redis: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis.port, bytes_per_second=WIRE) as wire:
        yield wire


@pytest.fixture
def store(redis: RedisServer, wire: Proxy) -> Iterator[RedisStore]:
    prefix = f"thin-{mint()}"
    store = RedisStore(f"redis://127.0.0.1:{wire.port}/0?timeout={TIMEOUT}&prefix={prefix}")
    yield store
    store.close()
    remove_keys([redis], having=prefix)


async def enqueue_quickly(store: RedisStore, wire: Proxy, jobs: list[NewJob]) -> None:
    wire.bytes_per_second = 0
    await store.enqueue(jobs)
    wire.bytes_per_second = WIRE


def large(n: int, size: int = MB) -> list[NewJob]:
    return [NewJob(id=mint(), task="t", queue="large", payload=b"x" * size) for _ in range(n)]


@pytest.mark.parametrize("door", ["async", "sync"])
async def test_a_batch_that_takes_longer_than_a_call_may_is_stored(store: RedisStore, door: str) -> None:
    jobs = large(30)
    answers = await (store.enqueue(jobs) if door == "async" else asyncio.to_thread(store.sync.enqueue, jobs))
    assert {answer.status for answer in answers} == {EnqueueStatus.NEW}


@pytest.mark.parametrize("door", ["async", "sync"])
async def test_answers_that_take_longer_arrive(store: RedisStore, wire: Proxy, door: str) -> None:
    jobs = large(30)
    await enqueue_quickly(store, wire, jobs)
    refs = [job.ref for job in jobs]
    found = await (store.get(refs) if door == "async" else asyncio.to_thread(store.sync.get, refs))
    assert all(job is not None and len(job.spec.payload) == MB for job in found)


async def test_many_large_jobs_are_fetched_and_settled_with_large_results(
    store: RedisStore, wire: Proxy
) -> None:
    await enqueue_quickly(store, wire, large(30))
    found = await store.fetch([Share("large", 30, 30)], limit=30, lease=60_000, worker="w", token="t")
    assert len(found.jobs) == 30
    done = Transition(State.COMPLETED, keep=60_000)
    settled = await store.settle([Settlement(job.lease, done, b"1" * MB) for job in found.jobs])
    assert settled == [Settled.APPLIED] * 30


async def test_a_slow_batch_costs_other_callers_of_the_loop_no_answer(store: RedisStore) -> None:
    slow = asyncio.ensure_future(store.enqueue(large(30)))
    while not slow.done():
        (answer,) = await store.enqueue(large(1, size=10))
        assert answer.status is EnqueueStatus.NEW
    assert {answer.status for answer in slow.result()} == {EnqueueStatus.NEW}


async def test_a_server_that_hangs_in_the_middle_is_given_up_in_time(store: RedisStore, wire: Proxy) -> None:
    await store.get([large(1)[0].ref])
    sending = asyncio.ensure_future(store.enqueue(large(30)))
    await asyncio.sleep(0.3)
    hanging = asyncio.create_task(asyncio.to_thread(wire.half_open, 15))
    try:
        assert (await sending)[-1].status is EnqueueStatus.UNKNOWN
    except EnqueueUnknown:  # it hung before it had said anything
        pass
    assert not hanging.done(), "it was given up while the server still hung"
    wire.cut()
    await hanging
