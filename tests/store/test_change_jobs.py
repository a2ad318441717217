"""change_jobs: acts of any kind in one request, in their order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.core.changes import moved_spec
from penstock.core.clock import ManualClock
from penstock.core.errors import ConfigError
from penstock.core.job import Ref, State
from penstock.stores.contract import (
    AnyAct,
    Changed,
    ChangeJobs,
    Enqueued,
    EnqueueStatus,
    JobCompletion,
    JobDiscard,
    JobEdit,
    JobMove,
    JobReschedule,
    JobRetry,
    Store,
)
from tests.store.facts import HOUR, add, in_state, member, new, running, take_one, the


async def test_acts_of_all_kinds_go_together(store: Store, clock: ManualClock) -> None:
    jobs = [new(delay=HOUR, retention=HOUR) for _ in range(6)]
    await add(store, *jobs)
    retried, later, dead, completed, edited, moved = [await the(store, job) for job in jobs]
    acts: list[AnyAct] = [
        JobRetry(retried.ref),
        JobReschedule(later.ref, delay=2 * HOUR),
        JobDiscard(dead.ref, reason="no"),
        JobCompletion(completed.ref, result=b"1"),
        JobEdit(edited, replace(edited.spec, payload=b"2")),
        JobMove(moved, moved_spec(moved, "other")),
    ]
    answers = await store.change_jobs(acts)
    assert answers == [
        *[Changed(State.SCHEDULED, True)] * 5,
        Changed(State.SCHEDULED, True, Enqueued(EnqueueStatus.NEW, moved.id)),
    ]
    found = [await the(store, job) for job in jobs[:5]]
    assert [job.state for job in found] == [
        State.AVAILABLE,
        State.SCHEDULED,
        State.DEAD,
        State.COMPLETED,
        State.SCHEDULED,
    ]
    assert (found[1].run_at, found[4].spec.payload) == (clock.now() + 2 * HOUR, b"2")
    assert (await the(store, Ref("other", moved.id))).state is State.SCHEDULED


async def test_acts_on_one_job_are_done_in_their_order(store: Store) -> None:
    job = await in_state(store, State.SCHEDULED, retention=HOUR)
    acts: list[AnyAct] = [
        JobDiscard(job.ref),
        JobRetry(job.ref),
        JobRetry(job.ref, attempts=1),
        JobEdit(job, job.spec),
        JobCompletion(job.ref, result=b"1"),
        JobDiscard(job.ref),
    ]
    answers = await store.change_jobs(acts)
    assert answers == [
        Changed(State.SCHEDULED, True),
        Changed(State.DEAD, True),
        Changed(State.AVAILABLE, True),
        Changed(),  # not as it was seen
        Changed(State.AVAILABLE, True),
        Changed(State.COMPLETED),
    ]
    assert (await the(store, job)).attempt == job.spec.max_attempts - 1


async def test_an_answer_says_whether_the_job_has_changed(store: Store) -> None:
    busy, dead = await running(store), await in_state(store, State.DEAD)
    acts: list[AnyAct] = [
        JobRetry(busy.ref),
        JobReschedule(dead.ref),
        JobDiscard(dead.ref),
        JobCompletion(busy.ref),
        JobRetry(Ref("default", "nobody")),
    ]
    assert await store.change_jobs(acts) == [
        Changed(State.RUNNING),
        Changed(State.DEAD),
        Changed(State.DEAD),
        Changed(State.RUNNING),
        Changed(),
    ]


async def test_a_retry_of_a_member_changes_its_batch_unless_that_runs(store: Store) -> None:
    one, other = member(size=2), member(size=2)
    await add(store, one, other)
    assert await store.change_jobs([JobRetry(one.ref)]) == [Changed(State.COLLECTING, True)]
    batch = await take_one(store)
    assert await store.change_jobs([JobRetry(one.ref)]) == [Changed(State.COLLECTING)]
    assert (await the(store, batch.ref)).token == batch.token


async def test_an_act_that_no_job_allows_changes_none(store: Store) -> None:
    job = await in_state(store, State.AVAILABLE)
    with pytest.raises(ConfigError, match="a move is to another queue"):
        await store.change_jobs([JobDiscard(job.ref), JobMove(job, job.spec)])
    assert (await the(store, job)).state is State.AVAILABLE


async def test_no_acts_change_nothing(store: Store) -> None:
    assert await store.change_jobs([]) == []
    assert await store.queues() == []


async def test_threads_change_jobs_too(store: Store) -> None:
    job = await in_state(store, State.AVAILABLE)
    assert store.sync.ask(ChangeJobs([JobDiscard(job.ref)])) == [Changed(State.AVAILABLE, True)]
