"""forget_steps: a step is removed under its job's lease; a wait that ends leaves its signal to others."""

from __future__ import annotations

import asyncio

from penstock.core.clock import ManualClock
from penstock.core.job import Job
from penstock.stores.contract import (
    LARGEST_MEMORY,
    RecordedStep,
    RecordStatus,
    SignalStatus,
    StepRecord,
    StepRemoval,
    Store,
)
from tests.store.facts import LEASE, OpenStore, add, end, new, suspended, take, take_one, token
from tests.store.test_signals import received, send, wait

REMOVED, LOST = RecordedStep(RecordStatus.STORED), RecordedStep(RecordStatus.LOST)


async def forget(store: Store, job: Job, *names: str, waiting: bool = False) -> list[RecordedStep]:
    return await store.forget_steps([StepRemoval(job.lease, name, LEASE, waiting) for name in names])


async def record(store: Store, job: Job, name: str, value: bytes = b"1") -> RecordStatus:
    (answer,) = await store.record_steps([StepRecord(job.lease, name, value, LEASE)])
    return answer.status


async def names(store: Store, job: Job) -> list[str]:
    return [step.name for step in await store.steps(job.ref)]


async def test_a_forgotten_step_may_be_stored_again(store: Store) -> None:
    await add(store, new("a"), new("b"))
    a, b = await take(store, 2)
    for name in ("one", "two", "three"):
        await record(store, a, name)
    await record(store, b, "two")
    assert await forget(store, a, "two", "none") == [REMOVED, REMOVED]
    assert await names(store, a) == ["one", "three"]
    assert await names(store, b) == ["two"]
    assert await record(store, a, "two", b"2") is RecordStatus.STORED
    assert [(one.name, one.value) for one in await store.steps(a.ref)] == [
        ("one", b"1"),
        ("three", b"1"),
        ("two", b"2"),
    ]


async def test_steps_stay_in_their_order_when_one_was_forgotten(store: Store) -> None:
    """Also those of one millisecond, a wait without a value among them."""
    await add(store, new("a"))
    a = await take_one(store)
    for name in ("one", "two", "three"):
        await record(store, a, name, b"5")
    await forget(store, a, "one")
    await wait(store, a, step="wait")
    await record(store, a, "last", b"0")
    assert await names(store, a) == ["two", "three", "wait", "last"]
    part = await store.steps(a.ref, names=["last", "wait", "three"])
    assert [step.name for step in part] == ["three", "wait", "last"]


async def test_only_the_lease_forgets(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    stale = await take_one(store)
    await record(store, stale, "one")
    clock.advance(LEASE + 1)
    (found,) = (await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())).jobs
    assert await forget(store, stale, "one", "none") == [LOST, LOST]
    assert await forget(store, stale, "one", waiting=True) == [LOST]
    assert await names(store, found) == ["one"]
    assert await forget(store, found, "one") == [REMOVED]
    assert await names(store, found) == []


async def test_forgetting_extends_the_lease(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    clock.advance(LEASE - 1)
    assert await forget(store, job, "none") == [REMOVED]
    clock.advance(LEASE - 1)
    assert not (await store.reclaim(["default"], limit=9, lease=LEASE, worker="w2", token=token())).jobs


async def test_what_is_forgotten_leaves_room(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    large = b"x" * (LARGEST_MEMORY // 2 - 1_000)
    for _ in range(4):
        assert await record(store, job, "one", large) is RecordStatus.STORED
        assert await record(store, job, "two", large) is RecordStatus.STORED
        assert await record(store, job, "three", large) is RecordStatus.FULL
        assert await forget(store, job, "one", "two") == [REMOVED, REMOVED]


async def test_a_forgotten_wait_leaves_its_signal_to_others(store: Store) -> None:
    await add(store, new("a"), new("b"))
    a, b = await take(store, 2)
    await wait(store, a)
    assert await forget(store, a, "packed", waiting=True) == [REMOVED]
    assert await send(store) is SignalStatus.STORED
    assert await wait(store, b) == received()
    await end(store, a, suspended())
    assert await names(store, a) == []


async def test_a_signal_that_has_come_is_not_withdrawn(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await wait(store, job)
    assert await send(store) is SignalStatus.RECEIVED
    assert await forget(store, job, "packed", waiting=True) == [received()]
    assert await wait(store, job) == received()
    assert await forget(store, job, "packed") == [REMOVED]
    assert await wait(store, job) == REMOVED, "it waits for the next one"
    assert await send(store, data=b"other") is SignalStatus.RECEIVED


async def test_a_step_that_is_no_wait_is_not_withdrawn(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await record(store, job, "one", b"")
    assert await forget(store, job, "one", waiting=True) == [RecordedStep(RecordStatus.EXISTS, b"")]
    assert await names(store, job) == ["one"]


async def test_jobs_of_several_queues_forget_in_one_call(store: Store) -> None:
    await add(store, new("a"), new("b", queue="other"))
    jobs = [*(await take(store, 1)), *(await take(store, 1, queue="other"))]
    for job in jobs:
        await record(store, job, "one")
    removals = [StepRemoval(job.lease, "one", LEASE) for job in (*jobs, *jobs)]
    assert await store.forget_steps(removals) == [REMOVED] * 4
    assert [await names(store, job) for job in jobs] == [[], []]


async def test_a_signal_and_its_withdrawal_at_once(open_store: OpenStore) -> None:
    """The signal goes to the wait, or stays for others: never to nobody."""
    stores = [open_store() for _ in range(2)]
    for n in range(20):
        await add(stores[0], new(f"{n}"))
        job = await take_one(stores[0])
        await wait(stores[0], job, key=f"{n}")
        sent, (answer,) = await asyncio.gather(
            send(stores[1], key=f"{n}"), forget(stores[0], job, "packed", waiting=True)
        )
        if answer == REMOVED:
            assert await send(stores[1], key=f"{n}") is SignalStatus.EXISTS, sent
        else:
            assert sent is SignalStatus.RECEIVED
            assert answer.value == b"data"


async def test_forgetting_in_other_threads(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await record(store, job, "one")
    removal = StepRemoval(job.lease, "one", LEASE)
    assert await asyncio.to_thread(store.sync.forget_steps, [removal]) == [REMOVED]
    assert await names(store, job) == []
