"""Progress that is reported just before the end of an attempt is stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.core.job import Job, Progress, State
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Settled, Settlement
from penstock.stores.job_log import lines_of
from penstock.testing import FaultyStore
from tests.worker.conftest import at_work, ended, patient
from tests.worker.task_bodies import act, made, tell


async def logged(app: App, job: Job) -> list[str]:
    """The texts of the job's log."""
    return [line.text for line in lines_of(await app.store.steps(job.ref))]


async def test_the_last_words_before_the_end_are_kept(app: App, run_in: str, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    handle = await made(app, run_in, tell).aenqueue(str(tmp_path / "go"))
    async with at_work(app, config=patient()):
        job = await ended(handle)
    assert (job.state, job.progress) == (State.COMPLETED, Progress(3, 7, "on the way"))
    assert await logged(app, job) == ["on the way"]


async def test_so_are_those_of_an_attempt_that_fails_for_good(app: App) -> None:
    @app.task(max_attempts=1)
    async def fail() -> None:
        current_job().progress(3, of=4)
        current_job().log("at three")
        raise ValueError("at the fourth")

    async with at_work(app, config=patient()):
        job = await ended(await fail.aenqueue())
    assert (job.state, job.progress) == (State.DEAD, Progress(3, 4))
    assert await logged(app, job) == ["at three"]


async def test_they_outlive_an_outage_of_the_store(app: App, faults: FaultyStore, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    handle = await made(app, "async", tell).aenqueue(str(tmp_path / "go"))
    faults.fail("extend", times=2)
    async with at_work(app, config=patient()):
        job = await ended(handle)
    assert (job.state, job.progress) == (State.COMPLETED, Progress(3, 7, "on the way"))


async def test_a_block_that_took_a_job_has_last_words_too(app: App) -> None:
    handle = await made(app, "async", act, queue="mail").aenqueue("return")
    async with app.take("mail") as job:
        await job.send_heartbeat()
        job.progress(4, of=4)
        job.log("done")
    assert (await ended(handle)).progress == Progress(4, 4)
    assert await logged(app, await ended(handle)) == ["done"]


async def test_they_are_stored_with_the_end_once_a_part_of_the_store_is_back(
    app: App, faults: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend, settle = faults.extend, faults.settle
    away = [True, True]

    async def extend_in_vain(requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        return [LeaseStatus.UNKNOWN] * len(requests) if away else await extend(requests)

    async def settle_in_vain(settlements: Sequence[Settlement]) -> list[Settled]:
        if away:
            away.pop()
            return [Settled.UNKNOWN] * len(settlements)
        return await settle(settlements)

    monkeypatch.setattr(faults, "extend", extend_in_vain)
    monkeypatch.setattr(faults, "settle", settle_in_vain)
    (tmp_path / "go").touch()
    handle = await made(app, "async", tell).aenqueue(str(tmp_path / "go"))
    async with at_work(app, config=patient()):
        job = await ended(handle)
    assert (away, job.state, job.progress) == ([], State.COMPLETED, Progress(3, 7, "on the way"))
