"""A heartbeat that cannot be sent affects its own job only: all other leases are extended."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.core.job import Progress, State
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Store
from penstock.testing import FaultyStore
from penstock.worker import heartbeat
from tests.worker.conftest import at_work, becomes, ended, quick, until
from tests.worker.task_bodies import made, tell


class Choosy:
    """A store that cannot encode one word of progress, and says so as no store should: by a TypeError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.extended: list[str] = []
        self.refusals = 0

    @classmethod
    def under(cls, app: App) -> Choosy:
        choosy = cls(app.store)
        app.use_store(cast(Store, choosy))
        return choosy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def extend(self, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        if any(
            request.progress is not None and request.progress.note == "unheard of" for request in requests
        ):
            self.refusals += 1
            raise TypeError("cannot be encoded")
        self.extended += [request.lease.id for request in requests]
        return await self._store.extend(requests)


async def test_a_heartbeat_that_cannot_be_sent_keeps_no_lease_from_being_extended(app: App) -> None:
    choosy, go_on = Choosy.under(app), asyncio.Event()

    @app.task(name="bad")
    async def bad() -> str:
        current_job().progress(1, note="unheard of")
        await go_on.wait()
        return "done"

    @app.task(name="good")
    async def good() -> str:
        current_job().progress(3, of=4)
        await go_on.wait()
        return "done"

    first, second = await bad.aenqueue(), await good.aenqueue()
    async with at_work(app, config=quick(lease="1s", heartbeat="100ms")):
        await until(
            lambda: min(choosy.extended.count(first.id), choosy.extended.count(second.id)) >= 3,
            "both leases are extended again and again",
        )
        job = await becomes(second, State.RUNNING)
        assert job.progress == Progress(3, 4), "a good one's words arrive"
        assert choosy.refusals <= 2, "what cannot be sent is not tried again and again"
        go_on.set()
        assert {(await ended(first)).attempt, (await ended(second)).attempt} == {1}


async def test_log_lines_that_cannot_be_stored_keep_no_lease_from_being_extended(
    app: App, faults: FaultyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "_BATCH", 1)
    faults.fail("record_steps", times=1_000, error=struct.error("a damaged step"))
    choosy, go_on = Choosy.under(app), asyncio.Event()

    @app.task(name="say", retention="1h")
    async def say() -> None:
        current_job().log("a line")
        await go_on.wait()

    handles = await app.aenqueue_many([say.job(), say.job()])
    async with at_work(app, config=quick(lease="1s", heartbeat="100ms")):
        await until(
            lambda: min(choosy.extended.count(one.id) for one in handles) >= 3,
            "both leases are extended again and again",
        )
        go_on.set()
        assert [(await ended(one)).state for one in handles] == [State.COMPLETED] * 2
    assert "a damaged step" in caplog.text


async def test_the_heartbeats_of_a_block_that_took_a_job_go_on_too(app: App) -> None:
    choosy = Choosy.under(app)

    @app.task(name="good", queue="mail")
    async def good() -> str:
        return ""

    await good.aenqueue()
    async with app.take("mail", lease="100ms") as job:
        job.progress(1, note="unheard of")
        await until(lambda: choosy.extended.count(job.id) >= 3, "its lease is extended")


@pytest.mark.parametrize("bad", ["50%", None, "nan", "huge"])
async def test_progress_that_makes_no_sense_fails_the_attempt_alone(
    app: App, run_in: str, bad: Any, tmp_path: Path
) -> None:
    task = made(app, run_in, tell, max_attempts=1)
    (tmp_path / "go").touch()
    handle = await task.aenqueue(str(tmp_path / "go"), bad)
    async with at_work(app):
        job = await ended(handle)
    assert job.state is State.DEAD
    assert job.errors[0].kind in ("TypeError", "ValueError")
    assert "progress" in job.errors[0].message
