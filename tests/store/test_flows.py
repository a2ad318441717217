"""Flows: nodes start after their predecessors, each end is counted once, and nothing hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.errors import ConfigError
from penstock.core.flow import (
    BUILDING_KEPT,
    FLOW_ABANDONED,
    USED,
    FlowPolicy,
    FlowState,
    NewFlow,
    NewNode,
    NodeState,
    When,
    end_of_flow,
)
from penstock.core.job import AttemptError, Job, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import FlowMember, Input
from penstock.stores.contract import (
    FLOW_STEP,
    FlowChange,
    HeartbeatRequest,
    LeaseStatus,
    Settled,
    Settlement,
    StepRecord,
    Store,
)
from tests.cases import each
from tests.store.corruptors import VANDALS
from tests.store.facts import (
    AGAIN,
    CANCELLED,
    COMPLETED,
    DAY,
    DEAD,
    HOUR,
    LEASE,
    PARKED,
    OpenStore,
    add,
    end,
    gone,
    new,
    retryable,
    snoozed,
    suspended,
    take,
    take_one,
    the,
    token,
)
from tests.store.flow_facts import (
    advance,
    flow_of,
    nodes_in,
    nodes_of,
    put,
    ready,
    ref_of,
    run_one,
    started,
    states,
    the_flow,
)

W, A, C, D = NodeState.WAITING, NodeState.ACTIVE, NodeState.COMPLETED, NodeState.DEAD
X, G, S, U = NodeState.CANCELLED, NodeState.GONE, NodeState.SKIPPED, NodeState.UNUSED

CHAIN = [(0, 1), (1, 2)]
#: Members 0 to 2, the join 3, the body 4.
CHORD = [(0, 3), (1, 3), (2, 3), (3, 4)]
REMOVED = Transition(State.COMPLETED)


# ── start ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_starts_when_its_predecessor_has_completed(store: Store) -> None:
    flow = await started(store, 3, CHAIN)
    for index in range(3):
        assert await ready(store, flow) == [index]
        await run_one(store, flow, index)
    assert await ready(store, flow) == []
    assert await states(store, flow) == [C, C, C]
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


async def test_a_body_starts_once_when_all_members_have_completed(store: Store) -> None:
    flow = await started(store, 5, CHORD, joins=[3])
    assert await ready(store, flow) == [0, 1, 2]
    jobs = await take(store, 3)
    for job in reversed(jobs):
        assert await ready(store, flow) == []
        await end(store, job, result=job.id.encode())
    assert await ready(store, flow) == [4]
    found = await nodes_in(store, flow)
    assert [node.result for node in found[:3]] == [f"{flow.id}.{n}".encode() for n in range(3)]
    assert found[3].inputs == (0, 1, 2)
    assert [node.state for node in found] == [C, C, C, C, A]
    without = await store.flow_nodes(flow.ref, [3, 0, 9], results=False)
    assert without == [found[3], replace(found[0], result=None), None]


async def test_members_settled_in_one_call_are_all_counted(store: Store) -> None:
    flow = await started(store, 5, CHORD, joins=[3])
    jobs = await take(store, 3)
    answers = await store.settle([Settlement(job.lease, REMOVED, b"1") for job in jobs])
    assert answers == [Settled.APPLIED] * 3
    assert await ready(store, flow) == [4]


@each("to", [COMPLETED, REMOVED])
@each("calls", [1, 2])
async def test_members_are_settled_beside_plain_jobs_and_lost_leases(
    store: Store, to: Transition, calls: int
) -> None:
    """The second call expects members, because the first had some."""
    for _ in range(calls):
        flow = await started(store, 5, CHORD, joins=[3])
        await store.enqueue([new("plain")])
        first, second, third, plain = await take(store, 4)
        await end(store, third, AGAIN)
        jobs = [first, plain, second, third]
        answers = await store.settle([Settlement(job.lease, to, b"%d" % n) for n, job in enumerate(jobs)])
        assert answers == [Settled.APPLIED] * 3 + [Settled.STALE]
        found = await nodes_in(store, flow)
        assert [node.state for node in found] == [C, C, A, W, W]
        assert [node.result for node in found[:3]] == [b"0", b"2", None]
        assert (await the_flow(store, flow)).counts == {W: 2, A: 1, C: 2}
        await run_one(store, flow, 2, to)
        await run_one(store, flow, 4)
        assert (await the_flow(store, flow)).state is FlowState.COMPLETED
        await store.delete([Ref(plain.queue, plain.id)])


async def test_the_result_of_a_member_is_kept_although_its_job_is_not(store: Store) -> None:
    flow = await started(store, 5, CHORD, joins=[3])
    await run_one(store, flow, 0, REMOVED, result=b"[1]")
    assert await gone(store, ref_of(flow, 0))
    assert (await nodes_in(store, flow))[0].result == b"[1]"


async def test_a_join_of_nothing_lets_its_body_start_at_once(store: Store) -> None:
    flow = await started(store, 2, [(0, 1)], joins=[0])
    assert await ready(store, flow) == [1]


async def test_a_flow_without_jobs_completes_at_once(store: Store) -> None:
    flow = await started(store, 1, joins=[0])
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


async def test_nothing_runs_before_the_last_part_is_stored(store: Store) -> None:
    flow = flow_of()
    nodes = nodes_of(flow, 5, CHORD, joins=[3])
    info = await store.put_flow(flow, nodes[:2], start=False)
    assert info is not None
    assert info.state is FlowState.BUILDING
    await advance(store)
    assert await ready(store, flow) == []
    await store.put_flow(flow, nodes[2:])
    assert await ready(store, flow) == [0, 1, 2]


async def test_a_repeated_part_is_stored_once(store: Store) -> None:
    flow = flow_of()
    nodes = nodes_of(flow, 5, CHORD, joins=[3])
    for _ in range(2):
        await store.put_flow(flow, nodes[:3], start=False)
    for _ in range(2):
        info = await store.put_flow(flow, nodes[3:])
        assert info is not None
        assert info.total == 5
    assert await ready(store, flow) == [0, 1, 2]


async def test_another_flow_with_the_same_id_is_refused(store: Store) -> None:
    flow = await started(store, 1)
    other = flow_of(id=flow.id)
    assert await store.put_flow(other, nodes_of(other, 2)) is None
    assert (await the_flow(store, flow)).total == 1


async def test_a_large_flow_is_started_in_steps(store: Store) -> None:
    n = FLOW_STEP + 500
    flow = flow_of()
    nodes = nodes_of(flow, n + 2, [(i, n) for i in range(n)] + [(n, n + 1)], joins=[n])
    await put(store, flow, nodes)
    assert (await the_flow(store, flow)).counts == {A: n, W: 2}
    left = n
    while left:
        jobs = await take(store, 500)
        await store.settle([Settlement(job.lease, REMOVED) for job in jobs])
        left -= len(jobs)
    await advance(store)
    assert await ready(store, flow) == [n + 1]


async def test_a_node_with_many_successors_starts_them_in_steps(store: Store) -> None:
    n = FLOW_STEP + 500
    flow = flow_of()
    await put(store, flow, nodes_of(flow, n + 1, [(0, i) for i in range(1, n + 1)]))
    await run_one(store, flow, 0)
    await advance(store)
    assert (await the_flow(store, flow)).counts == {C: 1, A: n}


async def test_a_closed_queue_takes_the_jobs_of_a_flow(store: Store) -> None:
    await store.settings("default", closed=True)
    flow = await started(store, 2, [(0, 1)])
    await run_one(store, flow, 0)
    assert await ready(store, flow) == [1]


async def test_a_job_comes_back_with_its_place_in_the_flow(store: Store) -> None:
    flow = flow_of()
    member = FlowMember("default", flow.id, 1, (Input(0, "x"),))
    nodes = nodes_of(flow, 2, [(0, 1)])
    job = new(f"{flow.id}.1", flow=member, delay=5, headers={"a": "b"})
    await store.put_flow(flow, [nodes[0], nodes[1].__class__(1, job, (), 1)])
    await run_one(store, flow, 0)
    assert (await the(store, ref_of(flow, 1))).spec == job


async def test_a_node_whose_id_is_taken_fails_and_does_not_hang_its_flow(store: Store) -> None:
    flow = flow_of()
    await store.enqueue([new(f"{flow.id}.0", priority=-1)])
    await put(store, flow, nodes_of(flow, 2, [(0, 1)]))
    assert await states(store, flow) == [G, S]
    assert (await the_flow(store, flow)).state is FlowState.FAILED


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_failure_cancels_the_rest(store: Store) -> None:
    flow = await started(store, 5, CHORD, joins=[3])
    jobs = await take(store, 2)
    await end(store, jobs[0], DEAD)
    await advance(store)
    assert (await the(store, jobs[1])).cancel_asked
    assert await states(store, flow) == [D, A, X, S, S]
    assert (await the_flow(store, flow)).state is FlowState.STOPPING
    await end(store, jobs[1], Transition(State.CANCELLED, keep=HOUR))
    assert (await the_flow(store, flow)).state is FlowState.FAILED


async def test_the_others_are_finished_if_the_policy_says_so(store: Store) -> None:
    flow = await started(store, 5, CHORD, FlowPolicy.FINISH, joins=[3])
    await run_one(store, flow, 0, DEAD)
    assert await states(store, flow) == [D, A, A, S, S]
    await run_one(store, flow, 1)
    await run_one(store, flow, 2)
    assert (await the_flow(store, flow)).state is FlowState.FAILED


async def test_failures_are_ignored_if_the_policy_says_so(store: Store) -> None:
    flow = await started(store, 5, CHORD, FlowPolicy.IGNORE, joins=[3])
    await run_one(store, flow, 0, DEAD)
    await run_one(store, flow, 1, result=b"1")
    await run_one(store, flow, 2, result=b"2")
    await run_one(store, flow, 4)
    found = await nodes_in(store, flow)
    assert [node.result for node in found[:3]] == [None, b"1", b"2"]
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


@pytest.mark.parametrize("kind", sorted(VANDALS), indirect=True)
async def test_a_node_whose_call_cannot_be_read_ends_and_does_not_hang_its_flow(
    kind: str, store: Store, home: Path
) -> None:
    flow = await started(store, 3, CHAIN)
    await VANDALS[kind](home).node(flow.ref, 1)
    await run_one(store, flow, 0)
    assert await states(store, flow) == [C, G, S]
    assert (await the_flow(store, flow)).state is FlowState.FAILED


async def _deleted(store: Store, ref: Ref) -> None:
    await store.delete([ref])


async def _deleted_running(store: Store, ref: Ref) -> None:
    await take_one(store)
    await store.delete([ref], running=True)


async def _purged(store: Store, ref: Ref) -> None:
    await store.purge(ref.queue, [State.AVAILABLE])


async def _cancelled(store: Store, ref: Ref) -> None:
    await store.cancel([ref])


async def _cancelled_running(store: Store, ref: Ref) -> None:
    await end(store, await take_one(store), Transition(State.CANCELLED, keep=HOUR))


async def _discarded(store: Store, ref: Ref) -> None:
    await end(store, await take_one(store), Transition(State.DEAD))


WAYS = {
    "deleted": (_deleted, G),
    "deleted while running": (_deleted_running, G),
    "purged": (_purged, G),
    "cancelled": (_cancelled, X),
    "cancelled while running": (_cancelled_running, X),
    "dead and not kept": (_discarded, D),
}


@each("way", WAYS)
async def test_a_member_that_cannot_complete_moves_its_parent(store: Store, way: str) -> None:
    flow = await started(store, 3, [(0, 1), (1, 2)], joins=[1], when={2: When.FAILURE})
    act, state = WAYS[way]
    await act(store, ref_of(flow, 0))
    await advance(store)
    assert await states(store, flow) == [state, S, A]


@pytest.mark.parametrize("by", ["fetch", "prune"])
async def test_an_expired_member_moves_its_parent(store: Store, clock: ManualClock, by: str) -> None:
    flow = flow_of()
    nodes = nodes_of(flow, 2, [(0, 1)], when={1: When.FAILURE}, expires_in=HOUR)
    handler = nodes_of(flow, 2, [(0, 1)], when={1: When.FAILURE})[1]
    await put(store, flow, [nodes[0], handler])
    clock.advance(HOUR)
    if by == "prune":
        await store.prune()
    else:
        await take(store, 1)
    await advance(store)
    assert (await states(store, flow))[0] is X


async def test_a_scheduled_member_that_expires_moves_its_parent(store: Store, clock: ManualClock) -> None:
    flow = await started(store, 1, delay=2 * HOUR, expires_in=HOUR)
    clock.advance(2 * HOUR)
    await store.promote(["default"], limit=10)
    await advance(store)
    assert await states(store, flow) == [X]
    assert (await the_flow(store, flow)).state is FlowState.FAILED


async def test_an_end_that_is_not_applied_is_not_counted(store: Store) -> None:
    flow = await started(store, 2, [(0, 1)])
    job = await take_one(store)
    stale = Settlement(Ref(job.queue, job.id), COMPLETED)
    lost = Settlement(job.lease.__class__(job.queue, job.id, "another", job.generation), COMPLETED)
    assert await store.settle([lost]) == [Settled.STALE]
    assert await states(store, flow) == [A, W]
    assert await store.settle([stale]) == [Settled.APPLIED]
    assert await store.settle([Settlement(job.lease, COMPLETED)]) == [Settled.STALE]
    assert await states(store, flow) == [C, A]


async def test_the_removal_of_an_ended_job_changes_nothing(store: Store, clock: ManualClock) -> None:
    flow = await started(store, 2, [(0, 1)])
    await run_one(store, flow, 0, result=b"7")
    await store.delete([ref_of(flow, 0)])
    await advance(store)
    assert await states(store, flow) == [C, A]
    assert (await nodes_in(store, flow))[0].result == b"7"


async def test_a_job_of_another_flow_with_the_same_number_is_not_counted(store: Store) -> None:
    flow = await started(store, 2, [(0, 1)])
    extra = new("left-over", queue="other", flow=FlowMember("default", flow.id, 0))
    await store.enqueue([extra])
    await end(store, await take_one(store, "other"))
    assert await states(store, flow) == [A, W]


async def test_a_job_of_a_flow_that_is_gone_ends_as_any_other(store: Store) -> None:
    await store.enqueue([new("left-over", flow=FlowMember("nowhere", "gone", 3))])
    await end(store, await take_one(store))
    assert (await the(store, Ref("default", "left-over"))).state is State.COMPLETED


async def test_a_member_is_counted_after_a_lost_lease(store: Store, clock: ManualClock) -> None:
    flow = await started(store, 2, [(0, 1)])
    await take_one(store)
    clock.advance(HOUR)
    reclaimed = await store.reclaim(["default"], limit=1, lease=LEASE, worker="w2", token=token())
    await end(store, reclaimed.jobs[0], REMOVED, result=b"5")
    await advance(store)
    assert await states(store, flow) == [C, A]


@each("way", [retryable(), PARKED, snoozed(), AGAIN])
async def test_a_member_that_runs_again_is_counted_when_it_completes(
    store: Store, clock: ManualClock, way: Transition
) -> None:
    flow = await started(store, 2, [(0, 1)])
    await run_one(store, flow, 0, way)
    assert await states(store, flow) == [A, W]
    clock.advance(HOUR)
    await store.promote(["default"], limit=10)
    if way is PARKED:
        await store.retry([ref_of(flow, 0)])
    await run_one(store, flow, 0, REMOVED)
    await advance(store)
    assert await states(store, flow) == [C, A]


# ── nodes that wait for a failure, or for any end ────────────────────────────────────────────────


async def test_a_node_for_failures_is_unused_if_there_is_none(store: Store) -> None:
    flow = await started(store, 2, [(0, 1)], when={1: When.FAILURE})
    await run_one(store, flow, 0)
    assert await states(store, flow) == [C, U]
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


@pytest.mark.parametrize("how", [COMPLETED, DEAD])
async def test_a_node_for_any_end_starts_after_a_success_and_after_a_failure(
    store: Store, how: Transition
) -> None:
    flow = await started(store, 2, [(0, 1)], when={1: When.END})
    await run_one(store, flow, 0, how)
    await advance(store)
    assert await ready(store, flow) == [1]


async def test_a_failure_passes_down_a_chain_to_the_node_that_waits_for_it(store: Store) -> None:
    flow = await started(store, 4, [*CHAIN, (2, 3)], when={3: When.FAILURE})
    await run_one(store, flow, 0, DEAD)
    await advance(store)
    assert await states(store, flow) == [D, S, S, A]


# ── steer ────────────────────────────────────────────────────────────────────────────────────────


async def test_cancelling_a_flow_cancels_the_whole_tree(store: Store) -> None:
    flow = await started(store, 5, CHORD, joins=[3])
    job = await take_one(store)
    info = await store.change_flow(flow.ref, FlowChange.CANCEL)
    assert info is not None
    assert info.state is FlowState.STOPPING
    assert (await the(store, job)).cancel_asked
    assert await states(store, flow) == [A, X, X, S, S]
    await end(store, job, COMPLETED)
    assert (await the_flow(store, flow)).state is FlowState.CANCELLED
    assert await ready(store, flow) == []


async def test_a_flow_that_is_cancelled_before_its_last_part_never_starts(
    store: Store, clock: ManualClock
) -> None:
    flow = flow_of()
    nodes = nodes_of(flow, 5, CHORD, joins=[3])
    await store.put_flow(flow, nodes[:2], start=False)
    info = await store.change_flow(flow.ref, FlowChange.CANCEL)
    assert info is not None
    assert info.state is FlowState.CANCELLED
    await advance(store)
    last = await store.put_flow(flow, nodes[2:])
    assert last is not None
    assert (last.state, last.total) == (FlowState.CANCELLED, 2)
    await advance(store)
    assert await ready(store, flow) == []
    clock.advance(BUILDING_KEPT)
    await advance(store)
    assert await store.get_flows([flow.ref]) == [None]


@each("policy", FlowPolicy)
@each("runs", [False, True])
async def test_a_node_for_any_end_runs_after_its_flow_was_cancelled(
    store: Store, policy: FlowPolicy, runs: bool
) -> None:
    """Once, after all others have ended; `runs`: one of them is running, and is only asked to stop."""
    when = {3: When.END, 4: When.END, 5: When.FAILURE}
    edges = [(0, 2), (1, 2), (0, 3), (1, 3), (2, 3), (3, 4), (2, 5)]
    flow = await started(store, 6, edges, policy, joins=[3], when=when)
    job = await take_one(store) if runs else None
    info = await store.change_flow(flow.ref, FlowChange.CANCEL)
    assert info is not None
    assert info.state is FlowState.STOPPING
    await advance(store)
    if job is not None:
        assert await states(store, flow) == [A, X, S, W, W, U if policy is FlowPolicy.IGNORE else S]
        assert await ready(store, flow) == []
        await end(store, job, CANCELLED)
        await advance(store)
    assert (await states(store, flow))[:5] == [X, X, S, C, A]
    await store.change_flow(flow.ref, FlowChange.CANCEL)
    await run_one(store, flow, 4)
    await advance(store)
    ended = await the_flow(store, flow)
    assert (ended.state, await ready(store, flow)) == (FlowState.CANCELLED, [])
    assert (await states(store, flow))[:5] == [X, X, S, C, C]


async def test_a_node_for_any_end_that_runs_is_not_cancelled_with_its_flow(store: Store) -> None:
    flow = await started(store, 3, [(0, 1)], when={1: When.END})
    await run_one(store, flow, 0, DEAD)
    await advance(store)
    callback = await take_one(store)
    assert callback.id == f"{flow.id}.1"
    await store.change_flow(flow.ref, FlowChange.CANCEL)
    assert await store.extend([HeartbeatRequest(callback.lease, LEASE)]) == [LeaseStatus.HELD]
    await end(store, callback)
    await advance(store)
    assert await states(store, flow) == [D, C, X]
    assert (await the_flow(store, flow)).state is FlowState.CANCELLED


async def test_a_large_flow_is_cancelled_in_steps(store: Store) -> None:
    n = FLOW_STEP + 500
    flow = flow_of()
    await put(store, flow, nodes_of(flow, n + 1, [(i, n) for i in range(n)], joins=[n]))
    await store.change_flow(flow.ref, FlowChange.CANCEL)
    await advance(store)
    assert (await the_flow(store, flow)).counts == {X: n, S: 1}
    assert (await the_flow(store, flow)).state is FlowState.CANCELLED


async def test_a_flow_that_has_ended_or_is_gone_is_not_cancelled(store: Store) -> None:
    flow = await started(store, 1)
    await run_one(store, flow, 0)
    info = await store.change_flow(flow.ref, FlowChange.CANCEL)
    assert info is not None
    assert info.state is FlowState.COMPLETED
    assert await store.change_flow(Ref("default", "no-such-flow"), FlowChange.CANCEL) is None


@pytest.mark.parametrize("policy", [FlowPolicy.STOP, FlowPolicy.FINISH])
async def test_retrying_a_dead_member_resumes_its_flow(store: Store, policy: FlowPolicy) -> None:
    flow = await started(store, 5, CHORD, policy, joins=[3])
    await run_one(store, flow, 0)
    await run_one(store, flow, 1, DEAD)
    await advance(store)
    if policy is FlowPolicy.FINISH:
        await run_one(store, flow, 2)
    assert (await the_flow(store, flow)).state is FlowState.FAILED
    assert await store.retry([ref_of(flow, 1)]) == [State.DEAD]
    await advance(store)
    assert (await the_flow(store, flow)).state is FlowState.RUNNING
    last = C if policy is FlowPolicy.FINISH else A
    assert await states(store, flow) == [C, A, last, W, W]
    await run_one(store, flow, 1)
    if policy is FlowPolicy.STOP:
        await run_one(store, flow, 2)
    await run_one(store, flow, 4)
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


@each("policy", FlowPolicy)
@each("again", [COMPLETED, DEAD])
async def test_a_retried_member_that_ends_before_its_flow_knows_is_counted(
    store: Store, policy: FlowPolicy, again: Transition
) -> None:
    flow = await started(store, 3, [(0, 2), (1, 2)], policy, when={2: When.END})
    first, other = await take(store, 2)
    await end(store, first, DEAD)
    await store.retry([ref_of(flow, 0)])
    await run_one(store, flow, 0, again)
    await advance(store)
    ended = C if again is COMPLETED else D
    assert await states(store, flow) == [ended, A, W]
    await end(store, other)
    await advance(store)
    assert await states(store, flow) == [ended, C, A]
    await run_one(store, flow, 2)
    done = ended is C or policy is FlowPolicy.IGNORE
    assert (await the_flow(store, flow)).state is (FlowState.COMPLETED if done else FlowState.FAILED)


async def test_the_result_of_a_retried_member_is_that_of_its_last_run(store: Store) -> None:
    flow = await started(store, 3, [(0, 2), (1, 2)])
    first, other = await take(store, 2)
    await end(store, first, COMPLETED, result=b"1")
    await store.retry([ref_of(flow, 0)])
    await run_one(store, flow, 0, result=b"2")
    await end(store, other, result=b"3")
    await advance(store)
    assert [node.result for node in await nodes_in(store, flow)] == [b"2", b"3", None]
    assert await ready(store, flow) == [2]


async def test_a_member_that_runs_again_keeps_its_result_until_it_ends(store: Store) -> None:
    """Its successor may be about to read it."""
    flow = await started(store, 1)
    await run_one(store, flow, 0, result=b"1")
    for to, result in (COMPLETED, b"2"), (DEAD, None):
        await store.retry([ref_of(flow, 0)])
        await advance(store)
        (node,) = await nodes_in(store, flow)
        assert (node.state, node.result) == (A, b"1" if result else b"2")
        await run_one(store, flow, 0, to, result=result)
        await advance(store)
        assert (await nodes_in(store, flow))[0].result == result


async def test_a_skipped_node_runs_after_a_retried_member_that_its_flow_has_not_noticed(store: Store) -> None:
    flow = await started(store, 2, [(0, 1)])
    await run_one(store, flow, 0, DEAD)
    assert await states(store, flow) == [D, S]
    await store.retry([ref_of(flow, 0)])
    await run_one(store, flow, 0)
    await advance(store)
    assert await ready(store, flow) == [1]


async def test_retrying_one_of_two_dead_members_waits_for_the_other(store: Store) -> None:
    flow = await started(store, 5, CHORD, FlowPolicy.FINISH, joins=[3])
    await run_one(store, flow, 0, DEAD)
    await run_one(store, flow, 1, DEAD)
    await run_one(store, flow, 2)
    await store.retry([ref_of(flow, 0)])
    await advance(store)
    await run_one(store, flow, 0)
    assert await states(store, flow) == [C, D, C, S, S]
    assert (await the_flow(store, flow)).state is FlowState.FAILED
    await store.retry([ref_of(flow, 1)])
    await advance(store)
    await run_one(store, flow, 1)
    assert await ready(store, flow) == [4]


async def test_retrying_a_cancelled_flow_runs_all_that_has_not_completed(store: Store) -> None:
    flow = await started(store, 5, CHORD, joins=[3])
    await run_one(store, flow, 0)
    await store.change_flow(flow.ref, FlowChange.CANCEL)
    assert await states(store, flow) == [C, X, X, S, S]
    await store.change_flow(flow.ref, FlowChange.RETRY)
    await advance(store)
    assert await states(store, flow) == [C, A, A, W, W]
    await run_one(store, flow, 1)
    await run_one(store, flow, 2)
    await run_one(store, flow, 4)
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


@pytest.mark.parametrize("keep", [HOUR, 0])
async def test_a_member_that_stops_after_the_retry_runs_again_if_it_still_exists(
    store: Store, keep: int
) -> None:
    flow = await started(store, 5, CHORD, joins=[3])
    jobs = await take(store, 3)
    await end(store, jobs[2], COMPLETED)
    await end(store, jobs[0], DEAD)
    await advance(store)
    await store.retry([ref_of(flow, 0)])
    await advance(store)
    assert await states(store, flow) == [A, A, C, W, W]
    await end(store, jobs[1], Transition(State.CANCELLED, keep=keep))
    await advance(store)
    if not keep:
        assert await states(store, flow) == [X, X, C, S, S]
        return
    assert await states(store, flow) == [A, A, C, W, W]
    assert (await the_flow(store, flow)).state is FlowState.RUNNING
    await run_one(store, flow, 0)
    await run_one(store, flow, 1)
    await run_one(store, flow, 4)
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


async def test_a_flow_that_failed_long_ago_is_retried_with_the_members_it_had_cancelled(
    store: Store, clock: ManualClock
) -> None:
    flow = await started(store, 3, [(0, 2), (1, 2)], retention=0)
    await run_one(store, flow, 0, Transition(State.DEAD, keep=90 * DAY))
    await advance(store)
    clock.advance(30 * DAY)
    await store.prune()
    await advance(store)
    assert await states(store, flow) == [D, X, S]
    await store.change_flow(flow.ref, FlowChange.RETRY)
    await advance(store)
    assert await states(store, flow) == [A, A, W]


async def test_a_member_that_died_and_one_that_stopped_in_one_call_come_back_together(store: Store) -> None:
    flow = await started(store, 3, [(0, 2), (1, 2)])
    one, two = await take(store, 2)
    stopped = Transition(State.CANCELLED, keep=HOUR)
    await store.settle([Settlement(one.lease, DEAD), Settlement(two.lease, stopped)])
    await advance(store)
    assert await states(store, flow) == [D, X, S]
    await store.retry([ref_of(flow, 0)])
    await advance(store)
    assert await states(store, flow) == [A, A, W]


async def test_members_that_died_in_one_call_do_not_come_back_with_others(store: Store) -> None:
    flow = await started(store, 4, [(0, 3), (1, 3), (2, 3)])
    one, two = await take(store, 2)
    await store.settle([Settlement(one.lease, DEAD), Settlement(two.lease, DEAD)])
    await advance(store)
    assert await states(store, flow) == [D, D, X, S]
    await store.retry([ref_of(flow, 2)])  # it is cancelled again, because the flow cannot complete
    await advance(store)
    assert await states(store, flow) == [D, D, X, S]
    assert (await the(store, two)).state is State.DEAD


async def test_a_handler_is_needed_again_when_its_predecessor_runs_again(store: Store) -> None:
    flow = await started(store, 2, [(0, 1)], when={1: When.FAILURE})
    await run_one(store, flow, 0)
    assert await states(store, flow) == [C, U]
    await store.retry([ref_of(flow, 0)])
    await advance(store)
    assert await states(store, flow) == [A, W]
    await run_one(store, flow, 0, DEAD)
    await advance(store)
    assert await states(store, flow) == [D, A]


@pytest.mark.parametrize("kind", sorted(VANDALS), indirect=True)
async def test_a_retried_flow_ends_again_if_a_member_is_unreadable(
    kind: str, store: Store, home: Path
) -> None:
    flow = await started(store, 3, [(0, 2), (1, 2)])
    await run_one(store, flow, 0, DEAD)
    await advance(store)
    await VANDALS[kind](home).record(ref_of(flow, 0), "all of it")
    for _ in range(2):
        await store.change_flow(flow.ref, FlowChange.RETRY)
        await advance(store)
        assert (await the(store, ref_of(flow, 0))).state is State.DEAD
        assert await states(store, flow) == [D, X, S]
        assert (await the_flow(store, flow)).state is FlowState.FAILED


async def test_a_retry_of_a_flow_without_failures_changes_nothing(store: Store) -> None:
    flow = await started(store, 3, CHAIN)
    await store.change_flow(flow.ref, FlowChange.RETRY)
    assert await states(store, flow) == [A, W, W]


# ── add ──────────────────────────────────────────────────────────────────────────────────────────


async def test_members_can_be_added_while_another_member_runs(store: Store) -> None:
    flow = await started(store, 3, [(0, 1), (1, 2)], joins=[1])
    job = await take_one(store)
    added = [new(f"{flow.id}.{3 + n}", flow=FlowMember("default", flow.id, 0)) for n in range(2)]
    info = await store.add_to_flow(flow.ref, 1, added)
    assert info is not None
    assert info.total == 5
    await end(store, job)
    assert await states(store, flow) == [C, W, W, A, A]
    await run_one(store, flow, 3)
    await run_one(store, flow, 4)
    assert await ready(store, flow) == [2]
    assert (await nodes_in(store, flow))[1].inputs == (0, 3, 4)


async def test_a_repeated_call_adds_no_members_again(store: Store) -> None:
    flow = await started(store, 3, [(0, 1), (1, 2)], joins=[1])
    place = FlowMember("default", flow.id, 0)
    for n, (key, total) in enumerate([("0/a", 4), ("0/a", 4), ("0/b", 5), ("0/a", 5), ("", 6), ("", 7)]):
        info = await store.add_to_flow(flow.ref, 1, [new(f"{flow.id}.x{n}", flow=place)], key=key)
        assert info is not None
        assert info.total == total
    await end(store, await take_one(store))
    assert await states(store, flow) == [C, W, W, A, A, A, A]
    assert await store.add_to_flow(flow.ref, 2, [new(flow=place)], key="0/c") is None
    assert await store.add_to_flow(flow.ref, 1, [new(f"{flow.id}.y", flow=place)], key="0/c") is not None


async def test_nothing_is_added_to_a_join_that_has_ended(store: Store) -> None:
    flow = await started(store, 3, [(0, 1), (1, 2)], joins=[1])
    await run_one(store, flow, 0)
    extra = new(flow=FlowMember("default", flow.id, 0))
    assert await store.add_to_flow(flow.ref, 1, [extra]) is None
    assert await store.add_to_flow(Ref("default", "no-such-flow"), 1, [extra]) is None
    assert (await the_flow(store, flow)).total == 3


# ── jobs that others have enqueued ───────────────────────────────────────────────────────────────


def external(flow: NewFlow, count: int) -> list[NewNode]:
    return [NewNode(n, ref=ref_of(flow, n), uses=0) for n in range(count)]


async def test_a_flow_of_enqueued_jobs_wakes_a_suspended_job(store: Store) -> None:
    await add(store, new("parent", queue="p"))
    parent = await take_one(store, queue="p")
    await end(store, parent, suspended(HOUR))
    flow = flow_of(queue="p", policy=FlowPolicy.IGNORE, wakes="parent", result=-1)
    ids = [f"{flow.id}.{n}" for n in range(5)]
    await add(store, *(new(id, queue="p", flow=FlowMember("p", flow.id, n)) for n, id in enumerate(ids)))
    await run_one(store, flow, 0)
    await run_one(store, flow, 1, REMOVED)
    assert await store.put_flow(flow, external(flow, 5), start=False) is not None
    await run_one(store, flow, 2, result=b"2")
    assert await store.put_flow(flow, [], start=True) is not None
    await advance(store)
    assert await states(store, flow) == [C, G, C, A, A]
    await run_one(store, flow, 3, DEAD)
    await advance(store)
    assert (await the(store, parent)).state is State.SUSPENDED
    assert await store.cancel([ref_of(flow, 4)]) == [State.CANCELLED]
    await advance(store)
    assert (await the(store, parent)).state is State.AVAILABLE
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED
    assert [node.result for node in await nodes_in(store, flow)] == [None] * 5


async def test_a_job_that_has_not_suspended_itself_yet_is_woken_then(store: Store) -> None:
    await add(store, new("parent", queue="p"))
    parent = await take_one(store, queue="p")
    await store.record_steps([StepRecord(parent.lease, "a step", b"1", LEASE)])
    flow = flow_of(queue="p", wakes="parent")
    await put(store, flow, [])
    await end(store, parent, suspended(HOUR))
    assert (await the(store, parent)).state is State.AVAILABLE


async def gathered(store: Store, count: int) -> tuple[NewFlow, Job]:
    """A running job with a step, and a flow of jobs that it waits for; the first of them runs."""
    await add(store, new("parent", queue="p"))
    parent = await take_one(store, queue="p")
    await store.record_steps([StepRecord(parent.lease, "a step", b"1", LEASE)])
    flow = flow_of(queue="p", policy=FlowPolicy.IGNORE, wakes="parent", result=-1, retention=0)
    members = [FlowMember("p", flow.id, n) for n in range(count)]
    await add(store, *(new(f"{flow.id}.{one.node}", queue="c", flow=one) for one in members))
    return flow, parent


def waited_for(flow: NewFlow, count: int) -> list[NewNode]:
    return [NewNode(n, ref=ref_of(flow, n, "c"), uses=0) for n in range(count)]


async def end_parent(store: Store, parent: Job, how: str) -> None:
    if how in ("cancelled", "deleted"):
        await end(store, parent, suspended(HOUR))
    if how == "cancelled":
        assert await store.cancel([parent.ref]) == [State.CANCELLED]
    elif how == "deleted":
        await store.delete([parent.ref])
    else:
        to = {"dead": DEAD, "completed": COMPLETED, "stopped": Transition(State.CANCELLED, keep=DAY)}[how]
        await end(store, parent, to)


@pytest.mark.parametrize("how", ["cancelled", "stopped", "dead", "deleted", "completed"])
async def test_jobs_are_cancelled_with_the_job_that_waits_for_them(store: Store, how: str) -> None:
    flow, parent = await gathered(store, 4)
    assert await store.put_flow(flow, waited_for(flow, 4)) is not None
    first, second = await take(store, 2, "c")
    await end_parent(store, parent, how)
    await end(store, second)  # a change of the flow before anything is cancelled
    await advance(store)
    goes_on = how == "completed"
    (status,) = await store.extend([HeartbeatRequest(first.lease, LEASE)])
    assert status is (LeaseStatus.HELD if goes_on else LeaseStatus.CANCEL_ASKED)
    await end(store, first, Transition(State.CANCELLED, keep=DAY))
    await advance(store)
    assert await states(store, flow) == ([X, C, A, A] if goes_on else [X, C, X, X])
    assert (await the_flow(store, flow)).state is (FlowState.RUNNING if goes_on else FlowState.CANCELLED)
    queued = await the(store, ref_of(flow, 3, "c"))
    assert queued.reason == (None if goes_on else FLOW_ABANDONED)


async def test_the_jobs_of_a_job_that_is_gone_are_cancelled(store: Store) -> None:
    flow, parent = await gathered(store, 3)
    await store.put_flow(flow, waited_for(flow, 2), start=False)
    await end(store, parent, DEAD)
    await store.put_flow(flow, waited_for(flow, 3)[2:])
    late = replace(flow, id=f"{flow.id}-late", key="late")
    await store.put_flow(late, [NewNode(0, ref=ref_of(flow, 2, "c"), uses=0)])
    await advance(store)
    assert (await the_flow(store, late)).state in (FlowState.CANCELLED, FlowState.STOPPING)
    assert await states(store, flow) == [X, X, X]
    assert await take(store, 9, "c") == []


@pytest.mark.parametrize("how", [COMPLETED, REMOVED])
@pytest.mark.parametrize("late", [False, True])
async def test_a_flow_that_nobody_starts_ends_if_its_job_has_completed(
    store: Store, how: Transition, late: bool
) -> None:
    """A process dies while it stores a flow; `late`: it has lost the job, which another one has completed."""
    flow, parent = await gathered(store, 2)
    if not late:
        await store.put_flow(flow, waited_for(flow, 2), start=False)
    await end(store, parent, how)
    if late:
        await store.put_flow(flow, waited_for(flow, 2), start=False)
    await advance(store)
    assert (await the_flow(store, flow)).ended
    expected = FLOW_ABANDONED if late and how is REMOVED else None
    assert (await the(store, ref_of(flow, 0, "c"))).reason == expected


async def test_jobs_that_run_again_for_a_job_that_was_retried_wake_it(store: Store) -> None:
    flow, parent = await gathered(store, 2)
    await store.put_flow(flow, waited_for(flow, 2))
    await end_parent(store, parent, "cancelled")
    await advance(store)
    assert await store.retry([parent.ref]) == [State.CANCELLED]
    parent = await take_one(store, queue="p")
    await store.change_flow(flow.ref, FlowChange.RETRY)
    await advance(store)
    await end(store, parent, suspended(HOUR))
    for job in await take(store, 2, "c"):
        assert (await the(store, parent)).state is State.SUSPENDED
        await end(store, job)
        await advance(store)
    assert (await the(store, parent)).state is State.AVAILABLE
    assert await store.get_flows([flow.ref]) == [None]


# ── waiting for the end ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["result", "failure", "cancel", "removal"])
async def test_a_wait_for_a_flow_ends_with_it(
    store: Store, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not with the next check, which is an hour away."""
    for kind in ("sql", "redis"):
        monkeypatch.setattr(f"penstock.stores.{kind}.store._SAFETY", 3_600.0)
    flow = await started(store, 2, [(0, 1)])
    if how == "result":  # that of node 0: the flow itself still runs
        act = run_one(store, flow, 0)
    elif how == "failure":
        act = run_one(store, flow, 0, DEAD)
    elif how == "cancel":
        act = store.change_flow(flow.ref, FlowChange.CANCEL)
    else:
        act = store.delete([ref_of(flow, 0)])
    end = [end_of_flow(flow.ref)]
    assert await store.wait_for_end(end, timeout=1) == [None]
    wait = asyncio.create_task(store.wait_for_end(end, timeout=3_600_000))
    await asyncio.sleep(0.01)
    assert not wait.done()
    await act
    await advance(store)
    assert await wait == [None]
    assert await asyncio.to_thread(store.sync.wait_for_end, end, timeout=3_600_000) == [None]
    assert await store.wait_for_end([end_of_flow(Ref("q", "no-such-flow"))], timeout=3_600_000) == [None]


