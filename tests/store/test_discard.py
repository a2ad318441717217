"""discard: makes queued jobs dead, without an attempt."""

from __future__ import annotations

from penstock.core.clock import ManualClock
from penstock.core.flow import FlowState, NodeState
from penstock.core.job import DEAD_KEPT, QUEUED, TERMINAL, Ref, State
from penstock.core.lifecycle import DISCARDED
from penstock.core.relations import BatchTerms, Partition
from penstock.core.unique import UniqueKey
from penstock.stores.contract import EnqueueStatus, Store
from tests.cases import each
from tests.store.facts import DAY, HOUR, add, counts, gone, in_state, member, new, running, take, the
from tests.store.flow_facts import advance, flow_of, nodes_of, put


@each("state", sorted(QUEUED | {State.SUSPENDED}))
async def test_a_queued_job_is_dead_at_once(store: Store, clock: ManualClock, state: State) -> None:
    job = await in_state(store, state)
    clock.advance(5)
    assert await store.discard([job.ref]) == [state]
    ended = await the(store, job)
    assert (ended.state, ended.reason, ended.ended_at) == (State.DEAD, DISCARDED, clock.now())
    assert (ended.attempt, ended.errors, ended.run_at) == (job.attempt, job.errors, job.run_at)
    assert await counts(store) == {State.DEAD: 1}
    clock.advance(DAY)
    assert (await store.promote(["default"], limit=9)).moved == 0
    assert await take(store, 9) == []


async def test_a_reason_of_ones_own_is_kept(store: Store) -> None:
    job = await in_state(store, State.SCHEDULED)
    await store.discard([job.ref], reason="order 17 – no customer")
    assert (await the(store, job)).reason == "order 17 – no customer"


@each("state", sorted(TERMINAL | {State.RUNNING}))
async def test_a_running_or_ended_job_stays_as_it_is(store: Store, state: State) -> None:
    job = await in_state(store, state)
    assert await store.discard([job.ref, Ref("default", "nobody")]) == [state, None]
    assert await the(store, job) == job


@each("keep_dead", [None, HOUR, 2 * DEAD_KEPT])
@each("retention", [0, DEAD_KEPT + 1])
async def test_a_discarded_job_is_kept_as_any_dead_job(
    store: Store, clock: ManualClock, keep_dead: int | None, retention: int
) -> None:
    job = new(keep_dead=keep_dead, retention=retention, delay=HOUR)
    await add(store, job)
    await store.discard([job.ref])
    clock.advance((max(retention, DEAD_KEPT) if keep_dead is None else keep_dead) - 1)
    assert (await store.prune()).finished == 0
    clock.advance(1)
    assert (await store.prune()).finished == 1
    assert await gone(store, job)


async def test_a_discarded_job_frees_its_key_and_its_place_in_a_partition(store: Store) -> None:
    one, two = [new(partition=Partition("k", 1), unique=UniqueKey(f"u{n}")) for n in range(2)]
    await add(store, one, two)
    await store.discard([one.ref])
    assert (await the(store, two)).state is State.AVAILABLE
    (again,) = await store.enqueue([new(unique=UniqueKey("u0"))])
    assert again.status is EnqueueStatus.NEW


async def test_the_members_of_a_discarded_batch_are_dead_too(store: Store) -> None:
    members = [member(size=2) for _ in range(2)]
    await add(store, *members)
    batch = (await the(store, members[0])).batch
    assert batch is not None
    assert await store.discard([members[0].ref]) == [State.COLLECTING], "it ends with its batch"
    assert (await the(store, members[0])).state is State.COLLECTING
    await store.discard([Ref("default", batch)])
    assert {(await the(store, one)).state for one in members} == {State.DEAD}


async def test_a_collecting_job_leaves_its_batch(store: Store) -> None:
    first, second = [new(batch_terms=BatchTerms("g", 2)) for _ in range(2)]
    await add(store, first)
    await store.discard([first.ref])
    await add(store, second)
    assert (await the(store, second)).batch is None


async def test_a_node_of_a_flow_ends_as_dead(store: Store) -> None:
    flow = flow_of()
    await put(store, flow, nodes_of(flow, 2, [(0, 1)]))
    await store.discard([Ref("default", f"{flow.id}.0")])
    await advance(store)
    (found,) = await store.get_flows([flow.ref])
    assert found is not None
    assert (found.state, found.counts[NodeState.DEAD]) == (FlowState.FAILED, 1)


async def test_a_discarded_job_may_be_retried(store: Store) -> None:
    job = await running(store)
    other = await in_state(store, State.AVAILABLE)
    assert await store.discard([job.ref, other.ref]) == [State.RUNNING, State.AVAILABLE]
    assert await store.retry([other.ref]) == [State.DEAD]
    assert (await the(store, other)).state is State.AVAILABLE


async def test_nothing_to_discard_is_no_queue(store: Store) -> None:
    assert await store.discard([]) == []
    assert await store.queues() == []
