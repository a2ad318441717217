"""What a job remembers: one step at a time, under its lease."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.app.deciding import STEP_FAILED, UNDO_AFTER, Loss, failure_of, settle_reclaimed
from penstock.core.clock import ManualClock
from penstock.core.job import Lease, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.limits import LimitChange
from penstock.core.relations import Partition
from penstock.inspector import Inspector
from penstock.stores.contract import (
    LARGEST_MEMORY,
    MOST_STEPS,
    STEP_UNDO,
    HeartbeatRequest,
    RecordedStep,
    RecordStatus,
    Settled,
    Settlement,
    SignalWait,
    StepRecord,
    Store,
    StoredStep,
)
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    COMPLETED,
    DEAD,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    add,
    end,
    member,
    new,
    next_jobs,
    suspended,
    take,
    take_one,
    token,
)

STORED, LOST, FULL = (
    RecordedStep(status) for status in (RecordStatus.STORED, RecordStatus.LOST, RecordStatus.FULL)
)


async def record(store: Store, lease: Lease, name: str, value: bytes = b"1", by: int = LEASE) -> RecordedStep:
    (answer,) = await store.record_steps([StepRecord(lease, name, value, by)])
    return answer


async def remembered(store: Store, ref: Ref) -> dict[str, bytes | None]:
    return {step.name: step.value for step in await store.steps(ref)}


async def state_of(store: Store, ref: Ref) -> State | None:
    (job,) = await store.get([ref])
    return None if job is None else job.state


# ── steps ──


async def test_steps_come_back_in_the_order_in_which_they_were_stored(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    names = ["pay", "näme", "a", "pay#2"]
    for name in names:
        clock.advance(SECOND)
        assert await record(store, job.lease, name, bytes(range(256)) + name.encode()) == STORED
    assert await store.steps(job.ref) == [
        StoredStep(name, clock.now() - (3 - n) * SECOND, bytes(range(256)) + name.encode())
        for n, name in enumerate(names)
    ]


async def test_the_first_value_of_a_step_stays(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    assert await record(store, job.lease, "pay", b"1") == STORED
    assert await record(store, job.lease, "pay", b"2") == RecordedStep(RecordStatus.EXISTS, b"1")
    assert await remembered(store, job.ref) == {"pay": b"1"}


async def test_an_empty_value_is_a_value(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    assert await record(store, job.lease, "pay", b"") == STORED
    assert await record(store, job.lease, "pay", b"2") == RecordedStep(RecordStatus.EXISTS, b"")


async def test_a_lost_lease_stores_no_step(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    clock.advance(LEASE + SECOND)
    (again,) = (await store.reclaim(["default"], limit=1, lease=LEASE, worker="w2", token=token())).jobs
    assert await record(store, job.lease, "pay") == LOST
    assert await store.steps(job.ref) == []
    assert await record(store, again.lease, "pay") == STORED


async def test_an_unknown_job_stores_no_step(store: Store) -> None:
    await add(store, new("a"))
    lease = (await take_one(store)).lease
    for other in (
        Lease(lease.queue, lease.id, "other", lease.generation),
        Lease(lease.queue, "b", lease.token, lease.generation),
        Lease("nowhere", lease.id, lease.token, lease.generation),
        Lease(lease.queue, lease.id, lease.token, lease.generation + 1),
    ):
        assert await record(store, other, "pay") == LOST
    assert await store.steps(Ref("nowhere", "a")) == await store.steps(Ref("default", "b")) == []


async def test_a_step_extends_the_lease(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    clock.advance(LEASE - SECOND)
    await record(store, job.lease, "pay")
    clock.advance(LEASE - SECOND)
    assert (await store.reclaim(["default"], limit=1, lease=LEASE, worker="w2", token=token())).jobs == []
    clock.advance(2 * SECOND)
    assert len((await store.reclaim(["default"], limit=1, lease=LEASE, worker="w2", token=token())).jobs) == 1


async def test_steps_stay_through_retries_and_death(store: Store) -> None:
    await add(store, new("a"))
    for n, ending in enumerate((AGAIN, DEAD)):
        job = await take_one(store)
        assert await record(store, job.lease, f"step-{n}") == STORED
        await end(store, job, ending)
    await store.retry([Ref("default", "a")])
    job = await take_one(store)
    assert await remembered(store, job.ref) == {"step-0": b"1", "step-1": b"1"}


@each("way", ["removed", "deleted", "purged", "pruned"])
async def test_steps_go_with_their_job(store: Store, clock: ManualClock, way: str) -> None:
    await add(store, new("a"), new("b"))
    job, other = await take(store, 2)
    assert await record(store, job.lease, "pay") == await record(store, other.lease, "pay") == STORED
    if way == "removed":
        await end(store, job, Transition(State.COMPLETED))
    elif way == "deleted":
        await store.delete([job.ref], running=True)
    else:
        await end(store, job, COMPLETED)
        clock.advance(2 * HOUR)
        if way == "purged":
            await store.purge("default", states=[State.COMPLETED], limit=10)
        else:
            await store.prune(limit=10, keep_finished=10, keep_dead=10)
    assert await state_of(store, job.ref) is None
    await add(store, new("a"))
    assert await store.steps(job.ref) == []
    assert await remembered(store, other.ref) == {"pay": b"1"}


async def test_plain_jobs_settle_beside_jobs_with_steps(store: Store) -> None:
    await add(store, *(new(f"j{n}") for n in range(6)))
    jobs = await take(store, 6)
    for job in jobs[::2]:
        await record(store, job.lease, "pay")
    settled = await store.settle([Settlement(job.lease, Transition(State.COMPLETED)) for job in jobs])
    assert settled == [Settled.APPLIED] * 6
    assert [await state_of(store, job.ref) for job in jobs] == [None] * 6
    await add(store, *(new(f"j{n}") for n in range(6)))
    assert [await store.steps(job.ref) for job in jobs] == [[]] * 6


async def test_a_job_remembers_a_bounded_number_of_bytes(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    assert await record(store, job.lease, "large", bytes(LARGEST_MEMORY)) == FULL
    assert await record(store, job.lease, "b", bytes(LARGEST_MEMORY - 1)) == STORED
    assert await record(store, job.lease, "c", b"") == FULL
    assert await record(store, job.lease, "b", b"") == RecordedStep(
        RecordStatus.EXISTS, bytes(LARGEST_MEMORY - 1)
    )


async def test_a_job_remembers_a_bounded_number_of_steps(store: Store) -> None:
    await add(store, new("a"))
    lease = (await take_one(store)).lease
    for first in range(0, MOST_STEPS, 2_000):
        records = [StepRecord(lease, str(first + n), b"", LEASE) for n in range(2_000)]
        assert set(await store.record_steps(records)) == {STORED}
    assert await record(store, lease, "more") == FULL
    assert len(await store.steps(Ref("default", "a"))) == MOST_STEPS


async def test_steps_in_other_threads(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    answers = await asyncio.to_thread(store.sync.record_steps, [StepRecord(job.lease, "pay", b"1", LEASE)])
    assert answers == [STORED]
    assert [step.name for step in await asyncio.to_thread(store.sync.steps, job.ref)] == ["pay"]


# ── suspended ──


async def test_a_suspended_job_waits_until_it_is_due(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await end(store, job, suspended(MINUTE))
    (kept,) = await store.get([job.ref])
    assert kept is not None
    assert (kept.state, kept.attempt, kept.token, kept.run_at) == (
        State.SUSPENDED,
        0,
        None,
        clock.now() + MINUTE,
    )
    assert await take(store) == []
    due = await store.promote(["default"], limit=10)
    assert (due.moved, due.next) == (0, clock.now() + MINUTE)
    clock.advance(MINUTE)
    assert (await store.promote(["default"], limit=10)).moved == 1
    again = await take_one(store)
    assert (again.id, again.attempt, again.generation) == (job.id, 1, job.generation)


async def test_a_suspended_job_is_resumed_beside_a_batch_that_is_due(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new("a"))
    await end(store, await take_one(store), suspended(MINUTE))
    await add(store, member("b", wait=SECOND))
    clock.advance(MINUTE)
    await store.promote(["default"], limit=10)
    await store.promote(["default"], limit=10)
    assert {job.id for job in await take(store, 2)} == {"a", "b.batch"}


async def test_suspending_keeps_the_attempts_and_crashes_of_before(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    await end(store, await take_one(store), Transition(State.AVAILABLE, lost=True))
    await end(store, await take_one(store), suspended(0))
    await store.promote(["default"], limit=10)
    job = await take_one(store)
    assert (job.attempt, job.lost) == (2, 1)


async def test_a_suspended_job_uses_no_capacity(store: Store) -> None:
    await store.settings("default", limits=LimitChange(max_running=1, max_size=1))
    await add(store, new("a", partition=Partition("k", 1)))
    await end(store, await take_one(store), suspended())
    await add(store, new("b", partition=Partition("k", 1)))
    assert (await take_one(store)).id == "b"
    (info,) = await store.queues()
    assert {state: n for state, n in info.counts.items() if n} == {State.SUSPENDED: 1, State.RUNNING: 1}
    assert info.oldest_available is None


async def test_a_suspended_job_does_not_expire(store: Store, clock: ManualClock) -> None:
    await add(store, new("a", expires_in=MINUTE))
    await end(store, await take_one(store), suspended(HOUR))
    clock.advance(HOUR)
    await store.prune(limit=10, keep_finished=10, keep_dead=10)
    await store.promote(["default"], limit=10)
    assert (await take_one(store)).id == "a"


async def test_a_stale_lease_cannot_suspend(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await end(store, job, AGAIN)
    assert await store.settle([Settlement(job.lease, suspended())]) == [Settled.STALE]
    assert await state_of(store, job.ref) is State.AVAILABLE


async def test_a_suspended_job_can_be_cancelled_deleted_and_retried(store: Store) -> None:
    await add(store, new("a"), new("b"), new("c"))
    for job in await take(store, 3):
        await end(store, job, suspended())
    a, b, c = (Ref("default", id) for id in "abc")
    assert await store.cancel([a]) == [State.CANCELLED]
    assert await store.delete([b]) == [State.SUSPENDED]
    assert await store.retry([c]) == [State.SUSPENDED]
    assert [await state_of(store, ref) for ref in (a, b, c)] == [State.CANCELLED, None, State.AVAILABLE]
    assert [job.id for job in await take(store, 3)] == ["c"]


async def test_a_job_that_was_asked_to_stop_is_not_suspended(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await store.cancel([job.ref])
    await end(store, job, suspended())
    again = await take_one(store)
    assert again.cancel_asked


async def test_suspended_jobs_are_listed_and_purged(store: Store, clock: ManualClock) -> None:
    await add(store, *(new(f"j{n}") for n in range(3)))
    for n, job in enumerate(await take(store, 3)):
        await end(store, job, suspended(HOUR - n * MINUTE))
    page = await store.list_jobs(state=State.SUSPENDED)
    assert [job.id for job in page.jobs] == ["j2", "j1", "j0"]
    first = await next_jobs(store, state=State.SUSPENDED, limit=2)
    assert [job.id for job in first.jobs] == ["j2", "j1"]
    assert [job.id for job in (await next_jobs(store, state=State.SUSPENDED, after=first.next)).jobs] == [
        "j0"
    ]
    assert await store.reschedule([Ref("default", "j0")]) == [State.SUSPENDED]
    assert await state_of(store, Ref("default", "j0")) is State.SUSPENDED
    assert await store.purge("default", states=[State.SUSPENDED], limit=10) == 3
    assert (await store.promote(["default"], limit=10)).next is None


async def test_a_flow_whose_last_attempt_is_lost_runs_once_more_to_be_undone(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new("a", max_attempts=1))
    job = await take_one(store)
    mark = f'{{"{STEP_UNDO}":[null,{{}}]}}'.encode()
    await store.extend([HeartbeatRequest(job.lease, LEASE, started=True, checkpoint=mark)])
    for state in (State.SUSPENDED, State.DEAD):
        clock.advance(LEASE)
        found = await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())
        assert len(found.jobs) == 1
        await settle_reclaimed(store, found, Loss("WorkerLost", "it died"))
        assert await state_of(store, job.ref) is state
        clock.advance(UNDO_AFTER)
        await store.promote(["default"], limit=9)
        for again in await take(store):
            await store.extend([HeartbeatRequest(again.lease, LEASE, started=True)])
    (dead,) = await store.get([job.ref])
    assert dead is not None
    assert [error.message for error in dead.errors] == ["it died"] * 2
    assert dead.reason == "not undone, as its last run ended early: it died"
    assert failure_of((await remembered(store, job.ref))[STEP_FAILED]) == "it died"


async def test_a_job_whose_worker_dies_after_a_cancel_is_undone_and_not_lost(
    store: Store, clock: ManualClock
) -> None:
    """In its last attempt; the run that undoes dies, too."""
    await add(store, new("a", max_attempts=1))
    job = await take_one(store)
    await record(store, job.lease, STEP_UNDO, b"null")
    mark = f'{{"{STEP_UNDO}":[null,{{}}]}}'.encode()
    await store.extend([HeartbeatRequest(job.lease, LEASE, started=True, checkpoint=mark, lasting=True)])
    assert await store.cancel([job.ref], reason="not wanted") == [State.RUNNING]
    for state in (State.AVAILABLE, State.DEAD):
        clock.advance(LEASE)
        found = await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())
        await settle_reclaimed(store, found, Loss("WorkerLost", "it died"))
        assert await state_of(store, job.ref) is state
        assert await store.cancel([job.ref]) == [State.RUNNING if state is State.AVAILABLE else State.DEAD]
        for again in await take(store):
            assert again.cancel_asked
            await store.extend([HeartbeatRequest(again.lease, LEASE, started=True)])
    (dead,) = await store.get([job.ref])
    assert dead is not None
    assert dead.reason == "not undone, as its last run ended early: it died"


# ── a part of the steps ──


async def test_a_part_of_the_steps_is_read_without_long_values(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    sizes = {"empty": 0, "ten": 10, "näme": 11, "long": 5_000}
    for name, size in sizes.items():
        clock.advance(SECOND)
        assert await record(store, job.lease, name, b"v" * size) == STORED
    await store.await_signals([SignalWait(job.lease, "wait", "paid", "7", LEASE)])
    whole = await store.steps(job.ref)
    assert await store.steps(job.ref, largest=5_000) == whole
    some = await store.steps(job.ref, largest=10)
    assert [(one.name, one.at, one.signal) for one in some] == [
        (one.name, one.at, one.signal) for one in whole
    ]
    assert [one.value for one in some] == [b"", b"v" * 10, b"", b"", None]
    listed = await store.steps(job.ref, largest=0)
    assert [one.value for one in listed] == [b"", b"", b"", b"", None]
    for found, size in zip(listed[:-1], sizes.values(), strict=True):
        assert found.size == pytest.approx(size, abs=2)  # of an encrypted value, about as many
    names = ["long", "none", "wait", "ten", "ten"]
    named = [one for one in whole if one.name in names]
    assert await store.steps(job.ref, names=names) == named
    assert await asyncio.to_thread(store.sync.steps, job.ref, names=names, largest=20) == [
        named[0],
        StoredStep("long", named[1].at, b"", None, (await store.steps(job.ref, largest=20))[3].left_out),
        named[2],
    ]
    assert await store.steps(job.ref, names=[]) == []
    assert await store.steps(Ref("nowhere", "a"), largest=0) == []


async def test_a_part_of_many_steps_is_in_their_order(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    names = [f"{n * 7919 % 1_000}" for n in range(1_000)]  # in an order that is not that of the names
    await store.record_steps([StepRecord(job.lease, name, b"x" * 100, LEASE) for name in names])
    assert [one.name for one in await store.steps(job.ref, largest=50)] == names
    assert [one.name for one in await store.steps(job.ref, names=names[::2])] == names[::2]


async def test_operators_read_a_bounded_part_of_large_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    value, verb, read = b'"%s"' % (b"x" * 16_000), store.steps, 0

    async def counted(*given: Any, **named: Any) -> list[StoredStep]:
        nonlocal read
        steps = await verb(*given, **named)
        read += sum(len(step.value or b"") for step in steps)
        return steps

    await store.record_steps([StepRecord(job.lease, f"s{n}", value, LEASE) for n in range(30)])
    await store.record_steps([StepRecord(job.lease, "huge", b"1" * 500_000, LEASE)])
    await store.record_steps([StepRecord(job.lease, "last", b"7", LEASE)])
    monkeypatch.setattr(store, "steps", counted)
    found = await Inspector(store).flows.steps(f"{job.queue}/a")
    assert found is not None
    assert 200_000 < read <= 256 * 1024
    *first, huge, last = found.steps
    assert (huge.value, last.value and bytes(last.value)) == (None, b"7")
    assert [one.value is None for one in first] == [True] * 14 + [False] * 16
    assert all(abs(one.size - len(value)) <= 2 for one in first)
    (seen,) = await Inspector(store).job(f"{job.queue}/a")
    assert read <= 256 * 1024
    assert len(seen.steps) == 32
