"""SIGKILL of a worker: no job is lost, all run again at once, and no living worker is taken for dead."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.client.handle import Handle
from penstock.core.job import Job, State
from penstock.verify.ledger import Ledger, check
from tests.system.conftest import Line, Place

#: What brings jobs back sooner than this is a proof that their worker is dead.
_PROOF_ALONE = {"PENSTOCK_LEASE": "1h"}


def hold(place: Place, n: int, task: str = "held") -> list[Handle[Any]]:
    """Enqueue jobs that run until the gate `go` is opened."""
    tasks = place.tasks
    function = getattr(tasks, task)
    handles: list[Handle[Any]] = tasks.app.enqueue_many([function.job("go") for _ in range(n)])
    return handles


def who_holds(place: Place, n: int) -> int:
    """The process that has all the jobs in hand, once they run."""
    lines = place.until_started(n)
    (pid,) = {line["pid"] for line in lines}
    return int(pid)


def again(place: Place, handles: list[Handle[Any]]) -> list[Line]:
    """The second starts of all of them."""
    seconds = place.until_started(2 * len(handles))[len(handles) :]
    assert {line["id"] for line in seconds} == {handle.id for handle in handles}
    return seconds


def completed(place: Place, handles: list[Handle[Any]]) -> list[Job]:
    place.open("go")
    jobs = place.until_ended(handles)
    assert {job.state for job in jobs} == {State.COMPLETED}
    return jobs


# ── under a supervisor ───────────────────────────────────────────────────────────────────────────


def test_the_jobs_of_a_killed_child_run_again_at_once_on_another(place):
    place.worker("--processes", "2", "--concurrency", "200", ready=2)
    handles = hold(place, 100)
    victim = who_holds(place, 100)
    os.kill(victim, signal.SIGKILL)
    seconds = again(place, handles)
    assert {line["attempt"] for line in seconds} == {2}
    assert victim not in {line["pid"] for line in seconds}
    jobs = completed(place, handles)
    assert {(job.attempt, job.lost) for job in jobs} == {(2, 1)}
    errors = {(error.kind, error.message) for job in jobs for error in job.errors}
    assert errors == {("WorkerLost", "killed by SIGKILL")}
    assert set(place.runs().values()) == {2}
    log = place.programs[0].log
    assert f"(pid {victim}) died: killed by SIGKILL; it held 100 job(s)" in log


def test_the_ledger_of_a_killed_child_is_clean(place):
    (place.folder / "ledger").mkdir()
    ledger = Ledger(place.folder / "ledger")
    place.worker("--processes", "2", "--concurrency", "100", ready=2)
    handles = hold(place, 40) + hold(place, 20, "held_thread") + hold(place, 1, "held_process")
    lines = place.until_started(61)
    # the one that holds most of those that run in the worker itself
    ((victim, _),) = Counter(line["pid"] for line in lines).most_common(1)
    ledger.kill(victim)
    held = [line["id"] for line in lines if line["pid"] == victim]
    place.until(lambda: all(place.runs()[id] == 2 for id in held), "all that it held runs again")
    completed(place, handles)
    stop = place.programs[0]
    place.until(lambda: stop.log.count(" serves ") == 3, "another child has taken its place")
    stop.signal(signal.SIGTERM)
    assert stop.wait() == 0
    verdict = check(ledger.directory, place.app.store).require()
    assert (verdict.lost, verdict.unfinished, verdict.completed) == (0, 0, 61)
    assert verdict.rerun_after_crash >= len(held)
    assert verdict.recovery is not None


def test_unstarted_jobs_of_a_killed_child_are_not_charged(place):
    # the child is to keep what it has fetched ahead: nobody takes it back before the kill
    place.worker("--concurrency", "1", PENSTOCK_SLOT_WAIT="60s")
    tasks = place.tasks
    before = tasks.app.enqueue_many([tasks.quick.job(n) for n in range(300)])
    place.until_ended(before)
    calls = [tasks.quick.job(n) for n in range(300)]
    handles = tasks.app.enqueue_many([*calls[:50], tasks.block.job(1.5), *calls[50:]])
    (blocked,) = place.until_started(1, task="block")
    in_hand = place.counts()[State.RUNNING]
    os.kill(blocked["pid"], signal.SIGKILL)
    jobs = place.until_ended(handles)
    assert in_hand > 1, "it had fetched nothing ahead: the test shows nothing"
    assert {job.state for job in jobs} == {State.COMPLETED}
    runs = place.runs()
    lost = [job for job in jobs if job.lost]
    assert len(lost) >= in_hand - 50  # outcomes of those before may not have been stored
    for job in jobs:
        assert job.attempt == runs[job.id], "charged what was not started, or not what was"
    assert len([job for job in lost if job.attempt == 1]) > 0
    assert next(job for job in jobs if job.task == "block").attempt == 2


# ── without one ──────────────────────────────────────────────────────────────────────────────────


def test_a_second_worker_of_this_host_takes_over_at_once(place):
    first = place.lone(concurrency=100, **_PROOF_ALONE)
    handles = hold(place, 100)
    assert who_holds(place, 100) == first.pid
    place.lone(concurrency=100, **_PROOF_ALONE)
    first.signal(signal.SIGKILL)
    again(place, handles)
    jobs = completed(place, handles)
    assert {(job.attempt, job.lost) for job in jobs} == {(2, 1)}
    assert {error.kind for job in jobs for error in job.errors} == {"WorkerLost"}


def test_a_worker_that_starts_later_finds_the_dead_one_at_once(place):
    first = place.lone(concurrency=100, **_PROOF_ALONE)
    handles = hold(place, 100)
    assert who_holds(place, 100) == first.pid
    first.signal(signal.SIGKILL)
    first.wait()
    place.lone(concurrency=100, **_PROOF_ALONE)
    again(place, handles)
    completed(place, handles)


def test_threads_of_a_killed_worker_are_run_again_too(place):
    first = place.lone(concurrency=30, **_PROOF_ALONE)
    handles = hold(place, 30, "held_thread")
    assert who_holds(place, 30) == first.pid
    place.lone(concurrency=30, **_PROOF_ALONE)
    first.signal(signal.SIGKILL)
    again(place, handles)
    completed(place, handles)


# ── where nobody can prove a death ───────────────────────────────────────────────────────────────

_LEASE = {"PENSTOCK_LEASE": "2s", "PENSTOCK_HEARTBEAT": "500ms"}


def test_in_two_containers_the_lease_decides(place):
    first = place.lone(concurrency=100, XDG_RUNTIME_DIR=place.run_dir("one"), **_LEASE)
    handles = hold(place, 100)
    assert who_holds(place, 100) == first.pid
    second = place.lone(concurrency=100, XDG_RUNTIME_DIR=place.run_dir("two"), **_LEASE)
    _outlive(place, 3.5)
    assert set(place.runs().values()) == {1}, "a live worker was taken for dead"
    first.signal(signal.SIGKILL)
    seconds = again(place, handles)
    assert {line["pid"] for line in seconds} == {second.pid}
    jobs = completed(place, handles)
    assert {error.kind for job in jobs for error in job.errors} == {"LeaseLost"}


def test_in_two_pid_namespaces_of_one_host_no_living_worker_is_taken_for_dead(place):
    apart = ("unshare", "--pid", "--fork", "--kill-child")
    if not _works(*apart, "true"):
        pytest.skip("making a pid namespace takes a privilege that this user does not have")
    # each in a namespace of its own, where both have the same small pids, and the same boot id
    one = place.lone(concurrency=40, prefix=apart, XDG_RUNTIME_DIR=place.run_dir("one"), **_LEASE)
    handles = hold(place, 40)
    place.until_started(40)  # it is full; the other has room for all
    place.lone(concurrency=80, prefix=apart, XDG_RUNTIME_DIR=place.run_dir("two"), **_LEASE)
    handles += hold(place, 40)
    lines = place.until_started(80)
    assert len({line["pid"] for line in lines}) == 1, "the namespaces do not give the same pids"
    _outlive(place, 3.5)
    assert set(place.runs().values()) == {1}, "a live worker was taken for dead"
    assert len(place.workers()) == 2
    one.signal_all(signal.SIGKILL)
    place.until(lambda: len(place.starts()) == 120, "the dead one's jobs run again")
    place.open("go")
    jobs = place.until_ended(handles)
    assert {job.state for job in jobs} == {State.COMPLETED}
    seconds = [line for line in place.starts() if line["attempt"] == 2]
    assert len(seconds) == 40


def test_namespaces_that_share_the_proofs_of_life_use_them(place):
    apart = ("unshare", "--pid", "--fork", "--kill-child")
    if not _works(*apart, "true"):
        pytest.skip("making a pid namespace takes a privilege that this user does not have")
    first = place.lone(concurrency=50, prefix=apart, **_PROOF_ALONE)
    handles = hold(place, 50)
    place.until_started(50)
    place.lone(concurrency=50, prefix=apart, **_PROOF_ALONE)
    time.sleep(1.5)  # more than a look of the second at the first
    assert set(place.runs().values()) == {1}, "a live worker was taken for dead"
    first.signal_all(signal.SIGKILL)
    again(place, handles)
    completed(place, handles)


def _outlive(place: Place, seconds: float) -> None:
    """Let more than a lease pass: what should not happen has its chance."""
    time.sleep(seconds)
    assert not [program for program in place.programs if program.ended]


def _works(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def test_a_proof_of_life_is_gone_once_its_worker_is_removed(place):
    first = place.lone()
    handles = hold(place, 3)
    place.until_started(3)
    place.lone()
    first.signal(signal.SIGKILL)
    first.wait()
    proofs = Path(place.run_dir("run"), "penstock")
    place.until(lambda: len(list(proofs.iterdir())) == 1, "only the living one's file is left")
    place.until(lambda: len(place.workers()) == 1, "only the living one is on the list")
    completed(place, handles)
