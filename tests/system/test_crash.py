"""Tasks that crash their process: reported with the cause, without harm to other jobs."""

from __future__ import annotations

import os
import signal
import time

import pytest

from penstock.core.job import State
from tests.system.conftest import Place

_HOW = [("segv", "killed by SIGSEGV"), ("exit", "exit code 3"), ("kill", "killed by SIGKILL")]


@pytest.mark.parametrize("task", ["crash", "crash_thread"])
def test_after_a_segmentation_fault_the_next_job_starts(place, task):
    worker = place.worker()
    crash, quick = getattr(place.tasks, task), place.tasks.quick
    bad = crash.using(max_attempts=1).enqueue("segv")
    (line,) = place.until_started(1)
    after = quick.enqueue()
    place.until_ended([bad, after])
    assert len(place.starts(after.id)) == 1
    (job,) = place.jobs([bad])
    assert (job.state, job.attempt) == (State.DEAD, 1)
    assert [(error.kind, error.message) for error in job.errors] == [("WorkerLost", "killed by SIGSEGV")]
    assert f"(pid {line['pid']}) died: killed by SIGSEGV; it held 1 job(s)" in worker.log


def test_the_other_child_goes_on_at_once(place):
    place.worker("--processes", "2", "--concurrency", "1", ready=2)
    crash, quick = place.tasks.crash, place.tasks.quick
    bad = crash.using(max_attempts=1).enqueue("segv")
    (line,) = place.until_started(1)
    after = [quick.enqueue(n) for n in range(20)]
    place.until_ended([bad, *after])
    assert {one["pid"] for one in place.starts(task="quick")}.isdisjoint({line["pid"]})


@pytest.mark.parametrize(("how", "says"), _HOW)
def test_the_death_of_a_child_is_reported_with_its_cause(place, how, says):
    place.worker()
    handle = place.tasks.crash.using(max_attempts=2).enqueue(how)
    (job,) = place.until_ended([handle])
    assert (job.state, job.attempt, job.lost) == (State.DEAD, 2, 2)
    assert [(error.kind, error.message) for error in job.errors] == [("WorkerLost", says)] * 2


def test_the_death_of_a_process_task_is_reported_with_its_cause(place):
    worker = place.worker()
    tasks = place.tasks
    beside = [tasks.held.enqueue("go"), tasks.held_thread.enqueue("go")]
    place.until_started(2)
    handles = {says: tasks.crash_process.using(max_attempts=2, timeout=30).enqueue(how) for how, says in _HOW}
    for job, says in zip(place.until_ended(list(handles.values())), handles, strict=True):
        assert (job.state, job.attempt) == (State.DEAD, 2)
        message = f"{says} while it ran crash_process"
        assert [(error.kind, error.message) for error in job.errors] == [("ChildDied", message)] * 2
    place.open("go")
    assert {(job.state, job.attempt) for job in place.until_ended(beside)} == {(State.COMPLETED, 1)}
    assert " died: " not in worker.log.replace("child process", ""), "the worker itself is unharmed"
    after = tasks.quick_process.enqueue()
    assert {job.state for job in place.until_ended([after])} == {State.COMPLETED}


def test_a_job_that_always_kills_its_worker_ends_dead_without_harm_to_others(place):
    place.worker("--processes", "2", "--concurrency", "3", ready=2)
    tasks = place.tasks
    poison = tasks.crash.using(max_attempts=3).enqueue("kill")
    neighbours = tasks.app.enqueue_many([tasks.nap.job(0.2) for _ in range(60)])
    jobs = place.until_ended([poison, *neighbours])
    (dead, *others) = jobs
    assert (dead.state, dead.attempt, dead.lost) == (State.DEAD, 3, 3)
    assert len(place.starts(poison.id)) == 3
    assert dead.reason == "all 3 attempts failed"
    assert {(error.kind, error.message) for error in dead.errors} == {("WorkerLost", "killed by SIGKILL")}
    assert {job.state for job in others} == {State.COMPLETED}
    runs = place.runs()
    assert {job.id: job.attempt for job in others} == {job.id: runs[job.id] for job in others}


def test_a_last_attempt_that_had_not_begun_does_not_die_in_anothers_crash(place):
    """All have one attempt; the child that dies has leased many and begun few."""
    place.worker("--processes", "2", "--concurrency", "2", ready=2, PENSTOCK_SLOT_WAIT="60s")
    tasks = place.tasks
    calls = [tasks.quick.using(max_attempts=1).job(n) for n in range(100)]
    place.until_ended(tasks.app.enqueue_many(calls))
    calls = [tasks.quick.using(max_attempts=1).job(n) for n in range(400)]
    bad = [tasks.crash.using(max_attempts=1).job("kill") for _ in range(2)]
    handles = tasks.app.enqueue_many([*calls[:150], bad[0], *calls[150:250], bad[1], *calls[250:]])
    jobs = place.until_ended(handles)
    runs = place.runs()
    killed_at_its_first_line = 0
    for job in jobs:
        if job.task == "crash":
            assert (job.state, runs[job.id]) == (State.DEAD, 1)
        elif job.state is State.DEAD:
            killed_at_its_first_line += runs[job.id] == 0
        else:
            assert (job.state, runs[job.id]) == (State.COMPLETED, 1)
    assert killed_at_its_first_line <= len(bad), "of two slots, the other one may have been just there"
    assert place.app.store.sync.queues()[0].counts.get(State.RUNNING, 0) == 0


