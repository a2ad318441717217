"""The system cannot start a child process: process tasks wait in the store, uncharged."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from penstock.app.app import App
from penstock.core.job import State
from penstock.worker.pools import starters
from penstock.worker.pools.fork_starter import ForkStarter
from tests.worker.conftest import at_work, ended, until
from tests.worker.task_bodies import act, act_async, made

LACKS = [OSError(code, os.strerror(code)) for code in (errno.EMFILE, errno.EAGAIN, errno.ENOMEM)]


@pytest.mark.slow
@pytest.mark.parametrize("lack", [*LACKS, RuntimeError("can't start new thread")], ids=repr)
async def test_jobs_wait_uncharged_until_there_is_room_for_a_child_and_it_is_said_once(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lack: Exception
) -> None:
    start, lacking, refused = ForkStarter.start, True, 0

    async def limited(*args: Any) -> Any:
        nonlocal refused
        if lacking:
            refused += 1
            raise lack
        return await start(*args)

    monkeypatch.setattr(ForkStarter, "start", limited)
    monkeypatch.setattr(starters, "RETRY_AFTER", 0.1)
    task, beside = made(app, "process", act, max_attempts=1), app.task(name="act_async")(act_async)
    async with at_work(app, concurrency=4):
        jobs = [await task.aenqueue("return") for _ in range(3)]
        await until(lambda: refused > 2, "it is tried again")
        assert (await ended(await beside.aenqueue("return"))).state is State.COMPLETED
        lacking = False
        for one in jobs:
            job = await ended(one)
            assert (job.state, job.attempt, job.errors) == (State.COMPLETED, 1, ())
    assert caplog.text.count(str(lack)) == 1
    assert refused < 60
