"""A record that another program has deleted affects only its own job; an overwritten one is reported."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis as driver

from penstock.core.clock import ManualClock
from penstock.core.job import UNREADABLE_TASK, Job, State
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Settled, Settlement
from penstock.stores.redis.layout import packed
from penstock.stores.redis.store import RedisStore
from tests.servers.single import RedisServer
from tests.store.facts import (
    COMPLETED,
    LEASE,
    MINUTE,
    add,
    counts,
    end,
    ids,
    new,
    retryable,
    some,
    take,
    token,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(redis: RedisServer, clock: ManualClock) -> Iterator[RedisStore]:
    made = RedisStore(f"{redis.url}?prefix=penstock-damage-{time.time_ns()}", clock=clock)
    yield made
    made.close()


@pytest.fixture
def client(redis: RedisServer) -> driver.Redis:
    return redis.client()


def key(store: RedisStore, what: str) -> bytes:
    return store._context.redis_keys.queue("default") + b":" + what.encode()


async def five(store: RedisStore, client: driver.Redis, **facts: object) -> list[str]:
    """The ids of five jobs in the queue; the record of the second is gone."""
    jobs = some(5, **facts)
    await add(store, *jobs)
    lose(store, client, jobs[1].id)
    return ids(jobs)


def lose(store: RedisStore, client: driver.Redis, id: str) -> None:
    assert client.hdel(key(store, "jobs"), packed(id)) == 1


def without_second(names: list[str]) -> list[str]:
    return [name for n, name in enumerate(names) if n != 1]


async def running(store: RedisStore, client: driver.Redis) -> list[Job]:
    """Five jobs that run; the record of the second is gone."""
    await add(store, *some(5))
    jobs = await take(store, 5)
    lose(store, client, jobs[1].id)
    return jobs


async def test_a_fetch_leaves_it_out(store: RedisStore, client: driver.Redis) -> None:
    """No half of it comes to be, and it does not look as if the queue were empty."""
    names = await five(store, client)
    found = await take(store, 10)
    assert ids(found) == without_second(names)
    assert client.hlen(key(store, "held")) == client.zcard(key(store, "leases")) == 4
    assert client.hlen(key(store, "jobs")) == 4
    for job in found:
        await end(store, job)
    assert await take(store, 10) == []


async def test_a_repeated_fetch_leaves_it_out_too(store: RedisStore, client: driver.Redis) -> None:
    jobs = await running(store, client)
    again = await store._plans.run(_again(store, jobs[0]))
    assert sorted(ids(again.jobs)) == sorted(without_second(ids(jobs)))


def _again(store: RedisStore, job: Job):
    from penstock.stores.contract import Share
    from penstock.stores.redis.verbs import fetching

    assert job.token is not None
    return fetching.fetch(store._context, [Share("default", 9, 9)], 9, LEASE, "w1", job.token, True)


async def test_its_lease_ends_when_the_job_is_deleted_with_others(
    store: RedisStore, client: driver.Redis
) -> None:
    refs = [job.ref for job in await running(store, client)]
    states = [State.RUNNING, None, State.RUNNING, State.RUNNING, State.RUNNING]
    assert await store.delete(refs, running=True) == states
    assert client.hlen(key(store, "held")) == client.zcard(key(store, "leases")) == 0
    assert client.hlen(key(store, "tokens")) == 0


async def test_its_lease_is_over_with_its_time_and_the_others_are_reclaimed(
    store: RedisStore, client: driver.Redis, clock: ManualClock
) -> None:
    jobs = await running(store, client)
    clock.advance(LEASE)
    found = await store.reclaim(["default"], limit=10, lease=LEASE, worker="w2", token=token())
    assert ids(found.jobs) == without_second(ids(jobs))
    assert client.zcard(key(store, "leases")) == client.hlen(key(store, "held")) == 4


async def test_the_others_are_taken_from_a_dead_worker(store: RedisStore, client: driver.Redis) -> None:
    jobs = await running(store, client)
    found = await store.reclaim(["default"], limit=10, lease=LEASE, worker="w2", token=token(), of=["w1"])
    assert ids(found.jobs) == without_second(ids(jobs))


@pytest.mark.parametrize("transition", [COMPLETED, retryable()], ids=["completed", "retryable"])
async def test_outcomes_that_are_settled_with_its_own_apply(
    store: RedisStore, client: driver.Redis, transition
) -> None:
    jobs = await running(store, client)
    answers = await store.settle([Settlement(job.lease, transition) for job in jobs])
    assert [answer is Settled.APPLIED for answer in answers] == [True, False, True, True, True]


async def test_heartbeats_go_on(store: RedisStore, client: driver.Redis) -> None:
    jobs = await running(store, client)
    statuses = await store.extend([HeartbeatRequest(job.lease, by=LEASE, started=True) for job in jobs])
    assert [status for n, status in enumerate(statuses) if n != 1] == [LeaseStatus.HELD] * 4


async def test_what_is_due_becomes_ready(store: RedisStore, client: driver.Redis, clock: ManualClock) -> None:
    names = await five(store, client, delay=MINUTE)
    clock.advance(MINUTE)
    await store.promote(["default"], limit=10)
    assert ids(await take(store, 10)) == without_second(names)


async def test_what_is_over_is_pruned(store: RedisStore, client: driver.Redis, clock: ManualClock) -> None:
    jobs = some(5)
    await add(store, *jobs)
    await store.cancel([job.ref for job in jobs])
    lose(store, client, jobs[1].id)
    clock.advance(100 * 24 * 60 * MINUTE)
    for _ in range(3):
        await store.prune()
    assert await counts(store) == {}


async def test_operators_see_the_others(store: RedisStore, client: driver.Redis) -> None:
    names = await five(store, client)
    lost_first = new()
    await add(store, lost_first)
    assert [info.name for info in await store.queues()] == ["default"]
    page = await store.list_jobs(limit=50)
    assert sorted(ids(page.jobs)) == sorted([*without_second(names), lost_first.id])
    assert await store.purge("default", [State.AVAILABLE]) >= 5


async def test_a_queue_whose_first_record_is_gone_is_shown(store: RedisStore, client: driver.Redis) -> None:
    jobs = some(2)
    await add(store, *jobs)
    lose(store, client, jobs[0].id)
    (info,) = await store.queues()
    assert info.name == "default"


async def test_a_record_of_another_program_is_named_as_damage(
    store: RedisStore, client: driver.Redis
) -> None:
    (job,) = some(1)
    await add(store, job)
    client.hset(key(store, "jobs"), packed(job.id), b"\x0f" * 12)
    assert [info.name for info in await store.queues()] == ["default"]
    (found,) = await store.get([job.ref])
    assert found is not None
    assert (found.state, found.task, found.spec.payload) == (State.AVAILABLE, UNREADABLE_TASK, b"\x0f" * 12)
    assert "the stored bytes are not the record of a job" in (found.reason or "")
