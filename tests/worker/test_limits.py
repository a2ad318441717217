"""A worker with limited queues: jobs start on time, and changed settings apply at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock import App, EnqueueManyError, QueueFull, RateLimited, State, Worker, current_job
from penstock.client import backpressure
from penstock.stores.contract import QueueInfo
from tests.worker.conftest import patient

MAIL = "mail"


async def until(done: Any, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.005)


class Kit:
    """An app with a task that notes when it started, and how many ran at once."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.starts: list[float] = []
        self.granted: list[tuple[int, float]] = []  # per start: when it was allowed, when it was (ms)
        self.most = self._now = 0
        self.go = asyncio.Event()
        self.turns = asyncio.Semaphore(0)  # one of those that wait goes on

        @app.task(name="note", queue=MAIL, retention=None)
        async def note(wait: bool = False) -> None:
            self.starts.append(time.monotonic())
            self.granted.append((current_job().job.fetched_at or 0, time.time() * 1000))
            self._now += 1
            self.most = max(self.most, self._now)
            try:
                if wait:
                    going = [
                        asyncio.ensure_future(self.go.wait()),
                        asyncio.ensure_future(self.turns.acquire()),
                    ]
                    await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                    for one in going:
                        one.cancel()
            finally:
                self._now -= 1

        self.note = note

    def put(self, n: int, wait: bool = False) -> None:
        self.app.enqueue_many([self.note.job(wait) for _ in range(n)])

    def set(self, **limits: Any) -> QueueInfo:
        return self.app.queue(MAIL).settings(**limits)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db?durability=normal"}
    if request.param == "redis":
        server = request.getfixturevalue("redis")
        urls["redis"] = f"{server.url}?prefix=penstock-{uuid4().hex}"
    made = Kit(App(urls[request.param]))
    yield made
    made.app.close()


async def stopped(*workers: Worker) -> None:
    for worker in workers:
        worker.stop(now=True)


async def test_jobs_start_at_their_instants_and_not_before(kit: Kit) -> None:
    kit.set(rate="100/s")
    kit.put(30)
    worker = Worker(kit.app, [MAIL], concurrency=5)
    running = asyncio.create_task(worker.run())
    await until(lambda: len(kit.starts) == 30)
    await stopped(worker)
    await running
    granted = sorted(at for at, _ in kit.granted)
    assert min(b - a for a, b in pairwise(granted)) >= 10
    assert all(began >= at for at, began in kit.granted)


async def test_jobs_that_wait_for_their_instant_are_returned_when_the_worker_stops(kit: Kit) -> None:
    kit.set(rate="100/s")
    kit.put(50)
    worker = Worker(kit.app, [MAIL], concurrency=5)
    running = asyncio.create_task(worker.run())
    await until(lambda: len(kit.starts) >= 3)
    await stopped(worker)
    await running
    (info,) = await kit.app.store.queues()
    assert info.counts == {State.AVAILABLE: 50 - len(kit.starts)}


async def test_no_more_run_at_once_than_allowed_over_two_workers(kit: Kit) -> None:
    kit.set(max_running=3)
    kit.put(20, wait=True)
    workers = [Worker(kit.app, [MAIL], concurrency=5) for _ in range(2)]
    runs = [asyncio.create_task(worker.run()) for worker in workers]
    await until(lambda: len(kit.starts) == 3)
    kit.go.set()
    await until(lambda: len(kit.starts) == 20)
    await stopped(*workers)
    await asyncio.gather(*runs)
    assert kit.most == 3


