"""A corrupted record affects only its own job: every verb sets it aside and continues with the others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import AttemptError, Job, NewJob, Progress, Ref, State
from penstock.core.lifecycle import UNREADABLE, Transition
from penstock.core.limits import LimitChange
from penstock.core.relations import BatchTerms, Partition, Tenant
from penstock.core.schedule import NewEntry, Schedule
from penstock.core.unique import UniqueKey
from penstock.stores.contract import (
    EnqueueStatus,
    HeartbeatRequest,
    Level,
    SetAside,
    Settled,
    Settlement,
    Share,
    Store,
    Tick,
    TickStatus,
    WorkerInfo,
)
from tests.store.corruptors import DETAILS, VANDALS, Corruptor
from tests.store.facts import (
    CANCELLED,
    COMPLETED,
    DAY,
    DEAD,
    HOUR,
    KEEP,
    LEASE,
    MINUTE,
    PARKED,
    new,
    retryable,
    token,
)

pytestmark = pytest.mark.parametrize("kind", sorted(VANDALS), indirect=True)

PARTITION = Partition("k", ordered=True)
#: Jobs of these options, and where they begin.
WAYS = {
    "available": {},
    "unique": {"unique": None},
    "of a tenant": {"tenant": Tenant("tenant")},
    "of a partition": {"partition": Partition("k", most=1_000)},
    "expiring": {"expires_in": HOUR},
    "scheduled": {"delay": MINUTE},
    "running": {},
    "retryable": {},
    "parked": {"task": "unknown"},
    "waiting": {"partition": PARTITION},
    "collecting": {"batch_terms": BatchTerms("", size=1_000, wait=MINUTE)},
}
ENDED = {"completed": COMPLETED, "cancelled": CANCELLED, "dead": DEAD}


@pytest.fixture
def corruptor(kind: str, home: Path) -> Corruptor:
    return VANDALS[kind](home)


class World:
    """A store with its jobs, some of which are spoiled, and what its answers said of these."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.set_aside: list[SetAside] = []

    async def add(self, way: str, id: str) -> Ref:
        """A job in that state, as far as it comes there by itself."""
        facts = {"task": "t", **WAYS[way]}
        if way == "unique":
            facts["unique"] = UniqueKey(id)
        (answer,) = await self.store.enqueue([NewJob(id=id, retention=KEEP, **facts)])
        assert answer.status is EnqueueStatus.NEW
        if way in ("running", "retryable", "parked"):
            (job,) = await self.fetch(worker="gone", limit=1)
            if way != "running":
                to = retryable() if way == "retryable" else PARKED
                assert await self.store.settle([Settlement(job.lease, to)]) == [Settled.APPLIED]
        return Ref("default", id)

    async def fetch(self, *, worker: str = "w", limit: int = 1_000) -> list[Job]:
        share = [Share("default", limit, limit)]
        found = await self.store.fetch(share, limit=limit, lease=LEASE, worker=worker, token=token())
        self.set_aside += found.set_aside
        return found.jobs

    async def live(self, rounds: int = 8) -> None:
        """All that workers do, until nothing is left to do."""
        for _ in range(rounds):
            await self.store.announce(_worker("w", tasks=("t", "unknown")))
            due = await self.store.promote(["default"], limit=1_000)
            self.set_aside += due.set_aside
            lost = await self.store.reclaim(["default"], limit=1_000, lease=LEASE, worker="w", token=token())
            self.set_aside += lost.set_aside
            jobs = [*lost.jobs, *await self.fetch()]
            for job in jobs:
                await self.store.extend([HeartbeatRequest(job.lease, LEASE, started=True)])
            answers = await self.store.settle([Settlement(job.lease, COMPLETED) for job in jobs])
            assert set(answers) <= {Settled.APPLIED}
            self.set_aside += (await self.store.prune()).set_aside
            self.clock.advance(MINUTE)

    async def check(self) -> dict[str, Job]:
        """All jobs, as every way of looking shows them; and the counts are true."""
        jobs: list[Job] = []
        after: str | None = None
        while True:
            page = await self.store.list_jobs(after=after, limit=7)
            jobs += page.jobs
            after = page.next
            if after is None:
                break
        (queue,) = [info for info in await self.store.queues() if info.name == "default"]
        assert queue.counts == dict(Counter(job.state for job in jobs))
        for state in queue.counts:
            listed = await self.store.list_jobs(queue="default", state=state, limit=1_000)
            assert len(listed.jobs) == queue.counts[state]
        assert await self.store.get([job.ref for job in jobs]) == jobs
        for job in jobs:
            assert await self.store.find(job.id) == [job]
            await self.store.partition(job.ref)
        await self.store.batches()
        await self.store.parked()
        return {job.id: job for job in jobs}