# ── results that were used ───────────────────────────────────────────────────────────────────────


async def taking(store: Store, count: int, takes: dict[int, tuple[int, ...]], **facts: Any) -> NewFlow:
    """A flow of nodes that follow those whose values they take; the value of the last node is its result."""
    flow = flow_of(result=count - 1)
    edges = [(one, node) for node, inputs in takes.items() for one in inputs]
    uses = Counter(one for one, _ in edges)
    nodes = [
        replace(
            node, inputs=takes.get(node.index, ()), uses=uses[node.index] if node.index < count - 1 else -1
        )
        for node in nodes_of(flow, count, edges, **facts)
    ]
    await put(store, flow, nodes)
    return flow


async def results(store: Store, flow: NewFlow) -> list[bytes | None]:
    await advance(store)
    return [node.result for node in await nodes_in(store, flow)]


async def test_a_result_is_removed_when_its_taker_has_completed(store: Store) -> None:
    flow = await taking(store, 3, {1: (0,), 2: (1,)})
    await run_one(store, flow, 0, result=b"0")
    assert await results(store, flow) == [b"0", None, None]
    await run_one(store, flow, 1, DEAD)
    assert await results(store, flow) == [b"0", None, None]
    assert await store.change_flow(flow.ref, FlowChange.RETRY) is not None
    await run_one(store, flow, 1, result=b"1")
    assert await results(store, flow) == [USED, b"1", None]
    await run_one(store, flow, 2, result=b"2")
    assert await results(store, flow) == [USED, USED, b"2"]
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


