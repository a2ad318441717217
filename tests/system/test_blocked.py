"""Blocking code: a blocked event loop, a C call that holds the GIL, a hanging thread."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sqlite3
from typing import Any

import pytest

from penstock.client.handle import Handle
from penstock.core.job import State
from penstock.verify.ledger.facts import Leased, decoder
from tests.system.conftest import IMPATIENT, Place

_LEASE = {"PENSTOCK_LEASE": "2s", "PENSTOCK_HEARTBEAT": "500ms"}
#: Three leases.
_LONG = 6


def _kept(place: Place, handles: list[Handle[Any]]) -> None:
    """All of them run once, though others are idle and look for lost leases."""
    jobs = place.until_ended(handles)
    assert {(job.state, job.attempt, job.lost) for job in jobs} == {(State.COMPLETED, 1, 0)}
    assert set(place.runs().values()) == {1}


# ── leases ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("supervised", [True, False])
def test_a_blocked_event_loop_keeps_its_lease_and_is_reported_with_its_stack(place, supervised):
    worker = place.worker(**_LEASE) if supervised else place.lone(**_LEASE)
    handle = place.tasks.block.enqueue(_LONG if supervised else _LONG / 2)
    place.until_started(1)
    place.lone(**_LEASE)
    _kept(place, [handle])
    report = worker.log
    assert report.count("the event loop has been blocked for") == 1
    assert "tasks.py" in report
    assert "in block" in report
    assert "time.sleep(seconds)" in report


def test_calls_into_c_that_keep_the_gil_keep_their_leases(place):
    worker = place.worker("--processes", "2", "--concurrency", "1", ready=2, **_LEASE)
    tasks = place.tasks
    handles = tasks.app.enqueue_many([tasks.hold_gil.job(_LONG), tasks.grind.job(_LONG)])
    lines = place.until_started(2)
    place.lone(**_LEASE)
    _kept(place, handles)
    for line in lines:
        assert f"(pid {line['pid']}) has sent no heartbeat for" in worker.log
    assert handles[1].result() > 4.0, "the expression was too quick: the test shows nothing"


def test_one_that_does_so_in_a_thread_task_keeps_them_too(place):
    place.worker("--concurrency", "4", **_LEASE)
    tasks = place.tasks
    handles = tasks.app.enqueue_many(
        [tasks.nap_thread.job(0.5), tasks.nap_thread.job(0.5), tasks.hold_gil_thread.job(_LONG)]
    )
    place.until_started(3)
    place.lone(**_LEASE)
    _kept(place, handles)


# ── what waits behind it ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("concurrency", ["1", "20"])
def test_unstarted_jobs_of_a_blocked_child_start_on_another_at_once(place, concurrency):
    """With one slot that is what it has fetched ahead; with more, also what has a slot and waits its turn."""
    (place.folder / "ledger").mkdir()
    place.worker("--processes", "2", "--concurrency", concurrency, ready=2)
    tasks = place.tasks
    place.until_ended(tasks.app.enqueue_many([tasks.quick.job(n) for n in range(300)]))
    for n in itertools.count(1):
        calls = [tasks.quick.job(n) for n in range(400)]
        handles = tasks.app.enqueue_many([*calls[:60], tasks.block_until.job(f"go {n}"), *calls[60:]])
        blocked = place.until_started(n, task="block_until")[-1]
        behind = {handle.id for handle in handles} - {blocked["id"]}
        place.until(lambda behind=behind: place.runs().keys() >= behind, "all behind it have started")
        place.open(f"go {n}")  # it has blocked all the while
        jobs = place.until_ended(handles)
        assert [job.errors for job in jobs if job.errors] == []
        assert {(job.state, job.attempt) for job in jobs} == {(State.COMPLETED, 1)}
        assert set(place.runs().values()) == {1}
        ran = {line["id"]: line["pid"] for line in place.starts()}
        if any(ran[id] != blocked["pid"] for id in behind & _leased_by(place, blocked["pid"])):
            return  # else it had nothing in hand


def _leased_by(place: Place, pid: int) -> set[str]:
    """The jobs that this process had on loan at some time."""
    facts = [
        decoder.decode(line)
        for path in (place.folder / "ledger").glob(f"{pid}-*.jsonl")
        for line in path.read_bytes().splitlines()
    ]
    return {fact.id for fact in facts if isinstance(fact, Leased)}


def test_a_short_job_behind_long_ones_starts_on_an_idle_worker(place):
    place.worker("--processes", "2", "--concurrency", "2", ready=2)
    tasks = place.tasks
    place.until_ended(tasks.app.enqueue_many([tasks.quick.job(n) for n in range(200)]))
    for n in range(3):
        tasks.app.enqueue_many([tasks.held.job(f"go {n}") for _ in range(3)])
        place.until_ended([tasks.quick.enqueue(n)])  # before any of the long ones
        place.open(f"go {n}")
        place.until(lambda: not place.counts().get(State.RUNNING), "the long ones are over")


# ── timeouts ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", ["nap", "nap_thread", "nap_process"])
def test_waiting_for_a_slot_is_no_timeout(place, task):
    """Four jobs, one slot, a timeout for little more than one of them."""
    place.worker("--concurrency", "1")
    function = getattr(place.tasks, task).using(timeout=1.2)
    handles = place.app.enqueue_many([function.job(0.8) for _ in range(4)])
    jobs = place.until_ended(handles)
    assert {(job.state, job.attempt, job.errors) for job in jobs} == {(State.COMPLETED, 1, ())}
    assert set(place.runs().values()) == {1}


def test_no_timeout_means_none(place):
    place.worker()
    tasks = place.tasks
    handles = [
        getattr(tasks, task).using(timeout=None).enqueue(1.0) for task in ("nap", "nap_thread", "nap_process")
    ]
    assert {job.state for job in place.until_ended(handles)} == {State.COMPLETED}
    assert {job.spec.timeout for job in place.jobs(handles)} == {None}


def test_a_child_that_holds_the_gil_past_its_deadline_is_killed(place):
    worker = place.worker("--processes", "2", "--concurrency", "1", ready=2, **IMPATIENT)
    tasks = place.tasks
    hung = tasks.hold_gil.using(timeout=1, max_attempts=1).enqueue(30)
    place.until_started(1)
    (job,) = place.until_ended([hung], within=60)
    assert (job.state, job.attempt) == (State.DEAD, 1)
    (error,) = job.errors
    assert error.kind == "Timeout"
    assert "1 s" in error.message
    assert "is killed: " in worker.log
    # the place is filled again
    place.until(lambda: worker.log.count(" serves ") == 3, "another child")
    handles = tasks.app.enqueue_many([tasks.nap.job(0.5) for _ in range(2)])
    pids = {line["pid"] for line in place.until_started(3) if line["task"] == "nap"}
    assert {job.state for job in place.until_ended(handles)} == {State.COMPLETED}
    assert len(pids) == 2


def test_a_locked_store_delays_neither_a_kill_nor_the_end_of_the_supervisor(place):
    """Somebody holds the file's write lock: no heartbeat, no outcome, nothing can be taken back meanwhile."""
    knobs = {"PENSTOCK_LEASE": "2s", "PENSTOCK_HEARTBEAT": "300ms", **IMPATIENT}
    worker = place.worker("--concurrency", "1", "--drain-timeout", "500ms", **knobs)
    tasks = place.tasks
    (child,) = worker.children()
    tasks.hold_gil.using(timeout=2).enqueue(60)
    place.until_started(1)
    with contextlib.closing(sqlite3.connect(place.folder / "jobs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        place.until(lambda: "is killed: " in worker.log, "its child is killed")
        place.until(lambda: child not in worker.children(), "it is gone")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 1
        other.execute("ROLLBACK")  # both happened while nobody could write


def test_neighbours_of_a_killed_child_are_lost_not_timed_out(place):
    place.worker("--concurrency", "4", **IMPATIENT)
    tasks = place.tasks
    neighbours = [tasks.held.enqueue("go") for _ in range(2)]
    place.until_started(2)
    hung = tasks.hold_gil.using(timeout=0.5, max_attempts=1).enqueue(30)
    (job,) = place.until_ended([hung], within=60)
    assert [error.kind for error in job.errors] == ["Timeout"]
    place.open("go")
    for job in place.until_ended(neighbours):
        assert (job.state, job.attempt, job.lost) == (State.COMPLETED, 2, 1)
        (error,) = job.errors
        assert error.kind == "WorkerLost"
        assert "killed by its supervisor" in error.message


def test_a_process_task_past_its_timeout_is_killed_alone(place):
    place.worker("--concurrency", "4")
    tasks = place.tasks
    neighbour = tasks.held.enqueue("go")
    place.until_started(1)
    hung = tasks.nap_process.using(timeout=0.5, max_attempts=1).enqueue(60)
    (job,) = place.until_ended([hung], within=60)
    assert [error.kind for error in job.errors] == ["Timeout"]
    place.open("go")
    (job,) = place.until_ended([neighbour])
    assert (job.state, job.attempt) == (State.COMPLETED, 1)


def test_a_child_with_half_of_its_slots_in_threads_that_hang_is_replaced(place):
    worker = place.worker("--concurrency", "4", PENSTOCK_THREAD_GRACE="50ms")
    tasks = place.tasks
    (first,) = worker.children()
    beside = tasks.held.enqueue("go")
    hung = [tasks.deaf.using(timeout=0.3, max_attempts=1).enqueue(60) for _ in range(2)]
    jobs = place.until_ended(hung, within=60)
    assert {error.kind for job in jobs for error in job.errors} == {"Timeout"}
    assert {job.state for job in jobs} == {State.DEAD}
    place.until(lambda: "draining to be replaced" in worker.log, "half of its slots are lost")
    place.open("go")
    place.until(lambda: worker.log.count(" serves ") == 2, "another child")
    assert first not in worker.children()
    handles = [tasks.quick_thread.enqueue(n) for n in range(10)]
    assert {job.state for job in place.until_ended([*handles, beside])} == {State.COMPLETED}
    assert "died" not in worker.log


def test_the_late_end_of_an_attempt_that_timed_out_changes_nothing(place):
    """Its thread could not be stopped; the next attempt has long ended when it returns."""
    worker = place.worker("--concurrency", "4", PENSTOCK_THREAD_GRACE="50ms")
    options = place.tasks.deaf_at_first.using(timeout=0.3, retry=0.05)
    handle = options.enqueue(5.0)
    place.until_ended([handle])
    assert handle.result() == 2
    place.until(lambda: len(place.record("end")) == 2, "the first attempt ends, too")
    assert [line["attempt"] for line in place.record("end")] == [2, 1]
    after = place.tasks.quick_thread.enqueue(7)
    assert place.until_ended([after])[0].state is State.COMPLETED
    (job,) = place.jobs([handle])
    assert (job.state, job.attempt, handle.result()) == (State.COMPLETED, 2, 2)
    assert not worker.ended
