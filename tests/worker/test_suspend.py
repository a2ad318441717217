"""A suspended or paused machine: the lease clock continues, and leases may be lost meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.core import clock
from penstock.core.ids import mint, mint_token
from penstock.core.job import Job, NewJob, State
from penstock.worker import Worker
from penstock.worker.executor.admission import NO_PLAN
from penstock.worker.executor.attempt import Attempts, LeaseRevoked
from penstock.worker.executor.slots import Slots
from penstock.worker.executor.thread_attempts import ThreadCall
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs
from penstock.worker.setup import Supervision, worker_setup
from penstock.worker.unknown_tasks import UnknownTasks
from tests.servers import remove_keys
from tests.sqlite_files import new_url
from tests.worker.conftest import Dam, at_work, patient, until

ASLEEP = 60.0


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield f"memory://{mint()}"
    elif request.param == "sqlite":
        yield new_url(tmp_path)
    else:
        server, prefix = request.getfixturevalue("redis"), f"asleep-{mint()}"
        yield f"redis://127.0.0.1:{server.port}/0?prefix={prefix}"
        remove_keys([server], having=prefix)


class Sleep:
    """Suspends this process's machine: only the clock that counts such times notices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._slept, real = 0.0, clock.lease_seconds
        monkeypatch.setattr(clock, "lease_seconds", lambda: real() + self._slept)

    def __call__(self, seconds: float = ASLEEP) -> None:
        self._slept += seconds


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Sleep:
    return Sleep(monkeypatch)


async def taken_over(app: App, worker: Worker) -> set[str]:
    """Another worker has reclaimed all that this one holds; their ids."""
    found = await app.store.reclaim(
        (), limit=2_000, lease=600_000, worker="another", token=mint_token(), of=[worker.id]
    )
    return {job.id for job in found.jobs}


async def test_what_waits_for_a_slot_does_not_start_after_a_suspend(app: App, asleep: Sleep) -> None:
    dam = Dam(app, 4_000)
    await dam.fill()
    async with at_work(
        app, concurrency=1, config=patient(slot_wait="60s", lease="15s", heartbeat="5s")
    ) as worker:
        await dam.full(worker)
        lost = await taken_over(app, worker)
        lost -= {
            dam.handles[n].id for n in dam.ran
        }  # these had begun, and the store has not heard of their ends
        assert lost, "it had fetched nothing ahead: the test shows nothing"
        asleep()
        dam.open()
        await until(lambda: len(dam.ran) >= dam.jobs - len(lost), "all others have run")
        assert not {dam.handles[n].id for n in dam.ran} & lost


async def test_a_call_that_lies_ready_for_a_thread_does_not_begin_after_a_suspend(
    app: App, asleep: Sleep
) -> None:
    setup = worker_setup(
        app,
        ["default"],
        concurrency=1,
        burst=False,
        strict=None,
        config=patient(lease="15s", heartbeat="5s"),
        id=None,
        periodic=False,
        supervision=Supervision(),
    )
    unused: Any = None
    attempts = Attempts(setup, Slots(1, 1, LeasedJobs()), UnknownTasks(app.events, unused), unused)
    call = ThreadCall(attempts, held())
    asleep()
    with pytest.raises(LeaseRevoked):
        call()


def test_the_store_s_clock_is_reckoned_on_through_a_suspend(asleep: Sleep) -> None:
    leased = held()
    asleep()
    assert 61_000 <= leased.store_now() < 62_000


def held() -> LeasedJob:
    return LeasedJob(Job(NewJob("a", "t"), State.RUNNING), NO_PLAN, clock.lease_seconds(), 1_000)


async def test_a_resumed_worker_sends_a_heartbeat_at_once(app: App, asleep: Sleep) -> None:
    @app.task
    async def work() -> None: ...

    async with at_work(app, config=patient(heartbeat="9s", lease="30s")) as worker:
        assert worker._services is not None
        heartbeat = worker._services.heartbeat
        before = heartbeat.last_answered
        asleep()
        await until(
            lambda: heartbeat.last_answered > before, "it sends one long before its next heartbeat is due"
        )


async def test_app_take_gives_back_what_it_was_leased_before_a_suspend(
    app: App, asleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await app.aenqueue_raw("default", b"")
    fetch, calls = app.store.fetch, 0

    async def slow(*args: object, **kwargs: object) -> object:
        nonlocal calls
        found = await fetch(*args, **kwargs)  # type: ignore[arg-type]
        calls += 1
        if calls == 1:
            asleep()
        return found

    monkeypatch.setattr(app.store, "fetch", slow)
    async with app.take("default") as job:
        assert job.id == handle.id
    assert calls == 2