async def test_a_result_with_two_takers_is_removed_after_both(store: Store) -> None:
    flow = await taking(store, 4, {1: (0,), 2: (0,), 3: (1, 2)})
    await run_one(store, flow, 0, result=b"0")
    await run_one(store, flow, 1, result=b"1")
    assert await results(store, flow) == [b"0", b"1", None, None]
    await run_one(store, flow, 2, result=b"2")
    assert await results(store, flow) == [USED, b"1", b"2", None]


async def test_the_results_of_a_group_are_removed_after_its_body(store: Store) -> None:
    flow = await taking(store, 5, {2: (0, 1), 3: (2,), 4: (3,)}, joins=[2])
    await run_one(store, flow, 0, result=b"0")
    assert await store.add_to_flow(flow.ref, 2, [new(f"{flow.id}.5")]) is not None
    await run_one(store, flow, 1, result=b"1")
    await run_one(store, flow, 5, result=b"5")
    assert (await results(store, flow))[:2] == [b"0", b"1"]
    await run_one(store, flow, 3, result=b"3")
    assert await results(store, flow) == [USED, USED, None, b"3", None, USED]


async def test_a_result_that_no_node_takes_is_not_stored(store: Store) -> None:
    flow = await taking(store, 2, {})
    await run_one(store, flow, 0, result=b"0")
    await run_one(store, flow, 1, result=b"1")
    assert await results(store, flow) == [None, b"1"]


