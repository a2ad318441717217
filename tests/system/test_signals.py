"""Signals to a worker, its supervisor and its children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from penstock.core.job import State
from tests.system.conftest import IMPATIENT, NOHUP, PATIENCE, Program


def _stop(program: Program) -> int:
    """TERM, and the exit code that comes of it."""
    program.signal(signal.SIGTERM)
    code = program.wait()
    assert not program.session_processes(), "it left processes behind"
    return code


# ── TERM ─────────────────────────────────────────────────────────────────────────────────────────


def test_term_lets_what_runs_end_and_starts_nothing_more(place):
    worker = place.worker("--processes", "2", "--concurrency", "3", ready=2)
    tasks = place.tasks
    functions = (tasks.held, tasks.held_thread, tasks.held_process)
    running = [function.enqueue("go") for function in functions for _ in range(2)]
    place.until_started(6)
    waiting = [tasks.quick.enqueue(n) for n in range(20)]
    worker.signal(signal.SIGTERM)
    place.until(lambda: {info.state for info in place.workers()} == {"draining"}, "both drain")
    place.open("go")
    assert worker.wait() == 0
    assert not worker.session_processes(), "it left processes behind"
    assert {(job.state, job.attempt) for job in place.jobs(running)} == {(State.COMPLETED, 1)}
    assert place.counts() == {State.COMPLETED: 6, State.AVAILABLE: 20}
    assert {job.attempt for job in place.jobs(waiting)} == {0}
    assert place.workers() == []


def test_an_idle_worker_stops_at_once(place):
    worker = place.worker("--processes", "2", ready=2)
    assert _stop(worker) == 0
    assert "ERROR" not in worker.log


def test_a_worker_that_is_just_starting_stops_at_once(place):
    worker = place.worker("--processes", "2", ready=0)
    place.until(worker.children, "the supervisor has started its children")
    assert _stop(worker) == 0
    assert "ERROR" not in worker.log


@pytest.mark.parametrize("task", ["held", "held_thread", "held_process"])
def test_what_takes_longer_than_the_drain_time_is_released_and_runs_elsewhere(place, task):
    worker = place.worker("--processes", "2", "--drain-timeout", "1s", ready=2)
    handles = [getattr(place.tasks, task).enqueue("go") for _ in range(2)]
    place.until_started(2)
    second = place.lone(PENSTOCK_PROCESS_SLOTS="2")
    stopped = time.monotonic()
    worker.signal(signal.SIGTERM)
    place.until_started(4, within=60)
    seconds = place.starts()[2:]
    assert {line["id"] for line in seconds} == {handle.id for handle in handles}
    early = min(line["at"] for line in seconds) - stopped
    assert early > 0.9, f"released after {early:.2f} s; the drain time is 1 s"
    assert worker.wait() == 0  # though what it has let go of still runs
    assert not worker.session_processes()
    place.open("go")
    jobs = place.until_ended(handles)
    assert {(job.state, job.attempt, job.lost) for job in jobs} == {(State.COMPLETED, 1, 0)}
    assert not second.ended


def test_a_blocked_loop_does_not_keep_a_worker_from_ending(place):
    """It cannot hear TERM; its supervisor ends it some time after the drain time, and its jobs go back."""
    worker = place.worker("--drain-timeout", "500ms", **IMPATIENT)
    handle = place.tasks.block.enqueue(60)
    place.until_started(1)
    assert _stop(worker) == 1
    assert place.counts() == {State.AVAILABLE: 1}
    (job,) = place.jobs([handle])
    assert (job.attempt, job.lost) == (1, 1)
    assert "did not end within the drain time" in job.errors[0].message


def test_a_second_term_stops_at_once(place):
    worker = place.worker("--processes", "2", ready=2)
    handles = [
        function.enqueue("go")
        for function in (place.tasks.held, place.tasks.held_thread, place.tasks.held_process)
    ]
    place.until_started(3)
    worker.signal(signal.SIGTERM)
    place.until(lambda: {info.state for info in place.workers()} == {"draining"}, "both drain")
    assert not worker.ended
    assert _stop(worker) == 0
    assert place.counts() == {State.AVAILABLE: 3}
    assert {job.attempt for job in place.jobs(handles)} == {0}


def test_a_second_term_ends_a_blocked_child_too(place):
    worker = place.worker()
    place.tasks.block.enqueue(60)
    place.until_started(1)
    worker.signal(signal.SIGTERM)
    time.sleep(0.2)  # two signals at the same moment are one
    assert _stop(worker) == 1
    assert place.counts() == {State.AVAILABLE: 1}


# ── INT ──────────────────────────────────────────────────────────────────────────────────────────


def test_ctrl_c_reaches_the_whole_group_and_drains(place):
    worker = place.worker("--processes", "2", ready=2)
    tasks = place.tasks
    functions = (tasks.nap, tasks.nap_thread, tasks.nap_process)
    handles = [function.enqueue(1.0) for function in functions]
    place.until_started(3)
    worker.signal_group(signal.SIGINT)
    assert worker.wait(60) == 0
    assert {(job.state, job.attempt) for job in place.jobs(handles)} == {(State.COMPLETED, 1)}
    assert "Traceback" not in worker.log
    assert "KeyboardInterrupt" not in worker.log
    assert not worker.session_processes()


def test_ctrl_c_twice_stops_at_once(place):
    worker = place.worker()
    handles = [place.tasks.held.enqueue("go"), place.tasks.held_process.enqueue("go")]
    place.until_started(2)
    worker.signal_group(signal.SIGINT)
    place.until(lambda: {info.state for info in place.workers()} == {"draining"}, "it drains")
    worker.signal_group(signal.SIGINT)
    assert worker.wait(60) == 0
    assert place.counts() == {State.AVAILABLE: 2}
    assert {job.attempt for job in place.jobs(handles)} == {0}
    assert "Traceback" not in worker.log


# ── HUP ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_under_nohup_outlives_its_terminal_and_drains_on_term(place):
    penstock = (sys.executable, "-m", "penstock", "worker", "tasks:app", "--processes", "2")
    worker = place.start("-c", NOHUP, *penstock)
    place.until(lambda: worker.log.count(" serves ") == 2, "both processes serve")
    tasks = place.tasks
    handles = [function.enqueue("go") for function in (tasks.held, tasks.held_thread, tasks.held_process)]
    place.until_started(3)
    before = worker.session_processes()
    worker.signal_all(signal.SIGHUP)
    place.open("go")
    jobs = place.until_ended([*handles, tasks.quick.enqueue(1)])
    assert {(job.state, job.attempt) for job in jobs} == {(State.COMPLETED, 1)}
    assert before <= worker.session_processes()
    assert _stop(worker) == 0
    assert "ERROR" not in worker.log


# ── quiet ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTSTP])
def test_a_quiet_worker_starts_nothing_more_and_stays(place, number):
    worker = place.worker("--processes", "2", ready=2)
    running = place.tasks.held.enqueue("go")
    place.until_started(1)
    worker.signal(number)
    place.until(lambda: {info.state for info in place.workers()} == {"quiet"}, "both are quiet")
    waiting = [place.tasks.quick.enqueue(n) for n in range(10)]
    place.open("go")
    assert {job.state for job in place.until_ended([running])} == {State.COMPLETED}
    assert not worker.ended
    assert place.counts()[State.AVAILABLE] == 10
    assert len(place.starts()) == 1
    second = place.lone()
    assert {job.state for job in place.until_ended(waiting)} == {State.COMPLETED}
    assert {line["pid"] for line in place.starts(task="quick")} == {second.pid}
    assert _stop(worker) == 0


def test_a_quiet_worker_does_not_replace_a_child(place):
    worker = place.worker()
    worker.signal(signal.SIGUSR1)
    place.until(lambda: {info.state for info in place.workers()} == {"quiet"}, "it is quiet")
    place.tasks.quick.enqueue(1)
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    place.until(lambda: " died: killed by SIGKILL" in worker.log, "its supervisor has seen it")
    place.until(lambda: not place.workers(), "it has reclaimed what the child held")
    assert not worker.ended
    assert _stop(worker) in (0, 1)  # 1: the stop came before its call of the store had returned
    assert place.counts() == {State.AVAILABLE: 1}


def test_a_worker_that_gets_a_quiet_signal_during_its_start_is_quiet(place):
    worker = place.worker(ready=0)
    place.until(worker.children, "the supervisor has started its child")
    worker.signal(signal.SIGUSR1)
    handle = place.tasks.quick.enqueue(1)
    time.sleep(1.5)  # more than it takes to start and to fetch
    assert place.starts() == []
    assert not worker.ended
    assert _stop(worker) == 0
    assert handle.status() is State.AVAILABLE


_EARLY = """
import asyncio, os, signal
from penstock.worker.signals import DRAIN, block_signals, listen, listen_for_stacks, unblock_signals

