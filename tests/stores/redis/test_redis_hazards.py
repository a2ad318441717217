"""Hazards of Redis alone: repeated scripts, missing keys, migrating slots, queues dropped midway."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from penstock.core.clock import ManualClock
from penstock.core.job import NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import EnqueueStatus, Settled, Settlement, Share, Wake
from penstock.stores.redis.layout import LAYOUT
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.subscriber import Subscriber
from penstock.stores.redis.verbs import fetching, leases, operating, producing, settling
from tests.servers import Cluster, RedisServer
from tests.store.facts import (
    COMPLETED,
    LEASE,
    RELEASED,
    add,
    asleep,
    counts,
    ids,
    new,
    retryable,
    some,
    take,
    take_one,
    token,
)
from tests.stores.redis.test_direct_dispatch import asleep as until_offered

_prefixes = itertools.count(1)


@pytest.fixture
def store(redis: RedisServer) -> Iterator[RedisStore]:
    """Over keys of its own, by the server's clock."""
    one = RedisStore(f"{redis.url}?prefix=attack{next(_prefixes)}-{time.time_ns()}")
    yield one
    one.close()


def prefix_of(store: RedisStore) -> str:
    return store._address.prefix


def another(store: RedisStore, **options: Any) -> RedisStore:
    return RedisStore(store._address, **options)


async def sent_twice(store: RedisStore, plan: Generator[Any, Any, Any]) -> Any:
    """A verb whose replies are all lost once: what may be sent again is."""
    try:
        calls = next(plan)
        while True:
            repeatable = [call for call in calls if call.repeatable]
            await store._runner.run(repeatable)
            calls = plan.send(await store._runner.run(calls))
    except StopIteration as end:
        return end.value


async def one_step(store: RedisStore, plan: Generator[Any, Any, Any]) -> Any:
    """Take a verb one round trip far, and no further; what it would ask next comes back."""
    return plan.send(await store._runner.run(next(plan)))


async def on(store: RedisStore, plan: Generator[Any, Any, Any], calls: Any) -> Any:
    """From there to its end."""
    try:
        while True:
            calls = plan.send(await store._runner.run(calls))
    except StopIteration as end:
        return end.value


# ── replies that are lost ──


@pytest.mark.parametrize("limit", [10, 2_500])
async def test_a_fetch_whose_replies_were_lost_leases_once(store: RedisStore, limit: int) -> None:
    await store.enqueue([*some(limit, queue="a"), *some(limit, queue="b")])
    shares = [Share("a", limit, limit), Share("b", limit, limit)]
    plan = fetching.fetch(store._context, shares, limit, LEASE, "w1", token(), True)
    found = await sent_twice(store, plan)
    held = (await counts(store, "a")).get(State.RUNNING, 0) + (await counts(store, "b")).get(State.RUNNING, 0)
    assert len(found.jobs) == held > 0


async def test_a_fetch_over_slots_whose_replies_were_lost_leases_once(cluster: Cluster) -> None:
    store = RedisStore(f"{cluster.url}?prefix=penstock-attack-{time.time_ns()}")
    await store.enqueue([*some(20, queue="a"), *some(20, queue="b")])
    shares = [Share("a", 5, 20), Share("b", 5, 20)]
    plan = fetching.fetch(store._context, shares, 10, LEASE, "w1", token(), True)
    found = await sent_twice(store, plan)
    held = [(await counts(store, queue)).get(State.RUNNING, 0) for queue in "ab"]
    assert held == [5, 5]
    assert len(found.jobs) == 10
    store.close()


async def test_a_reclaim_whose_replies_were_lost_leases_once(store: RedisStore) -> None:
    await add(store, *some(20))
    await take(store, 20)
    plan = leases.reclaim(store._context, (), 100, LEASE, "w2", token(), ["w1"])
    assert len((await sent_twice(store, plan)).jobs) == 20


# ── a queue that is dropped between two steps of others ──


