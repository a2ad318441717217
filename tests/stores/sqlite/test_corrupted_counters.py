"""Counters that another program has changed: jobs still start, no worker spins, and the counters recover."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import NewJob, Ref, State
from penstock.core.relations import Partition
from penstock.stores.contract import Settlement, Share, Wake
from penstock.stores.sqlite import SqliteStore
from tests.store.facts import COMPLETED, HOUR, LEASE, PARKED, token

ONE = [Share("default", 9, 9)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    yield store
    store.close()


def write(store: SqliteStore, **counts: int) -> None:
    with sqlite3.connect(store.path, timeout=10) as cx:
        for name, n in counts.items():
            cx.execute(f"UPDATE penstock_queue SET {name} = ? WHERE name = 'default'", (n,))
    cx.close()


async def counts(store: SqliteStore) -> dict[State, int]:
    (info,) = await store.queues()
    return info.counts


async def fetched(store: SqliteStore) -> list[str]:
    found = await store.fetch(ONE, limit=9, lease=LEASE, worker="w", token=token())
    await store.settle([Settlement(job.lease, COMPLETED) for job in found.jobs])
    return [job.id for job in found.jobs]


async def test_a_counter_that_is_too_high_is_corrected_by_a_fetch_without_a_tight_loop(
    store: SqliteStore,
) -> None:
    await store.enqueue([NewJob("a", "t")])
    write(store, available=5)
    assert await fetched(store) == ["a"]
    assert await counts(store) == {State.COMPLETED: 1}
    assert await store.wait(["default"], timeout=0) is Wake.NOTHING


async def test_jobs_whose_counter_says_that_there_are_none_are_found_by_the_next_pruning(
    store: SqliteStore, clock: ManualClock
) -> None:
    jobs = [
        *[NewJob(id, "t") for id in ("running", "parked")],
        NewJob("scheduled", "t", delay=HOUR),
        *[NewJob(id, "t", partition=Partition("k")) for id in ("first", "waiting")],
    ]
    await store.enqueue(jobs[:2])
    found = await store.fetch(ONE, limit=9, lease=LEASE, worker="gone", token=token())
    await store.settle([Settlement(job.lease, PARKED) for job in found.jobs if job.id == "parked"])
    await store.enqueue(jobs[2:])
    true = await counts(store)
    assert len(true) == 5
    for state in true:
        write(store, **{state.value: 0})
        await store.prune()
        assert await counts(store) == true


async def test_true_counters_cost_a_pruning_no_write(store: SqliteStore) -> None:
    await store.enqueue([NewJob("a", "t"), NewJob("b", "t", delay=HOUR)])
    before = await counts(store)
    with sqlite3.connect(store.path, timeout=10, isolation_level=None) as cx:
        cx.execute("BEGIN IMMEDIATE")  # nobody else may write
        await store.prune()
    cx.close()
    assert await counts(store) == before


@pytest.mark.parametrize("verb", ["cancel", "retry", "reschedule", "discard", "complete", "delete"])
@pytest.mark.parametrize("number", [12, -1])
async def test_a_job_in_no_state_is_set_aside_by_an_operators_verb(
    store: SqliteStore, verb: str, number: int
) -> None:
    await store.enqueue([NewJob("a", "t"), NewJob("b", "t")])
    with sqlite3.connect(store.path, timeout=10) as cx:
        cx.execute("PRAGMA ignore_check_constraints = 1")
        cx.execute("UPDATE penstock_job SET state = ? WHERE id = 'a'", (number,))
    cx.close()
    said = await getattr(store, verb)([Ref("default", "a"), Ref("default", "b")])
    assert said[0] in (State.DEAD, State.CANCELLED)
    assert said[1] in (State.AVAILABLE, State.CANCELLED)
    job, other = await store.get([Ref("default", "a"), Ref("default", "b")])
    if verb == "delete":
        assert (job, other) == (None, None)
    else:
        assert job is not None
        assert job.state is State.DEAD
        assert "no state has the number" in (job.reason or "")
    (stats,) = await store.stats()
    assert stats.failed == 1
