"""A store that is away for a while: a held write lock, a full disk, use by the application itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.job import State
from penstock.errors import StoreFull
from penstock.worker import Worker
from tests.system.conftest import Place

_LEASE = {"PENSTOCK_LEASE": "2s", "PENSTOCK_HEARTBEAT": "500ms"}


@contextlib.contextmanager
def write_lock(file: Path) -> Iterator[None]:
    """Held as by another program, which does not take our fair write lock."""
    cx = sqlite3.connect(file, timeout=30, isolation_level=None)
    cx.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        cx.execute("ROLLBACK")
        cx.close()


# ── the write lock ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("supervised", [True, False])
def test_results_that_come_while_the_write_lock_is_held_are_stored_afterwards(place, supervised):
    """Held for some leases: nobody can beat, and nobody may take what they have in hand."""
    worker = place.worker(**_LEASE) if supervised else place.lone(**_LEASE)
    place.lone(**_LEASE)
    tasks = place.tasks
    functions = (tasks.held, tasks.held_thread, tasks.held_process)
    handles = [function.enqueue("go") for function in functions for _ in range(3)]
    place.until_started(7)  # process tasks wait for each other
    with write_lock(place.file):
        place.open("go")
        place.until(lambda: len(place.record("end")) >= 7, "they end")
        time.sleep(8.0 if supervised else 5.0)
        assert not [line for line in place.starts() if line["attempt"] > 1]
    jobs = place.until_ended(handles, within=60)
    assert {(job.state, job.attempt, job.lost) for job in jobs} == {(State.COMPLETED, 1, 0)}
    assert set(place.runs().values()) == {1}
    assert not worker.ended
    assert "Traceback" not in worker.log


def test_an_enqueue_that_finds_the_write_lock_held_waits_for_it(place):
    place.worker()
    done: list[float] = []
    place.tasks.quick.enqueue(0)

    def enqueue() -> None:
        place.tasks.quick.enqueue(1)
        done.append(time.monotonic())

    thread = threading.Thread(target=enqueue)
    with write_lock(place.file):
        thread.start()
        time.sleep(1.0)
        assert not done
    thread.join(60)
    assert done
    place.until_started(2)


# ── the application's own tables ─────────────────────────────────────────────────────────────────


def test_an_application_may_use_the_same_file_in_the_same_process(place):
    """One SQLite library serves both, so each sees the other's locks: nothing is lost, nothing is torn."""
    place.worker("--processes", "2", ready=2)
    tasks = place.tasks
    handles = [tasks.keep_books.enqueue(n) for n in range(100)]
    # we are such an application too: its transaction is open while jobs are enqueued from another thread
    cx = sqlite3.connect(place.file, timeout=30)
    cx.execute("CREATE TABLE IF NOT EXISTS books (n INTEGER, pid INTEGER)")
    for n in range(100, 120):
        with cx:
            cx.execute("INSERT INTO books VALUES (?, ?)", (n, os.getpid()))
        handles.append(tasks.keep_books.enqueue(n + 100))
    jobs = place.until_ended(handles)
    assert {(job.state, job.attempt) for job in jobs} == {(State.COMPLETED, 1)}
    written = [n for (n,) in cx.execute("SELECT n FROM books ORDER BY n")]
    assert written == [*range(120), *range(200, 220)]
    assert cx.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    cx.close()


def test_the_locks_of_the_store_and_of_the_application_see_each_other(place):
    """In one process: while the application is in a transaction, an enqueue waits for its end."""
    place.tasks.quick.enqueue(0)
    stored: list[float] = []
    thread = threading.Thread(target=lambda: stored.append(place.tasks.quick.enqueue(1) and time.monotonic()))
    with write_lock(place.file):
        thread.start()
        time.sleep(0.5)
        assert not stored
        released = time.monotonic()
    thread.join(60)
    assert stored
    assert stored[0] >= released