# ── again from a node ────────────────────────────────────────────────────────────────────────────


async def again_from(store: Store, flow: NewFlow, node: int) -> None:
    assert await store.change_flow(flow.ref, FlowChange.RETRY, node=node) is not None
    await advance(store)


async def test_a_flow_runs_again_from_a_node_with_its_history(store: Store) -> None:
    flow = await started(store, 4, [(0, 1), (1, 3), (2, 3)], FlowPolicy.FINISH)
    await run_one(store, flow, 0)
    await run_one(store, flow, 2)
    await run_one(store, flow, 1, Transition(State.AVAILABLE, error=AttemptError(1, 0, "OSError", "no luck")))
    await run_one(store, flow, 1)
    await run_one(store, flow, 3)
    await again_from(store, flow, 1)
    assert await states(store, flow) == [C, A, C, W]
    assert (await the_flow(store, flow)).state is FlowState.RUNNING
    job = await the(store, ref_of(flow, 1))
    assert [error.message for error in job.errors] == ["no luck"]
    await run_one(store, flow, 1, result=b"again")
    await advance(store)
    await run_one(store, flow, 3)
    info = await the_flow(store, flow)
    assert (info.state, info.counts) == (FlowState.COMPLETED, {C: 4})
    assert (await nodes_in(store, flow))[1].result == b"again"