@pytest.fixture
def world(store: Store, clock: ManualClock) -> World:
    return World(store, clock)


def _worker(id: str, **facts: object) -> WorkerInfo:
    told = {"host": "h", "pid": 1, "started_at": 0, "queues": ("default",), "tasks": ("t",), "concurrency": 1}
    return WorkerInfo(id, **{**told, **facts})  # type: ignore[arg-type]


def _is_set_aside(job: Job) -> bool:
    return job.state is State.DEAD and (job.reason or "").startswith(UNREADABLE)


@pytest.mark.parametrize("way", WAYS)
async def test_a_spoiled_record_is_set_aside_and_all_others_run_on(
    world: World, corruptor: Corruptor, way: str
) -> None:
    store = world.store
    before = await world.add(way, "before")
    victims = {field: await world.add(way, f"spoiled-{n}") for n, field in enumerate(corruptor.record_fields)}
    after = await world.add(way, "after")
    for field, ref in victims.items():
        await corruptor.record(ref, field)
    await world.check()
    await world.live(rounds=len(victims) + 8 if way == "waiting" else 8)
    jobs = await world.check()
    spoiled = {ref.id for ref in victims.values()}
    assert {id for id, job in jobs.items() if _is_set_aside(job)} == spoiled
    assert jobs["before"].state is jobs["after"].state is State.COMPLETED
    assert sorted(one.id for one in world.set_aside) == sorted(spoiled)
    (stats,) = await store.stats()
    assert stats.failed == len(victims) + (len(victims) + 2 if way == "retryable" else 0)
    assert sum(day.failed for day in stats.days) == stats.failed
    idle = await store.promote(["default"], limit=10)
    assert (idle.moved, idle.next) == (0, None)
    assert await store.retry(list(victims.values())) == [State.DEAD] * len(victims)
    assert await store.delete([before, after, *victims.values()]) == [State.COMPLETED] * 2 + [
        State.DEAD
    ] * len(victims)
    assert await world.check() == {} or way == "collecting"  # the batch of the others


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", ["cancel", "retry", "reschedule", "discard", "complete", "delete"])
async def test_an_operator_who_meets_a_spoiled_record_changes_the_others_all_the_same(
    world: World, corruptor: Corruptor, way: str, verb: str
) -> None:
    good, bad, other = [await world.add(way, id) for id in ("good", "bad", "other")]
    await corruptor.record(bad, "all of it")
    answers = await getattr(world.store, verb)(
        [good, bad, other], **({"delay": DAY} if verb == "reschedule" else {})
    )
    assert None not in answers
    await world.check()
    await world.live()
    await world.store.delete([bad])
    assert await world.store.get([bad]) == [None]
    await world.check()


@pytest.mark.parametrize("way", ENDED)
async def test_an_ended_job_whose_record_is_spoiled_is_shown_and_goes_in_its_time(
    world: World, corruptor: Corruptor, way: str
) -> None:
    refs = [await world.add("available", f"j-{n}") for n in range(len(corruptor.record_fields) + 1)]
    jobs = await world.fetch()
    await world.store.settle([Settlement(job.lease, ENDED[way]) for job in jobs])
    for ref, field in zip(refs, corruptor.record_fields, strict=False):
        await corruptor.record(ref, field)
    await world.check()
    assert await world.store.retry([refs[0], refs[-1]]) == [State.DEAD, State(way)]
    await world.live(2)
    world.clock.advance(KEEP)
    await world.store.prune()
    assert set(await world.check()) <= {refs[0].id, refs[-1].id}


