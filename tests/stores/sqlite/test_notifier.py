"""Notification of waiters about commits of other processes: by watching the file, or by polling."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from pathlib import Path

import pytest

from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Settlement, Wake
from penstock.stores.sql import store as store_module
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite import notifier as notifier_module
from penstock.stores.sqlite.notifier import FileNotifier
from tests.stores.sqlite.conftest import KEPT, OpenStore, new, settlements, take

SOON = 60.0


@pytest.fixture(params=["watches", "polls"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With inotify, where there is one, and without."""
    if request.param == "polls":
        monkeypatch.setattr(notifier_module, "_inotify", lambda path: -1)
    elif notifier_module._libc() is None:
        pytest.skip("no inotify here")
    return str(request.param)


@pytest.fixture
def notifier(tmp_path: Path, way: str) -> Iterator[FileNotifier]:
    notifier = FileNotifier(tmp_path / "work")
    notifier.open()
    yield notifier
    notifier.close()


async def test_a_notification_wakes_a_waiter(notifier: FileNotifier) -> None:
    with notifier.loop_listener().listening() as waiter:
        heard = asyncio.create_task(waiter.wait(SOON))
        await asyncio.sleep(0)
        notifier.notify()
        assert await heard


async def test_a_notification_before_the_wait_is_not_lost(notifier: FileNotifier) -> None:
    with notifier.loop_listener().listening() as waiter:
        notifier.notify()
        assert await waiter.wait(SOON)


async def test_a_notification_before_listening_is_not_seen(notifier: FileNotifier) -> None:
    listener = notifier.loop_listener()
    with listener.listening():
        pass
    notifier.notify()
    with listener.listening() as waiter:
        assert not await waiter.wait(0.02)


async def test_every_waiter_is_notified(notifier: FileNotifier) -> None:
    listener = notifier.loop_listener()
    with listener.listening() as a, listener.listening() as b:
        tasks = [asyncio.create_task(waiter.wait(SOON)) for waiter in (a, b)]
        await asyncio.sleep(0)
        notifier.notify()
        assert await asyncio.gather(*tasks) == [True, True]


def test_a_thread_is_notified_too(notifier: FileNotifier) -> None:
    with notifier.listening() as waiter:
        assert not waiter.wait(0.01)
        timer = threading.Timer(0.02, notifier.notify)
        timer.start()
        assert waiter.wait(SOON)
        timer.join()


async def test_loops_and_threads_that_listen_at_once_are_all_notified(notifier: FileNotifier) -> None:
    def loop() -> bool:
        async def listen() -> bool:
            with notifier.loop_listener().listening() as waiter:
                ready.release()
                return await waiter.wait(SOON)

        return asyncio.run(listen())

    def thread() -> bool:
        with notifier.listening() as waiter:
            ready.release()
            return waiter.wait(SOON)

    ready = threading.Semaphore(0)
    with notifier.loop_listener().listening() as here, notifier.loop_listener().listening() as too:
        others = [asyncio.create_task(asyncio.to_thread(act)) for act in (loop, thread, thread, loop)]
        for _ in others:
            await asyncio.to_thread(ready.acquire)
        notifier.notify()
        assert await here.wait(SOON)
        assert await too.wait(SOON)
        assert await asyncio.gather(*others) == [True] * 4


def inotify_instances() -> int:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return links.count("anon_inode:inotify")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
def test_a_hundred_threads_that_wait_share_one_watch(open_store: OpenStore) -> None:
    store, second, worker = open_store(), open_store(), open_store()
    jobs = [new(retention=60_000) for _ in range(100)]
    store.sync.enqueue(jobs)
    before = inotify_instances()
    with ThreadPoolExecutor(100) as threads:
        waits = [
            threads.submit((store, second)[n % 2].sync.wait_for_end, [job.ref], timeout=60_000)
            for n, job in enumerate(jobs)
        ]
        time.sleep(1.5)  # until all of them have looked, and are asleep
        assert inotify_instances() <= before + 1
        used = time.process_time()
        time.sleep(1.5)  # waiting costs nothing but a look of each now and then
        assert time.process_time() - used < 0.5
        asyncio.run(end_all(worker, len(jobs)))
        found = [job for wait in waits for job in wait.result(SOON)]
    assert {job and job.state for job in found} == {State.COMPLETED}


