"""The fair write lock: one holder at a time, in the order of arrival, without starvation."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from pathlib import Path
from types import FrameType

import pytest

from penstock.errors import StoreBusy
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.fair_write_lock import FairWriteLock, vulnerable
from tests.stores.sqlite.conftest import OpenStore, new


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def opened(folder: Path) -> FairWriteLock:
    lock = FairWriteLock(folder)
    lock.open()
    return lock


def test_one_at_a_time(folder: Path) -> None:
    a, b = opened(folder), opened(folder)
    assert a.try_acquire()
    assert not b.try_acquire()
    a.release()
    assert b.try_acquire()
    b.release()
    a.close()
    b.close()


def test_a_block_that_was_not_entered_leaves_no_trace(folder: Path) -> None:
    a, b, c = opened(folder), opened(folder), opened(folder)
    a.acquire()
    assert not b.try_acquire()
    a.release()
    assert c.try_acquire()
    for one in (a, b, c):
        one.close()


def test_waiting_callers_are_not_overtaken(folder: Path) -> None:
    inside, waiting, late = opened(folder), opened(folder), opened(folder)
    inside.acquire()
    entered = threading.Event()

    def wait() -> None:
        waiting.acquire()
        entered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    until_somebody_waits(folder)
    inside.release()
    assert entered.wait(60)
    assert not late.try_acquire()
    thread.join()
    waiting.release()
    for one in (inside, waiting, late):
        one.close()


def until_somebody_waits(folder: Path) -> None:
    with (folder / "next").open("rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0)


def test_a_closed_lock_lets_others_in(folder: Path) -> None:
    a, b = opened(folder), opened(folder)
    a.acquire()
    a.close()
    assert b.try_acquire()
    b.close()


def test_a_lock_whose_second_file_cannot_be_opened_leaves_one_file_open_however_often_it_is_tried(
    folder: Path,
) -> None:
    lock = FairWriteLock(folder)
    (folder / "next").mkdir()
    for _ in range(10):
        with pytest.raises(IsADirectoryError):
            lock.open()
    assert descriptors(folder) == ["main"]
    (folder / "next").rmdir()
    lock.open()
    assert lock.try_acquire()
    lock.close()
    assert descriptors(folder) == []


def test_a_lock_file_whose_mode_cannot_be_set_is_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = folder / "jobs.db"
    database.touch(0o660)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.stores.sqlite.modes._fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        FairWriteLock(folder, database).open()
    assert descriptors(folder) == []


def descriptors(folder: Path) -> list[str]:
    """The files of this folder that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.append(Path(os.readlink(f"/proc/self/fd/{number}")))
    return sorted(path.name for path in found if path.parent == folder)


def hammer(folder: str, seconds: float, told: Connection) -> None:
    lock = opened(Path(folder))
    told.send("ready")
    told.recv()
    ends = time.monotonic() + seconds
    passes, longest = 0, 0.0
    while (before := time.monotonic()) < ends:
        lock.acquire()
        longest = max(longest, time.monotonic() - before)
        time.sleep(0.0005)
        lock.release()
        passes += 1
    told.send((passes, longest))


@pytest.mark.slow
def test_busy_processes_take_turns(folder: Path, spawn: SpawnContext) -> None:
    pipes = []
    for _ in range(3):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=hammer, args=(str(folder), 2.0, theirs))
        process.start()
        theirs.close()
        pipes.append((ours, process))
    for pipe, _ in pipes:
        assert pipe.recv() == "ready"
    for pipe, _ in pipes:
        pipe.send("go")
    results = [pipe.recv() for pipe, _ in pipes]
    for _, process in pipes:
        process.join()
    passes = [n for n, _ in results]
    assert min(passes) > 0.5 * max(passes), passes
    assert max(longest for _, longest in results) < 1.0


def hold(path: str, told: Connection) -> None:
    """Hold the write lock of that store until told to go."""
    lock = opened(Path(path + "-penstock"))
    lock.acquire()
    told.send(os.getpid())
    told.recv()
    lock.release()
    told.send("left")
    told.recv()