async def test_parked_jobs_of_a_full_queue_start_as_others_end(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SAFETY_POLL", "1h")
    other_app = App(store=kit.app.store)

    @other_app.task(name="other", queue=MAIL)
    async def other() -> None: ...

    kit.put(6, wait=True)
    old = Worker(other_app, [MAIL], concurrency=5)
    runs = [asyncio.create_task(old.run())]
    await until_parked(kit.app, 6)
    kit.set(max_running=2)
    workers = [Worker(kit.app, [MAIL], concurrency=5) for _ in range(2)]
    runs += [asyncio.create_task(worker.run()) for worker in workers]
    for ended in range(5):  # one per look of a store's own would take 20 s
        await until(lambda n=ended: len(kit.starts) == min(2 + n, 6))
        await asyncio.sleep(0.05)  # and whoever has nothing to do sleeps
        kit.turns.release()
    await stopped(old, *workers)
    await asyncio.gather(*runs)
    assert kit.most <= 2


async def until_parked(app: App, n: int) -> None:
    async with asyncio.timeout(60):
        while sum(one.jobs for one in await app.store.parked()) < n:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("change", [{"max_running": 5}, {"max_running": None}])
async def test_a_raised_limit_is_obeyed_by_a_worker_with_nothing_to_do(
    kit: Kit, change: dict[str, Any]
) -> None:
    kit.set(max_running=1)
    kit.put(5, wait=True)
    worker = Worker(kit.app, [MAIL], concurrency=5, config=patient(safety_poll="1h"))
    running = asyncio.create_task(worker.run())
    await until(lambda: len(kit.starts) == 1)
    await asyncio.sleep(0.1)
    assert len(kit.starts) == 1
    await kit.app.queue(MAIL).asettings(**change)
    await until(lambda: len(kit.starts) == 5)
    kit.go.set()
    await stopped(worker)
    await running


@pytest.mark.slow
async def test_a_limit_is_obeyed_under_load(kit: Kit) -> None:
    kit.put(20_000)  # more than any machine starts before the limit is read
    worker = Worker(kit.app, [MAIL], concurrency=10)
    running = asyncio.create_task(worker.run())
    await until(lambda: len(kit.starts) > 100)
    await kit.app.queue(MAIL).asettings(rate="1/min")
    await asyncio.sleep(0.2)
    before = len(kit.starts)
    await asyncio.sleep(0.2)
    assert before < 20_000
    assert len(kit.starts) <= before + 1
    await kit.app.queue(MAIL).asettings(rate=None)
    await until(lambda: len(kit.starts) > before + 500, 30)
    await stopped(worker)
    await running


async def test_a_throttle_slows_all_workers(kit: Kit) -> None:
    refused: list[str] = []

    @kit.app.task(name="call", queue=MAIL, retention=None, max_attempts=1)
    async def call() -> None:
        if not refused:
            refused.append(current_job().id)
            raise RateLimited(0.6, "429")
        kit.starts.append(time.monotonic())

    workers = [Worker(kit.app, [MAIL], concurrency=2) for _ in range(2)]
    runs = [asyncio.create_task(worker.run()) for worker in workers]
    began = time.monotonic()
    first = await call.aenqueue()
    await until(lambda: bool(refused))

    async def is_held() -> bool:
        (info,) = await kit.app.store.queues()
        return info.throttled_until is not None

    async with asyncio.timeout(60):
        while not await is_held():
            await asyncio.sleep(0.005)
    for _ in range(5):
        await call.aenqueue()
    await until(lambda: len(kit.starts) == 6)
    assert min(kit.starts) - began >= 0.55
    job = await first.ajob()
    assert job is None or job.attempt == 1
    await stopped(*workers)
    await asyncio.gather(*runs)


@pytest.mark.parametrize("whole", [False, True])
async def test_a_throttled_key_slows_no_other_key(kit: Kit, whole: bool) -> None:
    seconds = 3.0  # a busy machine takes a second to start the others
    refused: list[str] = []
    starts: list[tuple[str, float]] = []

    @kit.app.task(name="call", queue=MAIL, retention=None, max_attempts=1, concurrency_key="host")
    async def call(host: str) -> None:
        if host == "slow" and not refused:
            refused.append(current_job().id)
            raise RateLimited(seconds, "429", key=not whole)
        starts.append((host, time.monotonic()))

    workers = [Worker(kit.app, [MAIL], concurrency=2) for _ in range(2)]
    runs = [asyncio.create_task(worker.run()) for worker in workers]
    began = time.monotonic()
    first = await call.aenqueue("slow")
    await until(lambda: bool(refused))

    async def is_held() -> bool:
        job = await first.ajob()
        return job is not None and job.state in (State.AVAILABLE, State.WAITING)

    async with asyncio.timeout(60):
        while not await is_held():
            await asyncio.sleep(0.005)
    for host in ("slow", "quick", "slow", "quick"):
        await call.aenqueue(host)
    await until(lambda: len(starts) == 5)
    slow = [at - began for host, at in starts if host == "slow"]
    quick = [at - began for host, at in starts if host == "quick"]
    assert min(slow) >= seconds - 0.05
    assert (min(quick) >= seconds - 0.05) is whole
    if not whole:
        assert [host for host, _ in starts] == ["quick", "quick", "slow", "slow", "slow"]
    job = await first.ajob()
    assert job is None or job.attempt == 1
    await stopped(*workers)
    await asyncio.gather(*runs)


async def test_a_queue_that_opens_by_time_starts_its_jobs_then(kit: Kit) -> None:
    kit.set(throttle="300ms")
    kit.put(3)
    began = time.monotonic()
    worker = Worker(kit.app, [MAIL], concurrency=5)
    running = asyncio.create_task(worker.run())
    await until(lambda: len(kit.starts) == 3)
    assert kit.starts[0] - began >= 0.25
    await stopped(worker)
    await running


async def test_take_waits_for_the_instant_too(kit: Kit) -> None:
    kit.set(rate="50/s")
    kit.put(4)
    granted: list[int] = []
    for _ in range(4):
        async with kit.app.take(MAIL) as taken:
            granted.append(taken.job.fetched_at or 0)
            assert time.time() * 1000 >= granted[-1]
    assert min(b - a for a, b in pairwise(granted)) >= 20


# ── full queues ──


async def test_an_enqueue_waits_for_room_and_others_go_on(kit: Kit) -> None:
    @kit.app.task(name="other", queue="other", retention=None)
    async def other() -> None: ...

    kit.set(max_size=2, on_full="wait")
    kit.put(2)
    waiting = asyncio.create_task(kit.note.aenqueue())
    await asyncio.sleep(0.03)
    handle = await asyncio.wait_for(other.aenqueue(), 60)
    assert await handle.astatus() is State.AVAILABLE
    assert not waiting.done()
    worker = Worker(kit.app, [MAIL], concurrency=5)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(waiting, 60)
    await until(lambda: len(kit.starts) == 3)
    await stopped(worker)
    await running


async def test_a_wait_for_room_ends_with_its_time(tmp_path: Any) -> None:
    kit = Kit(App("memory://", full_timeout="80ms"))
    kit.set(max_size=1, on_full="wait")
    kit.put(1)
    began = time.monotonic()
    with pytest.raises(QueueFull, match="the queue 'mail' is full: 1 job waits in it") as caught:
        await kit.note.aenqueue()
    assert time.monotonic() - began >= 0.08
    assert caught.value.size == 1
    assert caught.value.retry_after is not None
    with pytest.raises(QueueFull, match="use aenqueue"):  # at once: the loop is not blocked
        kit.note.enqueue()


@pytest.mark.parametrize("door", ["enqueue_many", "aenqueue_many"])
def test_many_jobs_wait_no_longer_than_one(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.client.CHUNK", 1)
    kit = Kit(App("memory://", full_timeout="300ms"))
    kit.set(max_size=1, on_full="wait")
    jobs = [kit.note.job() for _ in range(20)]
    app, slept = kit.app, 0.0
    pause = backpressure.Backpressure.pause

    def counted(waiting: backpressure.Backpressure) -> float | None:
        nonlocal slept
        left = pause(waiting)
        slept += left or 0.0
        return left

    monkeypatch.setattr(backpressure.Backpressure, "pause", counted)
    with pytest.raises(EnqueueManyError) as caught:
        app.enqueue_many(jobs) if door == "enqueue_many" else asyncio.run(app.aenqueue_many(jobs))
    assert 0.0 < slept <= 0.3, "all together wait as long as one would"
    assert len(caught.value.errors) == 19


def test_a_thread_waits_for_room(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(queue=MAIL)
    def note() -> None: ...

    app.queue(MAIL).settings(max_size=1, on_full="wait")
    first = note.enqueue()
    threading.Timer(0.1, first.cancel).start()
    second = note.enqueue()
    assert second.status() is State.AVAILABLE
    third_and_fourth = [note.job(), note.job()]
    threading.Timer(0.1, second.cancel).start()
    threading.Timer(0.2, lambda: app.queue(MAIL).settings(max_size=2)).start()
    handles = app.enqueue_many(third_and_fourth)
    assert [handle.status() for handle in handles] == [State.AVAILABLE] * 2
    app.close()


def test_a_full_queue_refuses_at_once_and_stores_nothing(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(queue=MAIL)
    def note() -> None: ...

    app.queue(MAIL).settings(max_size=1)
    note.enqueue()
    with pytest.raises(QueueFull, match=r"try again in 1 s") as caught:
        note.enqueue()
    assert (caught.value.queue, caught.value.retry_after, caught.value.size) == (MAIL, 1.0, 1)
    (info,) = app.store.sync.queues()
    assert info.counts == {State.AVAILABLE: 1}
    app.close()
