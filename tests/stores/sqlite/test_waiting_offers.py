"""A due job is leased to a waiting worker in the transaction that promotes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Job, NewJob, State
from penstock.stores.contract import Fetched, Wake, WorkerOffer
from penstock.stores.sqlite.store import SqliteStore

LEASE = 15_000
SOON = 5.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "jobs.db", clock=clock)
    yield made
    made.close()


class Waiting:
    """A wait with an offer; `again`: the worker takes more than one job."""

    def __init__(self, store: SqliteStore, name: str = "t1", *, again: bool = False) -> None:
        self.jobs: list[Job] = []
        self._again = again
        self._name = name
        self._known = asyncio.Event()
        self.task = asyncio.create_task(
            store.wait(["default"], timeout=60_000, offer=self._offer(), on_due=lambda *_: self._known.set())
        )

    def _offer(self) -> WorkerOffer:
        return WorkerOffer("w1", f"{self._name}-{len(self.jobs)}", LEASE, self._take)

    def _take(self, found: Fetched) -> WorkerOffer | None:
        self.jobs += found.jobs
        return self._offer() if self._again else None

    async def known(self) -> Waiting:
        await asyncio.wait_for(self._known.wait(), SOON)
        return self

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_job_has_arrived_when_the_promotion_returns(store: SqliteStore, clock: ManualClock) -> None:
    await store.enqueue([NewJob("a", "t", delay=1_000)])
    waiting = await Waiting(store).known()
    clock.advance(1_000)
    assert (await store.promote(["default"], limit=9)).moved == 1
    assert [(job.spec.id, job.state, job.token) for job in waiting.jobs] == [("a", State.RUNNING, "t1-0")]
    assert await store.get([waiting.jobs[0].ref]) == waiting.jobs
    assert await asyncio.wait_for(waiting.task, SOON) is Wake.WORK


async def test_a_worker_that_offers_to_take_more_goes_on_waiting(
    store: SqliteStore, clock: ManualClock
) -> None:
    await store.enqueue([NewJob(f"j{i}", "t", delay=1_000 * i) for i in range(1, 4)])
    waiting = await Waiting(store, again=True).known()
    for _ in range(3):
        clock.advance(1_000)
        await store.promote(["default"], limit=9)
    assert [(job.spec.id, job.token) for job in waiting.jobs] == [
        ("j1", "t1-0"),
        ("j2", "t1-1"),
        ("j3", "t1-2"),
    ]
    assert not waiting.task.done()
    await waiting.end()


async def test_a_promotion_for_a_job_that_has_started_wakes_no_other_process(
    store: SqliteStore, clock: ManualClock
) -> None:
    await store.enqueue([NewJob("a", "t", delay=1_000), NewJob("b", "t", delay=2_000)])
    waiting = await Waiting(store).known()
    notifier = store._runner.notifiers["work"]
    before = notifier.read()
    clock.advance(1_000)
    await store.promote(["default"], limit=9)
    assert notifier.read() == before
    clock.advance(1_000)
    await store.promote(["default"], limit=9)
    assert notifier.read() != before, "nobody has taken the second job"
    await waiting.end()


async def test_workers_of_other_queues_are_offered_nothing(store: SqliteStore, clock: ManualClock) -> None:
    await store.enqueue([NewJob("a", "t", delay=1_000), NewJob("b", "t", queue="other", delay=1_000)])
    waiting = await Waiting(store).known()
    clock.advance(1_000)
    assert (await store.promote(["other"], limit=9)).moved == 1
    assert waiting.jobs == []
    await waiting.end()
