"""Several processes on one file: no job is lost or run twice, and forks work."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from pathlib import Path

import pytest

from penstock.core.job import State
from penstock.stores.contract import Settled
from penstock.stores.sqlite import SqliteStore
from tests.stores.sqlite.conftest import checked, new, settlements, take

#: How often each process has its turn before all may end.
_TURNS = 100


def work(path: str, name: str, pipe: Connection) -> None:
    """Enqueues, fetches and settles as fast as it can until it is told to end; then works off the rest."""

    async def run() -> tuple[int, list[str]]:
        store = SqliteStore(path, durability="normal")
        await store.queues()
        pipe.send("ready")
        pipe.recv()
        enqueued, done = 0, []
        while not pipe.poll():
            await store.enqueue([new(f"{name}-{enqueued + i}") for i in range(5)])
            store.sync.enqueue([new(f"{name}-{enqueued + 5}")])
            enqueued += 6
            done += await some(store)
            if enqueued == 6 * _TURNS:
                pipe.send("enough")
        while more := await some(store):
            done += more
        store.close()
        return enqueued, done

    async def some(store: SqliteStore) -> list[str]:
        jobs = await take(store, 7, worker=name)
        assert await store.settle(settlements(jobs)) == [Settled.APPLIED] * len(jobs)
        return [job.id for job in jobs]

    pipe.send(asyncio.run(run()))


@pytest.mark.slow
def test_three_processes_lose_nothing_and_take_turns(path: Path, spawn: SpawnContext) -> None:
    pipes = []
    for i in range(3):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=work, args=(str(path), f"p{i}", theirs))
        process.start()
        theirs.close()  # so that the death of the process ends our wait for its word
        pipes.append((ours, process))
    for pipe, _ in pipes:
        assert pipe.recv() == "ready"
    for pipe, _ in pipes:
        pipe.send("go")
    for pipe, _ in pipes:
        assert pipe.recv() == "enough"
    for pipe, _ in pipes:
        pipe.send("end")
    results = [pipe.recv() for pipe, _ in pipes]
    for _, process in pipes:
        process.join()
    enqueued = sum(n for n, _ in results)
    done = Counter(id for _, ids in results for id in ids)
    assert set(done.values()) == {1}
    assert len(done) == enqueued
    store = SqliteStore(path)
    (queue,) = store.sync.queues()
    assert queue.counts == {}
    (stats,) = asyncio.run(store.stats())
    assert (stats.enqueued, stats.processed, stats.failed) == (enqueued, enqueued, 0)
    store.close()
    assert checked(path) == "ok"
    shares = [n for n, _ in results]
    assert min(shares) > 0.1 * max(shares), "one of them had to wait for its turns"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_a_fork_may_use_the_store_that_its_parent_uses(store: SqliteStore, path: Path) -> None:
    await store.enqueue([new("before")])  # the connection is open, the thread is there
    children = []
    for n in range(3):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for i in range(20):
                    store.sync.enqueue([new(f"child-{n}-{i}")])
                asyncio.new_event_loop().run_in_executor(None, int)  # a loop of its own works too
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    for i in range(20):
        await store.enqueue([new(f"parent-{i}")])
    for pid in children:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    (queue,) = await store.queues()
    assert queue.counts == {State.AVAILABLE: 81}
    store.close()
    assert checked(path) == "ok"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forks_child_may_use_it_asynchronously(store: SqliteStore) -> None:
    store.sync.enqueue([new("before")])
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            asyncio.run(store.enqueue([new("child")]))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert all(store.sync.get([new("before").ref, new("child").ref]))


def die_in_the_middle(path: str) -> None:
    store = SqliteStore(path)
    store.sync.enqueue([new("acknowledged")])
    cx = store._runner._transactions._cx
    assert cx is not None
    cx.execute("BEGIN IMMEDIATE")
    cx.execute("DELETE FROM penstock_job")
    os.kill(os.getpid(), 9)


@pytest.mark.slow
def test_a_kill_during_a_write_keeps_all_acknowledged_facts(path: Path, spawn: SpawnContext) -> None:
    process = spawn.Process(target=die_in_the_middle, args=(str(path),))
    process.start()
    process.join()
    assert process.exitcode == -9
    store = SqliteStore(path)
    (job,) = store.sync.get([new("acknowledged").ref])
    assert job is not None
    store.sync.enqueue([new("next")])
    store.close()
    assert checked(path) == "ok"
