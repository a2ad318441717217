"""cancel: a job with steps to undo is asked to stop, in every state, so that a worker can undo them first."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.flow import FLOW_ABANDONED, FlowPolicy, FlowState, NewNode
from penstock.core.job import Job, Ref, State
from penstock.core.lifecycle import REPLACED, Transition
from penstock.core.relations import FlowMember, Partition
from penstock.core.schedule import NewEntry, Overlap, Schedule
from penstock.stores.contract import (
    STEP_UNDO,
    FlowChange,
    HeartbeatRequest,
    LeaseStatus,
    StepRecord,
    Store,
    Tick,
)
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    CANCELLED,
    COMPLETED,
    DEAD,
    HOUR,
    LEASE,
    MINUTE,
    PARKED,
    RELEASED,
    SECOND,
    add,
    counts,
    end,
    new,
    retryable,
    running,
    snoozed,
    suspended,
    take,
    take_one,
    the,
)
from tests.store.flow_facts import advance, flow_of, nodes_of, put, states, the_flow

WAYS = {
    State.SUSPENDED: suspended(),
    State.RETRYABLE: retryable(),
    State.SCHEDULED: snoozed(),
    State.PARKED: PARKED,
    State.AVAILABLE: AGAIN,
}


async def note_undo(store: Store, job: Job, name: str = STEP_UNDO) -> None:
    """Record that the running job has steps to undo."""
    await store.record_steps([StepRecord(job.lease, name, b"null", LEASE)])


async def undoable(store: Store, state: State, **facts: Any) -> Job:
    """A job in this state that has steps to undo."""
    job = await running(store, **facts)
    await note_undo(store, job)
    await end(store, job, WAYS[state])
    found = await the(store, job)
    assert found.state is state
    return found


@each("reason", [None, "by the user – now"])
@each("state", sorted(WAYS))
async def test_a_job_with_steps_to_undo_is_asked_to_stop(
    store: Store, clock: ManualClock, state: State, reason: str | None
) -> None:
    job = await undoable(store, state)
    clock.advance(5)
    given: dict[str, Any] = {} if reason is None else {"reason": reason}
    assert await store.cancel([job.ref], **given) == [State.RUNNING]
    asked = await the(store, job)
    assert (asked.state, asked.cancel_asked, asked.reason) == (State.AVAILABLE, True, reason)
    assert (asked.attempt, asked.errors, asked.ended_at) == (job.attempt, job.errors, None)
    assert await counts(store) == {State.AVAILABLE: 1}
    again = await take_one(store)
    assert (again.id, again.cancel_asked) == (job.id, True)
    assert await store.extend([HeartbeatRequest(again.lease, LEASE)]) == [LeaseStatus.CANCEL_ASKED]
    await end(store, again, CANCELLED)
    ended = await the(store, job)
    assert (ended.state, ended.reason) == (State.CANCELLED, reason or CANCELLED.reason)
    assert await counts(store) == {State.CANCELLED: 1}


@each("state", sorted(WAYS))
async def test_asking_twice_is_asking_once(store: Store, clock: ManualClock, state: State) -> None:
    job = await undoable(store, state)
    assert await store.cancel([job.ref, job.ref], reason="first") == [State.RUNNING] * 2
    again = await take_one(store)
    await end(store, again, retryable(HOUR))
    assert await store.cancel([job.ref], reason="second") == [State.RUNNING]
    waits = await the(store, job)
    assert (waits.state, waits.run_at, waits.reason) == (State.RETRYABLE, clock.now() + HOUR, "first")


async def test_a_job_that_suspends_itself_to_be_undone_is_available_at_once(store: Store) -> None:
    job = await running(store)
    await note_undo(store, job)
    assert await store.cancel([job.ref]) == [State.RUNNING]
    await end(store, job, suspended())
    assert (await take_one(store)).cancel_asked


async def test_a_job_whose_steps_have_no_undo_is_cancelled_at_once(store: Store) -> None:
    job = await running(store)
    await note_undo(store, job, "undo")
    await note_undo(store, job, "undo!charge")
    await end(store, job, suspended())
    assert await store.cancel([job.ref]) == [State.CANCELLED]


@each("way", [COMPLETED, CANCELLED, DEAD])
async def test_an_ended_job_stays_as_it_is(store: Store, way: Transition) -> None:
    job = await running(store)
    await note_undo(store, job)
    await end(store, job, way)
    ended = await the(store, job)
    assert await store.cancel([job.ref]) == [way.state]
    assert await the(store, job) == ended


async def test_a_retry_by_an_operator_forgets_the_request(store: Store) -> None:
    job = await undoable(store, State.SUSPENDED)
    await store.cancel([job.ref], reason="not wanted")
    await store.retry([job.ref])
    again = await the(store, job)
    assert (again.state, again.cancel_asked, again.reason) == (State.AVAILABLE, False, None)


async def test_many_are_asked_in_one_call_each_by_its_own_state(store: Store) -> None:
    jobs = [await undoable(store, state) for state in WAYS]
    plain = [new() for _ in range(3)]
    await add(store, *plain)
    refs = [one.ref for one in (*jobs, *plain)]
    assert await store.cancel(refs) == [State.RUNNING] * len(jobs) + [State.CANCELLED] * 3
    assert {job.id for job in await take(store, 9)} == {job.id for job in jobs}


# ── order, partitions, expiry ──


async def test_a_job_that_waits_to_start_keeps_its_position(store: Store) -> None:
    job = await undoable(store, State.AVAILABLE)
    behind = new()
    await add(store, behind)
    await store.cancel([job.ref])
    assert [one.id for one in await take(store, 2)] == [job.id, behind.id]


async def test_a_woken_job_goes_to_the_tail(store: Store) -> None:
    job = await undoable(store, State.SUSPENDED)
    before = new()
    await add(store, before)
    await store.cancel([job.ref])
    assert [one.id for one in await take(store, 2)] == [before.id, job.id]


@each("state", sorted(WAYS))
async def test_a_job_whose_partition_is_full_waits(store: Store, state: State) -> None:
    partition = Partition("k")
    job = await running(store, partition=partition)
    await note_undo(store, job)
    await end(store, job, WAYS[state])
    if state is State.AVAILABLE:  # it has the room
        other = None
    else:
        other = await running(store, partition=partition)
    assert await store.cancel([job.ref], reason="now") == [State.RUNNING]
    if other is not None:
        asked = await the(store, job)
        assert (asked.state, asked.cancel_asked, asked.reason) == (State.WAITING, True, "now")
        assert await store.cancel([job.ref], reason="again") == [State.RUNNING]
        await end(store, other)
    again = await take_one(store)
    assert (again.id, again.cancel_asked) == (job.id, True)
    await end(store, again, CANCELLED)
    assert (await the(store, job)).reason == "now"


async def test_a_waiting_job_keeps_its_place_in_its_partition(store: Store) -> None:
    partition = Partition("k")
    job = await running(store, partition=partition)
    await note_undo(store, job)
    await end(store, job, suspended(MINUTE))
    first = await running(store, partition=partition)
    await store.retry([job.ref])
    assert (await the(store, job)).state is State.WAITING
    behind = new(partition=partition)
    await add(store, behind)
    assert await store.cancel([job.ref]) == [State.RUNNING]
    assert (await the(store, job)).state is State.WAITING
    await end(store, first)
    again = await take_one(store)
    assert (again.id, again.cancel_asked) == (job.id, True)
    await end(store, again, CANCELLED)
    assert (await take_one(store)).id == behind.id


async def test_an_ordered_job_keeps_its_room(store: Store) -> None:
    partition = Partition("k", ordered=True)
    job = await undoable(store, State.SUSPENDED, partition=partition)
    behind = new(partition=partition)
    await add(store, behind)
    assert (await the(store, behind)).state is State.WAITING
    await store.cancel([job.ref])
    again = await take_one(store)
    assert again.id == job.id
    await end(store, again, CANCELLED)
    assert (await take_one(store)).id == behind.id


@each("way", [retryable(MINUTE), RELEASED, snoozed(MINUTE)])
async def test_a_job_with_steps_to_undo_does_not_expire(
    store: Store, clock: ManualClock, way: Transition
) -> None:
    job = await running(store, expires_in=SECOND)
    other = await running(store, expires_in=SECOND)
    await note_undo(store, other, "charge")
    await note_undo(store, job)
    await end(store, job, way)
    await end(store, other, way)
    clock.advance(HOUR)
    await store.promote(["default"], limit=9)
    await store.prune()
    assert [one.id for one in await take(store, 2)] == [job.id]
    assert (await the(store, other)).state is State.CANCELLED


# ── cancels that the store makes itself ──


async def test_a_cancelled_flow_asks_its_nodes(store: Store) -> None:
    flow = flow_of()
    await put(store, flow, nodes_of(flow, 2))
    job = await take_one(store)
    await note_undo(store, job)
    await end(store, job, suspended())
    info = await store.change_flow(flow.ref, FlowChange.CANCEL)
    assert info is not None
    await advance(store)
    assert (await the_flow(store, flow)).state is FlowState.STOPPING
    again = await take_one(store)
    assert (again.id, again.cancel_asked) == (job.id, True)
    await end(store, again, CANCELLED)
    await advance(store)
    assert (await the_flow(store, flow)).state is FlowState.CANCELLED
    assert [state.value for state in await states(store, flow)] == ["cancelled", "cancelled"]


async def test_a_job_that_ends_asks_the_jobs_that_it_waited_for(store: Store) -> None:
    await add(store, new("parent", queue="p"))
    parent = await take_one(store, "p")
    await store.record_steps([StepRecord(parent.lease, "charge", b"1", LEASE)])
    flow = flow_of(queue="p", policy=FlowPolicy.IGNORE, wakes="parent", result=-1)
    await add(store, new("child", queue="c", flow=FlowMember("p", flow.id, 0)))
    await put(store, flow, [NewNode(0, ref=Ref("c", "child"), uses=0)])
    await end(store, parent, suspended())
    child = await take_one(store, "c")
    await note_undo(store, child)
    await end(store, child, suspended())
    assert await store.cancel([parent.ref]) == [State.CANCELLED]
    await advance(store)
    asked = await the(store, child)
    assert (asked.state, asked.cancel_asked, asked.reason) == (State.AVAILABLE, True, FLOW_ABANDONED)


async def test_a_periodic_entry_asks_the_job_that_it_replaces(store: Store) -> None:
    (entry,) = await store.put_entries([NewEntry("e", new(""), Schedule("0 * * * *"))])
    to = entry.watermark + MINUTE
    first = Tick(entry.ref, entry.revision, entry.watermark, to, jobs=(new("last"),), not_before=0)
    await store.tick([first])
    job = await take_one(store)
    await note_undo(store, job)
    await end(store, job, suspended())
    second = replace(
        first, watermark=first.to, to=first.to + MINUTE, jobs=(new("next"),), overlap=Overlap.REPLACE
    )
    (answer,) = await store.tick([second])
    assert answer.enqueued == ("next",)
    asked = await the(store, job)
    assert (asked.state, asked.cancel_asked, asked.reason) == (State.AVAILABLE, True, REPLACED)
    assert await counts(store) == {State.AVAILABLE: 2}
