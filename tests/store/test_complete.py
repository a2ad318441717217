"""complete: ends jobs as completed that are not running, without an attempt."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock
from penstock.core.flow import FlowPolicy, FlowState, NodeState
from penstock.core.job import QUEUED, Job, Ref, State
from penstock.core.lifecycle import COMPLETED_BY_HAND
from penstock.core.relations import Partition
from penstock.core.unique import FINISHED_PHASE, QUEUED_PHASE, RUNNING_PHASE, UniqueKey
from penstock.stores.contract import EnqueueStatus, JobCompletion, Store
from tests.cases import case, each
from tests.store import facts
from tests.store.facts import (
    CANCELLED,
    COMPLETED,
    DAY,
    HOUR,
    MINUTE,
    SOON,
    add,
    asleep,
    counts,
    end,
    gone,
    in_state,
    member,
    new,
    running,
    take,
    take_one,
    the,
)
from tests.store.flow_facts import advance, flow_of, nodes_of, put, run_one, started, states, the_flow

NOT_RUNNING = sorted(set(State) - {State.RUNNING, State.COMPLETED})
FAILED = [State.DEAD, State.CANCELLED]


@each("state", NOT_RUNNING)
async def test_a_job_that_is_not_running_has_completed_at_once(
    store: Store, clock: ManualClock, state: State
) -> None:
    job = await in_state(store, state, retention=HOUR)
    before = (await store.stats())[0]
    clock.advance(5)
    assert await store.complete([job.ref], result=b'{"sum": 7}') == [state]
    ended = await the(store, job)
    assert (ended.state, ended.result, ended.reason) == (State.COMPLETED, b'{"sum": 7}', COMPLETED_BY_HAND)
    assert (ended.ended_at, ended.run_at, ended.generation) == (clock.now(), job.run_at, job.generation)
    assert (ended.attempt, ended.lost, ended.errors) == (job.attempt, job.lost, job.errors)
    assert await counts(store) == {State.COMPLETED: 1}
    assert (await store.stats())[0] == before, "no attempt is counted"
    clock.advance(MINUTE)
    assert (await store.promote(["default"], limit=9)).moved == 0
    assert await take(store, 9) == []


async def test_a_reason_of_ones_own_is_kept_and_no_result_is_none(store: Store) -> None:
    job = await in_state(store, State.DEAD, retention=HOUR)
    await store.complete([job.ref], reason="paid by hand – order 17")
    ended = await the(store, job)
    assert (ended.reason, ended.result) == ("paid by hand – order 17", None)


@pytest.mark.parametrize("state", [State.RUNNING, State.COMPLETED])
async def test_a_running_or_completed_job_stays_as_it_is(store: Store, state: State) -> None:
    job = await in_state(store, state)
    missing = [Ref("default", "nobody"), Ref("nowhere", "a")]
    assert await store.complete([job.ref, *missing], result=b"2") == [state, None, None]
    assert await the(store, job) == job


@pytest.mark.parametrize("state", [State.AVAILABLE, State.DEAD])
async def test_a_completed_job_is_kept_for_its_retention(
    store: Store, clock: ManualClock, state: State
) -> None:
    job = await in_state(store, state, retention=HOUR, keep_dead=DAY)
    await store.complete([job.ref])
    clock.advance(HOUR - 1)
    assert (await store.prune()).finished == 0
    clock.advance(1)
    assert (await store.prune()).finished == 1
    assert await gone(store, job)


async def test_one_without_a_retention_is_kept_until_the_next_prune(store: Store) -> None:
    job = await in_state(store, State.SCHEDULED, retention=0)
    await store.complete([job.ref], result=b"1")
    assert (await the(store, job)).result == b"1"
    assert (await store.prune()).finished == 1
    assert await gone(store, job)


@pytest.mark.parametrize("state", [State.SCHEDULED, State.PARKED])
async def test_a_wait_for_its_end_comes_back_with_the_result(store: Store, state: State) -> None:
    job = await in_state(store, state)
    wait = asyncio.create_task(store.wait_for_end([job.ref], timeout=MINUTE))
    await asleep(wait)
    await store.complete([job.ref], result=b"3")
    (ended,) = await asyncio.wait_for(wait, SOON)
    assert ended is not None
    assert (ended.state, ended.result) == (State.COMPLETED, b"3")


async def test_many_jobs_are_completed_each_with_its_result(store: Store) -> None:
    jobs = facts.some(95, retention=HOUR)
    await add(store, *jobs)
    acts = [JobCompletion(job.ref, result=b"%d" % n, reason=f"no. {n}") for n, job in enumerate(jobs)]
    answers = await store.change_jobs(acts)
    assert {(one.before, one.changed) for one in answers} == {(State.AVAILABLE, True)}
    found = await store.get([job.ref for job in jobs])
    assert [job and (job.result, job.reason) for job in found] == [
        (b"%d" % n, f"no. {n}") for n in range(len(jobs))
    ]


async def test_a_large_result_is_kept(store: Store) -> None:
    job, large = await in_state(store, State.AVAILABLE, retention=HOUR), b'"' + b"x" * 2_000_000 + b'"'
    await store.complete([job.ref], result=large)
    assert (await the(store, job)).result == large


# ── unique keys ──────────────────────────────────────────────────────────────────────────────────


async def holder_of(store: Store, key: str) -> str | None:
    """The id of the job that holds this unique key."""
    probe = new(unique=UniqueKey(key))
    (answer,) = await store.enqueue([probe])
    if answer.status is EnqueueStatus.DUPLICATE:
        return answer.id
    await store.delete([probe.ref])
    return None


@pytest.mark.parametrize(
    ("phases", "holds"),
    [
        (QUEUED_PHASE | RUNNING_PHASE, False),
        (QUEUED_PHASE | RUNNING_PHASE | FINISHED_PHASE, True),
        (FINISHED_PHASE, True),
    ],
)
async def test_a_completed_job_holds_its_key_by_the_rule_of_it(
    store: Store, clock: ManualClock, phases: int, holds: bool
) -> None:
    for state in sorted({*NOT_RUNNING} - {State.WAITING}):  # each alone in a namespace
        with case(state):
            await _holds_its_key(store.in_namespace(state.value), clock, state, phases, holds=holds)


async def _holds_its_key(store: Store, clock: ManualClock, state: State, phases: int, *, holds: bool) -> None:
    job = await in_state(store, state, unique=UniqueKey("u", DAY, phases), retention=HOUR)
    await store.complete([job.ref])
    assert await holder_of(store, "u") == (job.id if holds else None)
    clock.advance(HOUR)
    await store.prune()
    assert await gone(store, job)
    assert await holder_of(store, "u") == (job.id if holds else None), "for the rest of its period"
    clock.advance(DAY)
    assert await holder_of(store, "u") is None


@pytest.mark.parametrize("state", FAILED)
async def test_a_key_that_another_job_has_taken_since_stays_with_it(store: Store, state: State) -> None:
    key = UniqueKey("u", None, QUEUED_PHASE | RUNNING_PHASE | FINISHED_PHASE)
    job, other = await in_state(store, state, unique=key, retention=HOUR), new(unique=key)
    await add(store, other)
    await store.complete([job.ref])
    assert await holder_of(store, "u") == other.id


# ── partitions and batches ───────────────────────────────────────────────────────────────────────


async def test_a_completed_job_leaves_its_place_in_a_partition(store: Store) -> None:
    one, two, three = [new(partition=Partition("k", 1), retention=HOUR) for _ in range(3)]
    await add(store, one, two, three)
    await store.complete([one.ref])
    assert [(await the(store, job)).state for job in (two, three)] == [State.AVAILABLE, State.WAITING]
    await store.complete([three.ref, two.ref])
    assert await counts(store) == {State.COMPLETED: 3}


async def batch_of(store: Store, *members: Job) -> Job:
    batch = (await the(store, members[0])).batch
    assert batch is not None
    return await the(store, Ref("default", batch))


async def test_the_members_of_a_completed_batch_have_completed_too(store: Store) -> None:
    members = [member(size=2, retention=HOUR) for _ in range(2)]
    await add(store, *members)
    batch = await batch_of(store, await the(store, members[0]))
    assert await store.complete([members[0].ref], result=b"1") == [State.COLLECTING]
    assert (await the(store, members[0])).state is State.COLLECTING, "it ends with its batch"
    assert await store.complete([batch.ref], result=b"2") == [State.AVAILABLE]
    assert (await the(store, batch)).result == b"2"
    for one in members:
        ended = await the(store, one)
        assert (ended.state, ended.reason, ended.result) == (State.COMPLETED, COMPLETED_BY_HAND, None)


@pytest.mark.parametrize("ending", [CANCELLED, facts.DEAD], ids=["cancelled", "dead"])
async def test_the_members_of_a_failed_batch_complete_with_it(
    store: Store, clock: ManualClock, ending: facts.Transition
) -> None:
    key = UniqueKey("u", None, FINISHED_PHASE)
    members = [member(size=2, retention=HOUR), member(size=2, retention=HOUR, unique=key)]
    await add(store, *members)
    batch = await take_one(store)
    await end(store, batch, ending)
    assert await store.complete([members[0].ref], result=b"1") == [ending.state], "one of them alone"
    alone = await the(store, members[0])
    assert (alone.state, alone.result) == (State.COMPLETED, b"1")
    assert (await the(store, batch)).state is ending.state
    clock.advance(5)
    assert await store.complete([batch.ref]) == [ending.state]
    assert await the(store, members[0]) == alone
    assert (await the(store, members[1])).state is State.COMPLETED
    assert await holder_of(store, "u") == members[1].id
    assert await counts(store) == {State.COMPLETED: 3}


async def test_a_collecting_job_leaves_its_batch(store: Store) -> None:
    first, second = [member(size=2) for _ in range(2)]
    await add(store, first)
    assert await store.complete([first.ref]) == [State.COLLECTING]
    await add(store, second)
    assert (await the(store, second)).batch is None
    assert (await the(store, first)).state is State.COMPLETED


async def test_a_completed_batch_may_be_retried_with_its_members(store: Store) -> None:
    members = [member(size=2) for _ in range(2)]
    await add(store, *members)
    batch = await batch_of(store, await the(store, members[0]))
    await store.complete([batch.ref])
    assert await store.retry([batch.ref]) == [State.COMPLETED]
    assert {(await the(store, one)).state for one in members} == {State.COLLECTING}
    assert (await take_one(store)).id == batch.id


# ── flows ────────────────────────────────────────────────────────────────────────────────────────


@each("state", [State.AVAILABLE, State.PARKED, State.RETRYABLE])
async def test_the_successors_of_a_completed_node_start(store: Store, state: State) -> None:
    flow = await started(store, 2, [(0, 1)])
    if state is not State.AVAILABLE:
        job = await take_one(store)
        await end(store, job, facts.PARKED if state is State.PARKED else facts.retryable())
    first = Ref("default", f"{flow.id}.0")
    assert await store.complete([first], result=b"7") == [state]
    await advance(store)
    assert await states(store, flow) == [NodeState.COMPLETED, NodeState.ACTIVE]
    await run_one(store, flow, 1)
    await advance(store)
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


@each("policy", FlowPolicy)
@each("ending", [CANCELLED, facts.DEAD])
async def test_a_flow_whose_failed_node_is_completed_goes_on(
    store: Store, ending: facts.Transition, policy: FlowPolicy
) -> None:
    flow = await started(store, 3, [(0, 1), (1, 2)], policy)
    await run_one(store, flow, 0, ending)
    await advance(store)
    goes_on = policy is FlowPolicy.IGNORE
    assert ((await the_flow(store, flow)).state is FlowState.RUNNING) == goes_on
    assert await store.complete([Ref("default", f"{flow.id}.0")], result=b"7") == [ending.state]
    await advance(store)
    assert await states(store, flow) == [NodeState.COMPLETED, NodeState.ACTIVE, NodeState.WAITING]
    await run_one(store, flow, 1)
    await run_one(store, flow, 2)
    await advance(store)
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


async def test_a_successor_that_has_run_after_a_failure_does_not_run_again(store: Store) -> None:
    flow = await started(store, 2, [(0, 1)], FlowPolicy.IGNORE)
    await run_one(store, flow, 0, facts.DEAD)
    await advance(store)
    await run_one(store, flow, 1)
    await advance(store)
    await store.complete([Ref("default", f"{flow.id}.0")], result=b"7")
    await advance(store)
    assert await states(store, flow) == [NodeState.COMPLETED] * 2
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED
    assert await take(store, 9) == []


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=["the dead one first", "the dead one last"])
async def test_nodes_that_are_completed_together_do_not_bring_each_other_back(
    store: Store, order: tuple[int, ...]
) -> None:
    flow = await started(store, 3, [], FlowPolicy.STOP)
    await run_one(store, flow, 0, facts.DEAD)
    await advance(store)
    refs = [Ref("default", f"{flow.id}.{n}") for n in order]
    await store.complete(refs, result=b"7")
    await advance(store)
    ended = await store.get(refs)
    assert [job and (job.state, job.result) for job in ended] == [(State.COMPLETED, b"7")] * 3
    assert await states(store, flow) == [NodeState.COMPLETED] * 3
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


async def test_the_result_of_a_completed_node_is_that_of_its_flow(store: Store) -> None:
    flow = flow_of(result=1)
    await put(store, flow, nodes_of(flow, 2, [(0, 1)]))
    await run_one(store, flow, 0)
    await store.complete([Ref("default", f"{flow.id}.1")], result=b"42")
    await advance(store)
    (node,) = await store.flow_nodes(flow.ref, [1])
    assert node is not None
    assert (node.state, node.result) == (NodeState.COMPLETED, b"42")
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


# ── other verbs ──────────────────────────────────────────────────────────────────────────────────


@each("state", sorted({*QUEUED, State.DEAD} - {State.COLLECTING}))
async def test_a_completed_job_may_be_retried(store: Store, state: State) -> None:
    job = await in_state(store, state, retention=HOUR)
    await store.complete([job.ref], result=b"1")
    assert await store.retry([job.ref]) == [State.COMPLETED]
    again = await the(store, job)
    assert (again.result, again.reason, again.ended_at) == (None, None, None)


async def test_of_a_completion_and_a_fetch_one_has_the_job(store: Store) -> None:
    jobs = facts.some(30, retention=HOUR)
    await add(store, *jobs)
    before, taken = await asyncio.gather(store.complete([job.ref for job in jobs]), take(store, 30))
    left = [job.id for job, state in zip(jobs, before, strict=True) if state is State.RUNNING]
    assert left == [job.id for job in taken]
    for job in taken:
        await end(store, job, COMPLETED)


async def test_a_lease_of_a_job_that_has_run_does_not_outlive_a_completion(store: Store) -> None:
    job = await running(store, retention=HOUR)
    await end(store, job, facts.retryable())
    await store.complete([job.ref], result=b"1")
    (answer,) = await store.settle([facts.Settlement(job.lease, COMPLETED, b"2")])
    assert answer is facts.Settled.STALE
    assert (await the(store, job)).result == b"1"


async def test_nothing_to_complete_is_no_queue(store: Store) -> None:
    assert await store.complete([]) == []
    assert await store.queues() == []
