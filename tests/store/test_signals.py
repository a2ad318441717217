"""Signals: each goes to one waiting job, before or after the job waits for it."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Job, Ref, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import (
    LARGEST_MEMORY,
    RecordedStep,
    RecordStatus,
    Signal,
    SignalStatus,
    SignalWait,
    StepRecord,
    Store,
)
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    DEAD,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    OpenStore,
    add,
    end,
    new,
    suspended,
    take,
    take_one,
    token,
)
from tests.store.flow_facts import advance, run_one, started
from tests.store.test_steps import record, remembered, state_of

WAITS = RecordedStep(RecordStatus.STORED)
RECEIVED, STORED, EXISTS, FULL = (
    SignalStatus.RECEIVED,
    SignalStatus.STORED,
    SignalStatus.EXISTS,
    SignalStatus.FULL,
)


def received(data: bytes = b"data") -> RecordedStep:
    return RecordedStep(RecordStatus.EXISTS, data, ("packed", "7"))


async def send(
    store: Store, key: str = "7", data: bytes = b"data", name: str = "packed", **facts: object
) -> SignalStatus:
    (answer,) = await store.send_signals([Signal(name, key, data, **facts)])  # type: ignore[arg-type]
    return answer


async def wait(
    store: Store, job: Job, key: str = "7", step: str = "packed", name: str = "packed"
) -> RecordedStep:
    (answer,) = await store.await_signals([SignalWait(job.lease, step, name, key, LEASE)])
    return answer


async def waiting(store: Store, id: str = "a", key: str = "7") -> Job:
    """A suspended job that waits for a signal."""
    await add(store, new(id))
    job = await take_one(store)
    assert await wait(store, job, key) == WAITS
    await end(store, job, suspended())
    return job


async def test_a_signal_wakes_the_job_that_waits(store: Store) -> None:
    job = await waiting(store)
    (step,) = await store.steps(job.ref)
    assert (step.value, step.signal) == (None, ("packed", "7"))
    assert await send(store) is RECEIVED
    again = await take_one(store)
    assert (again.id, again.attempt, again.generation) == (job.id, 1, job.generation)
    assert await remembered(store, job.ref) == {"packed": b"data"}
    assert await wait(store, again) == received()
    assert (await store.promote(["default"], limit=10)).next is None


async def test_a_signal_may_come_before_the_wait(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    assert await send(store, data=b"first") is STORED
    assert await send(store, data=b"second") is EXISTS
    assert await wait(store, job) == received(b"first")
    assert await remembered(store, job.ref) == {"packed": b"first"}
    assert await wait(store, job) == received(b"first")
    assert await wait(store, job, step="packed#2") == WAITS  # it was consumed


async def test_a_signal_between_the_wait_and_the_suspension_is_not_missed(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    assert await wait(store, job) == WAITS
    assert await send(store) is RECEIVED
    assert await state_of(store, job.ref) is State.RUNNING
    await end(store, job, suspended())
    again = await take_one(store)
    assert await remembered(store, job.ref) == {"packed": b"data"}
    await end(store, again, suspended())
    assert await state_of(store, job.ref) is State.SUSPENDED


async def test_a_killed_job_keeps_its_wait_and_its_signal(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await wait(store, job)
    clock.advance(LEASE + SECOND)
    (lost,) = (await store.reclaim(["default"], limit=1, lease=LEASE, worker="w2", token=token())).jobs
    assert await wait(store, job) == RecordedStep(RecordStatus.LOST)
    await end(store, lost, AGAIN)
    assert await send(store) is RECEIVED
    again = await take_one(store)
    assert await wait(store, again) == received()


async def test_signals_are_bound_to_their_name_and_key(store: Store) -> None:
    job = await waiting(store)
    assert await send(store, key="8") is STORED
    assert await send(store, name="sent") is STORED
    assert await send(store, key="7 ") is STORED
    assert await state_of(store, job.ref) is State.SUSPENDED


async def test_signals_are_bound_to_their_namespace(open_store: OpenStore) -> None:
    ours, theirs = open_store(), open_store(namespace="other")
    job = await waiting(ours)
    assert await send(theirs) is STORED
    assert await state_of(ours, job.ref) is State.SUSPENDED
    assert await send(ours) is RECEIVED


async def test_a_signal_for_one_flow_goes_to_no_other(store: Store) -> None:
    await waiting(store, "a")
    await waiting(store, "b")
    assert await send(store, flow="b") is RECEIVED
    assert (await take_one(store)).id == "b"
    assert await send(store, flow="c") is STORED
    assert await send(store, flow="c") is EXISTS
    assert await state_of(store, Ref("default", "a")) is State.SUSPENDED
    await add(store, new("c"))
    job = await take_one(store)
    assert await wait(store, job) == received()


async def test_each_signal_is_consumed_once(store: Store) -> None:
    for id in "abc":
        await waiting(store, id)
    assert [await send(store, data=str(n).encode()) for n in range(4)] == [RECEIVED] * 3 + [STORED]
    jobs = await take(store, 5)
    assert sorted(job.id for job in jobs) == ["a", "b", "c"]
    values = [(await remembered(store, job.ref))["packed"] for job in jobs]
    assert sorted(value for value in values if value is not None) == [b"0", b"1", b"2"]


async def test_two_signals_at_once(open_store: OpenStore) -> None:
    one, two = open_store(), open_store()
    job = await waiting(one)
    answers = await asyncio.gather(send(one, data=b"1"), send(two, data=b"2"))
    assert sorted(answers) == sorted([RECEIVED, STORED])
    assert (await remembered(one, job.ref))["packed"] in (b"1", b"2")


async def test_many_signals_in_one_call(store: Store) -> None:
    for n in range(50):
        await waiting(store, f"j{n}", key=str(n))
    answers = await store.send_signals([Signal("packed", str(n), b"%d" % n) for n in range(60)])
    assert answers == [RECEIVED] * 50 + [STORED] * 10
    jobs = await take(store, 60)
    assert len(jobs) == 50
    for job in jobs:
        assert await remembered(store, job.ref) == {"packed": job.id[1:].encode()}


async def test_ending_a_wait_lets_the_signal_go_to_others(store: Store, clock: ManualClock) -> None:
    await waiting(store, "a")
    clock.advance(HOUR)
    await store.promote(["default"], limit=10)
    job = await take_one(store)
    assert await record(store, job.lease, "packed", b"null") == WAITS
    assert await send(store) is STORED
    assert await remembered(store, job.ref) == {"packed": b"null"}
    await add(store, new("b"))
    assert await wait(store, await take_one(store)) == received()


async def test_a_signal_that_came_first_wins_over_the_timeout(store: Store, clock: ManualClock) -> None:
    await waiting(store, "a")
    clock.advance(HOUR)
    await store.promote(["default"], limit=10)
    job = await take_one(store)
    assert await send(store) is RECEIVED
    assert await record(store, job.lease, "packed", b"null") == received()


@each("way", ["deleted", "cancelled", "dead", "completed"])
async def test_a_job_that_has_ended_takes_no_signal(store: Store, way: str) -> None:
    job = await waiting(store, "a")
    if way == "deleted":
        await store.delete([job.ref])
    elif way == "cancelled":
        await store.cancel([job.ref])
    else:
        await store.retry([job.ref])
        await end(
            store, await take_one(store), DEAD if way == "dead" else Transition(State.COMPLETED, keep=HOUR)
        )
    assert await send(store) is STORED
    await add(store, new("b"))
    assert await wait(store, await take_one(store)) == received()


async def test_a_retried_job_waits_again(store: Store) -> None:
    job = await waiting(store, "a")
    await store.cancel([job.ref])
    await store.retry([job.ref])
    again = await take_one(store)
    assert await wait(store, again) == WAITS
    await end(store, again, suspended())
    assert await send(store) is RECEIVED
    assert (await take_one(store)).id == "a"


async def test_an_earlier_signal_is_not_for_a_later_job(store: Store, clock: ManualClock) -> None:
    assert await send(store, data=b"old") is STORED
    clock.advance(MINUTE)
    await add(store, new("a"))
    job = await take_one(store)
    assert await wait(store, job) == WAITS
    await end(store, job, suspended())
    assert await send(store, data=b"new") is RECEIVED
    assert await remembered(store, job.ref) == {"packed": b"new"}


async def test_an_earlier_signal_stays_for_the_job_that_it_is_for(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    earlier = await take_one(store)
    clock.advance(SECOND)
    assert await send(store) is STORED
    clock.advance(10 * SECOND)
    await add(store, new("b"))
    later = await take_one(store)
    assert await wait(store, later) == WAITS
    assert await wait(store, earlier) == received()
    assert await send(store, data=b"next") is RECEIVED
    assert await remembered(store, later.ref) == {"packed": b"next"}


async def test_a_later_node_of_a_flow_receives_an_earlier_signal(store: Store, clock: ManualClock) -> None:
    flow = await started(store, 2, [(0, 1)])
    assert await send(store) is STORED
    clock.advance(MINUTE)
    await run_one(store, flow, 0)
    await advance(store)
    assert await wait(store, await take_one(store)) == received()


@pytest.mark.parametrize(("name", "key"), [("packed", "8"), ("sent", "7")])
async def test_a_step_waits_for_its_last_signal_alone(store: Store, name: str, key: str) -> None:
    job = await waiting(store)
    await store.retry([job.ref])
    again = await take_one(store)
    assert await wait(store, again, key, name=name) == WAITS
    (step,) = await store.steps(job.ref)
    assert (step.value, step.signal) == (None, (name, key))
    await end(store, again, suspended())
    assert await send(store) is STORED
    assert await send(store, key, b"new", name) is RECEIVED
    assert await send(store, key, b"late", name) is STORED
    (step,) = await store.steps(job.ref)
    assert (step.value, step.signal) == (b"new", (name, key))
    assert (await take_one(store)).id == "a"


async def test_a_step_takes_a_stored_signal_instead_of_its_first(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    assert await wait(store, job, "8") == WAITS
    assert await send(store) is STORED
    assert await wait(store, job) == received()
    assert await send(store, "8") is STORED
    (step,) = await store.steps(job.ref)
    assert (step.value, step.signal) == (b"data", ("packed", "7"))


async def test_signals_for_flows_in_several_queues(store: Store) -> None:
    jobs = []
    for queue in ("default", "other"):
        for id in "ab":
            await add(store, new(f"{queue}-{id}", queue=queue))
            job = await take_one(store, queue)
            assert await wait(store, job) == WAITS
            await end(store, job, suspended())
            jobs.append(job)
    signals = [Signal("packed", "7", job.id.encode(), job.id) for job in reversed(jobs)]
    assert await store.send_signals(signals) == [RECEIVED] * 4
    for job in jobs:
        assert await remembered(store, job.ref) == {"packed": job.id.encode()}
    assert await send(store, flow="other-a") is STORED


async def test_the_waits_of_ended_jobs_take_no_signals(store: Store) -> None:
    gone = [await waiting(store, f"gone{n}") for n in range(20)]
    last = await waiting(store, "last")
    await store.cancel([job.ref for job in gone])
    assert await send(store, flow="gone3") is STORED
    assert await send(store) is RECEIVED
    assert await remembered(store, last.ref) == {"packed": b"data"}
    assert await send(store) is STORED
    await store.retry([gone[0].ref])
    again = await take_one(store)
    assert await wait(store, again) == received()


async def test_signals_are_kept_for_a_time(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    assert await send(store, keep=MINUTE) is STORED
    clock.advance(MINUTE)
    assert await wait(store, job) == WAITS


async def test_a_bounded_number_of_signals_is_kept(store: Store, clock: ManualClock) -> None:
    assert [await send(store, key=str(n), keep=MINUTE, most=3) for n in range(4)] == [STORED] * 3 + [FULL]
    assert await send(store, key="0", most=3) is EXISTS
    await waiting(store, key="w")
    assert await send(store, key="w", most=3) is RECEIVED
    clock.advance(MINUTE)
    assert await send(store, key="3", most=3) is STORED


async def test_a_full_job_takes_no_wait(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await store.record_steps([StepRecord(job.lease, "large", bytes(LARGEST_MEMORY - 5), LEASE)])
    assert await wait(store, job) == RecordedStep(RecordStatus.FULL)
    assert await send(store) is STORED


async def test_signals_from_other_threads(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    asked = [SignalWait(job.lease, "packed", "packed", "7", LEASE)]
    assert await asyncio.to_thread(store.sync.await_signals, asked) == [WAITS]
    await end(store, job, suspended())
    assert await asyncio.to_thread(store.sync.send_signals, [Signal("packed", "7", b"1")]) == [RECEIVED]
    assert (await take_one(store)).id == "a"


async def test_a_signal_wakes_a_waiting_worker(store: Store) -> None:
    await waiting(store)
    waits = asyncio.create_task(store.wait(["default"], timeout=HOUR))
    await asyncio.sleep(0)
    await send(store)
    async with asyncio.timeout(60):
        assert await waits
