"""Transactions: their contents, their durability, calls without one, and opening and closing of a store."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Job, State
from penstock.core.lifecycle import Transition
from penstock.core.outcomes import QueuePosition
from penstock.stores.contract import HeartbeatRequest, Pruned, Settled, Share, Wake
from penstock.stores.sql.transaction_context import TransactionContext
from penstock.stores.sql.transactions import Verb
from penstock.stores.sqlite import SqliteStore
from tests.stores.sqlite.conftest import OpenStore, new, settlements, take, token


@contextmanager
def traced(store: SqliteStore) -> Iterator[list[str]]:
    """The statements that this store runs meanwhile."""
    cx = store._runner._transactions._cx
    assert cx is not None
    statements: list[str] = []
    cx.set_trace_callback(statements.append)
    try:
        yield statements
    finally:
        cx.set_trace_callback(None)


# ── group commit ──


async def test_what_is_asked_together_is_written_in_one_commit(store: SqliteStore) -> None:
    await store.enqueue([new("first")])
    with traced(store) as statements:
        await asyncio.gather(*(store.enqueue([new()]) for _ in range(200)))
    assert statements.count("COMMIT") <= 3
    (queue,) = await store.queues()
    assert queue.counts == {State.AVAILABLE: 201}


async def test_a_settle_and_the_next_fetch_share_a_commit(store: SqliteStore) -> None:
    await store.enqueue([new() for _ in range(20)])
    jobs = await take(store, 10)
    begun, both_asked = threading.Event(), threading.Event()

    def occupy(tx: TransactionContext) -> None:
        begun.set()
        both_asked.wait(60)

    async def ask_both() -> tuple[list[Settled], list[Job]]:
        both = asyncio.gather(store.settle(settlements(jobs)), take(store, 10))
        await asyncio.sleep(0)
        both_asked.set()
        return await both

    occupied = store._runner.run("", Verb(occupy, reads=True))
    await asyncio.to_thread(begun.wait, 60)
    with traced(store) as statements:
        settled, fetched = await ask_both()
    await occupied
    assert settled == [Settled.APPLIED] * 10
    assert len(fetched) == 10
    assert statements.count("BEGIN IMMEDIATE") == 1
    assert statements[statements.index("BEGIN IMMEDIATE") :].count("COMMIT") == 1


async def test_a_caller_that_gives_up_does_not_stop_the_others(store: SqliteStore) -> None:
    await store.enqueue([new("first")])
    tasks = [asyncio.create_task(store.enqueue([new(f"n{i}")])) for i in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(answer, list) for answer in done) == 9
    assert all(await store.get([new(f"n{i}").ref for i in range(10)]))  # its job was on its way


def test_many_threads_and_loops_share_a_store(store: SqliteStore) -> None:
    def with_loop(n: int) -> None:
        async def produce() -> None:
            for i in range(20):
                await store.enqueue([new(f"loop-{n}-{i}")])

        asyncio.run(produce())

    def without(n: int) -> None:
        for i in range(20):
            store.sync.enqueue([new(f"thread-{n}-{i}")])

    threads = [threading.Thread(target=f, args=(n,)) for n in range(4) for f in (with_loop, without)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (queue,) = store.sync.queues()
    assert queue.counts == {State.AVAILABLE: 160}


async def test_a_hold_that_is_over_costs_a_queue_nothing(path: Path, open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    await store.enqueue([new()])
    throttled = Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False, throttle=1_000)
    await store.settle(settlements(await take(store), throttled))
    assert await take(store) == []
    clock.advance(1_000)
    with traced(store) as statements:
        await store.enqueue([new(), new()])
        assert len(await take(store, 3)) == 3
    assert not [one for one in statements if "drained = " in one]
    assert not [one for one in statements if "SELECT 1 FROM penstock_job WHERE queue" in one]  # one by one


# ── without the write lock ──


async def test_what_has_nothing_to_write_needs_no_write_lock(open_store: OpenStore, path: Path) -> None:
    store = open_store(patience=30_000)
    await store.enqueue([new("later", delay=60_000), new("lost"), new("paused", queue="paused")])
    await store.settings("paused", paused=True)
    (running,) = await take(store)
    assert await store.wait([], timeout=1) == Wake.SETTINGS
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        async with asyncio.timeout(60):
            shares = [Share("default", 1, 1), Share("paused", 1, 1), Share("nobody's", 1, 1)]
            fetched = await store.fetch(shares, limit=3, lease=1_000, worker="w", token=token())
            assert fetched.jobs == []
            assert fetched.due is not None
            assert (await store.promote(["default"], limit=10)).moved == 0
            reclaimed = await store.reclaim(["default"], limit=9, lease=1, worker="w", token=token())
            assert reclaimed.jobs == []
            assert await store.prune() == Pruned(0, 0, 0)
            assert await store.wait(["paused"], timeout=1) == Wake.NOTHING
            assert (await store.get([running.ref]))[0] is not None
            assert len((await store.list_jobs()).jobs) == 3
            assert store.sync.queues()
    finally:
        other.execute("COMMIT")
        other.close()


# ── durability ──


async def test_only_what_must_survive_a_power_cut_is_synced(store: SqliteStore) -> None:
    def level() -> int:
        cx = store._runner._transactions._cx
        assert cx is not None
        (level,) = cx.execute("PRAGMA synchronous").fetchone()
        return int(level)

    full, normal = 2, 1
    for _ in range(3):
        await store.enqueue([new()])
        assert level() == full
        jobs = await take(store)
        assert level() == normal
        await asyncio.gather(store.settle(settlements(jobs)), take(store))
        assert level() == full


async def test_of_heartbeats_only_the_record_of_a_start_is_synced(store: SqliteStore) -> None:
    def level() -> int:
        cx = store._runner._transactions._cx
        assert cx is not None
        (level,) = cx.execute("PRAGMA synchronous").fetchone()
        return int(level)

    full, normal = 2, 1
    await store.enqueue([new()])
    (job,) = await take(store)
    await store.extend([HeartbeatRequest(job.lease, 1_000, started=True)])
    assert level() == normal
    await store.extend(
        [HeartbeatRequest(job.lease, 1_000), HeartbeatRequest(job.lease, 1_000, started=True, lasting=True)]
    )
    assert level() == full
    await store.extend([HeartbeatRequest(job.lease, 1_000, started=True)])
    assert level() == normal


async def test_normal_durability_never_syncs_fully(open_store: OpenStore) -> None:
    store = open_store(durability="normal")
    await store.enqueue([new()])
    with traced(store) as statements:
        store.sync.enqueue([new()])
        await store.settle(settlements(await take(store)))
    assert not any("synchronous" in statement for statement in statements)
    cx = store._runner._transactions._cx
    assert cx is not None
    assert cx.execute("PRAGMA synchronous").fetchone() == (1,)


@pytest.mark.slow
async def test_the_log_and_the_file_stay_small(store: SqliteStore, path: Path) -> None:
    sizes = []
    for i in range(80):
        await store.enqueue([new(payload=b"x" * 200) for _ in range(1_000)])
        await store.settle(settlements(await take(store, 1_000)))
        if i in (20, 79):
            sizes.append(path.stat().st_size)
    assert path.with_name("jobs.db-wal").stat().st_size < 24 * 2**20
    assert sizes[1] <= sizes[0] * 1.2
    assert sum(len(q.counts) for q in await store.queues()) == 0


@pytest.mark.slow
async def test_a_reader_that_stays_cannot_make_the_log_grow_for_ever_once_it_is_gone(
    store: SqliteStore, path: Path
) -> None:
    await store.enqueue([new()])
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM penstock_job").fetchone()
    log = path.with_name("jobs.db-wal")
    while log.stat().st_size < 20 * 2**20:
        await store.enqueue([new(payload=b"x" * 2_000) for _ in range(1_000)])
    reader.close()
    for _ in range(20):
        await store.enqueue([new(payload=b"x" * 2_000) for _ in range(1_000)])
    assert log.stat().st_size <= 17 * 2**20  # cut back when it began anew


# ── boots ──


async def test_the_leases_of_another_boot_are_void_when_the_file_is_opened(open_store: OpenStore) -> None:
    clock = ManualClock()
    before = open_store(clock=clock)
    await before.enqueue([new("a")])
    await take(before)
    before.close()
    clock.reboot("boot-2")
    after = open_store(clock=clock)
    lost = await after.reclaim(["default"], limit=1, lease=1_000, worker="w2", token=token())
    assert [job.id for job in lost.jobs] == ["a"]


# ── the life of a store ──


def threads() -> int:
    return sum(thread.name == "penstock-sqlite" for thread in threading.enumerate())


async def test_closing_lets_go_of_everything_and_using_it_again_opens_it(
    store: SqliteStore, path: Path
) -> None:
    await store.enqueue([new("a")])
    store.close()
    store.close()
    assert threads() == 0
    if Path("/proc/self/fd").exists():
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if there(fd)]
        assert not any(name.startswith(str(path)) for name in held)
    await store.enqueue([new("b")])
    assert all(await store.get([new("a").ref, new("b").ref]))


def there(fd: str) -> bool:
    try:
        os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False
    return True


async def test_a_close_answers_what_was_asked_before(store: SqliteStore) -> None:
    await store.enqueue([new("first")])
    asked = [asyncio.create_task(store.enqueue([new()])) for _ in range(10)]
    await asyncio.sleep(0)
    store.close()
    assert len(await asyncio.gather(*asked)) == 10


async def test_an_unreferenced_store_ends_its_thread(path: Path) -> None:
    store = SqliteStore(path)
    await store.enqueue([new()])
    assert threads() == 1
    del store
    gc.collect()
    assert threads() == 0


async def test_two_names_of_a_file_share_one_write_lock(open_store: OpenStore, path: Path) -> None:
    other = path.with_name("other.db")
    other.symlink_to(path)
    a, b = open_store(path), open_store(other)
    await a.enqueue([new("a")])
    await b.enqueue([new("b")])
    assert a.url == b.url
    assert [entry.name for entry in path.parent.iterdir() if entry.is_dir()] == ["jobs.db-penstock"]


async def test_the_url_names_the_file(store: SqliteStore, path: Path) -> None:
    assert store.url == f"sqlite:///{path}"
    assert store.path == path


async def test_a_big_batch_is_one_step(open_store: OpenStore) -> None:
    store, watcher = open_store(), open_store()
    await watcher.queues()
    stored = asyncio.Event()
    seen = []

    async def enqueue() -> None:
        await store.enqueue([new() for _ in range(25_000)])
        stored.set()

    async def look() -> None:
        while not stored.is_set():
            seen.append(sum(n for queue in await watcher.queues() for n in queue.counts.values()))

    await asyncio.gather(enqueue(), look())
    assert set(seen) <= {0, 25_000}
    assert len(seen) > 1
