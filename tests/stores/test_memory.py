"""The memory store alone: sharing by name, one process, several event loops, and no growth."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import Transition
from penstock.errors import StoreError
from penstock.stores.contract import Settlement, Share, Wake
from penstock.stores.memory import MemoryStore
from penstock.stores.memory.store import _SPARE, _SQLITE, MemoryRunner
from penstock.stores.sql.notifying import ENDED
from penstock.stores.sql.transactions import Verb
from penstock.stores.sql.verbs.fetching import look

SOON = 60.0


def name() -> str:
    return uuid.uuid4().hex


def new(id: str, **facts: object) -> NewJob:
    return NewJob(id, "t", **facts)  # type: ignore[arg-type]


# ── shelves ──


def test_a_wait_that_was_left_behind_may_be_collected_while_a_verb_is_at_work() -> None:
    """The garbage collector runs where it likes: it must not wait for the state that its own thread holds."""
    store, ended = MemoryStore(), threading.Event()
    runner = store._memory
    store.sync.enqueue([new("a")])
    ends = store.sync.stream_ends([new("a").ref, new("gone").ref], timeout=60_000)
    assert next(ends) == {new("gone").ref: None}
    runner.notifiers[ENDED].calls["a wait"] = lambda _: None
    cycle: list[object] = [ends]
    cycle.append(cycle)
    del ends, cycle

    def verb() -> None:
        runner.run_sync("", Verb(lambda _: gc.collect(), reads=True))
        ended.set()

    threading.Thread(target=verb, daemon=True).start()
    assert ended.wait(SOON)
    assert list(runner.notifiers[ENDED].calls) == ["a wait"]


def test_stores_of_one_name_share_their_jobs() -> None:
    shared = name()
    MemoryStore(shared).sync.enqueue([new("a")])
    assert MemoryStore(shared).sync.get([new("a").ref]) != [None]
    assert MemoryStore(shared, namespace="other").sync.get([new("a").ref]) == [None]
    assert MemoryStore(name()).sync.get([new("a").ref]) == [None]


def test_a_database_is_used_again_as_if_it_were_new() -> None:
    def contents(store: MemoryStore) -> list[str]:
        return list(store._memory._transactions.cx.iterdump())

    def opened() -> MemoryStore:
        return MemoryStore(clock=ManualClock(now=5_000))

    store = opened()
    empty, database = contents(store), store._memory._transactions.cx
    store.sync.enqueue([new("a", queue="q"), new("b", delay=60_000)])
    store.sync.cancel([new("b").ref])
    store.sync.settings("q", paused=True)
    assert contents(store) != empty
    del store
    gc.collect()
    stores = [opened() for _ in range(_SPARE)]
    (again,) = [store for store in stores if store._memory._transactions.cx is database]
    assert contents(again) == empty
    database.execute("BEGIN")  # a verb that a signal has cut off
    stores.clear()
    del again
    gc.collect()
    stores = [opened() for _ in range(_SPARE)]
    assert not any(store._memory._transactions.cx is database for store in stores)


def test_few_databases_are_kept_for_later_stores() -> None:
    stores = [MemoryStore() for _ in range(20)]
    databases = [weakref.ref(store._memory._transactions) for store in stores]
    stores.clear()
    gc.collect()
    assert not any(one() for one in databases)
    assert len(_SQLITE._dropped) == _SPARE


def test_a_store_without_a_name_is_private() -> None:
    one, two = MemoryStore(), MemoryStore()
    one.sync.enqueue([new("a")])
    assert two.sync.get([new("a").ref]) == [None]


def test_jobs_outlive_the_store_object_of_their_name() -> None:
    shared = name()
    store = MemoryStore(shared)
    store.sync.enqueue([new("a")])
    store.close()
    store.close()
    del store
    assert MemoryStore(shared).sync.get([new("a").ref]) != [None]


def test_the_clock_is_that_of_the_first_of_a_name() -> None:
    shared, clock = name(), ManualClock(now=5_000)
    MemoryStore(shared, clock=clock)
    other = MemoryStore(shared)
    other.sync.enqueue([new("a")])
    (job,) = other.sync.get([new("a").ref])
    assert job is not None
    assert job.enqueued_at == 5_000


def test_the_url_says_its_name() -> None:
    assert MemoryStore().url == "memory://"
    assert MemoryStore("jobs", namespace="x").url == "memory://jobs"


# ── processes ──


def in_a_fork(act: Callable[[], None]) -> int:
    """How a fork that does this ends: 0 if it does it without an error."""
    process = multiprocessing.get_context("fork").Process(target=act)
    process.start()
    process.join(SOON)
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_cannot_use_the_stores_of_its_parent() -> None:
    shared = name()
    private, named = MemoryStore(), MemoryStore(shared)

    def refused() -> None:
        for store in (private, named):
            with pytest.raises(StoreError, match="one process"):
                store.sync.enqueue([new("a")])
            with pytest.raises(StoreError, match="sqlite:///"):
                asyncio.run(store.fetch([], limit=1, lease=1, worker="w", token="t"))

    def own() -> None:
        for store in (MemoryStore(), MemoryStore(shared)):
            store.sync.enqueue([new("a")])
            assert store.sync.get([new("a").ref]) != [None]

    assert in_a_fork(refused) == 0
    assert in_a_fork(own) == 0
    assert private.sync.get([new("a").ref]) == named.sync.get([new("a").ref]) == [None]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_beside_threads_that_use_stores_leaves_a_child_that_can_use_its_own() -> None:
    """A thread inside of SQLite at the fork would leave SQLite's own locks held in the child."""
    over, shared = threading.Event(), MemoryStore()

    def use() -> None:
        while not over.is_set():
            MemoryStore().sync.enqueue([new(f"{n}") for n in range(50)])
            shared.sync.get([new("a").ref])

    def own() -> None:
        assert len(MemoryStore().sync.enqueue([new("a")])) == 1
        shared.in_namespace("other")

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [in_a_fork(own) for _ in range(40)] == [0] * 40
    finally:
        over.set()
        for thread in threads:
            thread.join(SOON)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_view_is_made_where_no_verb_may_run() -> None:
    """A fork's child, and a signal handler in a verb, may refer to a store that they do not use."""
    store, views = MemoryStore(), []

    def other() -> None:
        assert store.in_namespace("other").namespace == "other"

    assert in_a_fork(other) == 0
    store._memory.run_sync("", Verb(lambda _: views.append(store.in_namespace("other")), reads=True))
    assert views == [store.in_namespace("other")]


