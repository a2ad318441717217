"""A Cluster without full coverage has lost a master: the other queues continue."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.schedule import NewEntry, Schedule
from penstock.errors import StoreUnavailable
from penstock.inspector import Inspector, JobSearch
from penstock.stores.contract import (
    EnqueueStatus,
    HeartbeatRequest,
    JobFilter,
    LeaseStatus,
    Settled,
    Settlement,
    Share,
    Wake,
    WorkerInfo,
)
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.wire.calls import Call
from tests.servers import Cluster, redis_cluster
from tests.store.facts import new

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LEASE = 60_000
DONE = Transition(State.COMPLETED)


@dataclass
class Place:
    """A store with jobs in a lost queue, and in one whose master lives."""

    cluster: Cluster
    namespace: str
    lost: str
    well: str
    store: RedisStore = field(init=False)
    leased: dict[str, list[Job]] = field(default_factory=dict)

    def open(self) -> RedisStore:
        return RedisStore(self.cluster.url, namespace=self.namespace)

    @property
    def both(self) -> list[str]:
        return [self.lost, self.well]  # the lost one first: whoever asks in turn meets it first

    async def prepare(self) -> None:
        store = self.open()
        for queue in self.both:
            await store.enqueue([new(queue=queue) for _ in range(20)])
            await store.enqueue([new(queue=queue, delay=300) for _ in range(3)])
            found = await store.fetch([Share(queue, 5, 5)], limit=5, lease=LEASE, worker="w", token=queue)
            self.leased[queue] = found.jobs
            short = await store.fetch(
                [Share(queue, 2, 2)], limit=2, lease=500, worker="x", token=queue + "-s"
            )
            assert len(short.jobs) == 2
        store.close()
        await asyncio.sleep(0.6)  # the delayed ones are due, the short leases over


def placed(cluster: Cluster, whose: str) -> Place:
    """`whose` slot is lost: that of a queue alone, or of the namespace as well."""

    def at(namespace: str, queue: str) -> Any:
        return cluster.holder(f"penstock:4:{{{namespace}/{queue}}}")

    for n in itertools.count():
        namespace = f"n{n}"
        home = at(namespace, "")
        other = next(q for q in map("q{}".format, itertools.count()) if at(namespace, q) is not home)
        same = next(q for q in map("q{}".format, itertools.count()) if at(namespace, q) is home)
        return Place(cluster, namespace, *((same, other) if whose == "namespace" else (other, same)))
    raise AssertionError


@pytest.fixture(scope="module", params=["queue", "namespace"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    partial_coverage = "cluster-require-full-coverage no"
    with redis_cluster(partial_coverage, replicas=0, node_timeout=5_000, appendonly=True) as cluster:
        place = placed(cluster, request.param)
        asyncio.run(place.prepare())
        cluster.holder(f"penstock:4:{{{place.namespace}/{place.lost}}}").kill()
        yield place


@pytest.fixture
def store(place: Place) -> Iterator[RedisStore]:
    store = place.open()
    yield store
    store.close()


async def fetch(store: RedisStore, place: Place, limit: int = 1) -> list[Job]:
    shares = [Share(queue, limit, limit) for queue in place.both]
    token = f"t{time.monotonic_ns()}"
    return (await store.fetch(shares, limit=limit, lease=LEASE, worker="w", token=token)).jobs


async def test_a_fetch_brings_what_the_others_have(
    place: Place, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sent = store._runner.run, list[Call]()

    async def noted(calls: Sequence[Call], **options: Any) -> list[Any]:
        sent.extend(calls)
        return await run(calls, **options)

    monkeypatch.setattr(store._runner, "run", noted)
    jobs = await fetch(store, place, 2)
    before = len(sent)
    jobs += await fetch(store, place, 1)
    assert [job.queue for job in jobs] == [place.well] * 3
    assert asks_for(store, place.lost, sent[:before])
    assert asks_for(store, place.well, sent[before:])
    assert not asks_for(store, place.lost, sent[before:]), "only the first call that meets it waits for it"


def asks_for(store: RedisStore, queue: str, calls: Sequence[Call]) -> bool:
    key = store._context.redis_keys.queue(queue)
    return any(one.startswith(key) for call in calls for one in call.redis_keys)


async def test_a_worker_of_lost_queues_only_gets_an_error(place: Place, store: RedisStore) -> None:
    for n in range(2):
        token = f"{place.namespace}-{place.lost}-{n}"
        with pytest.raises(StoreUnavailable):
            await store.fetch([Share(place.lost, 1, 1)], limit=1, lease=LEASE, worker="w", token=token)


async def test_leases_of_both_are_extended_one_by_one(place: Place, store: RedisStore) -> None:
    requests = [HeartbeatRequest(place.leased[queue][0].lease, LEASE) for queue in place.both]
    assert await store.extend(requests) == [LeaseStatus.UNKNOWN, LeaseStatus.HELD]


async def test_outcomes_of_both_are_settled_one_by_one(place: Place, store: RedisStore) -> None:
    settlements = [Settlement(place.leased[queue][1].lease, DONE) for queue in place.both]
    assert await store.settle(settlements) == [Settled.UNKNOWN, Settled.APPLIED]
    assert await store.settle(settlements[:1]) == [Settled.UNKNOWN]


async def test_a_follower_in_a_lost_queue_waits_and_holds_up_no_outcome(
    place: Place, store: RedisStore
) -> None:
    settlement = Settlement(place.leased[place.well][2].lease, DONE, None, (new(queue=place.lost),))
    assert await store.settle([settlement]) == [Settled.APPLIED]
    assert (await store.prune(limit=10)) is not None


async def test_what_is_due_is_promoted(place: Place, store: RedisStore) -> None:
    assert (await store.promote(place.both, limit=100)).moved == 3


async def test_leases_that_are_over_are_reclaimed(place: Place, store: RedisStore) -> None:
    found = await store.reclaim(place.both, limit=10, lease=LEASE, worker="r", token="r")
    assert [job.queue for job in found.jobs] == [place.well] * 2
    assert found.now > 0


async def test_the_jobs_of_a_dead_worker_are_taken_back(place: Place, store: RedisStore) -> None:
    job = place.leased[place.well][3]
    await store.settle([Settlement(job.lease, Transition(State.AVAILABLE, charge=False))])
    token = f"d{time.monotonic_ns()}"
    shares = [Share(place.well, 1, 1)]
    (mine,) = (await store.fetch(shares, limit=1, lease=LEASE, worker="dead", token=token)).jobs
    fresh = place.open()
    await fetch(fresh, place)  # a worker knows its queues, also where the list of all is lost
    found = await fresh.reclaim((), limit=10, lease=LEASE, worker="r", token="r2", of=["dead"])
    assert [one.id for one in found.jobs] == [mine.id]
    fresh.close()


async def test_waiters_are_notified_of_work_and_of_no_work(place: Place, store: RedisStore) -> None:
    assert Wake.WORK in await store.wait(place.both, timeout=30_000)
    idle = f"idle-{place.well}"
    assert await store.wait([place.lost, idle], timeout=300) is Wake.NOTHING


async def test_a_new_producer_enqueues_to_the_others(place: Place) -> None:
    for _ in range(2):
        store = place.open()
        (answer,) = await store.enqueue([new(queue=place.well)])
        assert answer.status is EnqueueStatus.NEW
        store.close()


def test_a_new_producer_in_a_thread_does_too(place: Place) -> None:
    store = place.open()
    for _ in range(2):
        (answer,) = store.sync.enqueue([new(queue=place.well)])
        assert answer.status is EnqueueStatus.NEW
    store.close()


async def test_of_jobs_for_both_each_has_its_answer(place: Place, store: RedisStore) -> None:
    answers = await store.enqueue([new(queue=queue) for queue in place.both])
    assert [answer.status for answer in answers] == [EnqueueStatus.FAILED, EnqueueStatus.NEW]


async def test_a_worker_announces_itself_and_leaves(place: Place, store: RedisStore) -> None:
    info = WorkerInfo(
        id="me", host="h", pid=1, started_at=1, queues=tuple(place.both), tasks=(), concurrency=1, running=0
    )
    await store.announce(info)
    assert {worker.id for worker in await store.workers()} <= {"me"}  # the reclaimer lives on this, too
    await store.retire("me")


async def test_periodic_entries_of_the_others_tick(place: Place, store: RedisStore) -> None:
    jobs = [NewJob(id="", task="t", queue=queue) for queue in place.both]
    specs = [NewEntry("hourly", job, Schedule("0 * * * *")) for job in jobs]
    with pytest.raises(StoreUnavailable):
        await store.put_entries(specs)  # those of the others are put
    (entry,) = (await store.entries(place.both)).entries
    assert entry.ref.queue == place.well


async def test_queues_are_listed_and_those_that_are_lost_say_so(place: Place, store: RedisStore) -> None:
    await fetch(store, place, 0)
    infos = {info.name: info for info in await store.queues()}
    assert place.well in infos
    assert infos[place.well].away == ""
    assert infos[place.lost].away
    assert await store.stats()
    assert await store.parked() == []
    assert await store.batches() == []
    assert {job.queue for job in (await store.list_jobs(limit=500)).jobs} == {place.well}
    page = await store.search(JobFilter(), limit=500)
    assert ({job.queue for job in page.jobs}, page.away) == ({place.well}, (place.lost,))
    steps = [step async for step in Inspector(store).search(JobSearch(JobFilter(text="nowhere")))]
    assert steps[-1].away == (place.lost,)


async def test_an_id_that_is_nowhere_else_may_be_in_the_lost_queue(place: Place, store: RedisStore) -> None:
    await fetch(store, place, 0)
    (found,) = await store.find(place.leased[place.well][4].id)
    assert found.queue == place.well
    with pytest.raises(StoreUnavailable):
        await store.find(place.leased[place.lost][4].id)


@pytest.mark.parametrize("door", ["async", "sync"])
async def test_the_ends_of_the_other_jobs_are_reported(place: Place, store: RedisStore, door: str) -> None:
    ended, lost = new(queue=place.well), place.leased[place.lost][0]
    await store.enqueue([ended])
    await store.cancel([ended.ref])
    refs = [lost.ref, ended.ref]

    def in_thread() -> dict[Ref, Job | None]:
        return next(iter(store.sync.stream_ends(refs, timeout=20_000)))

    if door == "sync":
        some = await asyncio.to_thread(in_thread)
    else:
        some = await anext(aiter(store.stream_ends(refs, timeout=20_000)))
    assert list(some) == [ended.ref]


async def test_it_is_said_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock"):
        store = place.open()
        for _ in range(5):
            await fetch(store, place)
            await store.promote(place.both, limit=1)
        await store.prune()
        store.close()
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert 1 <= len(said) <= 2  # the queue, and the namespace if its slot is lost too
    assert f"queue {place.lost!r}" in caplog.text


async def test_when_its_master_is_back_its_work_goes_on(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    store = place.open()
    await fetch(store, place)
    with caplog.at_level(logging.INFO, "penstock"):
        await asyncio.to_thread(
            lambda: [one.start_again() for one in place.cluster.servers if not one.running]
        )
        place.cluster.wait_ready()
        until = time.monotonic() + 60
        while place.lost not in {job.queue for job in await fetch(store, place, 30)}:
            assert time.monotonic() < until, "the lost queue's work does not go on"
            await asyncio.sleep(0.1)
    assert "is available again" in caplog.text
    assert {info.name for info in await place.open().queues()} >= set(place.both)
    store.close()
