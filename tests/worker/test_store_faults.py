"""A store that does not answer for a while costs time only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.core.job import State
from penstock.errors import StoreFull
from penstock.testing import FaultyStore
from penstock.worker.setup import Supervision
from penstock.worker.shared_lease_table import LeaseTable
from tests.worker.conftest import at_work, ended, in_a_burst, patient, quick, until
from tests.worker.task_bodies import act, lines, linger, made, tell


async def test_an_outcome_is_kept_until_the_store_takes_it(
    app: App, faults: FaultyStore, run_in: str
) -> None:
    handle = await made(app, run_in, act).aenqueue("return")
    faults.fail("settle", times=2)
    await in_a_burst(app)
    job = await ended(handle)
    assert (job.state, job.attempt) == (State.COMPLETED, 1)
    assert await handle.aresult(60) == "done in attempt 1"


async def test_a_worker_is_not_overdue_while_its_outcomes_wait_for_the_store(
    app: App, faults: FaultyStore
) -> None:
    """Its supervisor would kill it, and all jobs that it holds would run again."""

    @app.task(timeout="1m")
    async def work() -> bool:
        return [entry.deadline_ns > 0 for entry in table.entries()] == [True]

    table = LeaseTable.create(4)
    handle = await work.aenqueue()
    faults.fail("settle", times=5)
    async with at_work(app, supervision=Supervision(table=table)):
        await until(lambda: faults.calls["settle"] > 1, "a settlement has failed")
        assert [entry.deadline_ns for entry in table.entries()] == [0]
        assert await handle.aresult(60), "it had a deadline while it ran"


async def test_an_outcome_whose_answer_was_lost_is_not_counted_twice(app: App, faults: FaultyStore) -> None:
    handle = await made(app, "async", act).aenqueue("return")
    faults.lose_reply("settle")
    await in_a_burst(app)
    assert await handle.aresult(60) == "done in attempt 1"
    (stats,) = await app.store.stats()
    assert (stats.processed, stats.failed) == (1, 0)


async def test_a_fetch_whose_answer_was_lost_loses_no_job(app: App, faults: FaultyStore) -> None:
    ran: Counter[int] = Counter()

    @app.task
    async def work(i: int) -> None:
        ran[i] += 1

    await app.aenqueue_many([work.job(i) for i in range(300)])
    faults.lose_reply("fetch", times=2)
    await in_a_burst(app, config=patient(), concurrency=10)
    assert ran == Counter(range(300))


async def test_everything_goes_on_after_an_outage(
    app: App, faults: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    ran: Counter[int] = Counter()
    reached = asyncio.Event()

    @app.task
    async def work(i: int) -> None:
        ran[i] += 1
        if i == 500:
            faults.down()
            reached.set()
        await asyncio.sleep(0)

    await app.aenqueue_many([work.job(i) for i in range(1_000)])
    with caplog.at_level(logging.WARNING):
        async with at_work(app, concurrency=10, config=patient(reclaim_every="50ms")):
            await reached.wait()
            begun, refused = time.monotonic(), sum(faults.calls.values())

            def refused_enough() -> bool:
                return sum(faults.calls.values()) > refused + 8

            await until(refused_enough, "several parts have found the store away")
            faults.up()
            took = time.monotonic() - begun
            assert await app.adrained("default", timeout=60)
    assert ran == Counter(range(1_000)), "each ran once"
    said = [r for r in caplog.records if "a test has taken the store away" in r.getMessage()]
    assert 1 <= len(said) <= 1 + took // 3, "at most one line in three seconds, for all parts"


@pytest.mark.slow
async def test_while_outcomes_wait_no_more_than_a_bounded_number_is_started(
    app: App, faults: FaultyStore
) -> None:
    ran: Counter[int] = Counter()
    when_full: list[int] = []

    @app.task
    async def work(i: int) -> None:
        ran[i] += 1

    await app.aenqueue_many([work.job(i) for i in range(10_000)])
    faults.fail("settle", times=4)
    async with at_work(app, concurrency=50, config=patient()):
        await until(lambda: faults.calls["settle"] >= 4, "the store has refused for a while")
        when_full.append(len(ran))
        assert await app.adrained("default", timeout=60), "and then it goes on"
    assert ran == Counter(range(10_000))
    assert when_full[0] < 8_500, "4 000 that wait, what is on its way, and what one fetch brought"


async def test_heartbeats_that_fail_for_less_than_a_lease_lose_nothing(
    app: App, faults: FaultyStore, tmp_path: Path
) -> None:
    handle = await made(app, "async", tell).aenqueue(str(tmp_path / "enough"))
    async with at_work(app, config=quick(lease="5s", heartbeat="50ms", reclaim_every="50ms")):
        faults.fail("extend", times=5)
        await until(lambda: faults.calls["extend"] >= 6, "a heartbeat came through again")
        (tmp_path / "enough").touch()
        assert await handle.aresult(60) == "told"
    assert (await ended(handle)).attempt == 1


async def test_an_outage_longer_than_the_lease_costs_no_attempt_where_nobody_else_was_there(
    app: App, faults: FaultyStore, tmp_path: Path
) -> None:
    """Who was cut off himself does not judge leases at once: not even his own."""
    began = tmp_path / "began"
    handle = await made(app, "async", linger).aenqueue(str(began), 1.3)
    async with at_work(app, config=quick(lease="400ms", heartbeat="50ms", reclaim_every="50ms")):
        await until(lambda: bool(lines(began)), "it has begun")
        faults.down()
        before = time.monotonic()
        await until(lambda: time.monotonic() - before > 0.6, "the lease has run out")
        faults.up()
        assert await handle.aresult(60) == "stayed"
    job = await ended(handle)
    assert (job.attempt, job.lost, len(lines(began))) == (1, 0, 1)


async def test_a_fault_of_the_store_that_is_no_outage_holds_up_only_what_it_hits(
    app: App, faults: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    task = made(app, "async", act)
    first = await task.aenqueue("return")
    faults.fail("settle", error=ValueError("a fault of ours"))
    await in_a_burst(app)
    assert await first.aresult(60) == "done in attempt 1"
    assert "a fault of ours" in caplog.text


async def test_a_full_disk_keeps_outcomes_waiting(app: App, faults: FaultyStore) -> None:
    handle = await made(app, "async", act).aenqueue("return")
    faults.fail("settle", times=2, error=StoreFull("no room"))
    await in_a_burst(app)
    assert await handle.aresult(60) == "done in attempt 1"


async def test_maintenance_survives_an_outage(app: App, faults: FaultyStore) -> None:
    handle = await made(app, "async", act).using(delay="300ms").aenqueue("return")
    async with at_work(app):
        for verb in ("promote", "reclaim", "prune", "announce", "workers", "wait"):
            faults.fail(verb, times=2)
        assert await handle.aresult(60) == "done in attempt 1"
