"""Direct dispatch: a job is leased to a waiting worker in the enqueue that wakes the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from penstock.core.clock import ManualClock
from penstock.core.ids import mint_token
from penstock.core.job import Job, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Fetched, Settled, Settlement, Share, Wake, WorkerOffer
from penstock.stores.redis import store as redis_store
from penstock.stores.redis import subscriber
from penstock.stores.redis.context import command
from penstock.stores.redis.layout import packed
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.subscriber import DispatchedJob
from tests.servers import RedisServer

LEASE = 15_000
SOON = 60.0
DONE = Transition(State.COMPLETED)


@pytest.fixture
def url(redis: RedisServer) -> str:
    return f"{redis.url}?prefix=penstock-handover-{mint_token()}"


@pytest.fixture
def store(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisStore]:
    """It keeps a leased job for a fetch that comes late, as long as no test lives to see the end of."""
    monkeypatch.setattr(subscriber, "_PATIENCE", 10 * SOON)
    monkeypatch.setattr(redis_store, "_FRESH", LEASE)
    store = RedisStore(url)
    yield store
    store.close()


@pytest.fixture
def other(url: str) -> Iterator[RedisStore]:
    store = RedisStore(url)
    yield store
    store.close()


async def asleep(store: RedisStore, *queues: str, token: str = "t1") -> asyncio.Task[Wake]:
    """A wait with an offer that producers know of."""
    offer = WorkerOffer("w1", token, LEASE)
    waiting = asyncio.create_task(store.wait(list(queues), timeout=60_000, offer=offer))
    async with asyncio.timeout(SOON):
        while not await offered(store, queues[0]):
            await asyncio.sleep(0.005)
    return waiting


async def offered(store: RedisStore, queue: str) -> bool:
    return bool(await asked(store, "EXISTS", store._context.redis_keys.queue(queue) + b":offers"))


async def asked(store: RedisStore, *words: str | bytes) -> object:
    (answer,) = await store._runner.run([command(store._context.redis_keys.wake_counts, *words)])
    return answer


async def fetch(store: RedisStore, token: str, *queues: str, limit: int = 9) -> list[Job]:
    shares = [Share(queue, limit, limit) for queue in queues or ("default",)]
    return (await store.fetch(shares, limit=limit, lease=LEASE, worker="w1", token=token)).jobs


async def the(store: RedisStore, new: NewJob) -> Job:
    (job,) = await store.get([new.ref])
    assert job is not None
    return job


async def until(store: RedisStore, new: NewJob, state: State) -> Job:
    async with asyncio.timeout(SOON):
        while (job := await the(store, new)).state is not state:
            await asyncio.sleep(0.01)
    return job


async def test_the_job_is_leased_when_its_enqueue_returns(store: RedisStore, other: RedisStore) -> None:
    waiting = await asleep(store, "default")
    new = NewJob("a", "t", b'{"x": 1}')
    await other.enqueue([new])
    found = await the(other, new)
    assert (found.state, found.worker, found.token, found.attempt) == (State.RUNNING, "w1", "t1", 1)
    assert await asyncio.wait_for(waiting, SOON) == Wake.WORK
    (job,) = await fetch(store, "t1")
    assert job == found
    assert await store.settle([Settlement(job.lease, DONE)]) == [Settled.APPLIED]
    assert await other.get([new.ref]) == [None]
    (info,) = await other.queues()
    assert info.counts == {}


async def test_a_queue_that_never_had_a_ready_job_is_dispatched_by_few_commands(
    new_redis: Callable[..., RedisServer],
) -> None:
    server = new_redis()
    store, other = RedisStore(server.url), RedisStore(server.url)
    for token in ("t1", "t2"):  # the first makes the queue
        waiting = await asleep(store, "default", token=token)
        with server.client() as client:
            client.config_resetstat()
            await other.enqueue([NewJob(token, "t")])
            stats: dict[str, dict[str, int]] = client.info("commandstats")  # type: ignore[assignment]
        await asyncio.wait_for(waiting, SOON)
        (job,) = await fetch(store, token)
        assert await store.settle([Settlement(job.lease, DONE)]) == [Settled.APPLIED]
    assert (stats["cmdstat_publish"]["calls"], stats["cmdstat_hmget"]["calls"]) == (1, 1)
    assert "cmdstat_rpush" not in stats
    store.close()
    other.close()


async def test_a_fetch_after_direct_dispatch_makes_no_call(store: RedisStore, other: RedisStore) -> None:
    waiting = await asleep(store, "default")
    await other.enqueue([NewJob("b", "t")])
    await asyncio.wait_for(waiting, SOON)
    await fetch(store, "t1")  # learns the profile
    waiting = await asleep(store, "default", token="t2")
    await other.enqueue([NewJob("c", "t")])
    await asyncio.wait_for(waiting, SOON)
    ask_them = store._runner.run
    store._runner.run = None  # type: ignore[method-assign,assignment]
    try:
        assert [job.id for job in await fetch(store, "t2")] == ["c"]
    finally:
        store._runner.run = ask_them  # type: ignore[method-assign]


async def test_a_worker_that_got_a_job_gets_no_second_one_in_any_queue(
    store: RedisStore, other: RedisStore
) -> None:
    waiting = await asleep(store, "a", "b")
    await other.enqueue([NewJob("1", "t", queue="a")])
    second = NewJob("2", "t", queue="b")
    await other.enqueue([second])
    assert (await the(other, second)).state is State.AVAILABLE
    assert await asyncio.wait_for(waiting, SOON) == Wake.WORK
    assert [job.id for job in await fetch(store, "t1", "a", "b")] == ["1"]
    assert [job.id for job in await fetch(store, "t2", "a", "b")] == ["2"]


async def test_several_jobs_at_once_are_not_on_dispatched(store: RedisStore, other: RedisStore) -> None:
    waiting = await asleep(store, "default")
    jobs = [NewJob("1", "t"), NewJob("2", "t")]
    await other.enqueue(jobs)
    assert [(await the(other, job)).state for job in jobs] == [State.AVAILABLE] * 2
    assert await asyncio.wait_for(waiting, SOON) == Wake.WORK
    assert [job.id for job in await fetch(store, "t1")] == ["1", "2"]


async def test_a_paused_queue_hands_nothing_over_and_nothing_overtakes_what_is_ready(
    store: RedisStore, other: RedisStore
) -> None:
    waiting = await asleep(store, "default")
    await other.settings("default", paused=True)
    first, second = NewJob("1", "t"), NewJob("2", "t")
    await other.enqueue([first])
    assert (await the(other, first)).state is State.AVAILABLE
    await other.settings("default", paused=False)
    await other.enqueue([second])
    assert (await the(other, second)).state is State.AVAILABLE
    assert await asyncio.wait_for(waiting, SOON)
    assert [job.id for job in await fetch(store, "t1")] == ["1", "2"]


async def test_leased_jobs_without_a_taker_are_returned_uncharged(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "_PATIENCE", 0.1)
    waiting = await asleep(store, "default")
    new = NewJob("1", "t")
    await other.enqueue([new])
    assert await asyncio.wait_for(waiting, SOON) == Wake.WORK
    job = await until(other, new, State.AVAILABLE)  # its worker is stopping: no fetch follows
    assert (job.attempt, job.token, job.lost) == (0, None, 0)


async def test_a_wait_that_was_given_up_takes_no_job_with_it(store: RedisStore, other: RedisStore) -> None:
    waiting = await asleep(store, "default")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    new = NewJob("1", "t")
    await other.enqueue([new])
    job = await until(other, new, State.AVAILABLE)
    assert job.attempt == 0


async def test_the_next_fetch_finds_what_was_on_dispatched_though_the_message_was_lost(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = await asleep(store, "default")
    messages = store._subscribers.get(asyncio.get_running_loop())
    monkeypatch.setattr(messages, "_on_dispatched", lambda one: None)
    new = NewJob("1", "t")
    await other.enqueue([new])
    await until(other, new, State.RUNNING)
    waiting.cancel()
    assert [job.id for job in await fetch(store, "t1")] == ["1"]


async def test_nothing_is_handed_to_who_is_gone(store: RedisStore, other: RedisStore) -> None:
    waiting = await asleep(store, "default")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    store.close()
    async with asyncio.timeout(SOON):
        while await asked(other, "PUBSUB", "CHANNELS", store._context.redis_keys.notice_channel):
            await asyncio.sleep(0.01)
    new = NewJob("1", "t")
    await other.enqueue([new])
    assert (await the(other, new)).state is State.AVAILABLE


async def test_a_worker_with_fetched_jobs_withdraws_its_offer(store: RedisStore, other: RedisStore) -> None:
    waiting = await asleep(store, "a", "b")
    await other.enqueue([NewJob("1", "t", queue="a"), NewJob("2", "t", queue="a")])
    await asyncio.wait_for(waiting, SOON)
    assert len(await fetch(store, "t1", "a", "b")) == 2
    async with asyncio.timeout(SOON):
        while await offered(other, "b"):
            await asyncio.sleep(0.01)
    new = NewJob("3", "t", queue="b")
    await other.enqueue([new])
    assert (await the(other, new)).state is State.AVAILABLE


async def test_a_fetch_does_not_find_what_is_on_its_way_back(store: RedisStore, other: RedisStore) -> None:
    """A wake-up call that came when its wait had just ended: what is given back must not begin as well."""
    await store.wait(["default"], timeout=1)
    new = NewJob("1", "t")
    await other.enqueue([new])
    assert [job.id for job in await fetch(store, "t1")] == ["1"]
    key = store._context.redis_keys.queue("default") + b":jobs"
    record = await asked(store, "HGET", key, packed("1"))
    assert isinstance(record, bytes)
    store._give_back([DispatchedJob("default", packed("1"), "t1", 0, record)])
    (again,) = await fetch(store, "t1")
    assert await store.settle([Settlement(again.lease, DONE)]) == [Settled.APPLIED]
    assert again.attempt == 1, "its first attempt was given back before"
    assert store._going_back == {}


async def test_one_who_waits_on_takes_one_job_after_the_other(store: RedisStore, other: RedisStore) -> None:
    taken: list[Job] = []
    tokens = iter(["t2", "t3", "t4"])

    def take(handed: Fetched) -> WorkerOffer | None:
        taken.extend(handed.jobs)
        return WorkerOffer("w1", next(tokens), LEASE, take) if len(taken) < 3 else None

    await other.enqueue([NewJob("0", "t")])
    await fetch(store, "t0")  # learns the profile
    offer = WorkerOffer("w1", "t1", LEASE, take)
    waiting = asyncio.create_task(store.wait(["default"], timeout=60_000, offer=offer))
    for n in range(3):
        async with asyncio.timeout(SOON):
            while not await offered(store, "default"):
                await asyncio.sleep(0.005)
            await other.enqueue([NewJob(f"{n + 1}", "t")])
            while len(taken) <= n:
                await asyncio.sleep(0.005)
    assert await asyncio.wait_for(waiting, SOON) == Wake.WORK
    assert [(job.id, job.token) for job in taken] == [("1", "t1"), ("2", "t2"), ("3", "t3")]
    settled = await store.settle([Settlement(job.lease, DONE) for job in taken])
    assert settled == [Settled.APPLIED] * 3


async def test_a_due_job_is_leased_to_the_worker_that_waits(url: str) -> None:
    clock = ManualClock()
    stores = [RedisStore(url, clock=clock) for _ in range(2)]
    await stores[0].enqueue([NewJob("j", "t", delay=1_000)])
    known = asyncio.Event()
    offer = WorkerOffer("w1", "t1", LEASE)
    wait = asyncio.create_task(
        stores[0].wait(["default"], timeout=60_000, offer=offer, on_due=lambda *_: known.set())
    )
    await asyncio.wait_for(known.wait(), SOON)
    clock.advance(1_000)
    assert (await stores[1].promote(["default"], limit=9)).moved == 1
    (found,) = await stores[1].get([NewJob("j", "t").ref])
    assert found is not None
    assert (found.state, found.token) == (State.RUNNING, "t1")
    assert await asyncio.wait_for(wait, SOON) == Wake.WORK
    assert [job.spec.id for job in await fetch(stores[0], "t1")] == ["j"]
    for store in stores:
        store.close()
