"""`--burst`, exit codes, and logs for people and machines."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from penstock.core.job import State
from tests.system.conftest import Place


def _burst(place: Place, *options: str, within: float = 15, **env: str) -> int:
    return place.worker("--burst", *options, ready=0, **env).wait(within)


# ── burst ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_burst_ends_when_all_is_done(place, processes):
    tasks = place.tasks
    functions = (tasks.quick, tasks.quick_thread, tasks.quick_process)
    handles = tasks.app.enqueue_many([function.job(n) for n in range(20) for function in functions])
    assert _burst(place, "--processes", processes) == 0
    assert {(job.state, job.attempt) for job in place.jobs(handles)} == {(State.COMPLETED, 1)}
    assert not place.programs[0].session_processes()
    assert place.workers() == []


def test_a_burst_with_nothing_to_do_ends_at_once(place):
    place.tasks.quick.using(delay=3_600).enqueue(1)
    assert _burst(place, "--processes", "2") == 0
    assert place.counts() == {State.SCHEDULED: 1}


def test_a_burst_waits_for_what_runs_and_for_what_is_due_within_a_second(place):
    tasks = place.tasks
    soon = tasks.quick.using(delay=1.6).enqueue(1)  # due within a second of the end of the one that runs
    later = tasks.quick.using(delay=60).enqueue(2)
    running = tasks.nap.enqueue(1.2)
    assert _burst(place) == 0
    assert [job.state for job in place.jobs([soon, running, later])] == [
        State.COMPLETED,
        State.COMPLETED,
        State.SCHEDULED,
    ]


def test_failures_and_crashes_are_no_failure_of_the_worker(place):
    tasks = place.tasks
    bad = [tasks.fail.using(max_attempts=1).enqueue(), tasks.crash.using(max_attempts=2).enqueue("kill")]
    good = tasks.app.enqueue_many([tasks.quick.job(n) for n in range(30)])
    assert _burst(place, "--processes", "2") == 0
    assert {job.state for job in place.jobs(bad)} == {State.DEAD}
    assert {job.state for job in place.jobs(good)} == {State.COMPLETED}


def test_a_burst_can_be_stopped(place):
    handle = place.tasks.held.enqueue("go")
    worker = place.worker("--burst", "--drain-timeout", "300ms")
    place.until_started(1)
    worker.signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert handle.status() is State.AVAILABLE


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────


def _lines(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.programs[0].log.splitlines()]


def test_every_line_of_a_json_log_is_an_object_with_the_facts_of_its_job(place):
    tasks = place.tasks
    failed = tasks.fail.using(max_attempts=2, retry=0.01).enqueue()
    crashed = tasks.crash.using(max_attempts=1).enqueue("kill")
    assert _burst(place, "--log-format", "json", "--processes", "2") == 0
    assert {job.state for job in place.jobs([failed, crashed])} == {State.DEAD}
    lines = _lines(place)
    assert {"at", "level", "logger", "message", "pid"} <= set.intersection(*(set(line) for line in lines))
    of_job = [line for line in lines if line.get("job_id") == failed.id]
    assert [(line["task"], line["queue"], line["attempt"], line["level"]) for line in of_job] == [
        ("fail", "default", 1, "warning"),
        ("fail", "default", 2, "error"),
    ]
    assert all("ValueError: on purpose" in line["message"] for line in of_job)
    assert all('raise ValueError("on purpose")' in line["traceback"] for line in of_job)
    deaths = [line for line in lines if "died: killed by SIGKILL" in line["message"]]
    assert [line["logger"] for line in deaths] == ["penstock.supervisor"]


@pytest.mark.parametrize("task", ["say", "say_thread", "say_process"])
def test_what_a_task_logs_carries_its_job(place, task):
    handle = getattr(place.tasks, task).enqueue("hello")
    assert _burst(place, "--log-format", "json") == 0
    (line,) = [line for line in _lines(place) if line["message"] == "hello"]
    facts = {name: line[name] for name in ("job_id", "task", "queue", "attempt", "level", "logger")}
    assert facts == {
        "job_id": handle.id,
        "task": task,
        "queue": "default",
        "attempt": 1,
        "level": "info",
        "logger": "tasks",
    }


@pytest.mark.parametrize("task", ["say", "say_thread", "say_process"])
def test_a_log_for_people_says_which_job_spoke(place, task):
    handle = getattr(place.tasks, task).enqueue("hello")
    assert _burst(place) == 0
    (line,) = [line for line in place.programs[0].log.splitlines() if line.endswith("hello")]
    assert f"INFO tasks: job {handle.id} ({task}, attempt 1): hello" in line


def test_a_traceback_in_a_json_log_stays_on_its_line(place):
    place.tasks.say.enqueue("trouble")
    assert _burst(place, "--log-format", "json") == 0
    (line,) = [line for line in _lines(place) if line["message"] == "trouble"]
    assert "AssertionError" in line["traceback"]


def test_the_level_is_respected(place):
    place.tasks.say.enqueue("hello")
    place.tasks.fail.using(max_attempts=1).enqueue()
    assert _burst(place, "--log-format", "json", "--log-level", "error") == 0
    assert [line["message"].partition(" ")[0] for line in _lines(place)] == ["job"]


def test_a_log_that_nobody_reads_any_more_ends_nothing(place):
    """`penstock worker | head -1`: the pipe is closed, and the worker works on."""
    reading, writing = os.pipe()
    program = place.start("-m", "penstock", "worker", "tasks:app", log=writing)
    os.close(writing)
    place.until(place.workers, "it is there")
    os.close(reading)
    tasks = place.tasks
    handles = [tasks.fail.using(max_attempts=1).enqueue(), tasks.nap.enqueue(0.1), tasks.quick.enqueue(1)]
    jobs = place.until_ended(handles)
    assert [job.state for job in jobs] == [State.DEAD, State.COMPLETED, State.COMPLETED]
    program.signal(signal.SIGTERM)
    assert program.wait(60) == 0


def test_a_stop_is_said_with_what_runs_on_and_what_was_released(place):
    worker = place.worker("--log-format", "json", "--drain-timeout", "300ms")
    place.tasks.held.enqueue("go")
    place.until_started(1)
    worker.signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    said = [(line["logger"], line["message"]) for line in _lines(place)]
    assert ("penstock.supervisor", "stop signal: 1 worker process(es) drain, for up to 300ms") in said
    assert any("drains: 1 job(s) may run for up to 300ms" in message for _, message in said)
    assert any("has stopped: 0 job(s) ended, 1 released" in message for _, message in said)
    assert said[-1] == ("penstock.supervisor", "stopped (exit code 0)")


def test_a_worker_that_cannot_begin_says_so_in_json_too(place):
    program = place.start("-m", "penstock", "worker", "nosuch:app", "--log-format", "json")
    assert program.wait(60) == 2
    (line,) = _lines(place)
    assert line["level"] == "error"
    assert "there is no module 'nosuch'" in line["message"]
