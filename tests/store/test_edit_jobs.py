"""edit_jobs: new arguments for a queued job that is still as it was seen."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.errors import ConfigError, StoreUnavailable
from penstock.core.job import QUEUED, TERMINAL, Job, NewJob, Ref, State
from penstock.core.relations import Partition
from penstock.core.unique import UniqueKey
from penstock.inspector import Inspector, JobAct
from penstock.inspector.job_edits import version_of
from penstock.stores.contract import EnqueueStatus, JobEdit, Store
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    PUT_BACK,
    SECOND,
    OpenStore,
    add,
    counts,
    end,
    in_state,
    member,
    new,
    running,
    take,
    take_one,
    the,
)


def edited(job: Job, payload: bytes = b'[["new"]]', **facts: object) -> JobEdit:
    return JobEdit(job, replace(job.spec, payload=payload, **facts))


@each("state", sorted(QUEUED))
async def test_a_queued_job_gets_new_arguments_and_nothing_else_changes(store: Store, state: State) -> None:
    job = await in_state(store, state, unique=UniqueKey("u"), headers={"a": "b"})
    assert await store.edit_jobs([edited(job)]) == [True]
    assert await the(store, job) == replace(job, spec=replace(job.spec, payload=b'[["new"]]'))
    assert await counts(store) == {state: 1}
    (again,) = await store.enqueue([new(unique=UniqueKey("u"))])
    assert again.status is EnqueueStatus.DUPLICATE, "it holds its key"


@each("state", sorted(TERMINAL | {State.RUNNING, State.SUSPENDED}))
async def test_a_job_that_is_not_queued_stays_as_it_is(store: Store, state: State) -> None:
    job = await in_state(store, state)
    assert await store.edit_jobs([edited(job)]) == [False]
    assert await the(store, job) == job


async def test_a_job_that_was_edited_since_it_was_seen_stays(store: Store) -> None:
    job = await in_state(store, State.SCHEDULED)
    assert await store.edit_jobs([edited(job, b"1"), edited(job, b"2")]) == [True, False]
    assert (await the(store, job)).spec.payload == b"1"


async def test_a_job_that_was_fetched_and_put_back_since_it_was_seen_stays(
    store: Store, clock: ManualClock
) -> None:
    seen = await in_state(store, State.SCHEDULED)
    clock.advance(60_000)
    await store.promote(["default"], limit=9)
    await end(store, await take_one(store), PUT_BACK)
    assert await store.edit_jobs([edited(seen), edited(replace(seen, generation=7))]) == [False, False]
    now = await the(store, seen)
    assert (now.state, now.spec.payload) == (State.AVAILABLE, b"{}")
    assert await store.edit_jobs([edited(now)]) == [True]


async def test_an_edit_and_a_fetch_of_the_same_moment_are_one_after_the_other(store: Store) -> None:
    job = await in_state(store, State.AVAILABLE)
    (leased,) = await take(store, 1)
    assert await store.edit_jobs([edited(job)]) == [False]
    assert (await the(store, job)).spec == leased.spec


async def test_new_arguments_move_the_job_to_their_partition(store: Store) -> None:
    first = await running(store, partition=Partition("a", 1))
    await add(store, new("second", partition=Partition("a", 1)))
    second = await the(store, Ref("default", "second"))
    assert second.state is State.WAITING
    assert await store.edit_jobs([edited(second, partition=Partition("b", 1))]) == [True]
    assert (await the(store, second)).state is State.AVAILABLE
    assert [job.id for job in await take(store, 9)] == ["second"]
    assert (await the(store, first)).spec.partition == Partition("a", 1)


async def test_a_collecting_job_runs_with_its_new_arguments(store: Store) -> None:
    first, second = member(size=2), member(size=2)
    await add(store, first)
    assert await store.edit_jobs([edited(await the(store, first), b"[[5],{}]")]) == [True]
    await add(store, second)
    batch = await take_one(store)
    assert batch.spec.payload == b"[[[[5],{}],1]]"
    collected = await the(store, first)
    assert await store.edit_jobs([edited(collected)]) == [False], "it is in a batch"
    with pytest.raises(ConfigError, match="no arguments of its own"):
        await store.edit_jobs([edited(batch)])


@each("state", sorted({State.SCHEDULED, State.RETRYABLE, *TERMINAL}))
async def test_a_job_is_retried_with_new_arguments_and_an_ended_one_by_a_copy(
    store: Store, state: State
) -> None:
    job = await in_state(store, state, unique=UniqueKey("u"))
    change = await Inspector(store).edit_and_retry(
        job.ref, lambda one: edited(one).new, version=version_of(job)
    )
    assert change.outcome == "done", change
    again = await the(store, Ref(change.queue, change.id))
    assert (again.state, again.spec.payload) == (State.AVAILABLE, b'[["new"]]')
    assert (again.id == job.id) is (state in QUEUED)
    (old,) = await store.get([job.ref])
    assert (old is not None) is (state in QUEUED | {State.COMPLETED})
    stale = await Inspector(store).edit_and_retry(again.ref, lambda one: one.spec, version=version_of(job))
    assert stale.outcome == "refused"


async def test_of_two_retries_with_new_arguments_one_makes_a_copy(
    open_store: OpenStore, store: Store
) -> None:
    job, operators = await in_state(store, State.DEAD), (Inspector(store), Inspector(open_store()))
    both = await asyncio.gather(
        *(one.edit_and_retry(job.ref, lambda seen: edited(seen).new) for one in operators)
    )
    assert sum(change.outcome == "done" for change in both) == 1, both
    assert await counts(store) == {State.AVAILABLE: 1}


async def test_a_retry_with_new_arguments_is_repeated_after_a_crash_without_a_second_copy(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await in_state(store, State.DEAD)

    async def crash(refs: object) -> None:
        raise StoreUnavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", crash)
        with pytest.raises(StoreUnavailable):
            await Inspector(store).edit_and_retry(job.ref, lambda seen: edited(seen).new)
    again = await Inspector(store).edit_and_retry(job.ref, lambda seen: edited(seen).new)
    (copy,) = (await store.list_jobs()).jobs
    says = f"not retried: it was retried with other arguments before, as {copy.id}"
    assert (again.outcome, again.says, copy.state) == ("refused", says, State.AVAILABLE)


async def test_the_copy_of_an_expired_job_does_not_expire_at_once(store: Store, clock: ManualClock) -> None:
    await add(store, new("a", expires_at=clock.now() + SECOND))
    clock.advance(SECOND)
    assert await take(store) == []
    ref = Ref("default", "a")
    assert (await the(store, ref)).state is State.CANCELLED
    (copied,) = await Inspector(store).act(JobAct.DUPLICATE, [ref])
    edit = await Inspector(store).edit_and_retry(ref, lambda seen: edited(seen).new)
    assert (copied.outcome, edit.outcome) == ("done", "done")
    assert len(await take(store, 9)) == 2


@pytest.mark.parametrize("fresh", [True, False])
async def test_a_job_that_completes_between_its_edit_and_its_retry_does_not_run_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    job = await in_state(store, State.AVAILABLE)
    if not fresh:
        await end(store, await take_one(store), AGAIN)
    edit_jobs = store.edit_jobs

    async def then_it_runs(edits: list[JobEdit]) -> list[bool]:
        done = await edit_jobs(edits)
        await end(store, await take_one(store))
        return done

    monkeypatch.setattr(store, "edit_jobs", then_it_runs)
    change = await Inspector(store).edit_and_retry(job.ref, lambda job: edited(job, b"7").new)
    assert (change.outcome, (await the(store, job)).state) == ("done", State.COMPLETED)


async def test_a_running_job_is_not_retried_with_new_arguments(store: Store) -> None:
    job = await running(store)
    change = await Inspector(store).edit_and_retry(job.ref, lambda one: edited(one).new)
    assert (change.outcome, change.says) == ("refused", "not edited: it is running")
    gone = await Inspector(store).edit_and_retry(Ref("default", "nobody"), lambda one: edited(one).new)
    assert gone.outcome == "missing"


async def test_a_job_that_does_not_exist_is_not_edited(store: Store) -> None:
    job = Job(NewJob("nobody", "t"), State.AVAILABLE)
    assert await store.edit_jobs([edited(job)]) == [False]
    assert await store.edit_jobs([]) == []
    assert await store.queues() == []