# ── the disk ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small(place: Place) -> Iterator[Place]:
    """The place's store is on a disk of 4 MB."""
    disk = place.folder / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        if os.environ.get("CI") and sys.platform == "linux" and os.geteuid() == 0:
            pytest.fail("a small disk cannot be mounted here")
        pytest.skip("mounting a small disk takes root")
    try:
        tasks = place.folder / "tasks.py"
        tasks.write_text(tasks.read_text().replace("HERE / 'jobs.db'", "HERE / 'small/jobs.db'"))
        place.file = disk / "jobs.db"
        yield place
    finally:
        place.close()
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(place: Place) -> Path:
    """Leave no room on its disk."""
    ballast = place.file.parent / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return ballast


def test_a_worker_rides_out_a_disk_that_is_full(small):
    place = small
    worker = place.worker(**_LEASE)
    tasks = place.tasks
    handles = [tasks.held.enqueue("go") for _ in range(10)] + [tasks.held_thread.enqueue("go")]
    place.until_started(11)
    ballast = fill(place)
    with pytest.raises(StoreFull, match="no room left on its disk; nothing of this call was stored"):
        enqueue_until_full(place)
    known = {line["id"] for line in place.starts()}
    place.open("go")
    place.until(lambda: len(place.record("end")) >= 11, "they end")
    time.sleep(3.0)  # more than a lease
    assert not worker.ended
    ballast.unlink()
    jobs = place.until_ended(handles)
    assert {(job.state, job.attempt) for job in jobs} == {(State.COMPLETED, 1)}
    assert {place.runs()[handle.id] for handle in handles} == {1}
    after = tasks.quick.enqueue(1)
    place.until_ended([after])
    assert after.id not in known
    assert "Traceback" not in worker.log
    assert "no room left" in worker.log
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    cx = sqlite3.connect(place.file)
    assert cx.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    cx.close()


def enqueue_until_full(place: Place) -> None:
    """What is left at the ends of files takes some jobs yet, and then some smaller writes."""
    with contextlib.suppress(StoreFull):
        for n in range(5_000):
            place.tasks.quick.enqueue(n)
    asyncio.run(announce_until_full(place))


async def announce_until_full(place: Place) -> None:
    """The smallest write that there is, and the first one of a worker."""
    nobody = Worker(place.tasks.app, id="nobody").info()
    for _ in range(5_000):
        await place.tasks.app.store.announce(nobody)


def test_on_a_full_disk_a_command_ends_with_one_line_and_stores_nothing(small):
    place = small
    place.tasks.quick.enqueue(0)
    fill(place)
    with pytest.raises(StoreFull):
        enqueue_until_full(place)
    stored = place.counts()[State.AVAILABLE]
    said = place.penstock("enqueue", "tasks:app", "quick", "[1]")
    assert said.returncode == 1
    assert said.stderr.splitlines() == [
        f"penstock: error: {place.file}: no room left on its disk; nothing of this call was stored"
    ]
    assert place.counts()[State.AVAILABLE] == stored


def test_a_worker_that_starts_on_a_full_disk_says_so_and_loses_nothing(small):
    place = small
    handle = place.tasks.quick.enqueue(0)
    ballast = fill(place)
    with pytest.raises(StoreFull):
        enqueue_until_full(place)
    stored = place.counts()[State.AVAILABLE]
    worker = place.worker("--processes", "2", ready=0)
    assert worker.wait() == 4
    complaints = [line for line in worker.log.splitlines() if " INFO penstock." not in line]
    assert complaints == [
        f"penstock: error: {place.file}: no room left on its disk; nothing of this call was stored"
    ]
    assert place.counts() == {State.AVAILABLE: stored}
    ballast.unlink()
    place.worker("--burst", ready=0).wait()
    assert handle.status() is State.COMPLETED


def test_a_child_that_dies_while_the_disk_is_full_is_replaced_when_it_is_not(small):
    place = small
    worker = place.worker()
    handle = place.tasks.held.enqueue("go")
    place.until_started(1)
    (child,) = worker.children()
    ballast = fill(place)
    with pytest.raises(StoreFull):
        enqueue_until_full(place)
    os.kill(child, signal.SIGKILL)
    place.until(lambda: "penstock: error: " in worker.log, "its successor finds no room")
    time.sleep(0.5)
    assert not worker.ended
    ballast.unlink()
    place.open("go")
    (job,) = place.until_ended([handle])
    assert (job.state, job.attempt, job.lost) == (State.COMPLETED, 2, 1)
