"""Plain jobs take a short way through the store: the answers must be those of the usual way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, cast

import pytest

from penstock.core.ids import mint
from penstock.core.job import Lease, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.limits import LimitChange
from penstock.core.outcomes import QueuePosition
from penstock.core.relations import Tenant
from penstock.stores.contract import EnqueueStatus, Settled, Settlement, Share
from penstock.stores.redis.layout import StoredIds, counters_of, id_of, packed
from penstock.stores.redis.records import leased, leased_run
from penstock.stores.redis.store import RedisStore
from tests.servers import RedisServer
from tests.store.facts import LEASE, add, member, new, take

DONE = Transition(State.COMPLETED)


@pytest.fixture
def store(redis: RedisServer) -> Iterator[RedisStore]:
    made = RedisStore(f"{redis.url}?prefix=plain-{mint()}")
    yield made
    made.close()


JOBS = (
    {},
    {"id": "not-a-uuid"},
    {"id": "16 bytes long id".replace(" ", "-")},
    {"task": "another", "retention": 5, "timeout": None, "at_most_once": True},
    {"payload": b"[1, 2]", "priority": -7},
    {"headers": {"a": "b"}},
    {"expires_in": 60_000},
    {"max_attempts": 1, "keep_dead": 9},
)


async def test_a_run_of_jobs_is_read_as_each_of_them_alone(redis: RedisServer, store: RedisStore) -> None:
    jobs = [NewJob(**{"id": mint(), "task": "t", **facts}) for facts in JOBS]  # type: ignore[arg-type]
    await add(store, *jobs)
    await take(store, len(jobs))  # so that all profiles are known
    with redis.client() as client:
        rows = list(client.hgetall(store._context.redis_keys.queue("default") + b":jobs").items())
    assert len(rows) == len(jobs)
    profiles = store._context.profiles
    alone = [leased(profiles, "default", id, record, 7, "w", "t", 1) for id, record in rows]
    assert leased_run(profiles, "default", rows, 7, "w", "t", 1) == alone
    assert {job.spec.id: job.spec.task for job in alone} == {job.id: job.task for job in jobs}


async def test_alike_settlements_are_answered_one_by_one(store: RedisStore) -> None:
    await add(store, *(new() for _ in range(4)))
    first, second, third, fourth = (job.lease for job in await take(store, 4))
    assert await store.settle([Settlement(second, DONE)]) == [Settled.APPLIED]
    stale = Lease(third.queue, third.id, "another token", third.generation)
    alike = [Settlement(lease, DONE) for lease in (first, second, stale, fourth, fourth)]
    answers = [Settled.APPLIED, Settled.GONE, Settled.STALE, Settled.APPLIED, Settled.GONE]
    assert await store.settle(alike) == answers
    assert await store.settle([Settlement(third, DONE), Settlement(first, DONE)]) == [
        Settled.APPLIED,
        Settled.GONE,
    ]


async def test_forms_of_ids_do_not_pile_up(store: RedisStore) -> None:
    ids = StoredIds()
    for _ in range(30):
        ids.add((id, packed(id)) for id in [mint() for _ in range(1_000)])
        assert len(ids._forms) <= 11_000
    assert ids.take("unknown") == packed("unknown")
    await add(store, new())
    (job,) = (await store.fetch([Share("default", 1, 1)], limit=1, lease=LEASE, worker="w", token="t")).jobs
    assert await store.settle([Settlement(job.lease, DONE)] * 2) == [Settled.APPLIED, Settled.GONE]
    assert not store._context.stored_ids._forms


async def test_an_id_of_any_kind_and_length_keeps_its_job_apart(store: RedisStore) -> None:
    own = mint()
    ids = [
        *("x" * length for length in range(1, 20)),
        *("0" * length for length in range(1, 20)),
        own,
        own.upper(),
        own.replace("-", ""),
        own[:-1],
        own + "0",
        "02" + own[2:],
        own[:14] + "4" + own[15:],
        own[:19] + "9" + own[20:],
        str(uuid.UUID(int=0)),
    ]
    forms = [packed(id) for id in ids]
    assert len(set(forms)) == len(set(ids)) == len(ids)
    assert [id_of(form) for form in forms] == ids
    assert len(packed(own)) == 14
    await add(store, *(new(id) for id in ids))
    assert [job.spec.id for job in await take(store, len(ids))] == ids


@pytest.mark.parametrize("length", range(5, 12))
async def test_the_batch_job_of_a_short_id_is_found_under_its_id(store: RedisStore, length: int) -> None:
    await add(store, member("x" * length, key="k", size=1))
    (job,) = await take(store, 1)
    assert job.spec.id == "x" * length + ".batch"
    assert await store.settle([Settlement(job.lease, DONE)]) == [Settled.APPLIED]


# ── special queues: an enqueue of a plain job looks at their rules ──


async def special(redis: RedisServer, store: RedisStore) -> int:
    with redis.client() as client:
        text = client.hget(store._context.redis_keys.queue("default") + b":meta", "counters")
    return counters_of(cast(bytes | None, text)).special


@pytest.mark.parametrize(
    ("on", "off", "status"),
    [
        ({"paused": True}, {"paused": False}, EnqueueStatus.NEW),
        ({"closed": True}, {"closed": False}, EnqueueStatus.CLOSED),
        (
            {"limits": LimitChange.of(max_size=1)},
            {"limits": LimitChange.of(max_size=None)},
            EnqueueStatus.FULL,
        ),
        (
            {"limits": LimitChange.of(throttle="1h")},
            {"limits": LimitChange.of(throttle=None)},
            EnqueueStatus.NEW,
        ),
    ],
    ids=["paused", "closed", "limits", "throttle"],
)
async def test_a_queue_with_a_rule_is_marked_as_special(
    redis: RedisServer, store: RedisStore, on: dict[str, Any], off: dict[str, Any], status: EnqueueStatus
) -> None:
    await add(store, new(), new())
    assert await special(redis, store) == 0
    await store.settings("default", **on)
    assert await special(redis, store) == 1
    (answer,) = await store.enqueue([new()])
    assert answer.status is status
    await store.settings("default", **off)
    await add(store, new())
    assert await special(redis, store) == 0


async def test_a_queue_throttled_by_a_job_or_fair_is_marked_as_special(
    redis: RedisServer, store: RedisStore
) -> None:
    await add(store, new())
    (job,) = await take(store, 1)
    throttled = Transition(
        State.AVAILABLE, place=QueuePosition.HEAD, charge=False, reason="throttled: 429", throttle=60_000
    )
    await store.settle([Settlement(job.lease, throttled)])
    assert await special(redis, store) == 1
    await store.settings("default", limits=LimitChange.of(throttle=None))
    assert await special(redis, store) == 0
    await add(store, new(tenant=Tenant("a")))
    assert await special(redis, store) == 1


async def test_damaged_counters_cost_no_job(redis: RedisServer, store: RedisStore) -> None:
    await add(store, new(), new())
    with redis.client() as client:
        client.hset(store._context.redis_keys.queue("default") + b":meta", "counters", "garbage")
    await add(store, new())
    assert len(await take(store, 5)) == 3