block_signals()
for name in ("SIGTERM", "SIGUSR1", "SIGTSTP", "SIGTTIN"):
    os.kill(os.getpid(), getattr(signal, name))

async def main():
    came = []
    listen(lambda: came.append("stop"), lambda: came.append("quiet"), drain=DRAIN)
    listen_for_stacks(lambda: came.append("stacks"))
    unblock_signals()
    while len(came) < 4:
        await asyncio.sleep(0)
    print(*sorted(came))

asyncio.run(main())
"""


def test_a_signal_that_comes_while_children_are_forked_waits_for_its_handler():
    """By default, each of them ends or stops a process."""
    ran = subprocess.run(
        [sys.executable, "-c", _EARLY], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert ran.stdout.split() == ["quiet", "quiet", "stacks", "stop"]


# ── TTIN ─────────────────────────────────────────────────────────────────────────────────────────


def test_ttin_shows_where_everybody_stands(place):
    worker = place.worker("--processes", "2", ready=2)
    tasks = place.tasks
    handles = [tasks.held_thread.enqueue("go")]
    place.until_started(1)  # first: it could not begin beside a call that holds the GIL
    handles.append(tasks.hold_gil.enqueue(3))
    place.until_started(2)
    worker.signal(signal.SIGTTIN)
    place.until(lambda: "in held_thread" in worker.log, "the thread task's stack")
    place.until(lambda: "in hold_gil" in worker.log, "the stack of the call that holds the GIL")
    assert "supervisor.py" in worker.log
    place.open("go")
    assert {job.state for job in place.until_ended(handles)} == {State.COMPLETED}


# ── without a supervisor ─────────────────────────────────────────────────────────────────────────


def test_a_lone_worker_drains_on_term(place):
    worker = place.lone()
    tasks = place.tasks
    running = [tasks.nap.enqueue(0.5), tasks.nap_thread.enqueue(0.5), tasks.nap_process.enqueue(0.5)]
    place.until_started(3)
    assert _stop(worker) == 0
    assert {(job.state, job.attempt) for job in place.jobs(running)} == {(State.COMPLETED, 1)}


def test_a_worker_whose_program_is_interrupted_gives_its_work_back(place):
    """ctrl-C under asyncio.run cancels the worker: what runs goes back, uncharged."""
    worker = place.lone()
    handles = [place.tasks.held.enqueue("go"), place.tasks.held_thread.enqueue("go")]
    place.until_started(2)
    worker.signal(signal.SIGINT)
    worker.wait(60)
    assert place.counts() == {State.AVAILABLE: 2}
    assert {job.attempt for job in place.jobs(handles)} == {0}
    assert place.workers() == []
