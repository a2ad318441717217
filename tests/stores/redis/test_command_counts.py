"""The number of Redis commands per job: small, and independent of the number of jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis as driver

from penstock.app.app import App
from penstock.core.clock import ManualClock
from penstock.core.job import Job, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import (
    Fetched,
    HeartbeatRequest,
    Settlement,
    Share,
    Wake,
    WorkerInfo,
    WorkerOffer,
)
from penstock.stores.redis.script_arguments import CHANGED
from penstock.stores.redis.store import RedisStore
from penstock.worker import Worker
from tests.servers.single import RedisServer
from tests.store.facts import (
    LEASE,
    PARKED,
    SECOND,
    SOON,
    add,
    end,
    ids,
    new,
    next_jobs,
    some,
    take,
    take_one,
)
from tests.store.flow_facts import started

GONE = Transition(State.COMPLETED)  # the usual end: nothing is kept


@pytest.fixture
def server(new_redis: Callable[..., RedisServer]) -> RedisServer:
    """One of our own: others' commands are not to be counted."""
    return new_redis()


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    made = RedisStore(server.url)
    yield made
    made.close()


@pytest.fixture
def client(server: RedisServer) -> driver.Redis:
    return server.client()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def commands(client: driver.Redis, act: Callable[[], Awaitable[Any]]) -> Counter[str]:
    """How often the server ran each command meanwhile, those inside scripts too."""
    client.config_resetstat()
    await act()
    stats: dict[str, Any] = client.info("commandstats")  # type: ignore[assignment]
    found = Counter({name.removeprefix("cmdstat_"): facts["calls"] for name, facts in stats.items()})
    for ours in ("info", "config|resetstat", "config"):
        del found[ours]
    return found


async def test_a_hundred_jobs_are_enqueued_fetched_and_settled_by_three_scripts(
    store: RedisStore, client: driver.Redis
) -> None:
    async def work() -> None:
        await add(store, *some(100))
        jobs = await take(store, 100)
        await store.settle([Settlement(job.lease, GONE) for job in jobs])

    await work()  # scripts are loaded, the queue is on the list
    counted = await commands(client, work)
    assert counted["evalsha"] == 3
    assert counted.total() <= 100, "less than a command for each job, in all three steps together"


async def test_a_plain_job_is_enqueued_by_few_commands(store: RedisStore, client: driver.Redis) -> None:
    async def enqueue() -> None:
        for job in jobs:
            await add(store, job)

    await add(store, new())  # makes the queue and its list
    jobs = some(10)
    counted = await commands(client, enqueue)
    assert counted["evalsha"] == 10
    assert counted.total() <= 8 * 10


@pytest.mark.parametrize(
    "before", ["1 000 in the list", "a list that is empty again", "moved jobs", "a clock set back"]
)
async def test_a_plain_job_has_its_place_whatever_came_before(
    server: RedisServer, clock: ManualClock, before: str
) -> None:
    store = RedisStore(server.url, clock=clock)
    first = some(999 if before == "1 000 in the list" else 2)
    await add(store, *first)
    if before == "a list that is empty again":
        await take(store, 2)
        first = []
    elif before == "moved jobs":
        await store.reschedule([job.ref for job in first], delay=1)
        clock.advance(1)
        await store.promote(["default"], limit=9)
    elif before == "a clock set back":
        clock.set_wall(clock.now() - 1_000)
    late = some(5)
    for job in late:
        await add(store, job)
    assert ids(await take(store, 2_000)) == ids(first + late)
    store.close()


async def test_a_due_job_is_leased_to_a_waiting_worker_by_one_script(
    server: RedisServer, client: driver.Redis, clock: ManualClock
) -> None:
    store = RedisStore(server.url, clock=clock)
    for name in ("t1", "t2"):  # the first time scripts are loaded, and the job's profile is read
        known, leased = asyncio.Event(), list[Job]()
        job = new(delay=SECOND)
        await add(store, job)

        def accept(found: Fetched, leased: list[Job] = leased) -> None:
            leased += found.jobs

        offer = WorkerOffer("w1", name, LEASE, accept)
        wait = store.wait(
            ["default"], timeout=60_000, offer=offer, on_due=lambda *_, known=known: known.set()
        )
        waiting = asyncio.create_task(wait)
        await asyncio.wait_for(known.wait(), SOON)
        clock.advance(SECOND)

        async def start(waiting: asyncio.Task[Wake] = waiting) -> None:
            await store.promote(["default"], limit=1_000)
            assert await asyncio.wait_for(waiting, SOON) == Wake.WORK

        counted = await commands(client, start)
        if not leased:
            shares = [Share("default", 1, 1)]
            leased += (await store.fetch(shares, limit=1, lease=LEASE, worker="w1", token=name)).jobs
        assert ids(leased) == [job.id]
        await store.settle([Settlement(leased[0].lease, GONE)])
    assert (counted["evalsha"], counted["publish"], counted["rpush"]) == (1, 1, 0)
    assert counted.total() <= 26
    store.close()


async def test_an_idle_worker_starts_a_delayed_job_by_few_scripts(
    server: RedisServer, client: driver.Redis
) -> None:
    app, started = App(server.url), asyncio.Event()

    @app.task
    async def work() -> None:
        started.set()

    worker = Worker(app)
    running = asyncio.create_task(worker.run())

    async def delayed() -> None:
        for _ in range(10):
            started.clear()
            await work.using(delay=0.02).aenqueue()
            await asyncio.wait_for(started.wait(), SOON)

    await delayed()
    counted = await commands(client, delayed)
    worker.stop()
    await running
    app.close()
    # enqueue, promote, settle, and each time that the worker says what it waits for
    assert counted["evalsha"] <= 10 * 6