@pytest.mark.slow
async def test_a_writer_stopped_midway_makes_others_busy_and_does_not_hang_them(
    open_store: OpenStore, path: Path, spawn: SpawnContext
) -> None:
    store, impatient = open_store(), open_store(patience=300)
    store.sync.enqueue([new("before")])
    ours, theirs = spawn.Pipe()
    holder = spawn.Process(target=hold, args=(str(path), theirs))
    holder.start()
    pid = ours.recv()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreBusy, match=r"jobs\.db is busy: another process has held it for 0\.3 s"):
            impatient.sync.enqueue([new("sync")])
        with pytest.raises(StoreBusy):
            await impatient.enqueue([new("async")])
        assert (await open_store().get([new("before").ref]))[0] is not None  # who reads does not wait
    finally:
        os.kill(pid, signal.SIGCONT)
    ours.send("go")
    assert ours.recv() == "left"
    await store.enqueue([new("after")])
    found = store.sync.get([new(id).ref for id in ("sync", "async", "after")])
    assert [job is not None for job in found] == [False, False, True]  # what was refused is not done later
    ours.send("end")
    holder.join()


def child_holds_nothing(store: SqliteStore) -> int:
    """Fork while a thread writes; the child must not keep the lock files open. Its exit code."""
    pid = os.fork()
    if pid == 0:
        names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if exists(fd)]
        os._exit(1 if any(name.startswith(str(store.path)) for name in names) else 0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def exists(fd: str) -> bool:
    try:
        os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False
    return True


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_a_forks_child_inherits_neither_locks_nor_the_database(store: SqliteStore) -> None:
    await store.enqueue([new()])
    assert child_holds_nothing(store) == 0
    await store.enqueue([new()])  # and the parent goes on


@pytest.mark.parametrize(
    ("version", "is_vulnerable"),
    [
        ((3, 37, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_versions_that_can_lose_a_commit_are_known(
    version: tuple[int, int, int], is_vulnerable: bool
) -> None:
    assert vulnerable(version) is is_vulnerable


# ── interrupts ──


class Interrupted(BaseException):
    """What a signal's handler, or another thread, raises in the middle of a call."""


def interrupted(act: Callable[[], object], at: int) -> bool:
    """Do it, raising at the nth point where Python lets a signal in: the begin of a function of the store, or
    the return from one that it has called. False: it was over before."""
    left = at

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event == "c_call" or "/penstock/stores/sqlite/" not in frame.f_code.co_filename:
            return
        left -= 1
        if left == 0:
            raise Interrupted

    sys.setprofile(look)
    try:
        act()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
    return False


# A generator that is closed cannot raise; a connection that was opened a moment before is nobody's yet.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("first", [False, True], ids=["open", "first"])
def test_an_interrupt_at_any_point_of_a_write_leaves_no_lock_and_no_transaction(
    tmp_path: Path, first: bool
) -> None:
    store = SqliteStore(tmp_path / "jobs.db", patience=10_000)
    other = SqliteStore(tmp_path / "jobs.db", patience=10_000)
    at = 0
    going = True
    while going:
        at += 1
        if first:
            store.close()
        else:
            store.sync.queues()
        going = interrupted(partial(store.sync.enqueue, [new(f"{at}")]), at)
        assert other.sync.enqueue([new(f"other-{at}")]), at  # in its turn, though the first idles
        assert store.sync.enqueue([new(f"again-{at}")]), at
    assert at > 20
    store.close()
    other.close()
    gc.collect()  # the connections of nobody go here, not in the test that comes next


def test_an_interrupt_at_any_point_of_a_read_leaves_no_lock_either(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db", patience=10_000)
    job = new()
    store.sync.enqueue([job])
    at = 1
    while interrupted(lambda: store.sync.get([job.ref]), at):
        assert store.sync.get([job.ref])[0] is not None, at
        store.sync.enqueue([new()])
        at += 1
    store.close()