def test_a_program_that_ends_leaves_no_database_open() -> None:
    """Python warns of those from 3.13 on."""
    program = """
from penstock.core.job import NewJob
from penstock.stores.memory import MemoryStore
from penstock.stores.memory.store import _SPARE, _SQLITE, MemoryRunner, _tables
kept, named = MemoryStore(), MemoryStore("jobs")
for store in (kept, named, MemoryStore()):
    store.sync.enqueue([NewJob("a", "t")])
"""
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")


# ── the library ──


def test_a_library_that_is_too_old_is_named() -> None:
    program = """
import sqlite3
newest, sqlite3.sqlite_version_info = sqlite3.sqlite_version_info, (3, 36, 0)
from penstock.errors import StoreError
from penstock.stores.memory import MemoryStore
try:
    MemoryStore()
except StoreError as error:
    print(error)
sqlite3.sqlite_version_info = newest
print(MemoryStore().sync.get([]))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "memory:// needs 3.37.0 or later" in ran.stdout
    assert (ran.stdout.splitlines()[-1], ran.stderr) == ("[]", "")


def test_a_sort_needs_no_file() -> None:
    store = MemoryStore()
    assert store._memory._transactions.cx.execute("PRAGMA temp_store").fetchone() == (2,)


# ── loops ──


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no eager tasks before 3.12")
async def test_tasks_may_be_eager() -> None:
    """A notification must not run the code of a waiter inside of the verb that has committed."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    store, share = MemoryStore(), [Share("default", 2, 2)]
    for n in range(3):
        await store.enqueue([new(f"{n}")])
        ended = asyncio.ensure_future(store.wait_for_end([new(f"{n}").ref], timeout=60_000))
        (job,) = (await store.fetch(share, limit=1, lease=1_000, worker="w", token=f"t{n}")).jobs
        found = asyncio.ensure_future(store.wait(["default"], timeout=60_000))
        await store.settle([Settlement(job.lease, Transition(State.COMPLETED, keep=1_000))])
        await store.enqueue([new(f"{n} too")])
        async with asyncio.timeout(0.8):  # waiters look again each second, however they are told
            assert [one and one.state for one in await ended] == [State.COMPLETED]
            assert await found == Wake.WORK
        await store.delete([new(f"{n} too").ref])


async def test_a_signal_handler_wakes_the_loop_that_it_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.stores.sql.store._SAFETY", 10 * SOON)  # the next look without being told
    store = MemoryStore()
    wait = asyncio.create_task(store.wait(["default"], timeout=600_000))
    before = signal.signal(signal.SIGALRM, lambda *_: store.sync.enqueue([new("a")]))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)  # by then the loop does nothing but wait
        async with asyncio.timeout(SOON):
            assert await wait is Wake.WORK
    finally:
        signal.signal(signal.SIGALRM, before)