async def test_settling_one_job_costs_the_same_with_any_number_of_running_jobs(
    store: RedisStore, client: driver.Redis
) -> None:
    async def settle_one() -> None:
        await store.settle([Settlement(jobs.pop().lease, GONE)])

    await add(store, *some(3_010))
    jobs = await take(store, 10)
    await settle_one()
    few = await commands(client, settle_one)
    jobs += await take(store, 3_000)
    assert len(jobs) > 3_000
    many = await commands(client, settle_one)
    assert many == few
    assert many["lrem"] == 0


async def test_the_ready_index_has_no_long_lists_to_search(store: RedisStore, client: driver.Redis) -> None:
    jobs = some(5_000)
    for n in range(0, 5_000, 500):
        await add(store, *jobs[n : n + 500])
    lists = [key for key in client.scan_iter("*:ready/*") if client.type(key) == b"list"]
    assert max(client.llen(key) for key in lists) <= 1_000

    async def delete_one() -> None:
        assert await store.delete([jobs.pop(2_000).ref]) == [State.AVAILABLE]

    counted = await commands(client, delete_one)
    assert counted.total() - counted["zcard"] - counted["hlen"] < 30  # these ask for the types of the keys


async def test_the_list_of_queues_costs_the_same_however_full_they_are(
    store: RedisStore, client: driver.Redis
) -> None:
    async def look() -> None:
        await store.queues()

    await add(store, *some(10))
    await look()
    few = await commands(client, look)
    for _ in range(10):
        await add(store, *some(500))
    assert await commands(client, look) == few
    assert few.total() < 40


@pytest.mark.parametrize("verb", ["purge", "prune"])
async def test_thousands_are_removed_in_steps_between_which_others_have_their_turn(
    store: RedisStore, client: driver.Redis, verb: str
) -> None:
    jobs = some(2_000)
    await add(store, *jobs)
    if verb == "prune":
        await store.cancel([job.ref for job in jobs])

    async def remove() -> None:
        if verb == "purge":
            assert await store.purge("default", [State.AVAILABLE]) == 2_000
        else:
            assert (await store.prune(limit=5_000, keep_finished=0)).finished == 2_000

    assert (await commands(client, remove))["evalsha"] >= 2_000 / CHANGED


async def test_bringing_thousands_back_takes_several_steps_too(
    store: RedisStore, client: driver.Redis
) -> None:
    jobs = some(2_000)
    await add(store, *jobs)
    await store.cancel([job.ref for job in jobs])

    async def retry() -> None:
        assert await store.retry([job.ref for job in jobs]) == [State.CANCELLED] * 2_000

    assert (await commands(client, retry))["evalsha"] >= 2_000 / CHANGED


async def test_a_heartbeat_carries_no_payload(store: RedisStore, client: driver.Redis) -> None:
    await add(store, *some(10, payload=b"x" * 500_000))
    jobs = await take(store, 10)
    info = WorkerInfo("w1", "host", 1, 0, ("default",), ("t",), 10)

    def received() -> int:
        return int(client.info("stats")["total_net_input_bytes"])  # type: ignore[index]

    async def heartbeat() -> None:
        await store.announce(info)
        await store.extend([HeartbeatRequest(job.lease, by=LEASE, started=True) for job in jobs])

    await heartbeat()  # the scripts themselves are sent once
    before = received()
    await heartbeat()
    assert received() - before < 20_000


async def test_a_fetch_does_not_ask_for_every_task_that_a_worker_knows(
    store: RedisStore, client: driver.Redis
) -> None:
    """One job that nobody knows must not make each fetch of its queue as long as the list of tasks."""
    tasks = tuple(f"task-{n}" for n in range(500))
    await store.announce(WorkerInfo("w1", "host", 1, 0, ("default",), tasks, 10))
    await add(store, new(task="nobody knows it"))
    await end(store, await take_one(store), PARKED)
    await add(store, *some(100, task="task-7"))

    async def fetch() -> None:
        assert len(await take(store, 100)) == 100

    assert (await commands(client, fetch)).total() < 30


async def test_flows_cost_nothing_where_there_are_none(store: RedisStore, client: driver.Redis) -> None:
    await add(store, *(new(queue=f"q{n}") for n in range(20)))
    assert await commands(client, store.advance_flows) == Counter(smembers=1)
    assert await commands(client, store.list_flows) == Counter(smembers=1)


async def test_a_page_of_flows_reads_no_others(store: RedisStore, client: driver.Redis) -> None:
    for _ in range(30):
        await started(store, 1)

    async def list_two_pages() -> None:
        first = await store.list_flows(limit=5)
        await store.list_flows(after=first.next, limit=5)

    assert (await commands(client, list_two_pages))["hmget"] == 10


async def test_a_listing_passes_only_the_jobs_that_it_is_for(store: RedisStore, client: driver.Redis) -> None:
    await add(store, *some(500), *some(100, queue="other"))
    (job, *_) = await take(store, 5)
    await take(store, 200, worker="w2")
    asked: list[tuple[Callable[[], Awaitable[Any]], int]] = [
        (lambda: next_jobs(store, limit=1), 1),
        (lambda: store.list_jobs(queue="default", state=State.AVAILABLE, limit=5), 1),
        (lambda: store.list_jobs(state=State.RUNNING, worker="w1"), 2),  # in two queues
        (lambda: store.find(job.id), 2),
    ]
    for ask, scripts in asked:
        await ask()
        counted = await commands(client, ask)
        assert counted["evalsha"] == scripts
        assert counted.total() < 20, "not for each of the jobs of the queue, or of the other worker"
