"""At-most-once jobs: only their own function, and an operator, make one start again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import AttemptError, Job, State
from penstock.core.lifecycle import decide
from penstock.core.outcomes import LeaseLost, Outcome, Raised, Snoozed, Throttled, TimedOut
from penstock.inspector import BulkActs, BulkState, Inspector, JobAct
from penstock.stores.contract import HeartbeatRequest, JobFilter, LeaseStatus, Store
from tests.cases import each
from tests.store.facts import DEAD, LEASE, MINUTE, SECOND, add, end, error, ids, new, take, take_one, the


async def started(store: Store, id: str = "pay", **facts: object) -> Job:
    """An at-most-once job whose function has begun, as the store was told before that."""
    await add(store, new(id, at_most_once=True, max_attempts=1, **facts))
    return await begun(store)


async def begun(store: Store) -> Job:
    job = await take_one(store)
    beat = HeartbeatRequest(job.lease, LEASE, started=True, lasting=True)
    assert await store.extend([beat]) == [LeaseStatus.HELD]
    return job


@each(
    "outcome, what",
    [
        (lambda e: Raised(e), "an error"),
        (lambda e: Raised(e, delay=1_000), "Retry(delay=...)"),
        (lambda e: TimedOut(e), "a timeout"),
        (lambda e: LeaseLost(e, started=True), "a crash"),
    ],
)
async def test_no_end_of_a_started_attempt_starts_it_again(
    store: Store, clock: ManualClock, outcome: Callable[[AttemptError], Outcome], what: str
) -> None:
    job = await started(store)
    await end(store, job, decide(job, outcome(error()), clock.now()))
    assert (await the(store, job)).state is State.DEAD, what
    clock.advance(MINUTE)
    await store.promote(["default"], limit=10)
    assert await take(store) == []


@pytest.mark.parametrize(
    "outcome", [lambda _: Snoozed(SECOND), lambda e: Throttled(e, SECOND)], ids=["Snooze", "RateLimited"]
)
async def test_its_own_function_may_say_that_it_has_done_nothing_yet(
    store: Store, clock: ManualClock, outcome: Callable[[AttemptError], Outcome]
) -> None:
    """It is given back as if it had not started; the next attempt is again the only one."""
    job = await started(store)
    await end(store, job, decide(job, outcome(error()), clock.now()))
    waiting = await the(store, job)
    assert (waiting.state in (State.SCHEDULED, State.AVAILABLE), waiting.attempt, waiting.started) == (
        True,
        0,
        False,
    )
    clock.advance(2 * SECOND)
    await store.promote(["default"], limit=10)
    again = await begun(store)
    assert (again.id, again.attempt) == (job.id, 1)
    await end(store, again, decide(again, LeaseLost(error(), started=True), clock.now()))
    assert (await the(store, again)).state is State.DEAD


async def dead_ones(store: Store) -> tuple[Job, Job, Job]:
    """One that has started, one that has not, and a job of another kind."""
    once = await started(store, "once")
    await end(store, once, DEAD)
    await add(store, new("unstarted", at_most_once=True, max_attempts=1), new("plain"))
    await store.discard([new("unstarted").ref])
    plain = await take_one(store)
    await end(store, plain, DEAD)
    return once, await the(store, new("unstarted").ref), plain


async def test_a_retry_of_one_that_has_started_says_so_or_spares_it(store: Store) -> None:
    jobs = await dead_ones(store)
    inspector, refs = Inspector(store), [job.ref for job in jobs]
    spared = await inspector.act(JobAct.RETRY, refs, spare_at_most_once=True)
    assert [one.outcome for one in spared] == ["refused", "done", "done"]
    assert "at-most-once, and it has started" in spared[0].says
    copied = await inspector.act(JobAct.DUPLICATE, refs[:1], spare_at_most_once=True)
    assert [one.outcome for one in copied] == ["refused"]
    (retried,) = await inspector.act(JobAct.RETRY, refs[:1])
    assert (retried.outcome, retried.says) == ("done", "retried (was dead); at-most-once: it starts again")
    assert sorted(ids(await take(store, 5))) == ["once", "plain", "unstarted"]


@pytest.mark.parametrize("spare", [False, True])
async def test_a_bulk_retry_counts_them_and_can_leave_them_out(store: Store, spare: bool) -> None:
    await dead_ones(store)
    acts, filter = BulkActs(store), JobFilter(states=(State.DEAD,))
    assert [one async for one in acts.selected(filter)][-1] == (3, 1)
    bulk = await acts.start(JobAct.RETRY, JobFilter(queues=("default",)), by="ann", spare_at_most_once=spare)
    while bulk.state is BulkState.RUNNING:
        bulk = await acts.step(bulk.id, "w1") or bulk
    assert (bulk.done, bulk.refused, bulk.again) == ((2, 1, 0) if spare else (3, 0, 1))
    assert [one.id for one in bulk.examples] == ["once"] * spare
    left = ids((await store.list_jobs(state=State.DEAD)).jobs)
    assert left == ["once"] * spare
