"""The inspector names each rule of the store that keeps a job from running."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Job, State
from penstock.core.limits import LimitChange, Rate
from penstock.core.partition import Partition
from penstock.inspector import Inspector
from penstock.inspector.audit import AuditLog
from penstock.stores.contract import QueueInfo, SignalWait, Store, WorkerInfo
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
    running,
    suspended,
    take_one,
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


async def test_without_a_worker_nothing_runs(store: Store) -> None:
    await add(store, new("a"))
    assert await reasons(store, "a") == [("no worker", "no live worker serves the queue 'default'")]
    await store.announce(msgspec.structs.replace(WORKER, state="quiet"))
    assert (await reasons(store, "a"))[0][1] == "no worker of the queue fetches jobs now (quiet)"
    await store.announce(msgspec.structs.replace(WORKER, tasks=("other",)))
    assert (await kinds(store, "a"))[0] == "unknown task"
    await store.announce(msgspec.structs.replace(WORKER, running=4))
    assert (await reasons(store, "a"))[0] == ("busy", "all 4 slots of the only worker of the queue are taken")


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


async def test_a_throttled_queue(store: Store) -> None:
    await add(store, new("a"))
    await store.settings("default", limits=LimitChange.of(throttle="1m"))
    assert (await kinds(store, "a"))[0] == "throttled"


async def test_a_full_queue_names_the_jobs_that_hold_its_places(store: Store) -> None:
    await store.settings("default", limits=LimitChange.of(max_running=1))
    held = await running(store)
    await add(store, new("a"))
    says = f"1 of 1 job of the queue run (max_running), held by {held.id}"
    assert (await reasons(store, "a"))[0] == ("limited", says)


async def test_a_rate_says_when_it_opens(store: Store, clock: ManualClock) -> None:
    await store.settings("default", limits=LimitChange.of(rate="1/min"))
    await running(store)
    await add(store, new("a"))
    kind, says = (await reasons(store, "a"))[0]
    assert (kind, says.split(" opens at ")[0]) == ("rated", "the rate of the queue (1/min)")
    (info,) = await store.queues(["default"])
    assert info.opens is not None
    clock.advance(MINUTE)
    (info,) = await store.queues(["default"])
    assert info.opens is None
    assert "rated" not in await kinds(store, "a")


# ── other states ──


async def test_a_delayed_job_says_when_it_is_due(store: Store) -> None:
    job = await in_state(store, State.RETRYABLE)
    kind, says = (await reasons(store, job))[0]
    assert (kind, says.split(" at ")[0]) == ("delayed", "attempt 1 failed (ValueError); it is retried")
    assert (await kinds(store, job))[1:] == ["no worker"]
    await store.announce(WORKER)
    assert await kinds(store, await in_state(store, State.SCHEDULED)) == ["delayed"]


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


async def test_a_collecting_job_says_when_its_batch_starts(store: Store) -> None:
    job = await in_state(store, State.COLLECTING)
    assert await reasons(store, job) == [("batch", "its batch starts when it is full; its size is 1")]


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


async def test_a_suspended_job_names_its_signal(store: Store) -> None:
    job = await running(store)
    await store.await_signals([SignalWait(job.lease, "packed", "packed", "7", LEASE)])
    await end(store, job, suspended())
    (kind, says), (timer, _) = await reasons(store, job)
    assert (kind, says) == ("signal", "its flow waits for the signal 'packed' with the key '7'")
    assert timer == "timer"


async def test_a_running_job_names_its_worker(store: Store) -> None:
    job = await running(store)
    assert await kinds(store, job) == ["running", "lost worker"]
    await store.announce(WORKER)
    await store.cancel([job.ref])
    assert await reasons(store, job) == [
        ("running", "worker w1 has leased it, and is not known to have started it"),
        ("cancelled", "it was asked to stop"),
    ]


@pytest.mark.parametrize(
    ("state", "says"),
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
