"""Random load: workers come and go, the store fails, jobs fail, hang and are cancelled."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.app.task import Task
from penstock.client.handle import Handle
from penstock.core.job import State
from penstock.errors import Discard, Retry, Snooze, StoreUnavailable
from penstock.stores.contract import Store
from penstock.worker import Worker
from penstock.worker.queues import Queue
from tests.worker.conftest import in_a_burst, nothing_left, quick, until

JOBS = 200
MOST = 10


class Account:
    """What the functions themselves saw: the one thing that no store could make up."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.now: Counter[str] = Counter()
        self.attempts: dict[str, list[int]] = {}
        self.faults: list[str] = []

    def begin(self) -> None:
        job = current_job()
        self.runs[job.id] += 1
        self.now[job.id] += 1
        self.attempts.setdefault(job.id, []).append(job.attempt)
        if self.now[job.id] > 1 and job.task != "in_thread":  # a thread that is released ends a bit later
            self.faults.append(f"{job.id} runs twice at a time")
        if job.attempt > MOST:
            self.faults.append(f"{job.id} is in attempt {job.attempt}")

    def end(self, id: str) -> None:
        self.now[id] -= 1


class Moody:
    """A store that now and then does not do what it is asked, or does it and does not answer."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self._store, self._rng = store, rng

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("fetch", "settle", "extend", "promote"):
            return found

        async def moody(*args: Any, **kwargs: Any) -> Any:
            mood = self._rng.random()
            if mood < 0.03:
                raise StoreUnavailable("it did not")
            answer = await found(*args, **kwargs)
            if mood > 0.97:
                raise StoreUnavailable("it did, and did not say so")
            return answer

        return moody


def registered(app: App, account: Account) -> dict[str, Task[..., Any]]:
    """The same tasks in each app; each knows by its argument how to behave."""

    def behave(how: str) -> None:
        attempt, runs = current_job().attempt, account.runs[current_job().id]
        if how == "fail" and attempt < 3:
            raise ValueError("by lot")
        if how == "always fail":
            raise ValueError("by lot")
        if how == "retry" and attempt < 2:
            raise Retry("by lot", delay=0.01)
        if how == "snooze" and runs < 2:
            raise Snooze(0.01)
        if how == "discard":
            raise Discard("by lot")

    options: Any = {"retry": "5ms", "timeout": "200ms", "max_attempts": MOST, "retention": "1h"}

    once_options = {**options, "delivery": "at-most-once"}
    del once_options["max_attempts"], once_options["retry"]

    @app.task(name="in_loop", queue="one", **options)
    async def in_loop(how: str, seconds: float) -> str:
        id = current_job().id
        account.begin()
        try:
            await asyncio.sleep(60 if how == "hang" and account.runs[id] < 2 else seconds)
            behave(how)
        finally:
            account.end(id)
        return how

    @app.task(name="in_thread", queue="two", **options)
    def in_thread(how: str, seconds: float) -> str:
        id = current_job().id
        account.begin()
        try:
            ends = time.monotonic() + (60 if how == "hang" and account.runs[id] < 2 else seconds)
            while time.monotonic() < ends:
                time.sleep(0.001)
            behave(how)
        finally:
            account.end(id)
        return how

    @app.task(name="once", queue="one", **once_options)
    async def once(how: str, seconds: float) -> str:
        id = current_job().id
        account.begin()
        try:
            await asyncio.sleep(seconds)
            behave(how)
        finally:
            account.end(id)
        return how

    return {"in_loop": in_loop, "in_thread": in_thread, "once": once}


HOWS = ["return"] * 8 + ["fail", "always fail", "retry", "snooze", "discard", "hang"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
async def test_each_job_ends_once_in_any_case(
    new_app: Callable[[], App], seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    rng, account = random.Random(seed), Account()
    apps = [new_app() for _ in range(2)]
    for app in apps:
        registered(app, account)
        app.use_store(cast(Store, Moody(app.store, rng)))
    producer = new_app()
    own = registered(producer, account)

    spans = [0, 0, 0.001, 0.01, 0.05]
    plan = [(rng.choice(list(own)), rng.choice(HOWS), rng.choice(spans)) for _ in range(JOBS)]
    handles: list[Handle[Any]] = []

    async def produce() -> None:
        for name, how, seconds in plan:
            task = own[name].using(delay=rng.choice([0, 0, 0, 0.05]), priority=rng.choice([0, 0, 5]))
            handles.append(await task.aenqueue(how, seconds))
            if rng.random() < 0.1:
                await asyncio.sleep(0.005)
            if rng.random() < 0.05:
                await rng.choice(handles).acancel()

    async def work(app: App) -> None:
        """One worker after the other, each for a short while."""
        while not done.is_set():
            knobs = {"drain_timeout": rng.choice(["1ms", "20ms"]), "thread_grace": "10ms"}
            config = quick(lease="2s", heartbeat="100ms", reclaim_every="100ms", **knobs)
            slots = rng.choice([None, 3])
            worker = Worker(
                app,
                [Queue("one", weight=2), Queue("two", slots=slots)],
                concurrency=rng.choice([1, 5, 20]),
                config=config,
            )
            run = asyncio.create_task(worker.run())
            await asyncio.wait(
                {run, asyncio.create_task(done.wait())},
                timeout=rng.uniform(0.05, 0.4),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if rng.random() < 0.2:
                run.cancel()
                await asyncio.wait({run})
            else:
                worker.stop()
                await run
            await nothing_left(worker)

    async def all_ended() -> bool:
        if len(handles) < JOBS:
            return False
        jobs = await producer.store.get([handle.ref for handle in handles])
        return all(job is not None and job.ended for job in jobs)

    done = asyncio.Event()
    running = [asyncio.create_task(work(app)) for app in apps]
    await produce()
    try:
        await until(all_ended, "every job has ended")
    finally:
        done.set()
        await asyncio.gather(*running)

    assert account.faults == []
    for (name, how, _), handle in zip(plan, handles, strict=True):
        job = await handle.ajob()
        assert job is not None
        runs = account.runs[handle.id]
        what = f"{name} {how}: {job.state.value} after {runs} runs, {job.reason}"
        if job.state is State.CANCELLED:
            continue
        if name == "once":
            assert runs <= (2 if how == "snooze" else 1), what
        if how in ("return", "retry", "snooze", "fail", "hang") and name != "once":
            assert job.state is State.COMPLETED, what
            assert runs >= 1, what
        if how in ("always fail", "discard"):
            assert job.state is State.DEAD, what
        assert job.attempt <= MOST, what
    await in_a_burst(producer)
    totals = await producer.store.stats()
    assert sum(queue.enqueued for queue in totals) == JOBS
    ends = {State.COMPLETED, State.DEAD, State.CANCELLED}
    assert all(set(info.counts) <= ends for info in await producer.store.queues())
