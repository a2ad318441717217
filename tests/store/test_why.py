"""The inspector names each rule of the store that keeps a job from running."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import StoreUnavailable
from penstock.core.formats import instant
from penstock.core.job import Job, Ref, State
from penstock.core.limits import LimitChange, Rate
from penstock.core.relations import Partition, Tenant
from penstock.inspector import Inspector
from penstock.inspector import reasons as module
from penstock.inspector.audit import AuditLog
from penstock.stores.contract import (
    STEP_UNDO,
    HeartbeatRequest,
    PartitionInfo,
    QueueInfo,
    SignalWait,
    StepRecord,
    Store,
    WorkerInfo,
)
from tests.cases import each
from tests.store.facts import (
    LEASE,
    MINUTE,
    PARKED,
    SECOND,
    add,
    end,
    in_state,
    member,
    new,
    retryable,
    running,
    some,
    suspended,
    take,
    take_one,
    the,
)

WORKER = WorkerInfo("w1", "box", 1, 0, ("default",), ("t",), 4)


async def reasons(store: Store, job: Job | str) -> list[tuple[str, str]]:
    """Kind and text of each reason, with the same answer by id and by queue/id."""
    id = job if isinstance(job, str) else job.id
    (view,) = await Inspector(store).why(id)
    assert await Inspector(store).why(f"{view.queue}/{view.id}") == [view]
    return [(one.kind, one.says) for one in view.reasons]


async def kinds(store: Store, job: Job | str) -> list[str]:
    return [kind for kind, _ in await reasons(store, job)]


# ── available ──


async def test_a_job_that_is_next(store: Store) -> None:
    await store.announce(WORKER)
    await add(store, new("a"), new("b"))
    assert await reasons(store, "a") == [("next", "it is the next of its queue: worker w1 takes it")]
    assert await reasons(store, "b") == [("ahead", "1 job is ahead of it")]
    await store.announce(msgspec.structs.replace(WORKER, id="w2"))
    assert await reasons(store, "a") == [("next", "it is the next of its queue: one of 2 workers takes it")]


async def test_jobs_ahead_are_counted_up_to_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    monkeypatch.setattr(module, "_MOST_COUNTED", 4)
    await store.announce(WORKER)
    await add(store, *some(4), new("a"), new("b"))
    assert await reasons(store, "a") == [("ahead", "more than 4 jobs are ahead of it")]
    monkeypatch.setattr(module, "_MOST_COUNTED", 6)
    assert await reasons(store, "b") == [("ahead", "5 jobs are ahead of it")]


async def test_without_a_worker_nothing_runs(store: Store) -> None:
    await add(store, new("a"))
    assert await reasons(store, "a") == [("no worker", "no live worker serves the queue 'default'")]
    await store.announce(msgspec.structs.replace(WORKER, state="quiet"))
    assert (await reasons(store, "a"))[0][1] == "no worker of the queue fetches jobs now (quiet)"
    await store.announce(msgspec.structs.replace(WORKER, tasks=("other",)))
    says = "no live worker knows the task 't': it will be parked"
    assert await reasons(store, "a") == [("unknown task", says)]
    await store.announce(msgspec.structs.replace(WORKER, running=4))
    assert await reasons(store, "a") == [("busy", "all 4 slots of the only worker of the queue are taken")]
    await store.announce(msgspec.structs.replace(WORKER, concurrency=1, running=1))
    assert await reasons(store, "a") == [("busy", "the only slot of the only worker of the queue is taken")]
    await store.announce(msgspec.structs.replace(WORKER, running=4))
    await store.announce(msgspec.structs.replace(WORKER, id="w2", tasks=(), handled=("default",), running=4))
    assert await reasons(store, "a") == [("busy", "all 8 slots of the 2 workers of the queue are taken")]


@each(
    "facts, other, says",
    [
        (
            {"full_queues": ("default",)},
            None,
            "all slots that the only worker of the queue may use for it are taken",
        ),
        ({"full_tasks": ("t",)}, None, "all process slots of the only worker of the queue are taken"),
        ({"running": 4}, {"full_tasks": ("t",)}, "none of the 2 workers of the queue has a free slot for it"),
        (
            {"full_queues": ("other",), "full_tasks": ("u",)},
            None,
            "it is the next of its queue: worker w1 takes it",
        ),
        ({"full_queues": ("default",)}, {}, "it is the next of its queue: one of 2 workers takes it"),
    ],
)
async def test_a_job_needs_a_slot_of_its_queue_and_of_its_kind(
    store: Store, facts: dict[str, Any], other: dict[str, Any] | None, says: str
) -> None:
    await store.announce(msgspec.structs.replace(WORKER, **facts))
    if other is not None:
        await store.announce(msgspec.structs.replace(WORKER, id="w2", **other))
    await add(store, new("a"))
    assert [text for _, text in await reasons(store, "a")] == [says]


async def test_the_jobs_of_other_tenants_and_of_higher_priority_are_ahead(store: Store) -> None:
    await store.announce(WORKER)
    await add(store, *some(3, tenant=Tenant("big")), new("a", tenant=Tenant("small")), new("b", priority=-1))
    await add(store, new("c", priority=5))
    assert await reasons(store, "a") == [("ahead", "2 jobs are ahead of it")]
    assert await reasons(store, "b") == [("ahead", "5 jobs are ahead of it")]


async def test_a_paused_queue_names_who_paused_it(store: Store) -> None:
    await store.announce(WORKER)
    await add(store, new("a"))
    await store.settings("default", paused=True)
    assert (await reasons(store, "a"))[0] == ("paused", "the queue is paused")
    await AuditLog(store).write("cli:ann@box", "queue.pause", "mail, default")
    kind, says = (await reasons(store, "a"))[0]
    assert kind == "paused"
    assert says.startswith("the queue was paused by cli:ann@box at 20")
    await AuditLog(store).write("cli:bob@box", "queue.resume", "default")
    assert (await reasons(store, "a"))[0] == ("paused", "the queue is paused")


async def test_a_throttled_queue(store: Store, clock: ManualClock) -> None:
    await add(store, new("a"))
    await store.settings("default", limits=LimitChange.of(throttle="1m"))
    says = f"the queue is throttled until {instant(clock.now() + MINUTE)}"
    assert (await reasons(store, "a"))[0] == ("throttled", says)
    await AuditLog(store).write("cli:ann@box", "queue.set", "default", facts={"throttle": "1m"})
    assert (await reasons(store, "a"))[0] == (
        "throttled",
        f"{says}, by cli:ann@box at {instant(clock.now())}",
    )
    await store.settings("default", limits=LimitChange.of(throttle="2m"))  # by a job that raised RateLimited
    assert (await reasons(store, "a"))[0][
        1
    ] == f"the queue is throttled until {instant(clock.now() + 2 * MINUTE)}"
    await AuditLog(store).write("cli:bob@box", "queue.set", "default", facts={"throttle": "none"})
    assert " by " not in (await reasons(store, "a"))[0][1]


async def test_a_full_queue_names_the_jobs_that_hold_its_places(store: Store) -> None:
    await store.settings("default", limits=LimitChange.of(max_running=1))
    held = await running(store)
    await add(store, new("a"))
    says = f"1 of 1 job of the queue runs (max_running), held by {held.id}"
    assert (await reasons(store, "a"))[0] == ("limited", says)
    await store.settings("default", limits=LimitChange.of(max_running=5))
    held = [job.id for job in await take(store, 1)] + [(await running(store)).id for _ in range(3)]
    await add(store, new("b"))
    says = f"5 of 5 jobs of the queue run (max_running), held by {', '.join(held[:0:-1])} and others"
    assert (await reasons(store, "b"))[0] == ("limited", says)


async def test_a_full_queue_opens_at_no_instant_also_if_it_is_throttled(store: Store) -> None:
    """The end of a running job makes room, not the end of the throttle."""
    limits = LimitChange.of(max_running=1, throttle=MINUTE)
    await running(store)
    info = await store.settings("default", limits=limits)
    assert (info.opens_at, info.throttled_until is not None) == (None, True)
    (again,) = await store.queues(["default"])
    assert again.opens_at is None


async def test_a_rate_says_when_it_opens(store: Store, clock: ManualClock) -> None:
    await store.settings("default", limits=LimitChange.of(rate="1/min"))
    await running(store)
    await add(store, new("a"))
    kind, says = (await reasons(store, "a"))[0]
    assert (kind, says.split(" opens at ")[0]) == ("rated", "the rate of the queue (1/min)")
    (info,) = await store.queues(["default"])
    assert info.opens_at is not None
    clock.advance(MINUTE)
    (info,) = await store.queues(["default"])
    assert info.opens_at is None
    assert "rated" not in await kinds(store, "a")


# ── other states ──


async def test_a_delayed_job_says_when_it_is_due(store: Store) -> None:
    job = await in_state(store, State.RETRYABLE)
    kind, says = (await reasons(store, job))[0]
    assert (kind, says.split(" at ")[0]) == ("delayed", "attempt 1 failed (ValueError); the next one is due")
    assert (await kinds(store, job))[1:] == ["no worker"]
    await store.announce(WORKER)
    later = await in_state(store, State.SCHEDULED)
    assert await reasons(store, later) == [("delayed", f"it is due at {instant(later.run_at)}")]


async def test_a_delayed_job_of_a_stopped_queue_says_that_too(store: Store) -> None:
    await store.announce(WORKER)
    job = await in_state(store, State.SCHEDULED)
    await store.settings("default", paused=True, limits=LimitChange.of(throttle="30s"))
    assert await kinds(store, job) == ["delayed", "paused"]
    await store.settings("default", paused=False, limits=LimitChange.of(throttle="1h"))
    assert await kinds(store, job) == ["delayed", "throttled"]


async def test_a_job_that_is_due_and_not_yet_available_says_so(store: Store, clock: ManualClock) -> None:
    await store.announce(WORKER)
    later, failed = await in_state(store, State.SCHEDULED), await in_state(store, State.RETRYABLE)
    clock.advance(MINUTE)
    says = f"it was due at {instant(clock.now())}: a worker makes it available next"
    assert await reasons(store, later) == [("delayed", says)]
    assert await reasons(store, failed) == [("delayed", f"attempt 1 failed (ValueError); {says}")]


@each("state, since", [(State.RETRYABLE, 1_700_000_000_000), (State.PARKED, None), (State.SUSPENDED, None)])
async def test_a_state_begins_when_a_worker_ended_its_attempt(
    store: Store, clock: ManualClock, state: State, since: int | None
) -> None:
    await add(store, new("a"))
    clock.advance(MINUTE)
    fetched, job = clock.now(), await take_one(store)
    ends = {State.RETRYABLE: retryable(), State.PARKED: PARKED, State.SUSPENDED: suspended()}
    await end(store, job, ends[state])
    (view,) = await Inspector(store).why("a")
    assert view.since == (since or fetched)


async def test_an_expired_job_says_so(store: Store, clock: ManualClock) -> None:
    await store.announce(WORKER)
    await add(store, new("a", expires_in=SECOND))
    assert await kinds(store, "a") == ["next"]
    clock.advance(SECOND)
    says = f"it expired at {instant(clock.now())}: it is cancelled next"
    assert await reasons(store, "a") == [("expired", says)]


@pytest.mark.parametrize("state", [State.AVAILABLE, State.WAITING])
async def test_a_passed_deadline_is_named(store: Store, clock: ManualClock, state: State) -> None:
    await store.announce(WORKER)
    at = clock.now() + SECOND
    jobs = {id: new(id, deadline=at, partition=Partition("k")) for id in "ab"}
    await add(store, *jobs.values())
    id = "b" if state is State.WAITING else "a"
    assert (await the(store, jobs[id])).state is state
    assert "deadline" not in await kinds(store, id)
    clock.advance(SECOND)
    says = f"its deadline passed at {instant(at)}: the worker that takes it makes it dead"
    assert (await reasons(store, id))[0] == ("deadline", says)
    assert len(await reasons(store, id)) > 1, "what keeps it from being taken is named, too"


async def test_a_deadline_before_the_time_of_a_job_is_named(store: Store, clock: ManualClock) -> None:
    await store.announce(WORKER)
    await add(store, new("a", delay=MINUTE, deadline=clock.now() + SECOND))
    says = f"its deadline, {instant(clock.now() + SECOND)}, passes before it is due"
    assert (await reasons(store, "a"))[0] == ("deadline", f"{says}: the worker that takes it makes it dead")


@each("state", [State.WAITING, State.COLLECTING, State.SUSPENDED, State.PARKED])
async def test_a_paused_queue_is_named_to_jobs_that_wait_for_something_else(
    store: Store, state: State
) -> None:
    await store.announce(WORKER)
    job = await in_state(store, state)
    before = await kinds(store, job)
    await store.settings("default", paused=True)
    assert await kinds(store, job) == [*before, "paused"]
    await store.settings("default", paused=False, limits=LimitChange.of(throttle="1h"))
    assert await kinds(store, job) == [*before, "throttled"]


async def test_slots_that_are_taken_are_known_by_the_leases(store: Store) -> None:
    """A worker reports how many jobs it runs only every few seconds."""
    await store.announce(msgspec.structs.replace(WORKER, concurrency=2))
    await add(store, *some(2), new("a"))
    await take(store, 1)
    assert await kinds(store, "a") == ["ahead"]
    await take(store, 1)
    assert await reasons(store, "a") == [("busy", "all 2 slots of the only worker of the queue are taken")]
    await store.announce(msgspec.structs.replace(WORKER, id="w2"))
    assert await kinds(store, "a") == ["next"]


async def test_a_parked_job_says_why(store: Store) -> None:
    job = await in_state(store, State.PARKED)
    assert await reasons(store, job) == [("parked", "nobody knows it")]
    other = await running(store)
    await end(store, other, msgspec.structs.replace(PARKED, reason=None))
    assert await reasons(store, other) == [("unknown task", "no live worker knows the task 't'")]
    await store.announce(WORKER)
    assert (await kinds(store, other)) == ["next"]


async def test_a_waiting_job_names_the_holders_of_its_partition(store: Store) -> None:
    jobs = [new(id, partition=Partition("k")) for id in "abc"]
    await add(store, *jobs)
    assert await reasons(store, "c") == [
        ("partition", "its partition 'k' is held by a (available)"),
        ("ahead", "1 job is ahead of it in its partition"),
    ]
    first = await take_one(store)
    assert (await reasons(store, "b")) == [("partition", "its partition 'k' is held by a (running)")]
    await end(store, first)
    assert (await kinds(store, "b")) == ["no worker"]


async def test_a_job_that_waits_for_the_rate_of_its_partition(store: Store) -> None:
    partition = Partition("k", most=9, rate=Rate(1, 60 * SECOND))
    await end(store, await running(store, partition=partition))
    await add(store, new("a", partition=partition))
    assert await kinds(store, "a") == ["rated"]
    await add(store, new("b", partition=partition))
    (rated, says), ahead = await reasons(store, "b")
    assert (rated, says.split(" at ")[0]) == ("rated", "the rate of its partition opens")
    assert ahead == ("ahead", "1 job is ahead of it in its partition")


async def test_a_waiting_job_whose_partition_is_free_is_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await in_state(store, State.WAITING)

    async def free(ref: Ref) -> PartitionInfo | None:
        return found

    monkeypatch.setattr(store, "partition", free)
    found: PartitionInfo | None = None
    assert await reasons(store, job) == [("next", "its partition is free: it is admitted next")]
    found = PartitionInfo("k", [], 1, before=0)
    assert await reasons(store, job) == [("next", "its partition 'k' admits it next")]
    found = PartitionInfo("k", [msgspec.structs.replace(job, state=State.RUNNING)] * 5, 1, before=0)
    says = f"its partition 'k' is held by {', '.join([f'{job.id} (running)'] * 3)} and 2 more"
    assert await reasons(store, job) == [("partition", says)]


async def test_a_collecting_job_says_when_its_batch_starts(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await in_state(store, State.COLLECTING)
    assert await reasons(store, job) == [("batch", "its batch starts when it is full; its size is 1")]
    await add(store, member("a", key="x", wait=MINUTE))
    says = f"its batch starts when it is full, or at {instant(clock.now() + MINUTE)}; its size is 1"
    assert await reasons(store, "a") == [("batch", says)]
    with monkeypatch.context() as patch:
        patch.setattr(module, "_MOST_COUNTED", 1)
        says = "its batch is collecting, and 1 others of the queue are due before it"
        assert await reasons(store, job) == [("batch", says)]


async def test_a_member_of_a_batch_names_its_batch(store: Store) -> None:
    await add(store, member("a", size=2), member("b", size=2))
    (batch,) = [job for job in (await store.list_jobs()).jobs if job.members]
    says = f"it is part of the batch {batch.id}, which is available"
    assert await reasons(store, "a") == [("batch", says)]


async def test_a_part_of_the_store_that_is_away(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await add(store, new("a"))
    (info,) = await store.queues()

    async def queues(names: object) -> list[QueueInfo]:
        return [msgspec.structs.replace(info, away="no route")]

    monkeypatch.setattr(store, "queues", queues)
    assert await reasons(store, "a") == [("away", "this part of the store does not answer: no route")]


async def test_a_job_whose_queue_is_deleted_at_this_moment(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(store, new("a"))

    async def queues(names: object) -> list[QueueInfo]:
        return []

    monkeypatch.setattr(store, "queues", queues)
    assert await kinds(store, "a") == ["gone"]


async def test_a_suspended_job_names_its_signal_and_its_gathered_jobs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await in_state(store, State.SCHEDULED), await in_state(store, State.COMPLETED)
    job = await running(store)
    await store.await_signals([SignalWait(job.lease, "packed", "packed", "7", LEASE)])
    members = msgspec.json.encode([(ref.queue, ref.id, True, 0) for ref in (one.ref, two.ref)])
    await store.record_steps([StepRecord(job.lease, "gather!!1", members, LEASE)])
    await end(store, job, suspended())
    at = instant((await the(store, job)).run_at)
    assert await reasons(store, job) == [
        ("signal", "its flow waits for the signal 'packed' with the key '7'"),
        ("gather", f"its flow waits for a gather of 2 jobs: {one.id} (scheduled)"),
        ("timer", f"its flow checks again at {at}"),
    ]
    get = store.get

    async def away(refs: Sequence[Ref]) -> list[Job | None]:
        if one.ref in refs:
            raise StoreUnavailable("no route")
        return await get(refs)

    monkeypatch.setattr(store, "get", away)
    assert (await reasons(store, job))[1] == ("gather", "its flow waits for a gather of 2 jobs")


async def test_a_gather_that_cannot_be_read_is_named(store: Store) -> None:
    job = await running(store)
    await store.record_steps([StepRecord(job.lease, "gather!!1", b'{"$sealed":"1.', LEASE)])
    await end(store, job, suspended())
    says = "its flow waits for a gather whose jobs cannot be read here"
    assert (await reasons(store, job))[0] == ("gather", says)


async def test_a_suspended_job_says_when_its_timer_ends(store: Store) -> None:
    job = await in_state(store, State.SUSPENDED)
    assert await reasons(store, job) == [("timer", f"its flow continues at {instant(job.run_at)}")]


async def test_a_running_job_names_its_worker(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    assert await kinds(store, job) == ["running", "lost worker", "no worker"]
    await store.announce(WORKER)
    seen = instant(clock.now())
    clock.advance(45 * SECOND)
    lost = f"its worker was last seen at {seen}: if it is gone, another one takes the job"
    assert (await reasons(store, job))[1:] == [("lost worker", lost)]
    await store.announce(WORKER)
    await store.cancel([job.ref])
    assert await reasons(store, job) == [
        ("running", "worker w1 has leased it, and is not known to have started it"),
        ("cancelled", "it was asked to stop"),
    ]
    await store.extend([HeartbeatRequest(job.lease, LEASE, started=True)])
    assert (await reasons(store, job))[0] == ("running", "worker w1 runs it (attempt 1)")


async def test_a_job_that_is_to_be_undone_says_that_it_was_asked_to_stop(store: Store) -> None:
    await store.announce(WORKER)
    job = await running(store)
    await store.record_steps([StepRecord(job.lease, STEP_UNDO, b"null", LEASE)])
    await end(store, job, suspended())
    await store.cancel([job.ref])
    says = "it was asked to stop: the worker that takes it ends it, after undoing its steps if it has any"
    assert (await reasons(store, job))[-1] == ("cancelled", says)


@each(
    "state, says",
    [
        (State.COMPLETED, "it has completed"),
        (State.CANCELLED, "it is cancelled: not wanted"),
        (State.DEAD, "it is dead: ValueError: no luck"),
    ],
)
async def test_an_ended_job_says_how_it_ended(store: Store, state: State, says: str) -> None:
    assert await reasons(store, await in_state(store, state)) == [("ended", says)]


async def test_a_missing_job_has_no_answer(store: Store) -> None:
    assert await Inspector(store).why("nobody") == []
