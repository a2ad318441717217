"""Delayed jobs start at their time: never before it, and not long after."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.app import App
from penstock.attempt import current_job
from penstock.clock import SystemClock
from penstock.handle import Handle
from penstock.job import State
from tests.worker.conftest import at_work, ended, patient, quick, until

#: How late a start may be on a machine that does other things as well (ms).
LATE = 60
clock = SystemClock()


class Starts:
    """When each job's function began, by the clock that the store goes by."""

    def __init__(self, app: App) -> None:
        self.at: dict[str, int] = {}

        @app.task(name="work", retention="1h", retry="150ms")
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
    async with at_work(app, config=patient()):
        handles = [await starts.task.using(delay=ms / 1000).aenqueue() for ms in range(60, 460, 20)]
        late = [await starts.late(handle) for handle in handles]
    assert min(late) >= 0, "never early"
    late.sort()
    assert late[len(late) // 2] <= 20
    assert late[-1] <= 3 * LATE


async def test_an_earlier_one_that_comes_while_the_promoter_sleeps_is_not_late(app: App) -> None:
    starts = Starts(app)
    async with at_work(app, config=patient()) as worker:
        later = await starts.task.using(delay="1h").aenqueue()
        await until(lambda: _sleeps(worker), "the promoter sleeps")
        soon = await starts.task.using(delay="100ms").aenqueue()
        sooner = await starts.task.using(delay="50ms").aenqueue()
        assert 0 <= await starts.late(soon) <= LATE
        assert 0 <= await starts.late(sooner) <= LATE
        assert await later.astatus() is State.SCHEDULED


async def test_one_enqueued_by_another_process_is_not_late_either(app: App, new_app: Any) -> None:
    starts, other = Starts(app), new_app()
    producer = Starts(other).task
    async with at_work(app, config=patient()) as worker:
        await until(lambda: _sleeps(worker), "the promoter sleeps")
        handle = await producer.using(delay="80ms").aenqueue()
        assert 0 <= await starts.late(handle) <= LATE


async def test_one_that_becomes_due_while_all_slots_are_taken_starts_with_the_next_free_one(app: App) -> None:
    starts, go_on, begun = Starts(app), asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> None:
        begun.set()
        await go_on.wait()

    async with at_work(app, concurrency=1, config=patient()):
        await hold.aenqueue()
        await begun.wait()
        handle = await starts.task.using(delay="30ms").aenqueue()
        job = await handle.ajob()
        assert job is not None
        await until(lambda: clock.now() > job.run_at, "it is due")
        free = clock.now()
        go_on.set()
        await starts.late(handle)
        assert 0 <= starts.at[handle.id] - free <= LATE


async def test_a_retry_starts_at_its_time(app: App) -> None:
    starts = Starts(app)
    async with at_work(app, config=patient()):
        handle = await starts.task.aenqueue(True)
        assert 0 <= await starts.late(handle) <= LATE
        assert (await ended(handle)).attempt == 2


async def test_an_instant_works_as_a_delay_does(app: App) -> None:
    starts = Starts(app)
    async with at_work(app, config=patient()):
        when = datetime.now(UTC) + timedelta(milliseconds=90)
        handle = await starts.task.using(run_at=when).aenqueue()
        past = await starts.task.using(run_at=when - timedelta(hours=1)).aenqueue()
        assert 0 <= await starts.late(handle) <= LATE
        assert await starts.late(past) > 0


async def test_a_job_that_is_moved_forward_starts_at_its_new_time(app: App) -> None:
    starts = Starts(app)
    async with at_work(app, config=patient()):
        handle = await starts.task.using(delay="1h").aenqueue()
        await handle.areschedule(delay="60ms")
        assert 0 <= await starts.late(handle) <= LATE


async def test_many_that_are_due_at_once_all_start(app: App) -> None:
    starts = Starts(app)
    when = datetime.now(UTC) + timedelta(milliseconds=300)
    later = starts.task.using(run_at=when)
    await app.aenqueue_many([later.job() for _ in range(2_500)])
    async with at_work(app, concurrency=50, config=quick()):
        await until(lambda: len(starts.at) == 2_500, "all have started")
    assert min(starts.at.values()) >= int(when.timestamp() * 1000)


def _sleeps(worker: Any) -> bool:
    return worker._parts is not None and worker._parts.promoter._wakes_at > 0
