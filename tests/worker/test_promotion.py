"""Delayed jobs start at their time: never before it, and without a look at the store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.client.handle import Handle
from penstock.core.clock import SystemClock
from penstock.core.job import State
from penstock.maintenance.promoter import Promoter
from tests.worker.conftest import at_work, ended, patient, quick, until

#: What the stores go by.
clock = SystemClock()


@pytest.fixture(autouse=True)
def _no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The promoter looks once an hour: a job that it does not expect would start then."""
    defaults = Promoter.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "look", 3_600.0)


class Starts:
    """When each job's function began, by the clock that the store goes by."""

    def __init__(self, app: App) -> None:
        self.at: dict[str, int] = {}

        @app.task(name="work", retention="1h", retry="50ms")
        async def work(fail: bool = False) -> None:
            self.at[current_job().id] = clock.now()
            if fail and current_job().attempt == 1:
                raise ValueError

        self.task = work

    async def late(self, handle: Handle[Any]) -> int:
        """How long after its time it began; it has to have ended."""
        job = await ended(handle)
        assert job.state is State.COMPLETED
        return self.at[handle.id] - job.run_at


async def test_delayed_jobs_start_at_their_time(app: App) -> None:
    starts = Starts(app)
    async with at_work(app, config=patient(safety_poll="1h")):
        handles = [await starts.task.using(delay=ms / 1000).aenqueue() for ms in range(60, 460, 20)]
        late = [await starts.late(handle) for handle in handles]
    assert min(late) >= 0, "never early"


async def test_an_earlier_one_that_comes_while_the_promoter_sleeps_is_not_late(app: App) -> None:
    starts = Starts(app)
    async with at_work(app, config=patient(safety_poll="1h")) as worker:
        later = await starts.task.using(delay="1h").aenqueue()
        await until(lambda: _sleeps(worker), "the promoter sleeps")

        async def soon() -> int:
            one = await starts.task.using(delay="80ms").aenqueue()
            earlier = await starts.task.using(delay="40ms").aenqueue()
            return max(await starts.late(one), await starts.late(earlier))

        assert await soon() >= 0, "a job that came later and is due earlier starts before its time"
        assert await later.astatus() is State.SCHEDULED


async def test_one_enqueued_by_another_process_is_not_late_either(app: App, new_app: Any) -> None:
    starts, other = Starts(app), new_app()
    producer = Starts(other).task
    async with at_work(app, config=patient(safety_poll="1h")) as worker:
        await until(lambda: _sleeps(worker), "the promoter sleeps")

        async def from_elsewhere() -> int:
            return await starts.late(await producer.using(delay="40ms").aenqueue())

        assert await from_elsewhere() >= 0, "another's job starts before its time"


async def test_one_that_becomes_due_while_all_slots_are_taken_has_the_next_free_one(app: App) -> None:
    starts, go_on, begun = Starts(app), asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> None:
        begun.set()
        await go_on.wait()

    async def after_the_wait() -> int:
        begun.clear()
        go_on.clear()
        await hold.aenqueue()
        await begun.wait()
        handle = await starts.task.using(delay="20ms").aenqueue()
        job = await handle.ajob()
        assert job is not None
        await until(lambda: clock.now() > job.run_at, "it is due")
        free = clock.now()
        go_on.set()
        await starts.late(handle)
        return starts.at[handle.id] - free

    async with at_work(app, concurrency=1, config=patient(safety_poll="1h")):
        assert await after_the_wait() >= 0, "the next job starts before its time"


async def test_a_retry_starts_at_its_time(app: App) -> None:
    starts = Starts(app)

    async def retried() -> int:
        handle = await starts.task.aenqueue(True)
        late = await starts.late(handle)
        assert (await ended(handle)).attempt == 2
        return late

    async with at_work(app, config=patient(safety_poll="1h")):
        assert await retried() >= 0, "a retry starts before its time"


async def test_an_instant_works_as_a_delay_does(app: App) -> None:
    starts = Starts(app)

    async def at_its_instant() -> int:
        when = datetime.now(UTC) + timedelta(milliseconds=40)
        return await starts.late(await starts.task.using(run_at=when).aenqueue())

    async with at_work(app, config=patient(safety_poll="1h")):
        assert await at_its_instant() >= 0, "a job of an instant starts before its time"
        past = starts.task.using(run_at=datetime.now(UTC) - timedelta(hours=1))
        assert await starts.late(await past.aenqueue()) >= 3_599_000


async def test_a_job_that_is_moved_forward_starts_at_its_new_time(app: App) -> None:
    starts = Starts(app)

    async def moved() -> int:
        handle = await starts.task.using(delay="1h").aenqueue()
        await handle.areschedule(delay="40ms")
        return await starts.late(handle)

    async with at_work(app, config=patient(safety_poll="1h")):
        assert await moved() >= 0, "a job that was moved forward starts before its time"


async def test_many_that_are_due_at_once_all_start(app: App) -> None:
    starts = Starts(app)
    when = datetime.now(UTC) + timedelta(milliseconds=300)
    later = starts.task.using(run_at=when)
    await app.aenqueue_many([later.job() for _ in range(2_500)])
    async with at_work(app, concurrency=50, config=quick()):
        await until(lambda: len(starts.at) == 2_500, "all have started")
    assert min(starts.at.values()) >= int(when.timestamp() * 1000)


def _sleeps(worker: Any) -> bool:
    return worker._services is not None and worker._services.maintenance.promoter._wakes_at > 0
