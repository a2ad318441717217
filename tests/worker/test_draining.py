"""A stopping worker loses nothing: running jobs may end; others are returned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.app.app import App
from penstock.core.ids import mint_token
from penstock.core.job import State
from penstock.errors import StoreUnavailable
from penstock.events import JobReleased, LateResultRefused
from penstock.stores.contract import Fetched, OnDue, Share, Store, Wake, WorkerOffer
from penstock.testing import FaultyStore
from penstock.worker import Worker, services
from tests.worker.conftest import (
    PATIENCE,
    Dam,
    Door,
    Told,
    at_work,
    becomes,
    ended,
    in_a_burst,
    patient,
    quick,
    until,
)
from tests.worker.task_bodies import lines, linger, made, swallow, tell


async def test_stop_waits_for_what_runs(app: App, run_in: str, tmp_path: Path) -> None:
    handle = await made(app, run_in, tell).aenqueue(str(tmp_path / "enough"))
    worker = Worker(app, config=quick(drain_timeout="10s"))
    run = asyncio.create_task(worker.run())

    async def under_way() -> bool:
        job = await handle.ajob()
        return job is not None and job.progress is not None

    await until(under_way, "it has begun")
    worker.stop()
    late = await made(app, "async", linger).aenqueue(str(tmp_path / "began"), 0.0)
    await _some_turns()
    assert not run.done()
    (tmp_path / "enough").touch()
    async with asyncio.timeout(PATIENCE):
        await run
    assert (await ended(handle)).state is State.COMPLETED
    job = await late.ajob()
    assert job is not None
    assert (job.state, job.attempt) == (State.AVAILABLE, 0), "nothing new is started"


async def test_jobs_that_do_not_end_in_time_are_released_and_run_elsewhere(
    app: App, new_app: Callable[[], App], run_in: str, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    told = Told(app)
    handle = await made(app, run_in, linger).aenqueue(str(began))
    async with at_work(app, config=quick(drain_timeout="50ms")):
        await until(lambda: bool(lines(began)), "it has begun")
    job = await becomes(handle, State.AVAILABLE)
    assert (job.attempt, job.errors) == (0, ()), "the attempt is not charged"
    assert (await told.one(JobReleased)).id == handle.id

    other = new_app()
    again = made(other, run_in, linger)
    async with at_work(other, [again.queue], config=quick(drain_timeout="50ms")):
        await until(lambda: len(lines(began)) == 2, "it has begun elsewhere")
        assert (await becomes(handle, State.RUNNING)).attempt == 1


async def test_a_late_end_changes_nothing(app: App, new_app: Callable[[], App], tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, "thread", swallow).aenqueue(str(began))
    async with at_work(app, config=quick(drain_timeout="10ms")):
        await until(lambda: bool(lines(began)), "it has begun")
    other = new_app()
    made(other, "thread", swallow)
    async with at_work(other):
        await until(lambda: len(lines(began)) == 2, "it has begun elsewhere")
        (tmp_path / "began.go").touch()  # both come back
        assert await handle.aresult(60) == "too late"
    job = await ended(handle)
    assert (job.state, job.attempt, job.errors) == (State.COMPLETED, 1, ())
    (stats,) = await app.store.stats()
    assert stats.processed == 1


async def test_released_attempts_are_stopped_and_not_left_to_run_on(app: App, tmp_path: Path) -> None:
    """Their jobs run elsewhere at once: two at a time would be one too many."""
    begun: list[str] = []
    ends: list[str] = []

    @app.task
    async def in_the_loop() -> None:
        begun.append("async")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append("async")
            raise

    @app.task
    def in_a_thread() -> None:
        begun.append("thread")
        try:
            while True:
                time.sleep(0.001)
        except BaseException:
            ends.append("thread")
            raise

    await in_the_loop.aenqueue()
    await in_a_thread.aenqueue()
    async with at_work(app, config=quick(drain_timeout="10ms")):
        await until(lambda: len(begun) == 2, "both run")
    await until(lambda: sorted(ends) == ["async", "thread"], "both were stopped")


async def test_jobs_that_wait_for_a_slot_are_returned_to_the_head_at_once(app: App) -> None:
    """A worker at work on short jobs holds more than it has slots for; it keeps their order when it stops."""
    dam = Dam(app, 4_000)
    await dam.fill()
    config = quick(slot_wait="10s", drain_timeout="10s")
    async with at_work(app, concurrency=1, config=config) as worker:
        at = await dam.full(worker)
        worker.stop()

        async def back() -> bool:
            (queue,) = await app.store.queues()
            return queue.counts.get(State.AVAILABLE) == dam.jobs - at - 1

        await until(back, "all but the running one are available")
        job = await dam.handles[at + 1].ajob()
        assert job is not None
        assert (job.attempt, job.token) == (0, None)
        dam.open()
    assert dam.ran == list(range(at + 1))
    await in_a_burst(app, concurrency=1, config=config)
    assert dam.ran == list(range(dam.jobs)), "each ran once, in the order of their enqueue"


async def test_a_second_stop_ends_the_wait(app: App, run_in: str, tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, run_in, linger).aenqueue(str(began))
    async with at_work(app, config=quick(drain_timeout="60s")) as worker:
        await until(lambda: bool(lines(began)), "it has begun")
        worker.stop()
        await _some_turns()
        worker.stop()
        job = await becomes(handle, State.AVAILABLE)
        assert job.attempt == 0


async def test_stop_now_does_not_wait_at_all(app: App, tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, "async", linger).aenqueue(str(began))
    async with at_work(app, config=quick(drain_timeout="60s")) as worker:
        await until(lambda: bool(lines(began)), "it has begun")
        worker.stop(now=True)
        assert (await becomes(handle, State.AVAILABLE)).attempt == 0


async def test_a_run_that_is_cancelled_releases_what_it_holds(app: App, run_in: str, tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, run_in, linger).aenqueue(str(began))
    run = asyncio.create_task(Worker(app, config=patient()).run())
    await until(lambda: bool(lines(began)), "it has begun")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    job = await handle.ajob()
    assert job is not None
    assert (job.state, job.attempt, job.token) == (State.AVAILABLE, 0, None)
    assert await app.store.workers() == []


async def test_also_what_a_fetch_under_way_still_brings(app: App, tmp_path: Path) -> None:
    task = made(app, "async", linger)
    door = Door.before(app, "fetch")
    run = asyncio.create_task(Worker(app, config=patient()).run())
    await door.asked()
    handle = await task.aenqueue(str(tmp_path / "began"))
    run.cancel()
    door.open()
    with pytest.raises(asyncio.CancelledError):
        await run
    job = await handle.ajob()
    assert job is not None
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)


async def test_so_does_one_that_is_stopped_while_it_fetches(app: App, tmp_path: Path) -> None:
    task = made(app, "async", linger)
    door = Door.before(app, "fetch")
    async with at_work(app, config=patient()) as worker:
        await door.asked()
        handle = await task.aenqueue(str(tmp_path / "began"))
        worker.stop()
        await _some_turns()
        door.open()
    job = await handle.ajob()
    assert job is not None
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)
    assert lines(tmp_path / "began") == []


async def test_a_quiet_worker_finishes_what_it_has_and_takes_nothing_new(app: App, tmp_path: Path) -> None:
    first = await made(app, "async", tell).aenqueue(str(tmp_path / "enough"))
    async with at_work(app, config=quick(announce="100ms")) as worker:

        async def under_way() -> bool:
            job = await first.ajob()
            return job is not None and job.progress is not None

        await until(under_way, "it has begun")
        worker.quiet()
        second = await made(app, "async", linger).aenqueue(str(tmp_path / "began"), 0.0)
        (tmp_path / "enough").touch()
        assert await first.aresult(60) == "told"

        async def told() -> bool:
            return [info.state for info in await app.store.workers()] == ["quiet"]

        await until(told, "it says that it is quiet")
        assert await second.astatus() is State.AVAILABLE


async def test_a_worker_that_gets_a_quiet_signal_before_its_start_is_quiet(app: App, tmp_path: Path) -> None:
    handle = await made(app, "async", linger).aenqueue(str(tmp_path / "began"), 0.0)
    worker = Worker(app, config=quick())
    worker.quiet()
    run = asyncio.create_task(worker.run())

    async def there() -> bool:
        return [info.state for info in await app.store.workers()] == ["quiet"]

    await until(there, "it has announced itself")
    assert await handle.astatus() is State.AVAILABLE
    worker.stop()
    await run
    assert lines(tmp_path / "began") == []


async def test_an_outcome_that_the_store_did_not_take_in_time_is_not_waited_for_for_ever(
    app: App,
    faults: FaultyStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its job runs again once its lease has run out; what is lost is the attempt, not the job."""
    monkeypatch.setattr(services, "_LAST_ANSWERS", 0.1)
    began = tmp_path / "began"
    handle = await made(app, "async", linger).aenqueue(str(began), 0.0)
    worker = Worker(app, config=quick(drain_timeout="50ms"))
    run = asyncio.create_task(worker.run())
    faults.fail("settle", times=10_000)
    await until(lambda: faults.calls["settle"] > 0, "an outcome was offered")
    worker.stop()
    async with asyncio.timeout(PATIENCE):
        await run
    assert "could not be stored" in caplog.text
    faults.up()
    assert await handle.astatus() is State.RUNNING


