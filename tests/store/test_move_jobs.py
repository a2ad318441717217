"""move_jobs: a queued job goes to another queue, exactly once."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from penstock.core.changes import moved_spec
from penstock.core.clock import ManualClock
from penstock.core.errors import ConfigError
from penstock.core.job import QUEUED, TERMINAL, Job, NewJob, Ref, State
from penstock.core.limits import LimitChange
from penstock.core.relations import FlowMember, Partition
from penstock.core.unique import UniqueKey
from penstock.stores.contract import (
    Enqueued,
    EnqueueStatus,
    HeartbeatRequest,
    JobEdit,
    JobMove,
    LeaseStatus,
    Store,
    Wake,
)
from tests.cases import each
from tests.store.facts import (
    HOUR,
    LEASE,
    MINUTE,
    OpenStore,
    add,
    asleep,
    counts,
    end,
    gone,
    in_state,
    member,
    new,
    retryable,
    running,
    some,
    take,
    take_one,
    the,
)

NEW, EXISTS, CLOSED, FULL = EnqueueStatus.NEW, EnqueueStatus.EXISTS, EnqueueStatus.CLOSED, EnqueueStatus.FULL


def moved(job: Job, to: str = "other") -> JobMove:
    return JobMove(job, moved_spec(job, to), job.errors, job.checkpoint)


async def move(store: Store, *jobs: Job, to: str = "other") -> list[EnqueueStatus | None]:
    answers = await store.move_jobs([moved(job, to) for job in jobs])
    return [None if one is None else one.status for one in answers]


@each("state", sorted(QUEUED))
async def test_a_queued_job_is_in_the_other_queue_only(
    store: Store, clock: ManualClock, state: State
) -> None:
    job = await in_state(store, state, payload=b"[[7]]", headers={"a": "b"}, expires_in=HOUR)
    clock.advance(5)
    assert await move(store, job) == [NEW]
    assert await gone(store, job)
    now = await the(store, Ref("other", job.id))
    later = state in (State.SCHEDULED, State.RETRYABLE)
    expected = (
        State.SCHEDULED if later else State.COLLECTING if state is State.COLLECTING else State.AVAILABLE
    )
    assert now.state is expected
    assert (now.spec.payload, now.spec.headers, now.spec.task) == (b"[[7]]", {"a": "b"}, "t")
    assert (now.attempt, now.lost, now.errors) == (job.attempt, job.lost, job.errors)
    assert (now.expires_at, now.enqueued_at) == (job.expires_at, clock.now())
    assert now.run_at == (job.run_at if later else clock.now())
    assert await counts(store) == {}
    assert await counts(store, "other") == {expected: 1}


@each("state", sorted(TERMINAL | {State.RUNNING, State.SUSPENDED}))
async def test_a_job_that_is_not_queued_stays_where_it_is(store: Store, state: State) -> None:
    job = await in_state(store, state)
    assert await move(store, job) == [None]
    assert await the(store, job) == job
    assert await gone(store, Ref("other", job.id))


async def test_a_moved_job_goes_on_with_its_attempts_and_never_starts_early(
    store: Store, clock: ManualClock
) -> None:
    job = await running(store, max_attempts=5)
    assert await store.extend([HeartbeatRequest(job.lease, LEASE, checkpoint=b"42")]) == [LeaseStatus.HELD]
    await end(store, job, retryable(MINUTE))
    assert await move(store, await the(store, job)) == [NEW]
    clock.advance(MINUTE - 1)
    await store.promote(["other"], limit=9)
    assert await take(store, 9, "other") == []
    clock.advance(1)
    await store.promote(["other"], limit=9)
    again = await take_one(store, "other")
    assert (again.id, again.attempt, again.checkpoint) == (job.id, 2, b"42")
    assert [one.message for one in again.errors] == ["no luck"]
    await end(store, again, retryable())
    assert len((await the(store, again)).errors) == 2


async def test_of_two_movers_one_succeeds(open_store: OpenStore, store: Store) -> None:
    await add(store, *some(6))
    jobs, other = (await store.list_jobs()).jobs, open_store()
    one, two = await asyncio.gather(move(store, *jobs, to="one"), move(other, *jobs, to="two"))
    assert [sorted([a is NEW, b is NEW]) for a, b in zip(one, two, strict=True)] == [[False, True]] * 6
    assert sum((await counts(store, "one")).values()) + sum((await counts(store, "two")).values()) == 6
    assert await counts(store) == {}


async def test_a_mover_and_a_worker_never_both_have_the_job(open_store: OpenStore, store: Store) -> None:
    await add(store, *some(8))
    jobs, other = (await store.list_jobs()).jobs, open_store()
    leased, answers = await asyncio.gather(take(other, 5), move(store, *jobs))
    went = {job.id for job, answer in zip(jobs, answers, strict=True) if answer is NEW}
    assert went.isdisjoint(job.id for job in leased)
    assert {job.id for job in await take(store, 9, "other")} == went
    rest = {job.id for job in await take(store, 9)}
    assert len(went) + len(leased) + len(rest) == 8


async def test_a_job_that_was_edited_or_moved_since_it_was_seen_stays(store: Store) -> None:
    job = await in_state(store, State.AVAILABLE)
    await store.edit_jobs([JobEdit(job, replace(job.spec, payload=b"1"))])
    assert await move(store, job) == [None]
    job = await the(store, job)
    assert await move(store, job) == [NEW]
    assert await move(store, job) == [None]
    assert (await the(store, Ref("other", job.id))).spec.payload == b"1"
    assert await counts(store, "other") == {State.AVAILABLE: 1}


async def test_a_queue_that_cannot_take_the_job_leaves_it(store: Store) -> None:
    one, two = await in_state(store, State.SCHEDULED), await in_state(store, State.SCHEDULED)
    await add(store, new(one.id, queue="taken"))
    assert await move(store, one, to="taken") == [EXISTS]
    await store.settings("closed", closed=True)
    assert await move(store, one, to="closed") == [CLOSED]
    await store.settings("full", limits=LimitChange.of(max_size=1))
    answers = await store.move_jobs([moved(one, "full"), moved(two, "full")])
    assert [None if a is None else (a.status, a.size) for a in answers] == [(NEW, None), (FULL, 1)]
    assert await the(store, two) == two


async def test_a_unique_key_goes_with_the_job_unless_it_is_held_there(store: Store) -> None:
    one, two = [
        await in_state(store, State.SCHEDULED, unique=UniqueKey(f"u{n}", replace=3)) for n in range(2)
    ]
    await add(store, new("holder", queue="other", unique=UniqueKey("u1")))
    assert await move(store, one, two) == [NEW, NEW]
    assert (await the(store, Ref("other", "holder"))).spec.payload == b"{}", "it replaces nothing"
    again = [
        new(queue=queue, unique=UniqueKey(key)) for queue in ("default", "other") for key in ("u0", "u1")
    ]
    answers = await store.enqueue(again)
    assert [one.status for one in answers[:2]] == [NEW, NEW]
    assert answers[2:] == [
        Enqueued(EnqueueStatus.DUPLICATE, one.id),
        Enqueued(EnqueueStatus.DUPLICATE, "holder"),
    ]


async def test_partitions_and_batches_are_those_of_the_new_queue(store: Store) -> None:
    await running(store, queue="other", partition=Partition("k", 1))
    first = await running(store, partition=Partition("k", 1))
    second = new(partition=Partition("k", 1))
    await add(store, second)
    assert await move(store, await the(store, second)) == [NEW]
    assert (await the(store, Ref("other", second.id))).state is State.WAITING
    one, two = member(size=2), member(size=2)
    await add(store, one, replace(two, queue="other"))
    assert await move(store, await the(store, one)) == [NEW]
    assert (await the(store, Ref("other", one.id))).in_batch
    assert (await the(store, first)).state is State.RUNNING


async def test_a_batch_and_a_node_of_a_flow_are_not_moved(store: Store) -> None:
    one, two = member(size=2), member(size=2)
    await add(store, one, two)
    batch = await take_one(store)
    assert await move(store, await the(store, one)) == [None], "a member goes with its batch"
    node = Job(NewJob("x", "t", flow=FlowMember("default", "f", 0)), State.AVAILABLE)
    here = await in_state(store, State.SCHEDULED)
    for job, to in ((batch, "other"), (node, "other"), (here, "default")):
        with pytest.raises(ConfigError):
            await move(store, job, to=to)


async def test_a_waiter_of_the_new_queue_is_woken(store: Store) -> None:
    job = await in_state(store, State.AVAILABLE)
    await store.settings("other", paused=False)
    wait = asyncio.create_task(store.wait(["other"], timeout=20_000))
    await asleep(wait)
    await move(store, job)
    assert Wake.WORK in await wait


async def test_a_job_may_move_there_and_back(store: Store) -> None:
    job = await in_state(store, State.AVAILABLE)
    for to in ("other", "default", "other"):
        assert await move(store, job, to=to) == [NEW]
        job = await the(store, Ref(to, job.id))
    assert (await take_one(store, "other")).id == job.id
    assert await take(store, 9) == []


async def test_a_job_that_does_not_exist_is_not_moved(store: Store) -> None:
    assert await move(store, Job(NewJob("nobody", "t"), State.AVAILABLE)) == [None]
    assert await store.move_jobs([]) == []
