"""Each worker process reports its health regularly, despite failures of the store or the callback."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.app.app import App
from penstock.core.events import Health
from penstock.errors import ConfigError
from penstock.testing import FaultyStore
from penstock.worker import announcer
from tests.worker.conftest import Door, at_work, quick, until


async def test_health_is_reported_at_the_start_and_then_at_its_interval(app: App) -> None:
    told: list[Health] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.on_health(every="100ms")
    def note(health: Health) -> None:
        told.append(health)

    @app.task
    async def work() -> None:
        begun.set()
        await go_on.wait()

    async with at_work(app, concurrency=3) as worker:
        await until(lambda: bool(told), "it is told at the start")
        assert (told[0].worker, told[0].state, told[0].concurrency) == (worker.id, "running", 3)
        assert (told[0].store_reachable, told[0].store_error, told[0].lost_slots) == (True, None, 0)
        await work.aenqueue()
        await begun.wait()
        await until(lambda: told[-1].running == 1, "and of the job")
        assert 0 <= told[-1].since_fetch < 60
        assert 0 <= told[-1].since_heartbeat < 60
        worker.stop()
        await until(lambda: told[-1].state == "draining", "and of the end")
        go_on.set()
    assert told == sorted(told, key=lambda health: health.at)


async def test_an_outage_of_the_store_is_reported_and_its_end_too(app: App, faults: FaultyStore) -> None:
    told: list[Health] = []

    @app.on_health(every="100ms")
    async def note(health: Health) -> None:
        told.append(health)

    @app.task
    async def work() -> None: ...

    async with at_work(app):
        await until(lambda: bool(told), "it is told")
        faults.down()
        await until(lambda: not told[-1].store_reachable, "the store is away")
        assert told[-1].store_error
        faults.up()
        await until(lambda: told[-1].store_reachable, "it is back")
        assert told[-1].store_error is None


async def test_a_store_that_says_nothing_is_away(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "_TIMEOUT", 0.1)
    door = Door.before(app, "announce")
    told: list[Health] = []

    @app.on_health(every="100ms")
    async def note(health: Health) -> None:
        told.append(health)
        if len(told) == 1:
            door.shut()

    @app.task
    async def work() -> None: ...

    door.open()
    async with at_work(app):
        await until(lambda: bool(told) and not told[-1].store_reachable, "it is told")
        assert told[-1].store_error == "no answer for 0.1 s"
        door.open()
        await until(lambda: told[-1].store_reachable, "it is back")


async def test_one_that_fails_is_logged_and_called_again_beside_the_others(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    @app.on_health(every="100ms")
    def wrong(health: Health) -> None:
        calls.append("wrong")
        raise ValueError("the callback is wrong")

    @app.on_health
    async def right(health: Health) -> None:
        calls.append("right")

    @app.task
    async def work() -> None: ...

    async with at_work(app):
        await until(lambda: calls.count("wrong") >= 2, "it is called again")
        await until(lambda: "right" in calls, "the other is called")
    assert "the callback is wrong" in caplog.text


async def test_one_that_hangs_keeps_neither_jobs_nor_the_end_of_the_worker_waiting(app: App) -> None:
    go_on, begun = threading.Event(), threading.Event()

    @app.on_health(every="100ms")
    def hang(health: Health) -> None:
        begun.set()
        go_on.wait(20)

    @app.on_health(every="100ms")
    async def hang_too(health: Health) -> None:
        await asyncio.Event().wait()

    @app.task
    async def work() -> str:
        return "done"

    try:
        async with at_work(app, config=quick()):
            await until(begun.is_set, "it hangs")
            assert await (await work.aenqueue()).aresult(60) == "done"
    finally:
        go_on.set()


def test_what_makes_no_sense_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match=r"on_health\(every=0\) is too often: use 100ms or more"):
        app.on_health(every=0)
    with pytest.raises(ConfigError, match="takes \\(health\\)"):
        app.on_health(lambda: None)  # type: ignore[arg-type, misc]
    with pytest.raises(ConfigError, match="is not a function"):
        app.on_health("often")  # type: ignore[call-overload]
