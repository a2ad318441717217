"""Jobs of unknown tasks: parked, counted, reported, and run by a worker that has the task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from penstock.app.app import App
from penstock.core.events import Health
from penstock.core.job import RawJob, State
from penstock.events import TaskUnknown
from penstock.stores.contract import Parked
from penstock.worker import unknown_tasks
from tests.worker.conftest import Told, at_work, ended, in_a_burst, patient, until

HERE = "late"


async def put(app: App, n: int, task: str = HERE) -> None:
    for i in range(n):
        await app.aenqueue_raw("default", b"{}", task, id=f"{task}-{i}")


async def parked(app: App) -> int:
    return sum(one.jobs for one in await app.store.parked())


@pytest.fixture
def old(app: App) -> App:
    """An app of yesterday: it serves the queue, and knows another task."""

    @app.task(name="known", retention="1h")
    async def known(n: int) -> int:
        return n

    return app


async def test_each_parked_job_is_reported_and_all_are_counted(
    old: App, caplog: pytest.LogCaptureFixture
) -> None:
    healths: list[Health] = []
    old.on_health(every="100ms")(healths.append)
    told = Told(old)
    await put(old, 250)
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        async with at_work(old):
            await until(lambda: bool(healths) and healths[-1].parked == 250, "the health tells of all")
            await until(lambda: len(told.of(TaskUnknown)) == 250, "all are told of")
    assert await old.store.parked() == [Parked("default", HERE, 250)]
    lines = [record.message for record in caplog.records if "no task" in record.message]
    assert len(lines) <= 3, "a line for each would hide all others"
    assert lines[0].endswith(f"no task {HERE!r} in this worker; the job is parked")


async def test_what_the_log_left_out_is_counted_there(
    old: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(old, 20)
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        async with at_work(old):
            async with asyncio.timeout(60):
                while await parked(old) < 20:
                    await asyncio.sleep(0.005)
            monkeypatch.setattr(unknown_tasks, "_LOG_EVERY", 0.0)
            await put(old, 1, "later")
            async with asyncio.timeout(60):
                while await parked(old) < 21:
                    await asyncio.sleep(0.005)
    last = [record.message for record in caplog.records if "later" in record.message]
    assert len(last) == 1
    assert last[0].endswith("the job is parked (19 more like it in between)")


async def test_they_stand_in_nobodys_way(old: App) -> None:
    """A thousand that this worker cannot run, of the highest priority, and one that it can."""
    await put(old, 1_000)
    handle = await old.tasks["known"].aenqueue(7)
    async with at_work(old, concurrency=1, config=patient()):
        assert await handle.aresult(60) == 7
    assert await parked(old) == 1_000


async def test_a_worker_that_starts_and_knows_the_task_serves_them_at_once(
    old: App, new_app: Callable[[], App]
) -> None:
    """Not when a heartbeat or the next look comes round: those are far away here."""
    await put(old, 30)
    await in_a_burst(old)
    assert await parked(old) == 30
    ran: list[int] = []
    new = new_app()

    @new.task(name=HERE)
    async def late() -> None:
        ran.append(1)

    async with at_work(new, config=patient(safety_poll="60s")):
        async with asyncio.timeout(60):
            while len(ran) < 30:
                await asyncio.sleep(0.005)
    assert await new.store.parked() == []


async def test_an_old_and_a_new_worker_side_by_side_finish_all(old: App, new_app: Callable[[], App]) -> None:
    """As while a release is rolled out: what the old one takes first is set aside once, uncharged."""
    new = new_app()

    @new.task(name=HERE, retention="1h")
    async def late(n: int) -> int:
        return n

    new.task(name="known", retention="1h")(old.tasks["known"].function)
    async with at_work(old, concurrency=5), at_work(new, concurrency=5, config=patient(safety_poll="100ms")):
        handles = [await late.aenqueue(n) for n in range(100)]
        handles += [await old.tasks["known"].aenqueue(n) for n in range(100)]
        jobs = [await ended(handle) for handle in handles]
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert {job.attempt for job in jobs} == {1}


async def test_a_handler_of_the_queue_takes_jobs_with_any_name(old: App, new_app: Callable[[], App]) -> None:
    await put(old, 3)
    await put(old, 2, "later")
    await in_a_burst(old)
    assert await parked(old) == 5
    new, ran = new_app(), list[str]()

    @new.handler(queue="default")
    async def handle(job: RawJob) -> None:
        ran.append(job.task)

    async with at_work(new, config=patient()):
        await until(lambda: len(ran) == 5, "the handler has had all")
    assert set(ran) == {HERE, "later"}
