"""Runs the tests on both interfaces of the pool: async, and threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.pool import JobQueue, Pool, ThreadJobQueue, ThreadPool


class Work:
    """What a pool's handler does, and what it has done; held, each job waits until `open`."""

    def __init__(self, gate: Any, *, held: bool) -> None:
        self.started: list[Any] = []
        self.finished: list[Any] = []
        self.fails: set[Any] = set()
        self.gate = gate
        if not held:
            gate.set()

    def open(self) -> None:
        self.gate.set()

    async def in_loop(self, job: Any) -> None:
        self.started.append(job)
        await self.gate.wait()
        self.end(job)

    def in_thread(self, job: Any) -> None:
        self.started.append(job)
        assert self.gate.wait(30)
        self.end(job)

    def end(self, job: Any) -> None:
        if job in self.fails:
            raise ValueError(f"job {job} fails")
        self.finished.append(job)


class Loops:
    """The front for an event loop."""

    name = "asyncio"
    Queue, Pool = JobQueue, Pool

    def work(self, *, held: bool = False) -> Work:
        return Work(asyncio.Event(), held=held)

    def pool(self, work: Work, *, workers: int = 1, capacity: int = 100, **facts: Any) -> Any:
        return Pool(work.in_loop, workers=workers, capacity=capacity, **facts)

    async def call(self, verb: Callable[..., Any], *args: Any, **facts: Any) -> Any:
        """A verb that may wait."""
        return await verb(*args, **facts)

    async def iterate(self, queue: Any, seen: list[Any]) -> None:
        async for job in queue:
            seen.append(job)

    def workers(self) -> int:
        return sum(task.get_name().startswith("penstock-") for task in asyncio.all_tasks())

    def everybody(self) -> int:
        return len(asyncio.all_tasks())


class Threads:
    """The queue and pool for threads."""

    name = "threads"
    Queue, Pool = ThreadJobQueue, ThreadPool

    def __init__(self) -> None:
        self.callers = ThreadPoolExecutor(64, thread_name_prefix="caller")

    def work(self, *, held: bool = False) -> Work:
        return Work(threading.Event(), held=held)

    def pool(self, work: Work, *, workers: int = 1, capacity: int = 100, **facts: Any) -> Any:
        return ThreadPool(work.in_thread, workers=workers, capacity=capacity, **facts)

    async def call(self, verb: Callable[..., Any], *args: Any, **facts: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.callers, lambda: verb(*args, **facts))

    async def iterate(self, queue: Any, seen: list[Any]) -> None:
        await self.call(seen.extend, queue)

    def workers(self) -> int:
        return sum(thread.name.startswith("penstock-") for thread in threading.enumerate())

    def everybody(self) -> int:
        return sum(not thread.name.startswith("caller") for thread in threading.enumerate())


@pytest.fixture(params=[Loops, Threads], ids=["asyncio", "threads"])
async def front(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    made = request.param()
    yield made
    if isinstance(made, Threads):
        made.callers.shutdown()


async def until(true: Callable[[], object]) -> None:
    """Return as soon as it is true: for what has no event of its own."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        await asyncio.sleep(0.001)


def blocked(pool: Any) -> int:
    """How many are blocked in `put`."""
    return len(pool._rules._putters)


async def blocked_put(front: Any, pool: Any, job: Any, timeout: float | None = None) -> asyncio.Task[Any]:
    """A `put` that is in the line when this returns."""
    before = blocked(pool)
    putting = asyncio.create_task(front.call(pool.put, job, timeout))
    await until(lambda: blocked(pool) == before + 1 or putting.done())
    return putting