def test_a_child_that_ends_by_itself_with_work_in_hand_is_replaced(place):
    """`os._exit(0)` in a task looks like a worker that has done its work."""
    worker = place.worker("--concurrency", "2")
    tasks = place.tasks
    beside = tasks.held.enqueue("go")
    (line,) = place.until_started(1)
    handle = tasks.leave.using(max_attempts=1).enqueue()
    (job,) = place.until_ended([handle])
    assert [(error.kind, error.message) for error in job.errors] == [("WorkerLost", "exit code 0")]
    place.open("go")
    (job,) = place.until_ended([beside])
    assert (job.state, job.attempt) == (State.COMPLETED, 2)
    assert not worker.ended
    assert line["pid"] not in worker.children()


def test_each_of_many_children_is_watched(place):
    """More than an event loop has threads to wait with."""
    worker = place.worker("--processes", "9", "--concurrency", "1", ready=9)
    for child in sorted(worker.children())[-3:]:
        os.kill(child, signal.SIGKILL)
    place.until(
        lambda: worker.log.count(" died: killed by SIGKILL") == 3, "their supervisor notices", within=60
    )


# ── the supervisor, and those that depend on somebody ────────────────────────────────────────────


def test_children_of_a_killed_supervisor_finish_what_they_have_and_end(place):
    worker = place.worker("--processes", "2", "--concurrency", "4", ready=2)
    tasks = place.tasks
    running = [
        function.enqueue("go")
        for function in (tasks.held, tasks.held_thread, tasks.held_process)
        for _ in range(2)
    ]
    place.until_started(len(running))
    worker.signal(signal.SIGKILL)
    worker.wait()
    place.until(lambda: worker.log.count("the supervisor is gone; draining") == 2, "both notice")
    later = [tasks.quick.enqueue(n) for n in range(50)]
    place.open("go")
    jobs = place.until_ended(running)
    assert {(job.state, job.attempt) for job in jobs} == {(State.COMPLETED, 1)}
    place.until(lambda: not worker.session_processes(), "no process is left")
    assert place.counts()[State.AVAILABLE] == 50
    assert place.workers() == []
    place.worker("--burst", ready=0).wait()
    assert {job.state for job in place.jobs(later)} == {State.COMPLETED}
    assert set(place.runs().values()) == {1}


def test_children_of_a_killed_supervisor_keep_their_leases_while_they_drain(place):
    lease = {"PENSTOCK_LEASE": "1s", "PENSTOCK_HEARTBEAT": "300ms"}
    worker = place.worker("--concurrency", "4", **lease)
    handle = place.tasks.held.enqueue("go")
    place.until_started(1)
    worker.signal(signal.SIGKILL)
    place.lone(**lease)
    time.sleep(2.0)  # two leases: whoever does not beat loses it
    place.open("go")
    (job,) = place.until_ended([handle])
    assert (job.state, job.attempt) == (State.COMPLETED, 1)
    assert len(place.starts()) == 1


def test_what_runs_too_long_under_a_dead_supervisor_is_released(place):
    worker = place.worker("--drain-timeout", "500ms")
    tasks = place.tasks
    handles = [tasks.held.enqueue("go"), tasks.held_thread.enqueue("go"), tasks.held_process.enqueue("go")]
    place.until_started(3)
    worker.signal(signal.SIGKILL)
    place.until(lambda: not worker.session_processes(), "no process is left", within=60)
    assert place.counts() == {State.AVAILABLE: 3}
    assert {job.attempt for job in place.jobs(handles)} == {0}


def test_tasks_in_processes_die_with_their_worker(place):
    worker = place.worker("--processes", "2", ready=2)
    handles = [place.tasks.held_process.enqueue("go") for _ in range(2)]
    lines = place.until_started(2)
    for child in worker.children():
        os.kill(child, signal.SIGKILL)
    place.until_started(4)
    left = worker.session_processes() & {line["pid"] for line in lines}
    assert not left, "it outlived its worker, and its job runs twice at a time"
    place.open("go")
    jobs = place.until_ended(handles)
    assert {(job.state, job.attempt) for job in jobs} == {(State.COMPLETED, 2)}


def test_everybody_killed_at_once_loses_nothing(place: Place) -> None:
    worker = place.worker("--processes", "2", ready=2)
    tasks = place.tasks
    calls = [tasks.nap.job(0.05) for _ in range(300)]
    calls += [tasks.nap_process.job(0.05) for _ in range(10)]
    handles = tasks.app.enqueue_many(calls)
    place.until_started(50)
    worker.signal_all(signal.SIGKILL)
    worker.wait()
    place.until(lambda: not worker.session_processes(), "no process is left")
    place.worker("--burst", "--concurrency", "50", ready=0).wait()
    assert {job.state for job in place.jobs(handles)} == {State.COMPLETED}


def test_a_worker_that_inherits_ignored_signals_of_children_reports_their_deaths(place):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as some launchers leave it; it survives exec
    try:
        worker = place.worker()
    finally:
        signal.signal(signal.SIGCHLD, before)
    handle = place.tasks.crash.using(max_attempts=2).enqueue("exit")
    (job,) = place.until_ended([handle])
    assert [(error.kind, error.message) for error in job.errors] == [("WorkerLost", "exit code 3")] * 2
    assert worker.log.count(" died: exit code 3") == 2
