"""The jobs of a dead child process: which ones the supervisor reclaims as started, by its lease table."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.config import load
from penstock.core.ids import mint
from penstock.core.job import Job, NewJob, State
from penstock.core.lifecycle import released
from penstock.core.outcomes import QueuePosition
from penstock.maintenance.service import ProblemLog
from penstock.stores.contract import HeartbeatRequest, Settled, Settlement, Share, Store
from penstock.stores.memory import MemoryStore
from penstock.stores.sqlite import SqliteStore
from penstock.worker.shared_lease_table import LeaseEntry
from penstock.worker.supervisor.lost_work import DeadWorker, LostWork

LEASE = 15_000


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "jobs.db")
    yield store
    store.close()


async def fetched(store: Store, worker: str, token: str = "") -> Job:
    facts = {"limit": 1, "lease": LEASE, "worker": worker, "token": f"{token} of {worker}"}
    (job,) = (await store.fetch([Share("default", 1, 1)], **cast(Any, facts))).jobs
    return job


async def reclaimed(store: Store, worker: str, of: str) -> Job:
    (job,) = (
        await store.reclaim((), limit=1, lease=LEASE, worker=worker, token=f"by {worker}", of=[of])
    ).jobs
    return job


async def reclaim_dead(
    store: Store, child: str, *table: LeaseEntry, killed_after: float | None = None, **knobs: str
) -> None:
    config, problem_log = load(knobs).config, ProblemLog(logging.getLogger(__name__))
    facts = {"by": mint(), "config": config, "reportable_deaths": lambda: None, "problem_log": problem_log}
    overdue = {} if killed_after is None else {(one.queue, one.id): killed_after for one in table}
    await LostWork(DeadWorker(child, "it died", table, overdue), **cast(Any, facts)).take_back(lambda: store)


async def now(store: Store, job: Job) -> Job:
    (found,) = await store.get([job.ref])
    assert found is not None
    return found


def entry(job: Job, *, started: bool) -> LeaseEntry:
    lease = job.lease
    return LeaseEntry(0, 1, lease.queue, lease.id, lease.token, lease.generation, 0, started, False, 0, 0)


@pytest.mark.parametrize(("started", "attempt"), [(True, 1), (False, 0)])
async def test_a_job_is_charged_if_the_lease_table_shows_its_start(
    store: Store, started: bool, attempt: int
) -> None:
    await store.enqueue([NewJob("a", "t")])
    job = await fetched(store, "child")
    await reclaim_dead(store, "child", entry(job, started=started))
    after = await now(store, job)
    assert (after.state, after.attempt, after.lost) == (State.AVAILABLE, attempt, 1)


@pytest.mark.parametrize(
    ("deadline", "killed_after", "said"),
    [
        (None, 2.0, "the attempt timed out after 2 s"),
        (1_000, -0.1, "its deadline has passed"),
        (1_000, 1.9, "its deadline has passed"),
        (1_000, 2.1, "the attempt timed out after 2.1 s"),
    ],
)
async def test_a_job_for_which_it_was_killed_says_which_limit_has_passed(
    store: Store, deadline: int | None, killed_after: float, said: str
) -> None:
    await store.enqueue([NewJob("a", "t", timeout=2_000, deadline=deadline)])
    job = await fetched(store, "child")
    await reclaim_dead(store, "child", entry(job, started=True), killed_after=killed_after)
    (error,) = (await now(store, job)).errors
    assert (error.kind, error.message) == (
        "Timeout",
        f"{said}; the attempt did not react: its process was killed",
    )


async def test_just_fetched_jobs_are_not_charged(store: Store) -> None:
    await store.enqueue([NewJob("a", "t")])
    job = await fetched(store, "child")
    await reclaim_dead(store, "child")
    assert (await now(store, job)).attempt == 0


async def test_a_job_reclaimed_from_another_worker_is_charged_because_it_may_have_started_there(
    store: Store,
) -> None:
    await store.enqueue([NewJob("a", "t")])
    job = await fetched(store, "other")
    await reclaimed(store, "child", of="other")
    await reclaim_dead(store, "child")
    after = await now(store, job)
    assert (after.state, after.attempt, after.lost) == (State.AVAILABLE, 1, 1)


async def test_nor_does_an_old_entry_for_the_same_job_let_an_at_most_once_job_start_again(
    store: Store,
) -> None:
    await store.enqueue([NewJob("a", "t", at_most_once=True)])
    old = entry(await fetched(store, "child"), started=False)
    first = await reclaimed(store, "third", of="child")
    await _given_back(store, first)
    job = await fetched(store, "other")
    await store.extend([HeartbeatRequest(job.lease, LEASE, started=True)])
    await reclaimed(store, "child", of="other")
    await reclaim_dead(store, "child", old)
    assert (await now(store, job)).state is State.DEAD


async def _given_back(store: Store, job: Job) -> None:
    assert await store.settle([Settlement(job.lease, released(QueuePosition.HEAD))]) == [Settled.APPLIED]


async def test_nor_does_one_of_its_own_that_it_has_fetched_anew(store: Store) -> None:
    await store.enqueue([NewJob("a", "t", at_most_once=True)])
    old = entry(await fetched(store, "child"), started=False)
    await _given_back(store, await reclaimed(store, "third", of="child"))
    job = await fetched(store, "child", "anew")
    await store.extend([HeartbeatRequest(job.lease, LEASE, started=True)])
    await reclaim_dead(store, "child", entry(job, started=True), old)
    assert (await now(store, job)).state is State.DEAD


async def test_what_dies_with_it_is_kept_as_long_as_the_configuration_says(store: Store) -> None:
    await store.enqueue([NewJob("a", "t", max_attempts=1)])
    job = await fetched(store, "child")
    await store.extend([HeartbeatRequest(job.lease, LEASE, started=True)])
    await reclaim_dead(store, "child", entry(job, started=True), keep_dead="0s")
    assert await store.get([job.ref]) == [None]