async def end_all(store: SqliteStore, n: int) -> None:
    await store.settle(settlements(await take(store, n), KEPT))


def test_notifying_never_fails(tmp_path: Path) -> None:
    FileNotifier(tmp_path / "not opened").notify()


# ── the store with its notifiers ──


@pytest.fixture
def only_when_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter does not look by itself, as it does each second."""
    monkeypatch.setattr(store_module, "_SAFETY", 60.0)


@pytest.mark.usefixtures("only_when_notified")
async def test_an_enqueue_wakes_a_wait_of_another_store(open_store: OpenStore, way: str) -> None:
    waiter, producer = open_store(), open_store()
    waiting = asyncio.create_task(waiter.wait(["default"], timeout=60_000))
    await asleep(waiter)
    producer.sync.enqueue([new()])
    async with asyncio.timeout(SOON):
        assert await waiting == Wake.WORK


@pytest.mark.usefixtures("only_when_notified")
async def test_the_end_of_a_job_wakes_who_waits_for_it(open_store: OpenStore, way: str) -> None:
    waiter, worker = open_store(), open_store()
    job = new(retention=1_000)
    waiter.sync.enqueue([job])
    leased = await take(worker)
    in_loop = asyncio.create_task(waiter.wait_for_end([job.ref], timeout=60_000))
    in_thread = asyncio.create_task(asyncio.to_thread(waiter.sync.wait_for_end, [job.ref], timeout=60_000))
    await asleep(waiter)
    await worker.settle(settlements(leased, KEPT))
    async with asyncio.timeout(SOON):
        for found in await asyncio.gather(in_loop, in_thread):
            assert [job and job.state for job in found] == [State.COMPLETED]


@pytest.mark.usefixtures("only_when_notified")
async def test_a_job_that_is_not_kept_wakes_too(open_store: OpenStore, way: str) -> None:
    store = open_store()
    job = new()
    store.sync.enqueue([job])
    leased = await take(store)
    waiting = asyncio.create_task(store.wait_for_end([job.ref], timeout=60_000))
    await asleep(store)
    await store.settle([Settlement(leased[0].lease, Transition(State.COMPLETED))])
    async with asyncio.timeout(SOON):
        assert await waiting == [None]


async def test_a_writer_that_does_not_notify_is_noticed_within_a_second(
    open_store: OpenStore, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    await store.queues()
    monkeypatch.setattr(FileNotifier, "notify", lambda self: None)
    waiting = asyncio.create_task(store.wait(["default"], timeout=60_000))
    await asleep(store)
    store.sync.enqueue([new()])
    async with asyncio.timeout(SOON):
        assert await waiting == Wake.WORK


async def asleep(store: SqliteStore) -> None:
    """Until what was asked before has been answered once: then every waiter waits at its notifier."""
    for _ in range(3):
        await store.queues()
        await asyncio.sleep(0.01)


def produce(path: str, pipe: Connection) -> None:
    store = SqliteStore(path)
    while pipe.recv():
        pipe.send(True)
        store.sync.enqueue([new()])
    store.close()


@pytest.mark.slow
async def test_another_process_notifies_without_a_look_and_idling_costs_nothing(
    store: SqliteStore, path: Path, spawn: SpawnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.stores.sql.store._SAFETY", 3_600.0)
    await store.queues()
    ours, theirs = spawn.Pipe()
    producer = spawn.Process(target=produce, args=(str(path), theirs))
    producer.start()
    for _ in range(20):
        waiting = asyncio.create_task(store.wait(["default"], timeout=60_000))
        await asleep(store)
        ours.send(True)
        await asyncio.to_thread(ours.recv)
        assert await waiting == Wake.WORK
        await store.settle(settlements(await take(store, 10)))
    ours.send(False)
    producer.join()

    before = time.process_time()
    assert await store.wait(["default"], timeout=1_000) == Wake.NOTHING
    assert time.process_time() - before < 0.05