async def test_a_spoiled_job_gives_up_its_unique_key_its_partition_and_its_batch(
    world: World, corruptor: Corruptor
) -> None:
    store = world.store
    unique = NewJob("one", "t", unique=UniqueKey("k"), partition=Partition("l"), retention=KEEP)
    await store.enqueue([unique])
    await corruptor.record(Ref("default", "one"), "all of it")
    assert await world.fetch() == []
    assert [one.id for one in world.set_aside] == ["one"]
    (answer,) = await store.enqueue(
        [NewJob("two", "t", unique=UniqueKey("k"), partition=Partition("l"), retention=KEEP)]
    )
    assert answer.status is EnqueueStatus.NEW
    assert [job.id for job in await world.fetch()] == ["two"]


async def test_a_call_that_would_replace_a_spoiled_job_takes_its_place(
    world: World, corruptor: Corruptor
) -> None:
    store = world.store
    await store.enqueue([NewJob("one", "t", unique=UniqueKey("k"), delay=HOUR)])
    await corruptor.record(Ref("default", "one"), "its end")
    (answer,) = await store.enqueue([NewJob("two", "t", unique=UniqueKey("k", replace=3))])
    assert answer.status is EnqueueStatus.NEW
    assert [job.id for job in await world.fetch()] == ["two"]


async def test_a_batch_whose_record_is_spoiled_ends_with_its_members_who_can_be_retried(
    world: World, corruptor: Corruptor
) -> None:
    store, two = world.store, BatchTerms("", size=2, wait=MINUTE)
    await store.enqueue([NewJob(id, "t", b"[1]", batch_terms=two, retention=KEEP) for id in ("a", "b")])
    (batch,) = [job for job in (await store.list_jobs()).jobs if job.members]
    await corruptor.record(batch.ref, "all of it")
    assert await world.fetch() == []
    jobs = await world.check()
    assert {job.state for job in jobs.values()} == {State.DEAD}
    assert all((job.reason or "").startswith(UNREADABLE) for job in jobs.values())
    assert await store.retry([Ref("default", "a")]) == [State.DEAD]
    (again,) = await world.fetch()
    assert again.members == ("a",)


@pytest.mark.parametrize("field", DETAILS)
@pytest.mark.parametrize("way", ["running", "retryable", "parked", "available"])
async def test_a_job_runs_without_the_details_that_cannot_be_read(
    world: World, corruptor: Corruptor, way: str, field: str
) -> None:
    refs = [await world.add(way, id) for id in ("good", "bad", "other")]
    if way == "running":
        lost = await world.store.reclaim([], limit=9, lease=1, worker="x", token=token(), of=["gone"])
        await world.store.extend([HeartbeatRequest(job.lease, 1, progress=Progress(1)) for job in lost.jobs])
    await corruptor.detail(refs[1], field)
    await world.check()
    await world.live()
    jobs = await world.check()
    assert {job.state for job in jobs.values()} == {State.COMPLETED}
    assert world.set_aside == []


async def test_an_attempt_fails_as_any_other_though_its_error_history_cannot_be_read(
    world: World, corruptor: Corruptor
) -> None:
    ref = await world.add("running", "j")
    (job,) = await world.store.get([ref])
    assert job is not None
    await corruptor.detail(ref, "errors")
    to = retryable()
    assert await world.store.settle([Settlement(job.lease, to)]) == [Settled.APPLIED]
    (after,) = await world.store.get([ref])
    assert after is not None
    assert after.state is State.RETRYABLE
    assert to.error is not None
    assert after.errors[-1] == to.error


async def test_progress_that_no_store_can_keep_does_not_cost_the_lease(world: World) -> None:
    refs = [await world.add("running", id) for id in ("a", "b")]
    jobs = [job for job in await world.store.get(refs) if job is not None]
    requests = [
        HeartbeatRequest(job.lease, LEASE, progress=Progress(bad))
        for job, bad in zip(jobs, ("50%", 10**30), strict=True)
    ]  # type: ignore[arg-type]
    assert [str(status) for status in await world.store.extend(requests)] == ["held", "held"]
    assert set(await world.check()) == {"a", "b"}


