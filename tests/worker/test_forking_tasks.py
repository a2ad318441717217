"""Tasks that fork: the child ends where the task's function ends, and the parent's job is the parent's."""

from __future__ import annotations

import pytest

from penstock.app.app import App
from penstock.core.job import State
from tests.worker.conftest import at_work, ended
from tests.worker.task_bodies import act, fork_on, made


@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("fail", 1), ("return", 0)])
async def test_the_child_of_a_fork_ends_no_job_of_its_parent(
    app: App, run_in: str, how: str, code: int
) -> None:
    handle = await made(app, run_in, fork_on).aenqueue(how)
    other = await made(app, run_in, act).aenqueue("return")
    async with at_work(app):
        job = await ended(handle)
        assert await other.aresult(10) == "done in attempt 1"
    assert (job.state, job.attempt, job.errors) == (State.COMPLETED, 1, ())
    assert await handle.aresult(1) == code