async def test_a_store_that_is_away_at_the_end_does_not_make_the_run_fail(
    app: App, faults: FaultyStore
) -> None:
    made(app, "async", linger)
    async with at_work(app):
        faults.fail("retire")


async def test_a_job_settled_by_its_new_holder_is_not_touched_by_the_old_one(
    app: App, tmp_path: Path
) -> None:
    """The lease is taken over while its attempt runs, and the drain releases what it no longer has."""
    began = tmp_path / "began"
    told = Told(app)
    handle = await made(app, "async", linger).aenqueue(str(began))
    async with at_work(app, config=patient(drain_timeout="10ms")) as worker:
        await until(lambda: bool(lines(began)), "it has begun")
        taken = await app.store.reclaim(
            (), limit=1, lease=60_000, worker="another", token=mint_token(), of=[worker.id]
        )
        assert [job.id for job in taken.jobs] == [handle.id]
    job = await handle.ajob()
    assert job is not None
    assert (job.state, job.worker, job.attempt) == (State.RUNNING, "another", 1)
    await until(lambda: len(told.of(LateResultRefused)) == 1, "the release was refused")


async def _some_turns() -> None:
    """Let everybody who is ready have a turn."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_a_worker_stopped_before_it_begins_ends_at_once(app: App, tmp_path: Path) -> None:
    handle = await made(app, "async", linger).aenqueue(str(tmp_path / "began"))
    worker = Worker(app, config=quick())
    worker.stop()
    async with asyncio.timeout(PATIENCE):
        await worker.run()
    job = await becomes(handle, State.AVAILABLE)
    assert job.attempt == 0


class _Deaf:
    """A store whose first answer that brings a job is lost, while the worker is told to stop."""

    def __init__(self, store: Store, stop: Callable[[], None]) -> None:
        self._store, self._stop, self._heard = store, stop, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def fetch(self, *args: Any, **kwargs: Any) -> Fetched:
        answer = await self._store.fetch(*args, **kwargs)
        if answer.jobs and self._heard:
            self._heard = False
            self._stop()
            raise StoreUnavailable("the answer was lost")
        return answer


async def test_leased_jobs_that_never_arrived_are_returned_at_the_end(app: App) -> None:
    handle = await made(app, "async", linger).aenqueue("", 0.0)
    store = app.store
    worker = Worker(app, config=quick(lease="1h"))
    app.use_store(cast(Store, _Deaf(store, worker.stop)))
    async with asyncio.timeout(PATIENCE):
        await worker.run()
    (job,) = await store.get([handle.ref])
    assert job is not None
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)


class _Mute(_Deaf):
    """A store that leases a job to who waits with an offer, as Redis does; the news of it never come."""

    async def wait(
        self,
        queues: Sequence[str],
        *,
        timeout: int,
        offer: WorkerOffer | None = None,
        parked: Sequence[str] = (),
        on_due: OnDue | None = None,
    ) -> Wake:
        if offer is None:
            return await self._store.wait(queues, timeout=timeout)
        facts = {"lease": offer.lease, "worker": offer.worker, "token": offer.token}
        self._heard = False
        assert (await self._store.fetch([Share("away", 1, 1)], limit=1, **cast(Any, facts))).jobs
        self._stop()
        return Wake.NOTHING


async def test_jobs_dispatched_to_an_offer_without_arrival_are_returned_at_the_end(app: App) -> None:
    """Its job lies in a queue of another name, so that no fetch of the worker finds it first."""
    handle = await made(app, "async", linger, queue="away").aenqueue("", 0.0)
    store = app.store
    worker = Worker(app, ["default"], config=quick(lease="1h"))
    app.use_store(cast(Store, _Mute(store, worker.stop)))
    async with asyncio.timeout(PATIENCE):
        await worker.run()
    (job,) = await store.get([handle.ref])
    assert job is not None
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)
