"""Many plain jobs are leased in two steps: the answers must be those of the usual way."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Job, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import BatchTerms
from penstock.core.unique import UniqueKey
from penstock.stores.contract import Settled, Settlement, Share
from penstock.stores.sql.verbs import fetching
from penstock.stores.sqlite import SqliteStore
from tests.store.corruptors import SqliteCorruptor
from tests.store.facts import COMPLETED, LEASE, add, counts, error, new, some

#: Options of one job among plain ones, and whether all of them are leased in two steps.
AMONG: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, True),
    "urgent": ({"priority": 7}, True),
    "expiring": ({"expires_in": 60_000}, True),
    "with headers": ({"headers": {"a": "ä"}}, True),
    "with any bytes": ({"payload": bytes(range(256))}, True),
    "large": ({"payload": b"x" * 3_000}, False),
    "unique": ({"unique": UniqueKey("k")}, False),
    "a batch": ({"batch_terms": BatchTerms("g", 1)}, False),
}


class TwoSteps:
    """Counts the calls that leased jobs in two steps."""

    def __init__(self) -> None:
        self.leased, self._original = 0, fetching.lease_plain_jobs

    def __call__(self, *args: Any) -> list[Job] | None:
        jobs = self._original(*args)
        self.leased += jobs is not None
        return jobs


@pytest.fixture
def two_steps(monkeypatch: pytest.MonkeyPatch) -> TwoSteps:
    counting = TwoSteps()
    monkeypatch.setattr(fetching, "lease_plain_jobs", counting)
    return counting


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "jobs.db", clock=ManualClock())
    yield made
    made.close()


async def fetched(store: SqliteStore, n: int) -> list[Job]:
    share = Share("default", n, n)
    return (await store.fetch([share], limit=n, lease=LEASE, worker="w", token="t")).jobs


@pytest.mark.parametrize("kind", AMONG)
async def test_jobs_are_read_as_in_the_usual_way(
    store: SqliteStore, two_steps: TwoSteps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    facts, plain = AMONG[kind]
    await add(store, *some(10), new(**facts), *some(10, task="another", timeout=None, max_attempts=3))
    store.close()
    shutil.copy(tmp_path / "jobs.db", tmp_path / "copy.db")
    jobs = await fetched(store, 30)
    assert (len(jobs), two_steps.leased) == (21, int(plain))
    monkeypatch.setattr(fetching, "LEAST", 1_000)
    other = SqliteStore(tmp_path / "copy.db", clock=ManualClock())
    assert await fetched(other, 30) == jobs
    assert two_steps.leased == int(plain)
    assert await counts(other) == await counts(store)
    other.close()
    assert await store.settle([Settlement(job.lease, COMPLETED) for job in jobs]) == [Settled.APPLIED] * 21


async def test_a_job_with_an_error_history_is_not_plain(store: SqliteStore, two_steps: TwoSteps) -> None:
    await add(store, *some(20))
    jobs = await fetched(store, 20)
    again = Transition(State.AVAILABLE, error=error())
    await store.settle([Settlement(jobs[0].lease, again)])
    await add(store, *some(19))
    share = Share("default", 20, 20)
    found = (await store.fetch([share], limit=20, lease=LEASE, worker="w", token="t2")).jobs
    assert two_steps.leased == 1
    assert {job.id: (job.attempt, len(job.errors)) for job in found}[jobs[0].id] == (2, 1)


async def test_a_released_job_keeps_its_attempt_and_its_losses(
    store: SqliteStore, two_steps: TwoSteps
) -> None:
    await add(store, *some(20))
    jobs = await fetched(store, 20)
    back = Transition(State.AVAILABLE, charge=False, lost=True)
    await store.settle([Settlement(job.lease, back) for job in jobs])
    share = Share("default", 20, 20)
    found = (await store.fetch([share], limit=20, lease=LEASE, worker="w", token="t2")).jobs
    assert {(job.attempt, job.lost, job.token) for job in found} == {(1, 1, "t2")}
    assert two_steps.leased == 2


@pytest.mark.parametrize("field", SqliteCorruptor.record_fields)
async def test_a_corrupted_record_among_many_is_set_aside(
    store: SqliteStore, two_steps: TwoSteps, tmp_path: Path, field: str
) -> None:
    jobs = some(20)
    await add(store, *jobs)
    await SqliteCorruptor(tmp_path).record(jobs[7].ref, field)
    share = Share("default", 20, 20)
    answer = await store.fetch([share], limit=20, lease=LEASE, worker="w", token="t")
    assert [job.spec for job in answer.jobs] == [job for n, job in enumerate(jobs) if n != 7]
    assert [one.id for one in answer.set_aside] == [jobs[7].id]
    assert await counts(store) == {State.RUNNING: 19, State.DEAD: 1}


async def test_two_records_that_are_damaged_together_are_set_aside(
    store: SqliteStore, two_steps: TwoSteps, tmp_path: Path
) -> None:
    jobs = some(20)
    await add(store, *jobs)
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as cx, cx:
        sql = "SELECT seq, spec FROM penstock_job WHERE id IN (?, ?) ORDER BY place"
        (first, one), (second, other) = cx.execute(sql, (jobs[7].id, jobs[8].id)).fetchall()
        moved = [(one[:-3], first), (one[-3:] + other, second)]
        cx.executemany("UPDATE penstock_job SET spec = ? WHERE seq = ?", moved)
    share = Share("default", 20, 20)
    answer = await store.fetch([share], limit=20, lease=LEASE, worker="w", token="t")
    assert {one.id for one in answer.set_aside} == {jobs[7].id, jobs[8].id}
    assert len(answer.jobs) == 18


async def test_jobs_that_another_program_keeps_from_a_lease_do_not_keep_the_others(
    store: SqliteStore, two_steps: TwoSteps, tmp_path: Path
) -> None:
    jobs = some(20)
    await add(store, *jobs)
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as cx, cx:
        cx.execute(
            "CREATE TRIGGER keep BEFORE UPDATE ON penstock_job WHEN old.id = "
            f"'{jobs[3].id}' BEGIN SELECT RAISE(IGNORE); END"
        )
    assert len(await fetched(store, 20)) == 19
    assert two_steps.leased == 0


async def test_more_jobs_than_one_step_may_read_are_fetched(store: SqliteStore, two_steps: TwoSteps) -> None:
    await store.enqueue(some(4_001))
    assert len(await fetched(store, 4_001)) == 4_001
    assert two_steps.leased == 0
