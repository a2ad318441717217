"""Keys beside the records, overwritten by another program: each affects only itself."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace
from redis.cluster import RedisCluster

from penstock.core.clock import ManualClock
from penstock.core.job import UNREADABLE_TASK, Job, Ref, State
from penstock.core.lifecycle import UNREADABLE
from penstock.core.limits import LimitChange, Rate
from penstock.core.relations import Partition
from penstock.core.stats import QueueDepth, TaskStats
from penstock.core.unique import UniqueKey
from penstock.errors import StoreCorrupt
from penstock.stores.contract import (
    EnqueueStatus,
    ErrorCount,
    HeartbeatRequest,
    LeaseStatus,
    Resolution,
    Settled,
    Settlement,
    Share,
    StatsReport,
    TaskCount,
    Wake,
)
from penstock.stores.redis.layout import packed
from penstock.stores.redis.profiles import Profiles
from penstock.stores.redis.store import RedisStore
from tests.servers import Cluster, RedisServer
from tests.store.facts import (
    COMPLETED,
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    PARKED,
    add,
    counts,
    end,
    ids,
    new,
    retryable,
    some,
    take,
    the,
    token,
)
from tests.store.redis_corruptor import GARBAGE, RedisCorruptor

BAD_LEASES = [b"", b"x", GARBAGE, b"\0" * 7 + b"\5token", bytes(7) + b"\xff"]


async def five(store: RedisStore, **facts: object) -> list[Job]:
    """Jobs that run; the second is the one that is spoiled."""
    await add(store, *some(5, **facts))
    return await take(store, 5)


def others(jobs: list[Job]) -> list[str]:
    return [job.id for n, job in enumerate(jobs) if n != 1]


async def is_aside(store: RedisStore, job: Job) -> bool:
    found = await the(store, job)
    return found.state is State.DEAD and (found.reason or "").startswith(UNREADABLE)


# ── leases ──


@pytest.mark.parametrize("value", BAD_LEASES)
async def test_an_unreadable_lease_is_not_reclaimed_and_delays_no_other_job(
    store: RedisStore, corruptor: RedisCorruptor, clock: ManualClock, value: bytes
) -> None:
    jobs = await five(store)
    await corruptor.lease(jobs[1].ref, value)
    clock.advance(LEASE)
    found = await store.reclaim(["default"], limit=10, lease=LEASE, worker="w2", token=token())
    assert ids(found.jobs) == others(jobs)
    assert [one.id for one in found.set_aside] == [jobs[1].id]
    assert await is_aside(store, jobs[1])
    assert await counts(store) == {State.RUNNING: 4, State.DEAD: 1}
    assert (
        await store.settle([Settlement(job.lease, COMPLETED) for job in found.jobs]) == [Settled.APPLIED] * 4
    )
    with corruptor.client() as client:
        assert client.exists(*(corruptor.key("default", what) for what in ("held", "leases", "tokens"))) == 0


@pytest.mark.parametrize("value", BAD_LEASES)
async def test_nor_does_it_keep_those_of_a_dead_worker_or_of_one_fetch(
    store: RedisStore, corruptor: RedisCorruptor, value: bytes
) -> None:
    jobs = await five(store)
    await corruptor.lease(jobs[1].ref, value)
    found = await store.reclaim([], limit=10, lease=LEASE, worker="w2", token=token(), of=["w1"])
    assert sorted(ids(found.jobs)) == sorted(others(jobs))
    again = await store.reclaim(
        ["default"], limit=10, lease=LEASE, worker="w2", token=str(found.jobs[0].token)
    )
    assert sorted(ids(again.jobs)) == sorted(others(jobs))


@pytest.mark.parametrize("value", BAD_LEASES)
async def test_whose_lease_cannot_be_read_has_lost_it_and_can_be_cancelled_and_deleted(
    store: RedisStore, corruptor: RedisCorruptor, value: bytes
) -> None:
    jobs = await five(store)
    await corruptor.lease(jobs[1].ref, value)
    assert (await the(store, jobs[1])).state is State.RUNNING
    assert len((await store.list_jobs(state=State.RUNNING)).jobs) == 5
    statuses = await store.extend([HeartbeatRequest(job.lease, LEASE, started=True) for job in jobs])
    assert [status is LeaseStatus.HELD for status in statuses] == [True, False, True, True, True]
    settled = await store.settle([Settlement(job.lease, COMPLETED) for job in jobs])
    assert [one is Settled.APPLIED for one in settled] == [True, False, True, True, True]
    assert await store.cancel([jobs[1].ref]) == [State.DEAD]
    assert await is_aside(store, jobs[1])
    assert await store.delete([jobs[1].ref]) == [State.DEAD]
    assert await counts(store) == {State.COMPLETED: 4}


# ── orders ──

ODD_DUE = [b"", b"x", b"\0" * 7, b"\0" * 7 + b"nobody", b"\xff" * 7 + b"t\0g", b"\xff" * 3, b"7 bytes+id" * 9]


@pytest.mark.parametrize("member", ODD_DUE)
async def test_due_entries_without_a_job_are_removed_and_the_others_become_ready(
    store: RedisStore, corruptor: RedisCorruptor, clock: ManualClock, member: bytes
) -> None:
    jobs = some(5, delay=MINUTE)
    await add(store, *jobs)
    with corruptor.client() as client:
        client.zadd(corruptor.key("default", "due"), {member: clock.now()})
    clock.advance(MINUTE)
    for _ in range(3):
        due = await store.promote(["default"], limit=10)
    assert due.next is None
    assert ids(await take(store, 9)) == ids(jobs)


async def test_a_job_is_not_promoted_by_what_an_earlier_one_of_its_id_has_left(
    store: RedisStore, corruptor: RedisCorruptor, clock: ManualClock
) -> None:
    job = new(delay=HOUR)
    await add(store, job)
    with corruptor.client() as client:
        client.zadd(corruptor.key("default", "due"), {b"\1" * 7 + packed(job.id): clock.now()})
    due = await store.promote(["default"], limit=10)
    assert (due.moved, due.next) == (0, clock.now() + HOUR)


async def test_an_id_that_looks_like_a_partition_key_blocks_no_promotion(
    store: RedisStore, clock: ManualClock
) -> None:
    key = "sixteen bytes of"
    crafted = new(str(uuid.UUID(bytes=key.encode())))
    partition = Partition(key, most=9, rate=Rate(1, 60_000))
    await add(store, crafted, new(partition=partition), new(partition=partition), *some(3, delay=MINUTE))
    assert len(await take(store, 9)) == 2
    clock.advance(MINUTE)
    assert (await store.promote(["default"], limit=10)).next is None
    assert len(await take(store, 9)) == 4


async def test_a_record_that_says_another_state_than_its_order_is_not_leased(
    store: RedisStore, corruptor: RedisCorruptor
) -> None:
    jobs = some(3)
    await add(store, *jobs)
    with corruptor.client() as client:
        record = client.hget(corruptor.key("default", "jobs"), packed(jobs[1].id))
        client.hset(
            corruptor.key("default", "jobs"), packed(jobs[1].id), bytes((record[0] + 4,)) + record[1:]
        )
    assert ids(await take(store, 9)) == [jobs[0].id, jobs[2].id]
    assert await counts(store) == {State.RUNNING: 2, State.DEAD: 1}


# ── numbers and the like ──

SPOILED = [
    ("meta", "generation"),
    ("meta", "processed"),
    ("meta", "failed"),
    ("meta", "held"),
    ("meta", "fair"),
    ("meta", "next_start"),
    ("meta", "drained"),
    ("days", "day"),
    ("parked", "unknown"),
    ("partitions", "k"),
    ("unique", "u"),
    ("tenants", "now/0"),
    ("tenants", "x"),
]


@pytest.mark.parametrize(("where", "field"), SPOILED)
async def test_a_number_of_its_queue_that_cannot_be_read_stops_no_job(
    store: RedisStore, corruptor: RedisCorruptor, clock: ManualClock, where: str, field: str
) -> None:
    await add(store, new("parked", task="unknown"))
    await end(store, (await take(store, 1))[0], PARKED)
    with corruptor.client() as client:
        client.hset(corruptor.key("default", where), field, GARBAGE)
    partition = Partition("k", rate=Rate(100, 1_000, 10))
    await add(store, new(), new(delay=MINUTE), new(partition=partition), new(unique=UniqueKey("u")))
    clock.advance(MINUTE)
    await store.promote(["default"], limit=10)
    for job in await take(store, 9):
        await end(store, job, retryable() if job.spec.partition else COMPLETED)
    clock.advance(MINUTE)
    await store.promote(["default"], limit=10)
    for job in await take(store, 9):
        await end(store, job)
    await store.prune()
    assert await store.cancel([Ref("default", "parked")]) == [State.CANCELLED]
    assert (await counts(store))[State.COMPLETED] == 4
    assert len(await store.stats()) == 1
    assert await store.parked() == []


async def test_a_name_that_no_queue_can_have_is_none(store: RedisStore, corruptor: RedisCorruptor) -> None:
    await add(store, new())
    with corruptor.client() as client:
        client.sadd(store._context.redis_keys.queues, GARBAGE, b"a}b", b"")
    assert [queue.name for queue in await store.queues()] == ["default"]
    await store.prune()


# ── what is brought back, and what stands in its place ──


async def test_what_stands_in_its_place_has_the_profile_that_a_producer_would_write(
    store: RedisStore, corruptor: RedisCorruptor
) -> None:
    await add(store, new("one"))
    await corruptor.record(Ref("default", "one"), "all of it")
    await take(store, 1)
    job = await the(store, Ref("default", "one"))
    assert (job.task, job.spec.payload, job.spec.max_attempts) == (UNREADABLE_TASK, GARBAGE, 1)
    _, text = Profiles().write(job.spec)
    with corruptor.client() as client:
        assert text in client.hget(corruptor.key("default", "jobs"), packed("one"))


async def test_a_partition_whose_admitted_job_was_overwritten_goes_on(
    store: RedisStore, corruptor: RedisCorruptor
) -> None:
    """Also for those that come later, though nothing says any more that the job was of this partition."""
    partition = Partition("k")
    await add(store, new("one", partition=partition))
    await corruptor.record(Ref("default", "one"), "all of it")
    assert await take(store, 1) == []
    await add(store, new("two", partition=partition), new("three", partition=partition))
    (two,) = await take(store, 5)
    assert two.id == "two"
    await end(store, two)
    assert ids(await take(store, 5)) == ["three"]


# ── entries to deliver ──


async def test_an_entry_of_the_outbox_that_cannot_be_read_is_a_dead_job_and_the_others_come(
    cluster: Cluster, prefix: str
) -> None:
    store = RedisStore(f"{cluster.url}?prefix={prefix}")
    corruptor = RedisCorruptor(lambda: _on(cluster), prefix)
    await add(store, new("first"))
    good = new("good", queue="other")
    with corruptor.client() as client:
        for n, text in enumerate((b"", GARBAGE, bytes(8) + GARBAGE)):
            client.hset(corruptor.key("default", "out"), f"bad-{n}", text)
        written = struct.pack("<d", 1.0) + msgspec.msgpack.encode(good)
        client.hset(corruptor.key("default", "out"), "good", written)
    pruned = await store.prune()
    assert [one.kind for one in pruned.set_aside] == ["outbox entry"] * 3
    assert (await the(store, good)).state is State.AVAILABLE
    dead = (await store.list_jobs(queue="default", state=State.DEAD)).jobs
    assert sorted(job.id for job in dead) == sorted(one.id for one in pruned.set_aside)
    assert {job.spec.payload for job in dead} == {b"", GARBAGE, bytes(8) + GARBAGE}
    assert await store.delete([job.ref for job in dead]) == [State.DEAD] * 3
    assert (await store.prune()).set_aside == ()
    store.close()


def _on(cluster: Cluster) -> RedisCluster:
    return RedisCluster("127.0.0.1", cluster.first_masters[0].port)


# ── what cannot be written ──

BAD_JOBS = [
    {"headers": {"h": "\ud800"}},
    {"partition": Partition("k", most=2**40)},
    {"task": "t" * 70_000},
    {"priority": 1_000},
    {"run_at": "soon"},
    {"payload": "text"},
]


@pytest.mark.parametrize("facts", BAD_JOBS)
async def test_a_job_that_cannot_be_written_fails_alone(store: RedisStore, facts: dict[str, object]) -> None:
    answers = await store.enqueue([new("a"), new("bad", **facts), new("b")])
    assert [one.status for one in answers] == [EnqueueStatus.NEW, EnqueueStatus.FAILED, EnqueueStatus.NEW]
    assert answers[1].cause
    assert ids(await take(store, 9)) == ["a", "b"]


async def test_an_outcome_that_cannot_be_written_makes_its_job_dead_and_the_others_end(
    store: RedisStore,
) -> None:
    jobs = await five(store)
    bad = replace(COMPLETED, delay="soon")
    outcomes = [bad if n == 1 else COMPLETED for n in range(5)]
    settled = await store.settle([Settlement(job.lease, to) for job, to in zip(jobs, outcomes, strict=True)])
    assert settled == [Settled.APPLIED] * 5
    assert await is_aside(store, jobs[1])
    assert await counts(store) == {State.COMPLETED: 4, State.DEAD: 1}


async def test_nor_does_what_follows_and_cannot_be_written(store: RedisStore) -> None:
    jobs = await five(store)
    then = (new(partition=Partition("k", most=2**40)),)
    settled = await store.settle(
        [Settlement(job.lease, COMPLETED, then=then if n == 1 else ()) for n, job in enumerate(jobs)]
    )
    assert settled == [Settled.APPLIED] * 5
    assert await is_aside(store, jobs[1])


async def test_records_set_aside_by_an_operator_are_reported_by_the_next_prune(
    store: RedisStore, corruptor: RedisCorruptor
) -> None:
    jobs = some(2, delay=DAY)
    await add(store, *jobs)
    await corruptor.record(jobs[0].ref, "all of it")
    await store.cancel([job.ref for job in jobs])
    assert [one.id for one in (await store.prune()).set_aside] == [jobs[0].id]
    assert (await store.prune()).set_aside == ()


# ── keys that hold something else ──

#: Keys of a queue, each of which somebody may have written over by something of another type.
KEYS = ["jobs", "meta", "ready", "due", "leases", "held", "tokens", "waiters", "parked", "over"]


@pytest.fixture(params=["redis", "redis-cluster"])
def anywhere(
    request: pytest.FixtureRequest, clock: ManualClock, prefix: str
) -> Iterator[tuple[RedisStore, RedisCorruptor]]:
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        made, corruptor = (
            RedisStore(f"{server.url}?prefix={prefix}", clock=clock),
            RedisCorruptor(server.client, prefix),
        )
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        made = RedisStore(f"{cluster.url}?prefix={prefix}", clock=clock)
        corruptor = RedisCorruptor(lambda: _on(cluster), prefix)
    yield made, corruptor
    made.close()


def replaced(corruptor: RedisCorruptor, what: str) -> None:
    key = corruptor.key("bad", what)
    with corruptor.client() as client:
        client.delete(key)
        client.set(key, b"somebody else's")


async def fetched(store: RedisStore) -> list[Job]:
    shares = [Share(queue, 9, 9) for queue in ("bad", "a", "b")]
    return (await store.fetch(shares, limit=9, lease=LEASE, worker="w1", token=token())).jobs


async def settled(store: RedisStore, jobs: list[Job]) -> list[Settled]:
    """As a settler: what fails is asked again."""
    outcomes = [Settlement(job.lease, COMPLETED) for job in jobs]
    try:
        return await store.settle(outcomes)
    except StoreCorrupt:
        return await store.settle(outcomes)


@pytest.mark.parametrize("what", KEYS)
async def test_a_queue_whose_key_holds_something_else_stops_no_other(
    anywhere: tuple[RedisStore, RedisCorruptor],
    clock: ManualClock,
    what: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, corruptor = anywhere
    queues = ["bad", "a", "b"]
    for queue in queues:
        await add(store, new(queue=queue), new(queue=queue), new(queue=queue, delay=MINUTE))
    replaced(corruptor, what)
    jobs = await fetched(store)
    jobs += await fetched(store)
    assert {job.spec.queue for job in jobs} >= {"a", "b"}
    of_others = [job for job in jobs if job.spec.queue != "bad"]
    assert len(of_others) == 4
    statuses = await store.extend([HeartbeatRequest(job.lease, LEASE, started=True) for job in of_others])
    assert statuses == [LeaseStatus.HELD] * 4
    assert await settled(store, of_others[:2]) == [Settled.APPLIED] * 2
    clock.advance(2 * MINUTE)
    await store.promote(queues, limit=9)
    assert await store.wait(queues, timeout=0) is Wake.WORK
    lost = await store.reclaim(queues, limit=9, lease=LEASE, worker="w2", token=token())
    assert {job.id for job in of_others[2:]} <= {job.id for job in lost.jobs}
    assert len([job for job in await fetched(store) if job.spec.queue != "bad"]) == 2
    await store.prune()
    assert {info.name for info in await store.queues()} >= {"a", "b"}
    assert len([line for line in caplog.messages if "'bad' waits" in line]) <= 1
    findings = [str(one) for one in await store.checkup() if one.what == "queue bad"]
    assert len(findings) == 1
    assert f"bad}}:{what}" in findings[0]


@pytest.mark.parametrize("what", ["meta", "errors", "jobs", "depth/minute"])
async def test_statistics_of_other_queues_are_kept_and_read(
    anywhere: tuple[RedisStore, RedisCorruptor], what: str
) -> None:
    store, corruptor = anywhere
    for queue in ("bad", "a"):
        await add(store, new(queue=queue))
    replaced(corruptor, what)
    count, error = TaskCount("t", TaskStats(started=1)), ErrorCount("g", "t", "E", "no", 1, "j")
    reports = [StatsReport(queue, "w1", 1, [count], [error]) for queue in ("bad", "a", "bad")]
    assert await store.add_stats(reports) == [True] * 3
    page = await store.read_stats(Resolution.MINUTE, span=HOUR)
    assert [row.stats.started for row in page.rows if row.queue == "a"] == [1]
    assert "a" in [group.queue for group in await store.read_errors()]
    assert "a" in [one.queue for one in await store.queue_sizes()]
    await store.sample_depths()
    depths = await store.read_depths(Resolution.MINUTE, span=HOUR)
    assert [row.depth.available for row in depths.rows if row.queue == "a"] == [1]


async def test_damaged_depths_are_left_out_and_begin_anew(
    store: RedisStore, corruptor: RedisCorruptor
) -> None:
    await add(store, new())
    few = msgspec.msgpack.encode(["a", "list", "of", "words", "as", "depth"])
    with corruptor.client() as client:
        for one in Resolution:
            places = {n: few if n % 2 else GARBAGE for n in range(one.kept)}
            client.hset(corruptor.key("default", f"depth/{one.value}"), mapping=places)
    assert (await store.read_depths(Resolution.HOUR, span=HOUR)).rows == []
    await store.sample_depths()
    for one in Resolution:
        (row,) = (await store.read_depths(one, span=HOUR)).rows
        assert row.depth == QueueDepth(1, 1, 0, 0, 1, 0), "a queue with records is not new"


async def test_records_of_depths_from_before_their_totals_are_read_and_get_one(
    store: RedisStore, corruptor: RedisCorruptor
) -> None:
    await add(store, new(), new())
    await store.sample_depths()
    with corruptor.client() as client:
        for one in Resolution:
            key = corruptor.key("default", f"depth/{one.value}")
            for place, record in client.hgetall(key).items():
                client.hset(key, place, msgspec.msgpack.encode(msgspec.msgpack.decode(record)[:6]))
        client.delete(corruptor.key("default", "depth/minute"))  # as in the next minute
    for one in (Resolution.HOUR, Resolution.DAY):
        (row,) = (await store.read_depths(one, span=HOUR)).rows
        assert row.depth == QueueDepth(1, 2, 0, 0, 2, None)
    await store.sample_depths()
    await add(store, new())
    for one in (Resolution.HOUR, Resolution.DAY):
        (row,) = (await store.read_depths(one, span=HOUR)).rows
        assert row.depth == QueueDepth(2, 4, 0, 0, 2, 1)


async def test_a_queue_whose_keys_are_repaired_continues(
    store: RedisStore, corruptor: RedisCorruptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.stores.redis.unusable_queues._PAUSE", 0.1)
    await add(store, new(queue="a"), new(queue="bad"))
    with corruptor.client() as client:
        before = client.dump(corruptor.key("bad", "ready"))
    replaced(corruptor, "ready")
    assert [job.spec.queue for job in await fetched(store)] == ["a"]
    assert await fetched(store) == []
    with corruptor.client() as client:
        client.restore(corruptor.key("bad", "ready"), 0, before, replace=True)
    async with asyncio.timeout(60):
        while not (jobs := await fetched(store)):
            await asyncio.sleep(0.01)
    assert [job.spec.queue for job in jobs] == ["bad"]


async def test_a_notification_counter_that_is_no_number_starts_again_and_works(
    store: RedisStore, corruptor: RedisCorruptor, redis: RedisServer, prefix: str
) -> None:
    (job, *_) = await five(store)
    other = RedisStore(f"{redis.url}?prefix={prefix}")
    await other.settings("default", paused=True)
    assert Wake.SETTINGS in await store.wait([], timeout=0)
    for _ in range(2):
        with corruptor.client() as client:
            client.hset(store._context.redis_keys.wake_counts, mapping={"cancels": "many", "changes": "many"})
        await other.cancel([job.ref])
        await other.settings("default", paused=False)
        assert Wake.SETTINGS in await store.wait([], timeout=0)
        await other.settings("default", paused=True)
        assert Wake.SETTINGS in await store.wait([], timeout=0)
    other.close()


async def test_unreadable_settings_are_reported_once(store: RedisStore, corruptor: RedisCorruptor) -> None:
    await store.settings("default", limits=LimitChange(max_running=1))
    await add(store, new())
    with corruptor.client() as client:
        client.hset(corruptor.key("default", "meta"), "limits", GARBAGE)
    told = [*(await store.prune()).set_aside, *(await store.prune()).set_aside]
    assert [(one.kind, one.queue) for one in told] == [("settings", "default")]
    await store.settings("default", limits=LimitChange(max_running=1))
    assert (await store.prune()).set_aside == ()
