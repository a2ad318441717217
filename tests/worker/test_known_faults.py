"""Known faults of other job systems, which our workers may not have; docs/faults.md lists them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.app.app import App
from penstock.core.job import State
from penstock.testing import FaultyStore
from penstock.worker import Queue
from tests.worker.conftest import Door, at_work, becomes, ended, in_a_burst, patient, quick, until


async def test_an_idle_worker_starts_what_comes_at_once(app: App) -> None:
    """It is woken: its next look is an hour away."""
    started = asyncio.Event()

    @app.task
    async def work() -> None:
        started.set()

    async with at_work(app, config=patient(safety_poll="1h")):
        for _ in range(10):
            await asyncio.sleep(0.03)  # nothing to do: it sleeps
            await work.aenqueue()
            async with asyncio.timeout(60):
                await started.wait()
            started.clear()


async def test_an_idle_worker_ends_at_once(app: App) -> None:
    @app.task
    async def work() -> None: ...

    async with at_work(app, config=patient(safety_poll="1h")) as worker:
        await asyncio.sleep(0.05)
        worker.stop()


async def test_an_idle_worker_asks_seldom(app: App, faults: FaultyStore) -> None:
    @app.task
    async def work() -> None: ...

    async with at_work(app, config=patient(safety_poll="60s")):
        await until(lambda: faults.calls["wait"] > 0, "it sleeps")
        before = dict(faults.calls)
        await asyncio.sleep(0.5)
        asked = {verb: n - before.get(verb, 0) for verb, n in faults.calls.items()}
    assert sum(asked.values()) < 5, asked


async def test_jobs_of_many_queues_come_with_one_fetch(app: App, faults: FaultyStore) -> None:
    """However many empty queues stand before those that have jobs."""
    names = [f"q{n}" for n in range(30)]
    ran: list[str] = []

    @app.task
    async def work(queue: str) -> None:
        ran.append(queue)

    for name in names[20:]:
        await app.aenqueue_many([work.using(queue=name).job(name) for _ in range(5)])
    await in_a_burst(app, [Queue(name) for name in names], concurrency=100)
    assert len(ran) == 50
    assert faults.calls["fetch"] <= 5


async def test_outcomes_of_many_jobs_are_settled_together(app: App, faults: FaultyStore) -> None:
    @app.task(retention=0)
    async def work(n: int) -> None: ...

    await app.aenqueue_many([work.job(n) for n in range(1_000)])
    await in_a_burst(app, concurrency=100)
    assert faults.calls["settle"] <= 200


@pytest.mark.parametrize("verb", ["extend", "announce", "prune", "promote", "reclaim"])
async def test_a_call_of_the_store_that_hangs_holds_up_no_job(app: App, verb: str) -> None:
    """Heartbeats and upkeep are nobody's way to a slot or to a settled outcome."""
    door = Door.before(app, verb)
    if verb == "announce":
        door.open()

    @app.task(retention="1h")
    async def work(n: int) -> int:
        return n

    async with at_work(app, concurrency=2, config=quick(heartbeat="100ms", lease="10s")):
        door.shut()
        handles = [await work.aenqueue(n) for n in range(20)]
        assert [await handle.aresult(60) for handle in handles] == list(range(20))
        door.open()


async def test_an_error_about_a_file_whose_name_is_no_text_is_kept(app: App) -> None:
    @app.task(max_attempts=1)
    async def work() -> None:
        raise FileNotFoundError(2, "no such file", "caf\udce9.txt")

    handle = await work.aenqueue()
    await in_a_burst(app)
    job = await ended(handle)
    assert job.state is State.DEAD
    assert "caf\\udce9.txt" in job.errors[0].message
    assert "FileNotFoundError" in job.errors[0].traceback


async def test_a_timeout_of_milliseconds_is_one_of_milliseconds(app: App) -> None:
    @app.task(timeout="50ms", max_attempts=2, retry="1h")
    async def work() -> None:
        await asyncio.sleep(60)

    handle = await work.aenqueue()
    async with at_work(app):
        job = await becomes(handle, State.RETRYABLE)
    assert job.errors[0].kind == "Timeout"


async def test_options_of_each_of_many_jobs_are_its_own(app: App) -> None:
    seen: dict[int, str] = {}

    @app.task(headers={"all": "yes"})
    async def work(n: int) -> None:
        from penstock import current_job

        seen[n] = ",".join(f"{name}={value}" for name, value in sorted(current_job().headers.items()))

    await app.aenqueue_many([work.job(1), work.using(headers={"own": "2"}).job(2)])
    await in_a_burst(app)
    assert seen == {1: "all=yes", 2: "all=yes,own=2"}