async def test_a_queue_that_is_dropped_while_a_job_comes_stays_on_the_list(store: RedisStore) -> None:
    producer, other = another(store), another(store)
    await other.settings("default", paused=False)
    plan = producing.enqueue(producer._context, [new()])
    calls = await one_step(producer, plan)  # its name is on the list
    assert await other.drop("default")
    assert (await on(producer, plan, calls))[0].status is EnqueueStatus.NEW
    assert [queue.name for queue in await other.queues()] == ["default"]


async def test_a_queue_that_comes_back_while_it_is_dropped_stays_on_the_list(store: RedisStore) -> None:
    other = another(store)
    await store.settings("default", paused=False)
    plan = operating.drop(other._context, "default")
    calls = await one_step(other, plan)  # forgotten, but still on the list
    await add(store, new())
    assert await on(other, plan, calls)
    assert [queue.name for queue in await store.queues()] == ["default"]


async def test_a_late_settlement_brings_no_dropped_queue_back(store: RedisStore, redis: RedisServer) -> None:
    await add(store, new())
    job = await take_one(store)
    await store.settle([Settlement(job.lease, Transition(State.COMPLETED))])
    assert await store.drop("default")
    assert await store.settle([Settlement(job.lease, RELEASED)]) == [Settled.GONE]
    with redis.patient_client() as client:
        assert client.keys(f"{prefix_of(store)}*") == []


# ── keys that somebody has deleted, or a server that evicts ──


@pytest.mark.parametrize("lost", ["again/0", "ready/*", "ready", "jobs", "state/1", "leases", "due"])
async def test_a_fetch_ends_whichever_key_is_missing(
    store: RedisStore, redis: RedisServer, lost: str
) -> None:
    await add(store, *some(3))
    (job,) = await take(store, 1)
    await store.settle([Settlement(job.lease, RELEASED)])
    with redis.patient_client() as client:
        for key in client.keys(f"{prefix_of(store)}*{lost.replace('/*', '/0/*')}"):
            client.delete(key)
    async with asyncio.timeout(60):
        for _ in range(3):
            await asyncio.gather(take(store, 10), return_exceptions=True)
        assert (await store.enqueue([new()]))[0].status is EnqueueStatus.NEW


# ── waking ──


async def test_news_of_a_due_job_reach_the_next_if_who_waited_is_dead(
    store: RedisStore, redis: RedisServer
) -> None:
    other = another(store)
    waiter = asyncio.create_task(other.wait(["default"], timeout=60_000))
    await asleep(waiter)
    with redis.patient_client() as client:
        client.zadd(
            f"{prefix_of(store)}:{LAYOUT}:{{/default}}:waiters", {"nobody": (time.time() + 50) * 1000}
        )
    await add(store, new(delay=40_000))
    async with asyncio.timeout(60):
        assert await waiter == Wake.WORK
    other.close()


async def test_a_notification_of_a_cancelled_wait_is_passed_on() -> None:
    passed: list[tuple[str, bytes]] = []
    subscriber = Subscriber("channel", lambda queue, kind: passed.append((queue, kind)), lambda _: None)

    async def wait() -> None:
        with subscriber.waiting(frozenset({"a", "b"})) as waiter:
            while not waiter.work:
                await asyncio.sleep(0)
                waiter.event.set()
            await asyncio.Event().wait()

    waiter = asyncio.create_task(wait())
    await asyncio.sleep(0)
    subscriber.on_message(b"db")
    subscriber.on_message(b"wa")
    await asyncio.sleep(0)
    assert passed == []
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert sorted(passed) == [("a", b"w"), ("b", b"d")]
    subscriber.on_message(b"db")
    assert passed[2:] == [("b", b"d")]


async def test_a_wait_that_had_its_answer_passes_nothing_on() -> None:
    passed: list[tuple[str, bytes]] = []
    subscriber = Subscriber("channel", lambda queue, kind: passed.append((queue, kind)), lambda _: None)
    with subscriber.waiting(frozenset({"a"})) as waiter:
        subscriber.on_message(b"wa")
        assert waiter.work
    assert passed == []


