"""SIGSTOP for longer than the lease: the jobs run elsewhere, and the resumed worker changes nothing."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import pytest

from penstock.client.handle import Handle
from penstock.core.job import State
from tests.system.conftest import Place, Program, begins_nothing_twice

_LEASE = {"PENSTOCK_LEASE": "1500ms", "PENSTOCK_HEARTBEAT": "400ms"}


@pytest.fixture
def listening(place: Place) -> Place:
    (place.folder / "listen").touch()
    return place


def hold(place: Place) -> list[Handle[Any]]:
    """Jobs of each kind that run until the gate `go` is opened."""
    tasks = place.tasks
    kinds = [tasks.held] * 4 + [tasks.held_thread] * 4 + [tasks.held_process]
    handles: list[Handle[Any]] = tasks.app.enqueue_many([task.job("go") for task in kinds])
    place.until_started(len(handles))
    return handles


def test_a_lone_worker_that_wakes_too_late_changes_nothing(listening):
    place = listening
    _overtaken(place, place.lone(**_LEASE))


def test_a_supervisor_and_its_child_that_wake_too_late_change_nothing(listening):
    place = listening
    _overtaken(place, place.worker(**_LEASE))


def _overtaken(place: Place, stale: Program) -> None:
    handles = hold(place)
    firsts = {line["pid"] for line in place.starts()}
    second = place.lone(**_LEASE)
    place.suspend(stale.signal_all)
    place.until_started(2 * len(handles))
    seconds = [line for line in place.starts() if line["attempt"] == 2]
    assert {line["id"] for line in seconds} == {handle.id for handle in handles}
    # those of the woken worker and of the second end at the same moment: whose word counts?
    place.open("go")
    stale.signal_all(signal.SIGCONT)
    jobs = place.until_ended(handles)
    assert {(job.state, job.attempt, job.lost) for job in jobs} == {(State.COMPLETED, 2, 1)}
    assert not {handle.result() for handle in handles} & firsts, "a stale worker's result took effect"
    assert {line["pid"] for line in seconds} & {second.pid}
    place.until(
        lambda: "its lease was lost" in stale.log or "late outcome ignored" in stale.log,
        "the stale worker notices",
    )
    assert set(place.runs().values()) == {2}
    _still_works(place, stale, second)
    refused = [line["id"] for line in place.record("LateResultRefused")]
    assert sorted(refused) == sorted(handle.id for handle in handles), "each is to be told, and once"


def _still_works(place: Place, stale: Program, second: Program) -> None:
    """The woken one has all its slots again, and serves on alone."""
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    place.until(lambda: not place.counts().get(State.RUNNING), "nothing is left in its hands")
    before = len(place.starts())
    handles = [place.tasks.held.enqueue("then") for _ in range(20)]
    place.until_started(before + 20)  # all at once: it has not lost a slot
    place.open("then")
    place.until_ended(handles)
    stale.signal(signal.SIGTERM)
    assert stale.wait() == 0


def test_unstarted_jobs_of_a_resumed_worker_do_not_start_twice(place):
    """It wakes with jobs fetched ahead whose leases are over: it may not start them."""
    stale, second = begins_nothing_twice(place, _LEASE)
    assert second.pid in {line["pid"] for line in place.starts()}
    assert stale.log.count("its late outcome changed nothing") <= 51, "what never began has no outcome"


def test_a_stopped_child_keeps_its_leases_by_its_supervisor(place):
    stale = place.worker(**_LEASE)
    handles = hold(place)
    (child,) = stale.children()
    place.lone(**_LEASE)
    place.suspend(partial(os.kill, child))
    place.until(lambda: "the supervisor extends its" in stale.log, "its supervisor extends its leases")
    time.sleep(2.5)  # without a word its leases would run out
    os.kill(child, signal.SIGCONT)
    place.open("go")
    jobs = place.until_ended(handles)
    assert {(job.state, job.attempt, job.lost) for job in jobs} == {(State.COMPLETED, 1, 0)}
    assert set(place.runs().values()) == {1}


def test_a_stopped_supervisor_costs_no_job(place):
    """Its child beats for itself; woken up, it finds all as it was."""
    worker = place.worker(**_LEASE)
    handles = hold(place)
    place.lone(**_LEASE)
    place.suspend(worker.signal)
    time.sleep(2.5)
    worker.signal(signal.SIGCONT)
    place.open("go")
    jobs = place.until_ended(handles)
    assert {(job.state, job.attempt, job.lost) for job in jobs} == {(State.COMPLETED, 1, 0)}
    assert set(place.runs().values()) == {1}
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
