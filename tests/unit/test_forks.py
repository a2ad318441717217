"""A process that forks while its threads work: parent and child both continue."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import NewJob
from penstock.events import EventBus, WorkerStarted
from penstock.stores.connect import connect
from penstock.stores.memory import store as memory_store
from penstock.stores.redis import context as redis_context
from penstock.stores.redis.layout import RedisKeys
from penstock.stores.sqlite import SqliteStore
from tests.servers import until

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

DEADLINE = 60.0
PATIENCE = "penstock.core.forks.PATIENCE"
HUNG = "the child hung"


def in_a_fork(act: Callable[[], object]) -> str:
    """What a fork of this process says that does this: "done", its error, or that it hung."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "done"
        try:
            act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    ends = time.monotonic() + DEADLINE
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > ends:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(ours)
            return HUNG
        time.sleep(0.002)
    with os.fdopen(ours) as pipe:
        return pipe.read()


@contextlib.contextmanager
def busy(act: Callable[[], object], threads: int = 3) -> Iterator[None]:
    """Threads that do this all the time."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            act()

    crowd = [threading.Thread(target=work) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in crowd:
            thread.join()


@contextlib.contextmanager
def held(lock: threading.Lock | threading.RLock) -> Iterator[None]:
    """Another thread has this lock."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ── events ──


def test_a_child_of_a_process_that_emits_events_emits_its_own() -> None:
    bus = EventBus()
    heard: list[str] = []
    bus.listen(WorkerStarted, lambda event: heard.append(event.worker))

    def emit_one() -> None:
        heard.clear()
        bus.emit(WorkerStarted(0, "child"))
        bus.close()
        assert heard == ["child"], f"it heard {len(heard)} events: {heard[:3]}"

    with busy(lambda: bus.emit(WorkerStarted(0, "parent"))):
        for _ in range(10):
            assert in_a_fork(emit_one) == "done"
    until(bus._queue.empty, "the bus has room: a full one drops events")
    bus.emit(WorkerStarted(0, "parent again"))
    bus.close()
    assert heard[-1:] == ["parent again"]


@pytest.mark.parametrize("name", ["_lock", "_queue.mutex"])
def test_a_lock_of_the_bus_that_a_thread_holds_is_free_in_the_child(name: str) -> None:
    bus = EventBus()
    bus.listen(WorkerStarted, lambda event: None)

    def emit_one() -> None:
        bus.emit(WorkerStarted(0, "child"))
        bus.close()

    with held(attrgetter(name)(bus)):
        assert in_a_fork(emit_one) == "done"


def test_what_the_parent_has_not_delivered_is_not_delivered_again_by_its_child() -> None:
    bus = EventBus()
    go, heard = threading.Event(), []

    def listen(event: WorkerStarted) -> None:
        go.wait()
        heard.append(event.worker)

    bus.listen(WorkerStarted, listen)
    for n in range(5):
        bus.emit(WorkerStarted(0, f"parent {n}"))

    def emit_one() -> None:
        go.set()
        bus.emit(WorkerStarted(0, "child"))
        bus.close()
        assert heard == ["child"], heard

    assert in_a_fork(emit_one) == "done"
    go.set()
    bus.close()
    assert heard == [f"parent {n}" for n in range(5)]


def test_the_fork_method_of_multiprocessing_does_the_same() -> None:
    bus = EventBus()
    bus.listen(WorkerStarted, lambda event: None)
    fork = multiprocessing.get_context("fork")

    def emit_one() -> None:
        bus.emit(WorkerStarted(0, "child"))
        bus.close()

    with held(bus._queue.mutex):
        child = fork.Process(target=emit_one)
        child.start()
        child.join(DEADLINE)
        code = child.exitcode
        child.kill()
        child.join()
    assert code == 0


# ── locks of stores ──


def test_a_lock_that_stores_in_memory_share_is_free_in_the_child() -> None:
    with held(memory_store._runners_lock):
        assert in_a_fork(lambda: connect("memory://of-a-fork")) == "done"


