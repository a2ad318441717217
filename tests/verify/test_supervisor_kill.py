"""A supervisor that kills its worker records it, which explains the second runs of that worker's jobs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from penstock import App
from penstock.verify.ledger import check
from penstock.verify.ledger.history import read
from penstock.verify.ledger.rules.faults import SUPERVISOR_KILL
from penstock.verify.run_folder import LEDGER, OWNER, ROLE, URL
from tests.system.conftest import IMPATIENT, Place
from tests.verify.test_mutants import place

__all__ = ["place"]

pytestmark = [pytest.mark.slow, pytest.mark.system]

TASKS = "penstock.verify.workload.tasks"
_PRODUCE = f"""
from {TASKS} import app, hangs_in_process, slow
hangs_in_process.using(timeout="1s", max_attempts=1).enqueue()
slow.enqueue(6.0)
app.close()
"""


def test_a_stopped_worker_that_its_supervisor_kills_is_recorded(place: Place) -> None:
    folder = place.folder / "ledger"
    env = {URL: place.url, LEDGER: str(folder), OWNER: str(os.getpid()), ROLE: "supervised", **IMPATIENT}
    assert place.start("-c", _PRODUCE, **env).wait() == 0
    command = ("-m", "penstock.verify.workload.supervised", "worker", f"{TASKS}:app")
    options = ("--queues", "slow,harm", "--processes", "1", "--concurrency", "4")
    worker = place.start(*command, *options, **env)
    place.until(lambda: _running(folder) == 2 and read(folder).faults, "both jobs run")
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    place.until(lambda: " died: killed by its supervisor" in worker.log, "it is killed")
    place.until(lambda: _ended(folder), "the other job has run again")
    worker.signal(signal.SIGTERM)
    worker.wait()
    hang, kill = read(folder).faults
    assert (hang.cause, kill.kind, kill.target) == ("hang", SUPERVISOR_KILL, child)
    app = App(place.url, name="verify")
    verdict = check(folder, app.store).require()
    app.close()
    assert verdict.reruns == {SUPERVISOR_KILL: 1}


def _running(folder: Path) -> int:
    return sum(1 for story in read(folder).stories for run in story.runs if run.end is None)


def _ended(folder: Path) -> bool:
    stories = {story.offer.task: story for story in read(folder).stories if story.offer is not None}
    runs = stories[f"{TASKS}.slow"].runs
    return len(runs) == 2 and any(act.applied for act in runs[-1].acts)
