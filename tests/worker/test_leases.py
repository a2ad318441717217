"""Leases decide: a held lease survives a blocked loop, and the holder of a lost one changes nothing."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.app.app import App
from penstock.app.deciding import Loss
from penstock.client.handle import Handle
from penstock.core import clock
from penstock.core.ids import mint_token
from penstock.core.job import Job, State
from penstock.core.lifecycle import Transition
from penstock.errors import StoreUnavailable
from penstock.events import JobCompleted, LateResultRefused, LoopBlocked, WorkerLost
from penstock.maintenance.reclaimer import reclaim_all
from penstock.stores.contract import (
    HeartbeatRequest,
    LeaseStatus,
    Resolution,
    Settled,
    Settlement,
    Share,
    Store,
    WorkerInfo,
)
from penstock.worker import Worker, services
from tests.worker.conftest import Told, at_work, becomes, ended, patient, quick, until
from tests.worker.task_bodies import lines, linger, made, tell


async def taken_over(app: App, worker: Worker) -> Job:
    """Another worker reclaims what this one holds."""
    found = await app.store.reclaim(
        (), limit=10, lease=60_000, worker="another", token=mint_token(), of=[worker.id]
    )
    (job,) = found.jobs
    return job


async def test_an_attempt_that_has_lost_its_lease_is_interrupted_and_its_outcome_refused(
    app: App, run_in: str, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    told = Told(app)
    handle = await made(app, run_in, linger).aenqueue(str(began))
    async with at_work(app) as worker:
        await until(lambda: bool(lines(began)), "it has begun")
        job = await taken_over(app, worker)
        event = await told.one(LateResultRefused)
        assert (event.id, event.attempt) == (handle.id, 1)
        assert worker._services is not None
        assert worker._services.slots.running == 0
        assert not worker._services.leased_jobs
    now = await handle.ajob()
    assert now is not None
    assert (now.state, now.worker, now.attempt, now.errors) == (State.RUNNING, "another", 1, ())
    settled = await app.store.settle([Settlement(job.lease, Transition(State.AVAILABLE))])
    assert settled == [Settled.APPLIED]


async def test_an_attempt_that_ends_before_it_notices_its_lost_lease_is_refused_too(
    app: App, run_in: str, tmp_path: Path
) -> None:
    told = Told(app)
    handle = await made(app, run_in, tell).aenqueue(str(tmp_path / "enough"))
    async with at_work(app, config=patient()) as worker:

        async def under_way() -> bool:
            job = await handle.ajob()
            return job is not None and job.progress is not None

        await until(under_way, "it has begun")
        await taken_over(app, worker)
        (tmp_path / "enough").touch()
        await told.one(LateResultRefused)
    job = await handle.ajob()
    assert job is not None
    assert (job.state, job.worker, job.result) == (State.RUNNING, "another", None)
    assert told.of(JobCompleted) == []
    (stats,) = await app.store.stats()
    assert stats.processed == 0


class _Snatches:
    """A store in which another takes the job just before its start is put down."""

    def __init__(self, store: Store, worker: str) -> None:
        self._store, self._worker, self.answered = store, worker, asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def extend(self, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        facts = {"limit": 10, "lease": 60_000, "worker": "another", "token": mint_token()}
        await self._store.reclaim((), of=[self._worker], **cast(Any, facts))
        statuses = await self._store.extend(requests)
        self.answered.set()
        return statuses


async def test_a_lease_lost_before_the_start_is_recorded_prevents_the_start(
    app: App, run_in: str, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    task = made(app, run_in, linger, delivery="at-most-once")
    await task.aenqueue(str(began), 0.0)
    worker = Worker(app, config=patient())
    store = _Snatches(app.store, worker.id)
    app.use_store(cast(Store, store))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        await store.answered.wait()
        await until(lambda: not worker._services.leased_jobs, "it is let go of")
    worker.stop()
    await running
    assert not began.exists()


async def test_the_next_heartbeat_says_that_an_attempt_has_begun(
    app: App, run_in: str, tmp_path: Path
) -> None:
    handle = await made(app, run_in, linger).aenqueue(str(tmp_path / "began"), 1.0)

    async def is_told() -> bool:
        job = await handle.ajob()
        return job is not None and job.started

    async with at_work(app, config=quick(heartbeat="50ms")):
        await until(is_told, "the store knows of it")


class _Robs:
    """A store that does not answer when an outcome is sent; meanwhile another takes all that the worker
    has, and judges that it shall run again in a while."""

    def __init__(self, store: Store, worker: str) -> None:
        self._store, self._worker, self._honest = store, worker, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if self._honest:
            return await self._store.settle(settlements)
        self._honest = True
        found = await self._store.reclaim(
            (), limit=10, lease=60_000, worker="another", token=mint_token(), of=[self._worker]
        )
        later = Transition(State.RETRYABLE, delay=500, lost=True)
        await self._store.settle([Settlement(job.lease, later) for job in found.jobs])
        raise StoreUnavailable("the outcome did not arrive")


async def test_an_outcome_that_is_sent_again_is_not_taken_for_stored_when_the_job_was_taken_away(
    app: App, tmp_path: Path
) -> None:
    told = Told(app)
    handle = await made(app, "async", linger).aenqueue(str(tmp_path / "began"), 0.0)
    worker = Worker(app, config=quick())
    app.use_store(cast(Store, _Robs(app.store, worker.id)))
    running = asyncio.create_task(worker.run())
    refused = await told.one(LateResultRefused)
    completed = await told.one(JobCompleted)
    worker.stop()
    await running
    assert (refused.id, refused.attempt) == (handle.id, 1)
    assert (completed.id, completed.attempt) == (handle.id, 2)


class _RunsElsewhere:
    """A store that does not answer when an outcome is sent. Meanwhile another gets the job, and ends it."""

    def __init__(self, store: Store, worker: str, end: Callable[[Store, Job], Awaitable[None]]) -> None:
        self._store, self._worker, self._end, self._honest = store, worker, end, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if self._honest:
            return await self._store.settle(settlements)
        self._honest = True
        found = await self._store.reclaim(
            (), limit=10, lease=60_000, worker="another", token=mint_token(), of=[self._worker]
        )
        for job in found.jobs:
            await self._end(self._store, job)
        return [Settled.UNKNOWN] * len(settlements)


async def _runs_it_and_keeps_nothing(store: Store, job: Job) -> None:
    assert await store.settle([Settlement(job.lease, Transition(State.COMPLETED))]) == [Settled.APPLIED]


async def _fetches_it_again(store: Store, job: Job) -> None:
    """As after a supervisor has given it back that its blocked child had not started: that is no loss."""
    await store.settle([Settlement(job.lease, Transition(State.AVAILABLE, charge=False))])
    while int(time.time() * 1_000) <= (job.fetched_at or 0):
        await asyncio.sleep(0)  # a fetch is known by its millisecond
    share = Share("default", 1, 1)
    (again,) = (await store.fetch([share], limit=1, lease=60_000, worker="another", token=mint_token())).jobs
    cancelled = Transition(State.CANCELLED, keep=60_000)
    assert await store.settle([Settlement(again.lease, cancelled)]) == [Settled.APPLIED]


@pytest.mark.parametrize("end", [_runs_it_and_keeps_nothing, _fetches_it_again])
async def test_an_outcome_of_a_job_that_another_has_ended_meanwhile_is_not_counted(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[Store, Job], Awaitable[None]]
) -> None:
    told = Told(app)
    handle = await made(app, "async", linger).aenqueue(str(tmp_path / "began"), 0.0)
    worker = Worker(app, config=patient())
    store, now = app.store, clock.lease_seconds

    async def ends(store: Store, job: Job) -> None:
        monkeypatch.setattr(clock, "lease_seconds", lambda: now() + 36_000)  # its lease is over
        await end(store, job)

    app.use_store(cast(Store, _RunsElsewhere(store, worker.id, ends)))
    running = asyncio.create_task(worker.run())
    refused = await told.one(LateResultRefused)
    worker.stop()
    await running
    assert refused.id == handle.id
    assert not told.of(JobCompleted)
    (stats,) = await store.stats()
    rows = (await store.read_stats(Resolution.DAY, span=Resolution.DAY.length)).rows
    assert (stats.processed, sum(row.stats.processed for row in rows)) == (1, 0)


async def test_a_job_deleted_and_enqueued_again_is_not_settled_by_its_old_attempt(
    app: App, tmp_path: Path
) -> None:
    task = made(app, "async", tell)
    handle = await task.using(id="order-1").aenqueue(str(tmp_path / "enough"))
    told = Told(app)
    async with at_work(app, config=patient()) as worker:
        job = await becomes(handle, State.RUNNING)
        job = await taken_over(app, worker)
        gone = Transition(State.COMPLETED, keep=0)
        assert await app.store.settle([Settlement(job.lease, gone)]) == [Settled.APPLIED]
        worker.quiet()
        again = await task.using(id="order-1").aenqueue(str(tmp_path / "enough"))
        (tmp_path / "enough").touch()
        await told.one(LateResultRefused)
    assert await again.astatus() is State.AVAILABLE


async def test_a_blocked_loop_keeps_its_leases_and_is_reported_with_its_stack(
    app: App, new_app: Callable[[], App], caplog: pytest.LogCaptureFixture
) -> None:
    """The block lasts more than three leases; a worker in another thread would take what runs out."""
    ran: list[str] = []
    began = threading.Event()
    told = Told(app)
    other = new_app()
    for one, name in ((app, "first"), (other, "second")):

        @one.task(name="block")
        async def block(name: str = name) -> None:
            ran.append(name)
            began.set()
            time.sleep(1.0)

    knobs = {"lease": "300ms", "heartbeat": "100ms", "reclaim_every": "50ms", "block_report": "200ms"}
    config = quick(**knobs)
    handle = await app.tasks["block"].using(retention="1h").aenqueue()
    async with at_work(app, config=config):
        with second_worker(other, config, after=began):
            job = await ended(handle)
    assert ran == ["first"]
    assert (job.state, job.attempt) == (State.COMPLETED, 1)
    event = await told.one(LoopBlocked)
    assert "time.sleep(1.0)" in event.stack
    assert event.seconds >= 0.2
    assert "blocked" in caplog.text


class second_worker:  # it is used as a function is
    """A worker with an event loop of its own, in a thread, which begins `after` an event."""

    def __init__(self, app: App, config: object, *, after: threading.Event) -> None:
        self._app, self._config, self._after = app, config, after
        self._began = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _main(self) -> None:
        self._worker = Worker(self._app, config=self._config)  # type: ignore[arg-type]
        self._loop = asyncio.get_running_loop()
        self._began.set()
        await asyncio.to_thread(self._after.wait, 60)
        await self._worker.run()

    def __enter__(self) -> None:
        self._thread.start()
        assert self._began.wait(60)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._worker.stop)
        self._thread.join(60)
        assert not self._thread.is_alive()


async def test_a_worker_that_falls_silent_loses_its_jobs_to_another(app: App, tmp_path: Path) -> None:
    began = tmp_path / "began"
    handle = await made(app, "async", linger, retry="1h").aenqueue(str(began), 0.0)
    fetched = await app.store.fetch(
        [Share("default", 1, 1)], limit=1, lease=200, worker="silent", token=mint_token()
    )
    (held,) = fetched.jobs
    async with at_work(app, config=quick(reclaim_every="50ms")):
        job = await ended(handle)
    assert (job.state, job.attempt, job.lost) == (State.COMPLETED, 2, 1), "the first loss runs again at once"
    assert [e.kind for e in job.errors] == ["LeaseLost"]
    assert len(lines(began)) == 1
    late = Settlement(held.lease, Transition(State.COMPLETED))
    assert await app.store.settle([late]) != [Settled.APPLIED]


async def test_a_job_whose_workers_keep_dying_is_dead_in_the_end_and_says_why(app: App) -> None:
    task = app.task(max_attempts=3, retry="1ms", retention="1h")(_never)
    handle = await task.aenqueue()
    async with at_work(app, ["elsewhere"], config=quick()) as worker:
        assert worker._services is not None
        for n in (1, 2, 3):
            await until(functools.partial(_fetch, app, f"doomed {n}"), "somebody has it")
            job = await becomes(handle, State.RUNNING)
            assert (job.attempt, job.worker) == (n, f"doomed {n}")
            if n == 3:  # the start of a last attempt is put down before it begins
                await app.store.extend([HeartbeatRequest(job.lease, 60_000, started=True)])
            await reclaim_all(
                app.store,
                f"doomed {n}",
                by=worker.id,
                lease=1_000,
                loss=Loss("WorkerLost", f"worker {n} died"),
            )
    job = await ended(handle)
    assert (job.state, job.attempt, job.lost) == (State.DEAD, 3, 3)
    assert job.reason == "all 3 attempts failed"
    assert [e.message for e in job.errors] == ["worker 1 died", "worker 2 died", "worker 3 died"]


@pytest.mark.parametrize("proof", ["its lease has run out", "it is proven dead"])
async def test_what_dies_by_the_loss_of_its_worker_is_kept_as_long_as_the_configuration_says(
    app: App, monkeypatch: pytest.MonkeyPatch, proof: str
) -> None:
    monkeypatch.setattr(services, "remove_dead", lambda id: True)
    handle = await app.task(max_attempts=1)(_never).aenqueue()
    await app.store.announce(WorkerInfo("doomed", "host", 1, 0, ("default",), (), 20))
    assert await _fetch(app, "doomed")
    job = await becomes(handle, State.RUNNING)
    lease = 60_000
    if proof == "it is proven dead":
        monkeypatch.setattr(services, "proven_dead", lambda _: {"doomed"})
    else:
        lease = 0
    await app.store.extend([HeartbeatRequest(job.lease, lease, started=True)])
    async with at_work(app, config=quick(keep_dead="0s", reclaim_every="50ms")):
        await until(functools.partial(_is_gone, handle), "it has died, and is not kept")


async def _is_gone(handle: Handle[None]) -> bool:
    return await handle.ajob() is None


async def _never() -> None:
    raise AssertionError("no worker of this test runs it")


async def _fetch(app: App, worker: str) -> bool:
    await app.store.promote(["default"], limit=10)
    fetched = await app.store.fetch(
        [Share("default", 1, 1)], limit=1, lease=60_000, worker=worker, token=mint_token()
    )
    return bool(fetched.jobs)


async def test_a_worker_proven_dead_is_reported_and_its_jobs_run_at_once(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease would hold for a minute; the proof of its death does not wait."""
    monkeypatch.setattr(services, "proven_dead", lambda _: {"deceased"})
    monkeypatch.setattr(services, "remove_dead", lambda id: True)
    began = tmp_path / "began"
    told = Told(app)
    handle = await made(app, "async", linger).aenqueue(str(began), 0.0)
    await app.store.announce(WorkerInfo("deceased", "host", 1, 0, ("default",), ("linger",), 20))
    assert await _fetch(app, "deceased")
    async with at_work(app, config=patient()):
        job = await ended(handle)
        event = await told.one(WorkerLost)
    assert (event.worker, event.cause, event.jobs) == ("deceased", "worker deceased died", 1)
    assert (job.state, job.attempt, [e.kind for e in job.errors]) == (State.COMPLETED, 2, ["WorkerLost"])