async def test_work_in_other_queues_wakes_nobody() -> None:
    store, looks, asked = MemoryStore(), [], MemoryRunner.run

    async def counted(self: MemoryRunner, namespace: str, verb: Verb[..., Any], *args: Any) -> Any:
        if verb.act is look:
            looks.append(args[0])
        return await asked(self, namespace, verb, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryRunner, "run", counted)
        waits = [asyncio.ensure_future(store.wait([name], timeout=60_000)) for name in ("a", "b")]
        await asyncio.sleep(0)
        looks.clear()
        for n in range(5):
            await store.enqueue([new(f"{n}", queue="c")])
            await asyncio.sleep(0.001)
        assert looks == []
        await store.enqueue([new("it", queue="b")])
        assert await waits[1] == Wake.WORK
        assert looks == [["b"]]
        await store.settings("c", paused=True)
        assert await waits[0] == Wake.SETTINGS


async def test_each_observer_is_told_of_each_call() -> None:
    store, told = MemoryStore(), []
    for who in ("one", "two"):
        store.observe(lambda verb, _, failed, who=who: told.append((who, verb, failed)))  # type: ignore[misc]
    await store.enqueue([new("a")])
    assert told == [("one", "enqueue", False), ("two", "enqueue", False)]


def test_a_waiter_of_a_closed_loop_disturbs_no_other_waiter() -> None:
    store = MemoryStore()
    loop = asyncio.new_event_loop()
    waiter = loop.create_task(store.wait(["default"], timeout=60_000))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    store.sync.enqueue([new("a")])
    assert asyncio.run(store.wait(["default"], timeout=60_000)) == Wake.WORK
    waiter.get_coro().close()  # type: ignore[union-attr]
    waiter._log_destroy_pending = False  # type: ignore[attr-defined]  # it can never run again


def test_a_waiter_in_a_thread_is_woken_from_a_loop_and_the_other_way_round() -> None:
    store = MemoryStore()
    store.sync.enqueue([new("a"), new("b", delay=60_000)])
    ready, found = threading.Event(), []

    def wait() -> None:
        ready.set()
        found.extend(store.sync.wait_for_end([new("a").ref, new("b").ref], timeout=60_000))

    thread = threading.Thread(target=wait)
    thread.start()
    assert ready.wait(SOON)

    async def end_both() -> None:
        share = [Share("default", 1, 1)]
        (job,) = (await store.fetch(share, limit=1, lease=1_000, worker="w", token="t")).jobs
        await store.settle([Settlement(job.lease, Transition(State.COMPLETED, keep=1_000))])
        await store.cancel([new("b").ref])

    asyncio.run(end_both())
    thread.join(SOON)
    assert [job.state for job in found] == [State.COMPLETED, State.CANCELLED]


# ── nothing grows (I6) ──


def lengths(store: MemoryStore) -> dict[str, int]:
    """How many rows each table has, and how many listeners there are."""
    cx = store._memory._transactions.cx
    tables = [name for (name,) in cx.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {table: cx.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    return found | {name: len(one.calls) for name, one in store._memory.notifiers.items()}


async def test_a_memory_through_which_many_jobs_went_is_as_small_as_before() -> None:
    store = MemoryStore(clock=ManualClock())
    share = [Share("default", 100, 100)]
    for turn in range(60):
        jobs = [new(f"{turn}-{n}", expires_in=60_000, delay=n % 2, headers={"n": str(n)}) for n in range(100)]
        await store.enqueue(jobs)
        fetched = await store.fetch(share, limit=100, lease=1_000, worker=f"w{turn}", token=f"t{turn}")
        done = Transition(State.COMPLETED)
        await store.settle([Settlement(job.lease, done) for job in fetched.jobs])
        await store.cancel([job.ref for job in jobs])
        await store.delete([job.ref for job in jobs])
        await store.wait([f"q{turn}"], timeout=0)
        await store.wait_for_end([jobs[0].ref], timeout=0)
    for what, held in lengths(store).items():
        assert held <= 200, what
    assert lengths(store)["penstock_job"] == 0


async def test_reading_and_asking_makes_nothing() -> None:
    store = MemoryStore()
    before = lengths(store)
    ghosts = [new(f"x{n}", queue=f"q{n}").ref for n in range(50)]
    await store.get(ghosts)
    await store.cancel(ghosts)
    await store.retry(ghosts)
    await store.reschedule(ghosts)
    await store.delete(ghosts)
    await store.wait_for_end(ghosts, timeout=0)
    for ref in ghosts:
        await store.promote([ref.queue], limit=1)
        await store.purge(ref.queue, list(State))
        await store.drop(ref.queue)
        await store.fetch([Share(ref.queue, 1, 1)], limit=1, lease=1, worker="w", token="t")
        await store.reclaim([ref.queue], limit=1, lease=1, worker="w", token="t")
        await store.retire(ref.id)
    assert lengths(store) == before