async def test_those_who_have_waited_in_vain_are_forgotten(store: RedisStore, redis: RedisServer) -> None:
    key = f"{prefix_of(store)}:{LAYOUT}:{{/default}}:waiters"
    with redis.patient_client() as client:
        client.zadd(key, {f"gone-{n}": (time.time() - 120) * 1000 for n in range(50)})
        client.hset(key.replace("waiters", "offers"), mapping={f"gone-{n}": "" for n in range(50)})
        assert await store.wait(["default"], timeout=10) is Wake.NOTHING
        assert client.zcard(key) == 1
        assert client.hlen(key.replace("waiters", "offers")) == 0


# ── jobs that come leased with the wake-up ──


@pytest.mark.parametrize("moment", ["while it is fetched", "after it was fetched"])
async def test_a_job_that_was_fetched_is_not_given_back_by_its_late_message(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    other = another(store)
    await add(other, new(queue="elsewhere"))
    waiting = await until_offered(store, "default")
    subscriber = store._subscribers.get(asyncio.get_running_loop())
    receive, late = subscriber.on_message, list[bytes]()
    listener = store._runner._loop_connections().listener
    assert listener is not None
    monkeypatch.setattr(listener._channels[subscriber.channel.encode()], "on_message", late.append)
    run = store._runner.run

    async def run_and_receive(calls: Any) -> Any:
        answers = await run(calls)
        while late:
            receive(late.pop())
        return answers

    if moment == "while it is fetched":
        monkeypatch.setattr(store._runner, "run", run_and_receive)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    job = new()
    await add(other, job)
    async with asyncio.timeout(60):
        while not late:
            await asyncio.sleep(0.01)
    shares = [Share("default", 9, 9)]
    found = await store.fetch(shares, limit=9, lease=LEASE, worker="w1", token="t1")
    assert ids(found.jobs) == [job.id]
    while late:
        receive(late.pop())
    await asyncio.gather(*store._background_tasks)
    assert await store.settle([Settlement(found.jobs[0].lease, COMPLETED)]) == [Settled.APPLIED]
    other.close()


async def test_a_job_that_came_too_long_ago_is_not_given_back_and_run(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = another(store)
    waiting = await until_offered(store, "default")
    monkeypatch.setattr(store._subscribers.get(asyncio.get_running_loop()), "age_of", lambda came: 1e6)
    await add(other, new())
    assert await waiting == Wake.WORK
    found = await store.fetch([Share("default", 9, 9)], limit=9, lease=LEASE, worker="w1", token="t1")
    await asyncio.gather(*store._background_tasks)
    assert len(found.jobs) == 1
    assert await store.settle([Settlement(found.jobs[0].lease, COMPLETED)]) == [Settled.APPLIED]
    other.close()


# ── jobs that follow on another server ──


async def test_followers_that_were_not_delivered_are_all_kept(cluster: Cluster) -> None:
    store = RedisStore(f"{cluster.url}?prefix=penstock-attack-{time.time_ns()}")
    await add(store, new("one", queue="a"))
    followers = some(2, queue="b")
    for follower in followers:
        job = await take_one(store, "a")
        plan = settling.settle(store._context, [Settlement(job.lease, COMPLETED, then=(follower,))])
        calls = await one_step(store, plan)
        assert calls is not None
        if calls[0].script is not None:  # the list of queues came first
            plan.send(await store._runner.run(calls))
        plan.close()  # we die before it is delivered
        await store.retry([job.ref])
    await store.prune()
    assert await counts(store, "b") == {State.AVAILABLE: 2}
    store.close()


# ── a full server ──


@pytest.mark.parametrize("end", [COMPLETED, retryable(), RELEASED], ids=["kept", "retryable", "released"])
async def test_attempts_end_on_a_full_server(new_redis: Any, end: Transition) -> None:
    server = new_redis()
    store = RedisStore(server.url)
    await store.enqueue([new(payload=b"x" * 1_000) for _ in range(100)])
    jobs = await take(store, 10)
    with server.patient_client() as client:
        client.config_set("maxmemory", 1_000_000)
    full = await asyncio.gather(store.enqueue([new()]), return_exceptions=True)
    assert isinstance(full[0], Exception)
    settled = await store.settle([Settlement(job.lease, end, result=b"r") for job in jobs])
    assert settled == [Settled.APPLIED] * 10
    store.close()


# ── time ──


async def test_a_clock_that_goes_back_keeps_the_order(store: RedisStore) -> None:
    clock = ManualClock()
    steered = another(store, clock=clock)
    specs: list[NewJob] = []
    for step in (0, -3_600_000, 1_000, 3_600_000, -10, 5):
        clock.set_wall(clock.now() + step)
        specs += some(30)
        await add(steered, *specs[-30:])
        specs.append(new())
        await add(steered, specs[-1])
    gone = specs[::7]
    assert await steered.delete([job.ref for job in gone]) == [State.AVAILABLE] * len(gone)
    left = [job for job in specs if job not in gone]
    assert await counts(steered) == {State.AVAILABLE: len(left)}
    assert ids(await take(steered, 1_000)) == ids(left)
    assert await counts(steered) == {State.RUNNING: len(left)}
    steered.close()


# ── a slot on the move ──


async def answered(store: RedisStore, one: Settlement) -> Settled:
    """What a settler gets, who repeats what the store cannot answer while the slot moves."""
    while True:
        (answer,) = await store.settle([one])
        if answer is not Settled.UNKNOWN:
            return answer
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_queue_whose_slot_is_on_the_move_is_never_two(new_cluster: Any) -> None:
    cluster = new_cluster(replicas=0)
    store = RedisStore(f"{cluster.url}?timeout=20s")
    await add(store, *some(3))
    (leased,) = await take(store, 1)
    key = f"penstock:{LAYOUT}:{{/default}}"
    slot, source = key_slot(key.encode()), cluster.holder(key)
    target = next(server for server in cluster.masters() if server is not source)
    with source.patient_client() as old, target.patient_client() as there:
        names = {
            one: client.execute_command("CLUSTER MYID") for one, client in ((source, old), (target, there))
        }
        there.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[source])
        old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[target])
        verbs = [
            asyncio.create_task(store.enqueue([new("late")])),
            asyncio.create_task(answered(store, Settlement(leased.lease, COMPLETED))),
        ]
        await asyncio.sleep(0.3)
        for n, name in enumerate(old.execute_command("CLUSTER GETKEYSINSLOT", slot, 100)):
            old.execute_command("MIGRATE", "127.0.0.1", target.port, name, 0, 5_000)
            if n == 1:
                await asyncio.sleep(0.3)
        for client in (there, old):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", names[target])
    await asyncio.gather(*verbs)
    assert verbs[1].result() is Settled.APPLIED
    assert len(await take(store, 10)) == 3
    assert await counts(store) == {State.RUNNING: 3, State.COMPLETED: 1}
    store.close()


# ── what was taken away by hand ──


async def test_a_job_whose_profile_is_gone_is_set_aside_and_says_so(
    store: RedisStore, redis: RedisServer
) -> None:
    await add(store, new("one", payload=b"[1]"))
    other = RedisStore(f"{redis.url}?prefix={store._address.prefix}")  # one that has not read it yet
    redis.client().delete(store._context.redis_keys.queue("default") + b":profiles")
    await add(store, new("two", task="other"))
    assert ids(await take(other, 2)) == ["two"]
    (job,) = await other.get([Ref("default", "one")])
    assert job is not None
    assert job.state is State.DEAD
    assert re.search(r"profile .* is missing; was the key .*:profiles deleted", job.reason or "")
    assert job.spec.payload.endswith(b"[1]")
    other.close()
