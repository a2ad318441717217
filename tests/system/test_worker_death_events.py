"""The death of a worker is an event, emitted by a living process, with the cause if it is known."""

from __future__ import annotations

import asyncio
import os
import signal

from penstock.core.job import State
from penstock.inspector import Inspector

#: A second for recognition, and a busy machine.
SOON = 60.0


def test_the_successor_of_a_dead_child_reports_how_it_died(place):
    (place.folder / "listen").touch()
    place.worker("--concurrency", "1")
    bad = place.tasks.crash.using(max_attempts=1).enqueue("segv")
    place.until_ended([bad])
    told = place.until(lambda: place.record("WorkerLost"), "its death is told", within=SOON)
    (line,) = told
    assert (line["cause"], line["jobs"]) == ("killed by SIGSEGV", 1)
    (started,) = place.starts(bad.id)
    assert line["pid"] != started["pid"]


def test_a_successor_calls_the_callback_of_a_job_that_died_with_its_worker(place):
    (place.folder / "call back").touch()
    place.worker("--concurrency", "1")
    bad = place.tasks.crash.using(max_attempts=1).enqueue("segv")
    place.until_ended([bad])
    (line,) = place.until(lambda: place.record("dead"), "its death is told", within=SOON)
    assert (line["id"], line["attempt"], line["error"]) == (bad.id, 1, "killed by SIGSEGV")
    assert line["errors"] == 1
    (started,) = place.starts(bad.id)
    assert line["pid"] != started["pid"]


def test_a_successor_reports_a_job_that_died_with_its_worker(place):
    (place.folder / "listen").touch()
    place.worker("--concurrency", "1")
    bad = place.tasks.crash.using(max_attempts=1).enqueue("segv")
    place.until_ended([bad])
    (line,) = place.until(lambda: place.record("JobDied"), "its death is told", within=SOON)
    assert (line["id"], line["attempt"], line["error"]) == (bad.id, 1, "WorkerLost: killed by SIGSEGV")


def test_a_job_that_dies_as_its_supervisor_stops_is_reported_by_the_next_worker(place):
    """There is no next child, so nobody here could tell of a death: it is left to one who can."""
    (place.folder / "listen").touch()
    (place.folder / "call back").touch()
    worker = place.worker("--concurrency", "1", "--drain-timeout", "60s")
    held = place.tasks.held.using(max_attempts=1).enqueue("gate")
    place.until_started(1)
    (started,) = place.starts(held.id)
    worker.signal(signal.SIGTERM)
    os.kill(started["pid"], signal.SIGKILL)
    assert worker.wait() == 1
    assert held.job().state is not State.DEAD
    assert not place.record("JobDied")
    place.worker()
    (line,) = place.until(lambda: place.record("JobDied"), "its death is told", within=SOON)
    assert line["id"] == held.id
    (line,) = place.until(lambda: place.record("dead"), "its callback is called", within=SOON)
    assert line["id"] == held.id


def test_the_death_of_a_lone_worker_is_reported_by_another_worker(place):
    (place.folder / "listen").touch()
    alone = place.lone()
    (dead,) = place.workers()
    held = place.tasks.held.enqueue("gate")
    place.until_started(1)
    alone.signal(signal.SIGKILL)
    place.open("gate")
    place.worker()
    told = place.until(lambda: place.record("WorkerLost"), "its death is told", within=SOON)
    assert [(line["worker"], line["jobs"]) for line in told] == [(dead.id, 1)]
    place.until_ended([held])


def test_a_child_that_dies_after_it_was_replaced_is_reported_by_another(place):
    (place.folder / "listen").touch()
    (place.folder / "call back").touch()
    place.worker("--drain-timeout", "60s")
    held = place.tasks.held.using(max_attempts=1).enqueue("gate")
    place.until_started(1)
    (first,) = place.workers()
    asyncio.run(Inspector(place.app.store).tell_workers([first.id], "restart", by="test"))
    place.until(lambda: "draining" in {i.state for i in place.workers() if i.id == first.id}, "it drains")
    os.kill(first.pid, signal.SIGKILL)
    (lost,) = place.until(lambda: place.record("WorkerLost"), "its death is told", within=SOON)
    assert (lost["worker"], lost["cause"], lost["jobs"]) == (first.id, "killed by SIGKILL", 1)
    (dead,) = place.until(lambda: place.record("dead"), "the callback is called", within=SOON)
    assert dead["id"] == held.id
    assert [line["id"] for line in place.record("JobDied")] == [held.id]


def test_a_child_that_ends_as_asked_is_no_loss(place):
    (place.folder / "listen").touch()
    worker = place.worker()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert not place.record("WorkerLost")
    assert place.record("WorkerStopped")