def test_so_is_that_of_the_tokens_of_redis() -> None:
    context = redis_context.Context(RedisKeys("", "p"), None, clustered=False, replicas=0)
    with held(redis_context._used_lock):
        assert in_a_fork(lambda: context.used_before("token", ["default"])) == "done"


# ── stores that are imported at the same time ──

IMPORTING = """
    import importlib.abc, os, signal, sys, threading, time, warnings

    warnings.simplefilter("ignore")
    from penstock.stores.connect import connect

    inside, forking = threading.Event(), threading.Event()

    class Slow(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == {slow!r} and threading.current_thread() is not threading.main_thread():
                inside.set()
                forking.wait(5)
                time.sleep(0.3)  # the fork is made now, unless it waits for us

    sys.meta_path.insert(0, Slow())
    thread = threading.Thread(target=lambda: {act}, daemon=True)
    thread.start()
    assert inside.wait(5)
    os.register_at_fork(before=forking.set)
    pid = os.fork()
    if pid == 0:
        {act}
        os._exit(0)
    ends = time.monotonic() + 60
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > ends:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            sys.exit("the child hung")
        time.sleep(0.01)
    sys.exit(os.waitstatus_to_exitcode(ended[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "slow"),
    [
        ("connect('sqlite:///x.db')", "penstock.stores.sqlite.store"),
        ("connect('redis://localhost')", "penstock.stores.redis.store"),
        ("connect('memory://')", "penstock.stores.memory.store"),
        ("__import__('penstock').Worker", "penstock.worker.executor.executor"),
    ],
)
def test_a_fork_in_the_middle_of_an_import_of_a_store_leaves_a_child_that_can_import_it(
    tmp_path: Path, act: str, slow: str
) -> None:
    code = textwrap.dedent(IMPORTING).replace("{slow!r}", repr(slow)).replace("{act}", act)
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr


# ── SQLite ──


def test_slow_forks_at_the_same_time_leave_no_lock_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is in use for long delays a fork; two such forks must not confuse what they hold."""
    monkeypatch.setattr(PATIENCE, 0.3)
    stores = [SqliteStore(tmp_path / f"{n}.db", patience=2_000) for n in range(8)]
    for store in stores:
        store.sync.queues()
    said: list[str] = []
    with contextlib.ExitStack() as stack:
        for store in stores[::2]:
            stack.enter_context(held(store._runner._transaction_lock))
        forks = []
        for _ in range(3):
            fork = threading.Thread(target=lambda: said.append(in_a_fork(lambda: None)))
            fork.start()
            forks.append(fork)
            time.sleep(0.1)  # while the one before waits
        for fork in forks:
            fork.join()
    assert said == ["done"] * 3
    for store in stores:
        assert store._runner._transaction_lock.acquire(timeout=60), (
            "a fork has left the lock of a connection taken"
        )
        store._runner._transaction_lock.release()
        store.close()


def test_forks_wait_for_all_connections_together_not_for_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, 0.3)
    stores = [SqliteStore(tmp_path / f"{n}.db") for n in range(20)]
    with contextlib.ExitStack() as stack:
        for store in stores:
            stack.enter_context(held(store._runner._transaction_lock))
        kind = type(stores[0]._runner)
        before, waits = kind.before_fork, list[float]()

        def noted(runner: Any, seconds: float) -> bool:
            if any(runner is store._runner for store in stores):  # not of a test before
                waits.append(seconds)
            return before(runner, seconds)

        monkeypatch.setattr(kind, "before_fork", noted)
        assert in_a_fork(lambda: None) == "done"
        assert len(waits) == 20
        assert sum(waits) < 2 * 0.3, "what the first has waited is no longer there for the others"


def test_children_of_a_process_whose_threads_enqueue_enqueue_too(tmp_path: Path) -> None:
    store = connect(f"sqlite:///{tmp_path}/jobs.db?durability=normal")
    ids = iter(range(1_000_000))

    def enqueue() -> None:
        store.sync.enqueue([NewJob(f"{os.getpid()}-{next(ids)}", "t")])

    with busy(enqueue):
        for _ in range(5):
            assert in_a_fork(enqueue) == "done"
    store.close()