async def test_a_worker_whose_record_is_spoiled_is_listed_and_stands_in_nobodys_way(
    world: World, corruptor: Corruptor, clock: ManualClock
) -> None:
    store = world.store
    parked = await world.add("parked", "p")
    await store.announce(_worker("w-1", tasks=("unknown",)))
    await store.announce(_worker("w-2"))
    await corruptor.worker("w-1")
    shown = {info.id: info.state for info in await store.workers()}
    assert shown == {"w-1": "unreadable", "w-2": "running"}
    assert await world.fetch(worker="w-1") == []
    await store.announce(_worker("w-1", tasks=("unknown",)))
    assert [job.ref for job in await world.fetch(worker="w-1")] == [parked]
    await corruptor.worker("w-1")
    clock.advance(2 * MINUTE)
    assert (await store.prune()).workers == 2
    assert await store.workers() == []


async def test_a_periodic_entry_that_is_spoiled_is_never_due_and_the_others_are(
    world: World, corruptor: Corruptor, clock: ManualClock
) -> None:
    store = world.store
    specs = [NewEntry(name, NewJob("", "t"), Schedule.of(every="1m")) for name in ("bad", "good")]
    await store.put_entries(specs)
    ref = Ref("default", "bad")
    await corruptor.entry(ref)
    table = await store.entries(["default"])
    bad, good = table.entries
    assert bad.ref == ref
    assert bad.unreadable
    assert bad.paused
    ticks = [
        Tick(entry.ref, entry.revision, entry.watermark, clock.now(), 0, jobs=(new(f"{entry.spec.name}@"),))
        for entry in table.entries
    ]
    answers = await store.tick(ticks)
    assert answers[0].status is not TickStatus.APPLIED
    assert answers[1].enqueued == ("good@",)
    assert good.unreadable is None
    (mended,) = await store.put_entries(specs[:1])
    assert mended.spec == specs[0]
    await corruptor.entry(ref)
    assert [entry is not None for entry in await store.pause_entries([ref], paused=True)] == [True]
    assert await store.delete_entries([ref]) == [True]
    assert [entry.spec.name for entry in (await store.entries()).entries] == ["good"]


async def test_settings_that_are_spoiled_count_as_not_set_and_can_be_set_anew(
    world: World, corruptor: Corruptor
) -> None:
    store = world.store
    await store.settings("default", limits=LimitChange(max_running=1))
    await store.settings("other", limits=LimitChange(max_running=1))
    await corruptor.settings("default")
    await world.add("available", "a")
    await world.add("available", "b")
    assert len(await world.fetch()) == 2
    infos = {info.name: info.limits.max_running for info in await store.queues()}
    assert infos == {"default": None, "other": 1}
    said = [str(finding) for finding in await store.checkup() if finding.level is not Level.FINE]
    assert any("default" in text and "settings" in text for text in said)
    await store.prune()
    info = await store.settings("default", limits=LimitChange(max_running=5))
    assert info.limits.max_running == 5
    assert not any("settings" in str(finding) for finding in await store.checkup())


async def test_an_end_that_cannot_be_put_down_as_it_is_costs_no_other_its_end(world: World) -> None:
    refs = [await world.add("running", id) for id in ("before", "number", "error", "for ever", "after")]
    jobs = [job for job in await world.store.get(refs) if job is not None]
    number: Any = 404
    ends = [
        COMPLETED,
        Transition(State.CANCELLED, keep=KEEP, reason=number),
        Transition(State.DEAD, keep=KEEP, error=AttemptError(1, 5, number, number, number), reason="no"),
        Transition(State.COMPLETED, keep=2**63 - 1),
        COMPLETED,
    ]
    answers = await world.store.settle(
        [Settlement(job.lease, to) for job, to in zip(jobs, ends, strict=True)]
    )
    assert [answers[n] for n in (0, 1, 2, 4)] == [Settled.APPLIED] * 4
    found = await world.check()
    assert found["before"].state is found["after"].state is State.COMPLETED
    assert (found["number"].state, found["number"].reason) == (State.CANCELLED, "404")
    assert found["error"].errors[-1].message == "404"
    assert found["for ever"].ended