async def test_failed_nodes_run_again_with_the_others(store: Store) -> None:
    flow = await started(store, 3, [(0, 2), (1, 2)], FlowPolicy.FINISH)
    await run_one(store, flow, 0)
    await run_one(store, flow, 1, DEAD)
    await again_from(store, flow, 0)
    assert await states(store, flow) == [A, A, W]


async def test_what_cannot_run_again_is_refused_and_nothing_changes(store: Store) -> None:
    flow = await started(store, 3, CHAIN, joins=[1])
    with pytest.raises(ConfigError, match="after it has ended"):
        await store.change_flow(flow.ref, FlowChange.RETRY, node=0)
    await run_one(store, flow, 0, REMOVED)
    await run_one(store, flow, 2, DEAD)
    await advance(store)
    before = await the_flow(store, flow)
    for node, why in ((0, "its job is gone"), (1, "no job that has run"), (7, "no job that has run")):
        with pytest.raises(ConfigError, match=why):
            await store.change_flow(flow.ref, FlowChange.RETRY, node=node)
    assert await the_flow(store, flow) == before


async def test_a_follower_whose_job_is_gone_ends_and_does_not_hang(store: Store) -> None:
    flow = await started(store, 2, [(0, 1)])
    await run_one(store, flow, 0)
    await run_one(store, flow, 1, REMOVED)
    await again_from(store, flow, 0)
    await run_one(store, flow, 0)
    await advance(store)
    assert await states(store, flow) == [C, G]
    assert (await the_flow(store, flow)).state is FlowState.FAILED


