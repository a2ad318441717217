"""Acts on all jobs that match a filter: bounded steps, one process at a time, continued by any other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.errors import ConfigError, StoreUnavailable
from penstock.core.job import TERMINAL, NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import FlowMember, Input
from penstock.inspector import BulkAct, BulkActs, BulkState, Inspector, JobAct
from penstock.inspector import bulk_acts as module
from penstock.inspector.audit import AuditLog
from penstock.stores.contract import Enqueued, EnqueueStatus, JobFilter, SearchPage, Store, TimeRange
from tests.store.facts import (
    DEAD,
    MINUTE,
    RELEASED,
    SECOND,
    OpenStore,
    add,
    counts,
    end,
    in_state,
    new,
    running,
    some,
    take,
    the,
)
from tests.store.flow_facts import flow_of, nodes_of, put, ref_of

ALL_DEAD = JobFilter(states=(State.DEAD,))


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP", 3)


async def run(store: Store, id: str, *, holder: str = "w1", steps: int = 100) -> BulkAct | None:
    """Do steps until the act has ended or is held elsewhere; the last answer."""
    acts, last = BulkActs(store), None
    for _ in range(steps):
        stepped = await acts.step(id, holder)
        if stepped is None:
            return last
        last = stepped
    return last


async def dead(store: Store, n: int) -> None:
    await add(store, *some(n))
    for job in await take(store, n):
        await end(store, job, DEAD)


async def test_all_matching_jobs_are_changed_and_nothing_else(store: Store) -> None:
    await dead(store, 7)
    await add(store, new("queued"))
    bulk = await BulkActs(store).start(JobAct.RETRY, ALL_DEAD, by="cli:ann")
    await dead(store, 0)
    ended = await run(store, bulk.id)
    assert ended is not None
    assert (ended.state, ended.done, ended.refused, ended.total) == (BulkState.DONE, 7, 0, 7)
    assert await counts(store) == {State.AVAILABLE: 8}
    assert await BulkActs(store).get(bulk.id) == ended
    acts = [(one.entry.who, one.entry.act) async for one in AuditLog(store).newest_first()]
    assert acts == [("cli:ann", "bulk.end"), ("cli:ann", "bulk.retry")]


async def test_jobs_that_were_enqueued_after_the_start_are_left_alone(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *some(4))
    clock.advance(2)
    filter = JobFilter(states=(State.AVAILABLE,))
    bulk = await BulkActs(store).start(JobAct.DUPLICATE, filter, by="me")
    ended = await run(store, bulk.id)
    assert ended is not None
    assert (ended.done, await counts(store)) == (4, {State.AVAILABLE: 8})


async def test_another_process_continues_an_act_whose_process_died(store: Store, clock: ManualClock) -> None:
    await dead(store, 7)
    bulk = await BulkActs(store).start(JobAct.RETRY, ALL_DEAD, by="me")
    assert await run(store, bulk.id, holder="w1", steps=2) is not None
    assert await BulkActs(store).step(bulk.id, "w2") is None
    assert (await BulkActs(store).next_free())[0] is None
    clock.advance(MINUTE)
    free, _ = await BulkActs(store).next_free()
    assert free is not None
    ended = await run(store, free.id, holder="w2")
    assert ended is not None
    assert (ended.state, ended.done) == (BulkState.DONE, 7)
    assert await run(store, bulk.id, holder="w1") is None


async def test_another_process_continues_after_the_clock_was_set_back(
    store: Store, clock: ManualClock
) -> None:
    await dead(store, 4)
    clock.advance(MINUTE)
    bulk = await BulkActs(store).start(JobAct.RETRY, ALL_DEAD, by="me")
    await run(store, bulk.id, holder="w1", steps=1)
    clock.set_wall(clock.now() - MINUTE)
    free, _ = await BulkActs(store).next_free()
    assert free is not None
    ended = await run(store, free.id, holder="w2")
    assert ended is not None
    assert (ended.state, ended.done) == (BulkState.DONE, 4)


async def test_two_processes_never_do_the_same_step(
    open_store: OpenStore, store: Store, clock: ManualClock
) -> None:
    await add(store, *some(12))
    clock.advance(1)
    bulk = await BulkActs(store).start(JobAct.DUPLICATE, JobFilter(task="t"), by="me")
    other = open_store()
    await asyncio.gather(run(store, bulk.id, holder="w1"), run(other, bulk.id, holder="w2"))
    assert sum((await counts(store)).values()) == 24


async def test_a_repeated_step_duplicates_nothing_twice(store: Store) -> None:
    jobs = some(3)
    await add(store, *jobs)
    acts = module.JobActs(store, once="bulk-1")
    for _ in range(2):
        assert {one.outcome for one in await acts.apply(JobAct.DUPLICATE, [job.ref for job in jobs])} == {
            "done"
        }
    assert await counts(store) == {State.AVAILABLE: 6}


async def test_an_aborted_act_stops_and_keeps_what_it_did(store: Store) -> None:
    await dead(store, 7)
    acts = BulkActs(store)
    bulk = await acts.start(JobAct.RETRY, ALL_DEAD, by="me")
    await run(store, bulk.id, steps=2)
    ended = await acts.abort(bulk.id, by="you")
    assert ended is not None
    assert (ended.state, ended.done) == (BulkState.ABORTED, 3)
    assert await acts.step(bulk.id, "w1") is None
    assert (await counts(store))[State.DEAD] == 4
    assert await acts.abort(bulk.id, by="you") == ended
    assert await acts.abort("nobody", by="you") is None


async def test_a_limit_is_kept(store: Store) -> None:
    await dead(store, 7)
    bulk = await BulkActs(store).start(JobAct.DELETE, ALL_DEAD, by="me", limit=5)
    ended = await run(store, bulk.id)
    assert ended is not None
    assert (ended.done, await counts(store)) == (5, {State.DEAD: 2})


async def test_a_limit_is_kept_although_a_process_dies_before_it_has_noted_its_step(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dead(store, 9)
    bulk = await BulkActs(store).start(JobAct.DELETE, ALL_DEAD, by="me", limit=5)
    acts = BulkActs(store)
    await acts.step(bulk.id, "w1")
    changed = acts._changed

    async def die(*given: Any) -> BulkAct:
        await changed(*given)
        raise StoreUnavailable("killed")

    monkeypatch.setattr(acts, "_changed", die)
    with pytest.raises(StoreUnavailable):
        await acts.step(bulk.id, "w1")
    clock.advance(MINUTE)
    ended = await run(store, bulk.id, holder="w2")
    assert ended is not None
    assert (ended.state, ended.done) == (BulkState.DONE, 2)
    assert await counts(store) == {State.DEAD: 4}


async def test_the_step_during_which_an_act_is_aborted_is_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dead(store, 7)
    acts = BulkActs(store)
    bulk = await acts.start(JobAct.RETRY, ALL_DEAD, by="me")
    await run(store, bulk.id, steps=2)
    changed = acts._changed

    async def aborted(*given: Any) -> BulkAct:
        await BulkActs(store).abort(bulk.id, by="you")
        return await changed(*given)

    monkeypatch.setattr(acts, "_changed", aborted)
    assert await acts.step(bulk.id, "w1") is None
    ended = await acts.get(bulk.id)
    assert ended is not None
    assert (ended.state, ended.done, ended.ended_at is not None) == (BulkState.ABORTED, 6, True)
    assert await acts.step(bulk.id, "w1") is None
    assert (await counts(store))[State.DEAD] == 1


async def test_no_job_is_passed_over_while_a_part_of_the_store_is_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dead(store, 2)
    acts = BulkActs(store)
    bulk = await acts.start(JobAct.RETRY, ALL_DEAD, by="me")
    await acts.step(bulk.id, "w1")
    search = store.search

    async def without_one(*given: Any, **options: Any) -> SearchPage:
        return replace(await search(*given, **options), away=("mail",))

    with monkeypatch.context() as patch:
        patch.setattr(store, "search", without_one)
        with pytest.raises(StoreUnavailable, match="part of the store is away: mail"):
            await acts.step(bulk.id, "w1")
        with pytest.raises(StoreUnavailable, match="mail"):
            assert [n async for n in acts.dry_run(ALL_DEAD)]
    assert await counts(store) == {State.DEAD: 2}
    ended = await run(store, bulk.id)
    assert ended is not None
    assert (ended.state, ended.done) == (BulkState.DONE, 2)


async def test_skipped_jobs_are_counted_by_reason_and_the_first_are_named(store: Store) -> None:
    await dead(store, 2)
    held = await running(store)
    which = JobFilter(states=(State.DEAD, State.RUNNING))
    ended = await run(store, (await BulkActs(store).start(JobAct.RETRY, which, by="me")).id)
    assert ended is not None
    assert (ended.done, ended.refused) == (2, 1)
    assert ended.skipped == {"not retried: it is running": 1}
    assert [(one.id, one.says) for one in ended.examples] == [(held.id, "not retried: it is running")]


async def test_a_dry_run_counts_and_changes_nothing(store: Store) -> None:
    await dead(store, 7)
    assert [n async for n in BulkActs(store).dry_run(ALL_DEAD)][-1] == 7
    assert [n async for n in BulkActs(store).dry_run(ALL_DEAD, limit=4)][-1] == 4
    assert await counts(store) == {State.DEAD: 7}


async def test_what_cannot_be_done_is_refused_and_nothing_is_stored(store: Store) -> None:
    acts = BulkActs(store)
    with pytest.raises(ConfigError, match="matches every job"):
        await acts.start(JobAct.DELETE, JobFilter(), by="me")
    unfinished = tuple(state for state in State if state not in TERMINAL)
    with pytest.raises(ConfigError, match="matches every job"):
        await acts.start(JobAct.CANCEL, JobFilter(states=unfinished), by="me")
    first = await acts.start(JobAct.RETRY, ALL_DEAD, by="ann")
    with pytest.raises(ConfigError, match=f"the bulk act {first.id} .retry by ann. runs on the same jobs"):
        await acts.start(JobAct.DELETE, ALL_DEAD, by="me")
    assert await acts.all() == [first]


# ── filters ──


async def test_a_filter_without_states_selects_the_jobs_that_the_act_is_meant_for(store: Store) -> None:
    ended, later = await in_state(store, State.COMPLETED), await in_state(store, State.SCHEDULED)
    await dead(store, 2)
    of_queue, acts = JobFilter(queues=("default",)), BulkActs(store)
    assert [n async for n in acts.dry_run(of_queue, act=JobAct.RETRY)][-1] == 2
    bulk = await acts.start(JobAct.RETRY, of_queue, by="me")
    done = await run(store, bulk.id)
    assert done is not None
    assert (done.done, done.refused) == (2, 0)
    assert [(await the(store, job)).state for job in (ended, later)] == [State.COMPLETED, State.SCHEDULED]


async def test_an_act_on_the_same_jobs_is_refused_also_if_its_times_count_from_another_now(
    store: Store, clock: ManualClock
) -> None:
    now, acts = clock.now(), BulkActs(store)
    seen = replace(ALL_DEAD, enqueued=TimeRange(since=now - MINUTE, until=now))
    first = await acts.start(JobAct.RETRY, seen, by="ann")
    later = replace(ALL_DEAD, enqueued=TimeRange(since=now - SECOND, until=now + SECOND))
    with pytest.raises(ConfigError, match=f"the bulk act {first.id} .retry by ann. runs on the same jobs"):
        await acts.start(JobAct.DELETE, later, by="bob")
    before = replace(ALL_DEAD, enqueued=TimeRange(until=now - MINUTE))
    assert (await acts.start(JobAct.DELETE, before, by="bob")).state is BulkState.RUNNING


async def test_a_filter_that_leaves_no_room_for_the_result_is_refused(store: Store) -> None:
    await dead(store, 2)
    await running(store)
    states = (State.DEAD, State.RUNNING)
    long = JobFilter(queues=("default", *(f"{n}-{'q' * 120}" for n in range(300))), states=states)
    with pytest.raises(ConfigError, match="a bulk act has at most 32,768: name fewer queues"):
        await BulkActs(store).start(JobAct.RETRY, long, by="me")
    fits = replace(long, queues=long.queues[:230])
    ended = await run(store, (await BulkActs(store).start(JobAct.RETRY, fits, by="me")).id)
    assert ended is not None
    assert (ended.state, ended.done, len(ended.examples)) == (BulkState.DONE, 2, 1)


async def test_only_the_newest_ended_acts_are_kept(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 2)
    acts = BulkActs(store)
    runs = await acts.start(JobAct.RETRY, JobFilter(task="long"), by="me")
    for n in range(4):
        bulk = await acts.start(JobAct.RETRY, JobFilter(task=f"t{n}"), by="me")
        clock.advance(1)
        await acts.abort(bulk.id, by="me")
    assert {one.filter.task for one in await acts.all()} == {"t3", "t2", "long"}
    assert await acts.get(runs.id) == runs


# ── copies ──


async def test_a_bulk_copy_copies_no_copies_after_the_clock_was_set_back(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *some(4))
    clock.advance(1)
    bulk = await BulkActs(store).start(JobAct.DUPLICATE, JobFilter(task="t"), by="me")
    clock.set_wall(clock.now() - MINUTE)
    ended = await run(store, bulk.id, steps=10)
    assert ended is not None
    assert (ended.state, ended.done) == (BulkState.DONE, 4)
    assert await counts(store) == {State.AVAILABLE: 8}


async def test_a_repeated_step_makes_no_second_copy_although_the_first_has_ended(store: Store) -> None:
    await add(store, new("a"))
    acts = module.JobActs(store, once="bulk-1")
    await acts.apply(JobAct.DUPLICATE, [Ref("default", "a")])
    for job in await take(store, 2):
        ended = Transition(State.COMPLETED, keep=job.spec.retention)
        await end(store, job, RELEASED if job.id == "a" else ended)
    await acts.apply(JobAct.DUPLICATE, [Ref("default", "a")])
    assert await counts(store) == {State.AVAILABLE: 1, State.COMPLETED: 1}


# ── acts on single jobs ──


async def act(store: Store, act: JobAct, *refs: Ref, **arguments: object) -> list[tuple[str, str]]:
    changes = await Inspector(store).act(act, refs, **arguments)  # type: ignore[arg-type]
    return [(one.outcome, one.says) for one in changes]


async def test_run_now_is_for_jobs_that_wait_for_their_time(store: Store) -> None:
    later, available = await in_state(store, State.RETRYABLE), await in_state(store, State.AVAILABLE)
    assert await act(store, JobAct.RUN_NOW, later.ref, available.ref, Ref("default", "nobody")) == [
        ("done", "made available (was retryable)"),
        ("refused", "not made available: it is available"),
        ("missing", "no such job"),
    ]
    assert (await the(store, later)).state is State.AVAILABLE


async def test_a_node_that_takes_results_of_its_flow_is_not_copied(store: Store) -> None:
    flow = flow_of()
    (node,) = nodes_of(flow, 1)
    assert node.job is not None
    takes = FlowMember(flow.queue, flow.id, 0, (Input(0, "x"),))
    await put(store, flow, [replace(node, job=replace(node.job, flow=takes))])
    ((outcome, says),) = await act(store, JobAct.DUPLICATE, ref_of(flow, 0))
    assert (outcome, says.partition(":")[0]) == ("refused", "not duplicated")


async def test_a_copy_has_the_same_arguments_and_its_own_id(store: Store) -> None:
    job = await in_state(store, State.DEAD, payload=b"[7]", headers={"a": "b"})
    ((outcome, says),) = await act(store, JobAct.DUPLICATE, job.ref)
    assert (outcome, says[:14]) == ("done", "duplicated as ")
    copy = await the(store, Ref("default", says.removeprefix("duplicated as ")))
    assert (copy.spec.payload, copy.spec.headers, copy.state) == (b"[7]", {"a": "b"}, State.AVAILABLE)
    assert (await the(store, job)).state is State.DEAD


async def test_a_closed_queue_takes_no_copy(store: Store) -> None:
    job = await in_state(store, State.DEAD)
    await store.settings("default", closed=True)
    refused = [("refused", "not duplicated: the queue default is closed")]
    assert await act(store, JobAct.DUPLICATE, job.ref) == refused


async def test_a_copy_that_no_replica_has_confirmed_is_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, enqueue = await in_state(store, State.DEAD), store.enqueue

    async def unconfirmed(jobs: list[NewJob]) -> list[Enqueued]:
        return [replace(one, status=EnqueueStatus.UNREPLICATED) for one in await enqueue(jobs)]

    monkeypatch.setattr(store, "enqueue", unconfirmed)
    ((outcome, says),) = await act(store, JobAct.DUPLICATE, job.ref)
    assert (outcome, says[:14]) == ("done", "duplicated as ")
    change = await Inspector(store).edit_and_retry(job.ref, lambda job: job.spec)
    assert change.says == "not retried: too few replicas of the queue default have confirmed it"
    assert (await the(store, job)).state is State.DEAD, "a failover could lose the copy"
