"""edit_steps: operators drop and replace what a job remembers, while no worker has it."""

from __future__ import annotations

import asyncio

from penstock.core.clock import ManualClock
from penstock.core.job import Job, Ref, State
from penstock.core.lifecycle import Transition
from penstock.encryption import Cipher, Keyring
from penstock.stores.contract import (
    LARGEST_MEMORY,
    EditStatus,
    RecordStatus,
    SignalStatus,
    StepEdit,
    StepRecord,
    Store,
)
from penstock.stores.encrypted import encrypted_store
from tests.cases import each
from tests.store.facts import LEASE, MINUTE, OpenStore, add, end, new, retryable, suspended, take_one
from tests.store.test_signals import received, send, wait

ONE = Ref("default", "a")


async def remembering(store: Store, transition: Transition, *names: str) -> Job:
    """A job with these steps, in the state to which this transition leads."""
    await add(store, new("a"))
    job = await take_one(store)
    for name in names:
        await store.record_steps([StepRecord(job.lease, name, b"1", LEASE)])
    await end(store, job, transition)
    return job


async def values(store: Store) -> dict[str, bytes | None]:
    return {step.name: step.value for step in await store.steps(ONE)}


async def state(store: Store) -> State | None:
    (job,) = await store.get([ONE])
    return None if job is None else job.state


PARKED = Transition(State.PARKED, charge=False, reason="not here")
DEAD = Transition(State.DEAD, keep=MINUTE)


@each(
    "transition, before, after",
    [
        (PARKED, State.PARKED, State.PARKED),
        (DEAD, State.DEAD, State.DEAD),
        (retryable(), State.RETRYABLE, State.RETRYABLE),
        (suspended(), State.SUSPENDED, State.AVAILABLE),
    ],
)
async def test_steps_are_dropped_replaced_and_added(
    store: Store, transition: Transition, before: State, after: State
) -> None:
    await remembering(store, transition, "one", "two", "three")
    assert await state(store) is before
    edits = [StepEdit("two", b"22"), StepEdit("one", None), StepEdit("none", None), StepEdit("four", b"4")]
    assert await store.edit_steps(ONE, edits) is EditStatus.APPLIED
    assert list((await values(store)).items()) == [("two", b"22"), ("three", b"1"), ("four", b"4")]
    assert await state(store) is after


async def test_a_job_without_steps_gets_one_that_goes_with_it(store: Store) -> None:
    await add(store, new("a"))
    assert await store.edit_steps(ONE, [StepEdit("one", b"1")]) is EditStatus.APPLIED
    job = await take_one(store)
    assert await values(store) == {"one": b"1"}
    await end(store, job)
    await store.delete([ONE])
    await add(store, new("a"))
    assert await values(store) == {}


async def test_a_job_that_a_worker_has_is_left_alone(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await store.record_steps([StepRecord(job.lease, "one", b"1", LEASE)])
    assert await store.edit_steps(ONE, [StepEdit("one", None)]) is EditStatus.RUNNING
    assert await values(store) == {"one": b"1"}
    assert await store.edit_steps(Ref("default", "b"), [StepEdit("one", None)]) is EditStatus.MISSING
    assert await store.edit_steps(Ref("none", "b"), []) is EditStatus.MISSING


async def test_all_edits_are_made_or_none(store: Store) -> None:
    await remembering(store, PARKED, "one")
    large = b"x" * (LARGEST_MEMORY // 2)
    edits = [StepEdit("one", None), StepEdit("two", large), StepEdit("three", large)]
    assert await store.edit_steps(ONE, edits) is EditStatus.FULL
    assert await values(store) == {"one": b"1"}
    for _ in range(3):  # what is dropped leaves room
        assert await store.edit_steps(ONE, [StepEdit("two", large)]) is EditStatus.APPLIED
        assert await store.edit_steps(ONE, [StepEdit("two", None)]) is EditStatus.APPLIED


async def test_a_wait_that_gets_a_value_ends_as_with_its_signal(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await wait(store, job)
    await end(store, job, suspended())
    assert await store.edit_steps(ONE, [StepEdit("packed", b"data")]) is EditStatus.APPLIED
    assert await state(store) is State.AVAILABLE
    assert await send(store) is SignalStatus.STORED, "nobody waits for it"
    assert await wait(store, await take_one(store)) == received()


async def test_a_wait_that_is_dropped_leaves_its_signal_to_others(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await wait(store, job)
    await end(store, job, suspended())
    assert await store.edit_steps(ONE, [StepEdit("packed", None)]) is EditStatus.APPLIED
    assert await send(store) is SignalStatus.STORED
    assert await wait(store, await take_one(store)) == received(), "it waits again, and gets it"


async def test_an_edit_and_a_fetch_at_once(open_store: OpenStore, clock: ManualClock) -> None:
    """Either the worker reads what was edited, or the edit is refused."""
    stores = [open_store() for _ in range(2)]
    for n in range(20):
        await add(stores[0], new(f"{n}"))
        ref = Ref("default", f"{n}")
        job, status = await asyncio.gather(
            take_one(stores[0]), stores[1].edit_steps(ref, [StepEdit("one", b"1")])
        )
        found = [step.name for step in await stores[0].steps(ref)]
        assert found == (["one"] if status is EditStatus.APPLIED else [])
        await end(stores[0], job)


async def test_edited_values_are_encrypted(store: Store) -> None:
    closed = encrypted_store(store, Cipher(Keyring([bytes(32)])))
    await add(closed, new("a"))
    job = await take_one(closed)
    await wait(closed, job)
    await end(closed, job, suspended())
    edits = [StepEdit("packed", b"data"), StepEdit("one", b"secret")]
    assert await closed.edit_steps(ONE, edits) is EditStatus.APPLIED
    assert await values(closed) == {"packed": b"data", "one": b"secret"}
    assert all(value not in (b"data", b"secret") for value in (await values(store)).values())
    assert (await wait(closed, await take_one(closed))).status is RecordStatus.EXISTS