# ── read and remove ──────────────────────────────────────────────────────────────────────────────


async def _listed(store: Store, limit: int) -> list[str]:
    after, found = None, []
    while True:
        page = await store.list_flows(after=after, limit=limit)
        found += [info.spec.id for info in page.flows]
        if (after := page.next) is None:
            return found


async def test_flows_are_listed_newest_first(store: Store, clock: ManualClock) -> None:
    flows = []
    for n in range(9):
        flows.append(await started(store, 1, queue=f"q{n % 3}"))
        clock.advance(n % 4 // 3)  # several at each instant
    assert await _listed(store, 2) == await _listed(store, 4) == await _listed(store, 100)
    times = {flow.id: (await the_flow(store, flow)).created_at for flow in flows}
    ordered = sorted(flows, key=lambda flow: (times[flow.id], flow.queue, flow.id), reverse=True)
    assert await _listed(store, 2) == [flow.id for flow in ordered]
    with pytest.raises(ConfigError):
        await store.list_flows(after="nonsense")


async def test_a_flow_is_kept_for_its_retention_after_its_end(store: Store, clock: ManualClock) -> None:
    flow = flow_of(retention=HOUR)
    await put(store, flow, nodes_of(flow, 1))
    clock.advance(2 * DAY)
    await advance(store)
    await run_one(store, flow, 0)
    clock.advance(HOUR - 1)
    await advance(store)
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED
    clock.advance(1)
    await advance(store)
    assert await store.get_flows([flow.ref]) == [None]
    assert (await store.list_flows()).flows == []


async def test_a_flow_that_is_never_started_is_removed(store: Store, clock: ManualClock) -> None:
    flow = flow_of()
    await store.put_flow(flow, nodes_of(flow, 2), start=False)
    clock.advance(BUILDING_KEPT)
    await advance(store)
    assert await store.get_flows([flow.ref]) == [None]


async def test_a_large_flow_whose_removal_has_begun_is_gone(store: Store, clock: ManualClock) -> None:
    flow = flow_of(retention=0)
    again = flow_of(id=flow.id)
    await put(store, flow, nodes_of(flow, 30))
    jobs = await take(store, 30)
    await store.settle([Settlement(job.lease, COMPLETED) for job in jobs])
    clock.advance(1)
    assert await store.advance_flows(limit=10)
    assert await store.change_flow(flow.ref, FlowChange.RETRY) is None
    assert await store.get_flows([flow.ref]) == [None]
    assert (await store.list_flows()).flows == []
    assert await store.flow_nodes(flow.ref, [29]) == [None]
    await store.retry([ref_of(flow, 29)])
    await put(store, again, nodes_of(again, 2, joins=[0, 1]))
    await run_one(store, flow, 29)
    await advance(store)
    assert (await the_flow(store, again)).state is FlowState.COMPLETED


async def test_a_part_is_refused_if_the_parts_before_it_are_gone(store: Store, clock: ManualClock) -> None:
    flow = flow_of()
    nodes = nodes_of(flow, 3, CHAIN)
    await store.put_flow(flow, nodes[:2], start=False)
    clock.advance(BUILDING_KEPT)
    await advance(store)
    assert await store.put_flow(flow, nodes[2:]) is None
    assert await store.get_flows([flow.ref]) == [None]


async def test_namespaces_have_flows_of_their_own(open_store: OpenStore) -> None:
    one, other = open_store(), open_store(namespace="other")
    flow = await started(one, 1)
    assert await other.get_flows([flow.ref]) == [None]
    assert (await other.list_flows()).flows == []
    again = flow_of(id=flow.id)
    await put(other, again, nodes_of(again, 2))
    assert (await the_flow(one, flow)).total == 1


# ── without an event loop ────────────────────────────────────────────────────────────────────────


async def test_a_flow_is_stored_and_steered_without_an_event_loop(store: Store) -> None:
    flow, sync = flow_of(), store.sync
    await asyncio.to_thread(sync.put_flow, flow, nodes_of(flow, 3, [(0, 1), (1, 2)], joins=[1]))
    extra = new(f"{flow.id}.3", flow=FlowMember("default", flow.id, 0))
    added = await asyncio.to_thread(sync.add_to_flow, flow.ref, 1, [extra])
    assert added is not None
    assert added.total == 4
    await asyncio.to_thread(sync.change_flow, flow.ref, FlowChange.CANCEL)
    while await asyncio.to_thread(sync.advance_flows):
        pass
    (info,) = await asyncio.to_thread(sync.get_flows, [flow.ref])
    assert info is not None
    assert info.state is FlowState.CANCELLED
    found = await asyncio.to_thread(sync.flow_nodes, flow.ref, [0, 3, 9])
    assert [None if node is None else node.state for node in found] == [X, X, None]


# ── several queues ───────────────────────────────────────────────────────────────────────────────


async def test_members_of_several_queues_move_one_body(store: Store) -> None:
    flow = await started(store, 5, CHORD, joins=[3], queues={1: "blue", 2: "green", 4: "red"})
    for index, queue in enumerate(["default", "blue", "green"]):
        await run_one(store, flow, index, REMOVED, queue=queue, result=str(index).encode())
    assert await ready(store, flow, "red") == [4]
    assert [node.result for node in (await nodes_in(store, flow))[:3]] == [b"0", b"1", b"2"]
    await run_one(store, flow, 4, queue="red")
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


async def test_a_failure_in_one_queue_cancels_members_of_others(store: Store) -> None:
    flow = await started(store, 5, CHORD, joins=[3], queues={1: "blue", 2: "green"})
    await run_one(store, flow, 1, DEAD, queue="blue")
    await advance(store)
    assert await states(store, flow) == [X, D, X, S, S]
    assert (await the_flow(store, flow)).state is FlowState.FAILED


async def test_a_flow_survives_the_drop_of_its_home_without_jobs(store: Store) -> None:
    flow = flow_of(queue="home")
    await put(store, flow, nodes_of(flow, 2, [(0, 1)], queues={0: "blue", 1: "blue"}))
    await store.drop("home")
    assert [info.spec.ref for info in (await store.list_flows()).flows] == [flow.ref]
    await run_one(store, flow, 0, queue="blue")
    await run_one(store, flow, 1, queue="blue")
    assert (await the_flow(store, flow)).state is FlowState.COMPLETED


async def test_an_end_survives_the_drop_of_its_queue(store: Store) -> None:
    flow = await started(store, 2, [(0, 1)], queues={0: "blue"})
    await store.delete([ref_of(flow, 0, "blue")])
    await store.drop("blue")
    await advance(store)
    assert await states(store, flow) == [G, S]


async def test_a_node_whose_id_is_taken_in_another_queue_fails(store: Store) -> None:
    flow = flow_of()
    await store.enqueue([new(f"{flow.id}.0", queue="blue", priority=-1)])
    await put(store, flow, nodes_of(flow, 2, [(0, 1)], queues={0: "blue"}))
    assert await states(store, flow) == [G, S]
