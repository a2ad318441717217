"""Every act of an operator: beside a worker, on a flow's node, on a batch's member, and of two operators."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.errors import ConfigError
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import COMPLETED_BY_HAND, DISCARDED
from penstock.core.limits import LimitChange
from penstock.core.relations import BatchTerms
from penstock.core.schedule import NewEntry, Overlap, Schedule
from penstock.inspector import BulkActs, BulkState, Inspector, JobAct
from penstock.inspector import bulk_acts as module
from penstock.inspector.job_acts import JobActs
from penstock.stores.contract import JobFilter, Settled, Settlement, StepRecord, Store, Tick, TickStatus
from penstock.stores.job_log import JobLog, LogLine, store_logs
from tests.cases import each
from tests.store.facts import (
    COMPLETED,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    OpenStore,
    add,
    counts,
    end,
    ids,
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
from tests.store.flow_facts import advance, flow_of, nodes_of, put, ref_of

#: All acts on jobs, and those that are of one job at a time.
ACTS = [*JobAct, "edit", "edit and retry"]


def with_new_arguments(job: Job) -> NewJob:
    return replace(job.spec, payload=b'["new"]')


async def act(store: Store, act: JobAct | str, *refs: Ref) -> list[tuple[str, str]]:
    inspector = Inspector(store)
    if isinstance(act, JobAct):
        changes = await inspector.act(act, refs, delay=MINUTE, to="other")
    else:
        edit = inspector.edit if act == "edit" else inspector.edit_and_retry
        changes = [await edit(ref, with_new_arguments) for ref in refs]
    return [(one.outcome, one.says) for one in changes]


@each("name", ACTS)
async def test_a_job_that_a_worker_holds_stays_with_it(store: Store, name: JobAct | str) -> None:
    job = await running(store)
    ((outcome, says),) = await act(store, name, job.ref)
    expected = {JobAct.CANCEL: "asked", JobAct.DUPLICATE: "done"}.get(name, "refused")  # type: ignore[call-overload]
    assert outcome == expected, says
    assert (outcome != "refused") or "it is running" in says
    held = await the(store, job)
    assert (held.state, held.token, held.spec.payload) == (State.RUNNING, job.token, b"{}")
    assert await store.settle([Settlement(job.lease, COMPLETED)]) == [Settled.APPLIED]


@pytest.mark.parametrize("name", ACTS)
async def test_a_worker_and_an_operator_never_both_get_the_job(
    open_store: OpenStore, store: Store, name: JobAct | str
) -> None:
    """The job is either leased as it was, or changed and then leased at most once, wherever it is."""
    await add(store, new("one", payload=b'["old"]'))
    leased, ((outcome, _),) = await asyncio.gather(
        take(open_store(), 9), act(store, name, Ref("default", "one"))
    )
    assert outcome in ("done", "asked", "refused", "missing")
    there = [*leased, *(await take(store, 9)), *(await take(store, 9, "other"))]
    of_the_job = [job for job in there if job.id == "one"]
    assert len(of_the_job) <= 1
    for job in leased:
        edited = name in ("edit", "edit and retry") and outcome == "done"
        assert job.spec.payload == (b'["new"]' if edited else b'["old"]')


@each("name", ACTS)
async def test_a_member_of_a_batch_is_changed_only_with_its_batch(store: Store, name: JobAct | str) -> None:
    one, two = member(size=2), member(size=2)
    await add(store, one, two)
    before = await the(store, one)
    assert before.in_batch
    ((outcome, says),) = await act(store, name, one.ref)
    expected = "done" if name in (JobAct.DUPLICATE, JobAct.RETRY) else "refused"  # a retry is of its batch
    assert outcome == expected, says
    assert outcome == "done" or f"part of the batch {before.batch}" in says
    after = await the(store, one)
    assert (after.state, after.batch, after.spec.payload) == (State.COLLECTING, before.batch, b"1")


@each("name", ACTS)
async def test_a_node_of_a_flow_stays_in_its_flow_or_ends_in_it(store: Store, name: JobAct | str) -> None:
    flow = flow_of()
    await put(store, flow, nodes_of(flow, 1, delay=MINUTE))
    ref = ref_of(flow, 0)
    ((outcome, says),) = await act(store, name, ref)
    await advance(store)
    assert outcome == ("refused" if name is JobAct.MOVE else "done"), says
    (found,) = await store.get_flows([flow.ref])
    assert found is not None
    ends = name in (JobAct.CANCEL, JobAct.DELETE, JobAct.DISCARD, JobAct.COMPLETE)
    assert found.ended is ends
    if name is JobAct.MOVE:
        assert f"part of the flow {flow.id}" in says


async def test_a_job_that_does_not_exist_is_missing_in_every_act(store: Store) -> None:
    for name in ACTS:
        assert await act(store, name, Ref("default", "nobody")) == [("missing", "no such job")], name


async def test_discard_and_move_say_what_became_of_each_job(store: Store) -> None:
    dead, later = await in_state(store, State.DEAD), await in_state(store, State.SCHEDULED)
    other = await in_state(store, State.SCHEDULED)
    assert await act(store, JobAct.DISCARD, later.ref, dead.ref) == [
        ("done", "discarded (was scheduled)"),
        ("refused", "not discarded: it is dead"),
    ]
    assert (await the(store, later)).reason == DISCARDED
    await add(store, new("x", queue="other"), new("x", delay=MINUTE))
    refs = (other.ref, dead.ref, Ref("other", "x"), Ref("default", "x"))
    assert await act(store, JobAct.MOVE, *refs) == [
        ("done", "moved to other (was scheduled)"),
        ("refused", "not moved: it is dead"),
        ("refused", "not moved: it is in that queue"),
        ("refused", "not moved: the queue other has a job with this id"),
    ]


async def test_complete_says_what_became_of_each_job(store: Store) -> None:
    dead, later, busy = [
        await in_state(store, state, retention=HOUR) for state in (State.DEAD, State.SCHEDULED, State.RUNNING)
    ]
    acts = JobActs(store, result='{"sum": 7}', reason="order 17")
    changes = await acts.apply(JobAct.COMPLETE, [dead.ref, later.ref, busy.ref, dead.ref])
    assert [(change.outcome, change.says) for change in changes] == [
        ("done", "completed (was dead)"),
        ("done", "completed (was scheduled)"),
        ("refused", "not completed: it is running"),
        ("refused", "not completed: it is completed"),
    ]
    for job in (dead, later):
        ended = await the(store, job)
        assert (ended.result, ended.reason) == (b'{"sum": 7}', f"{COMPLETED_BY_HAND}: order 17")
    await Inspector(store).retry([dead.ref])
    await Inspector(store).complete([dead.ref])
    ended = await the(store, dead)
    assert (ended.result, ended.reason) == (None, COMPLETED_BY_HAND)


async def test_a_result_that_is_not_json_is_refused(store: Store) -> None:
    job = await in_state(store, State.DEAD)
    for wrong in ("{", "[" * 100_000, '"\ud800"'):
        with pytest.raises(ConfigError, match="the result is not JSON"):
            await Inspector(store).complete([job.ref], result=wrong)
    with pytest.raises(ConfigError, match="the result has 1000002 bytes, and may have 1000000"):
        await Inspector(store).complete([job.ref], result=f'"{"x" * 1_000_000}"')
    with pytest.raises(ConfigError, match="the result is not JSON"):
        await BulkActs(store).start(JobAct.COMPLETE, JobFilter(task="t"), by="ann", result="7 apples")
    assert (await the(store, job)).state is State.DEAD


async def test_a_job_with_recorded_steps_is_not_moved_and_one_with_log_lines_is(store: Store) -> None:
    stepped, logged, log = await running(store), await running(store), JobLog()
    await store.record_steps([StepRecord(stepped.lease, "charge", b"1", LEASE)])
    log.append(LogLine(1, "page 1 of 7"))
    await store_logs(store, [(logged.lease, log)], LEASE)
    for job in (stepped, logged):
        await end(store, job, retryable())
    assert await act(store, JobAct.MOVE, stepped.ref, logged.ref) == [
        ("refused", "not moved: it has recorded steps, which are bound to its queue"),
        ("done", "moved to other (was retryable)"),
    ]


async def test_an_edit_is_refused_if_the_arguments_are_not_those_that_were_shown(store: Store) -> None:
    job, inspector = await in_state(store, State.SCHEDULED), Inspector(store)
    (shown,) = await inspector.job(f"default/{job.id}")
    first = await inspector.edit(job.ref, with_new_arguments, version=shown.version)
    assert (first.outcome, first.says) == ("done", "edited (is scheduled)")
    again = await inspector.edit(job.ref, with_new_arguments, version=shown.version)
    assert again.says == "not edited: its arguments have changed since they were shown"


@pytest.mark.parametrize("stop", [{"paused": True}, {"limits": LimitChange.of(throttle="1h")}])
@pytest.mark.parametrize("go", [{"paused": False, "limits": LimitChange.of(throttle=None)}])
async def test_a_stopped_queue_starts_no_batch_and_no_node_and_what_runs_goes_on(
    store: Store, stop: dict[str, Any], go: dict[str, Any]
) -> None:
    held, flow = await running(store), flow_of()
    await add(store, member(size=2), member(size=2))
    await put(store, flow, nodes_of(flow, 1))
    await store.settings("default", **stop)
    assert await take(store, 9) == []
    assert await store.settle([Settlement(held.lease, COMPLETED)]) == [Settled.APPLIED]
    await store.settings("default", **go)
    batch, node = await take(store, 9)
    assert (len(batch.members), node.id) == (2, ref_of(flow, 0).id)


# ── in bulk ──


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP", 3)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("name", "state"),
    [
        (JobAct.DISCARD, State.DEAD),
        (JobAct.COMPLETE, State.COMPLETED),
        (JobAct.MOVE, State.SCHEDULED),
    ],
)
async def test_all_jobs_of_a_filter_are_ended_or_moved_while_workers_fetch(
    open_store: OpenStore, store: Store, clock: ManualClock, name: JobAct, state: State
) -> None:
    await add(store, *some(7, delay=MINUTE), *some(3))
    clock.advance(1)
    acts, filter = BulkActs(store), JobFilter(queues=("default",), states=(State.SCHEDULED, State.AVAILABLE))
    bulk = await acts.start(name, filter, by="ann", to="other", reason="order 17", result="7")
    held = await take(open_store(), 2)
    one, two = "w1", "w2"
    while (now := await acts.get(bulk.id)) is not None and now.state is BulkState.RUNNING:
        await asyncio.gather(acts.step(bulk.id, one), BulkActs(open_store()).step(bulk.id, two))
        clock.advance(MINUTE // 60)
    assert now is not None
    assert (now.state, now.done) == (BulkState.DONE, 8)
    queue = "other" if name is JobAct.MOVE else "default"
    assert (await counts(store, queue))[state] == (7 if name is JobAct.MOVE else 8)
    assert {(await the(store, job)).state for job in held} == {State.RUNNING}
    if name is JobAct.DISCARD:
        dead = (await store.list_jobs(state=State.DEAD)).jobs
        assert {job.reason for job in dead} == {"order 17"}
    elif name is JobAct.COMPLETE:
        completed = (await store.list_jobs(state=State.COMPLETED)).jobs
        assert {job.result for job in completed} == {b"7"}


async def test_a_repeated_step_of_a_move_moves_nothing_twice(store: Store) -> None:
    await add(store, *some(3))
    refs = [job.ref for job in (await store.list_jobs()).jobs]
    acts = module.JobActs(store, to="other", once="bulk-1")
    assert {one.outcome for one in await acts.apply(JobAct.MOVE, refs)} == {"done"}
    assert {one.outcome for one in await acts.apply(JobAct.MOVE, refs)} == {"missing"}
    assert len(await take(store, 9, "other")) == 3


# ── periodic entries ──


async def test_a_triggered_entry_enqueues_one_job_now_and_keeps_its_schedule(
    store: Store, clock: ManualClock
) -> None:
    spec = NewEntry("report", NewJob("", "t", b"[1]", expires_in=MINUTE), Schedule("0 * * * *"))
    (entry,) = await store.put_entries([spec])
    inspector = Inspector(store)
    (change,) = await inspector.trigger_entry("default/report")
    assert (change.outcome, change.says[:15]) == ("done", "triggered: job ")
    job = await take_one(store)
    assert (job.id, job.spec.payload) == (change.says.removeprefix("triggered: job "), b"[1]")
    assert (job.run_at, job.expires_at) == (clock.now(), clock.now() + MINUTE)
    ((after),) = (await store.entries()).entries
    assert (after.watermark, after.revision, after.enqueued) == (entry.watermark, entry.revision, 1)
    assert await inspector.trigger_entry("nobody") == []


async def test_a_trigger_obeys_the_overlap_rule_except_while_the_entry_is_paused(store: Store) -> None:
    spec = NewEntry("report", NewJob("", "t"), Schedule("0 * * * *"), overlap=Overlap.SKIP)
    await store.put_entries([spec])
    inspector = Inspector(store)
    outcomes = [(await inspector.trigger_entry("report"))[0].outcome for _ in range(2)]
    assert outcomes == ["done", "refused"]
    await inspector.pause_entry("report")
    assert (await inspector.trigger_entry("report"))[0].outcome == "done"
    assert len(ids(await take(store, 9))) == 2


async def test_triggers_and_the_tick_of_a_worker_enqueue_one_job_each(
    open_store: OpenStore, store: Store, clock: ManualClock
) -> None:
    spec = NewEntry("report", NewJob("", "t"), Schedule.of(every="1s"))
    (entry,) = await store.put_entries([spec])
    clock.advance(SECOND)
    due = entry.watermark + SECOND
    tick = Tick(entry.ref, entry.revision, entry.watermark, due, due, jobs=(new("report@1"),))
    one, two, (ticked,) = await asyncio.gather(
        Inspector(store).trigger_entry("report"),
        Inspector(open_store()).trigger_entry("report"),
        open_store().tick([tick]),
    )
    assert [change.outcome for change in (*one, *two)] == ["done", "done"]
    assert ticked.status is TickStatus.APPLIED
    triggered = [change.says.removeprefix("triggered: job ") for change in (*one, *two)]
    assert sorted(ids(await take(store, 9))) == sorted([*triggered, "report@1"])


async def test_a_triggered_job_joins_its_batch(store: Store) -> None:
    job = NewJob("", "t", b"1", batch_terms=BatchTerms("", 2))
    await store.put_entries([NewEntry("report", job, Schedule("0 * * * *"))])
    for _ in range(2):
        await Inspector(store).trigger_entry("report")
    assert len((await take_one(store)).members) == 2
