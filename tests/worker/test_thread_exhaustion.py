"""The system cannot start more threads: jobs wait for the existing ones, and no job or slot is lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.app.app import App
from penstock.core.job import State
from penstock.worker.pools import CallThreadPool, thread_pool
from tests.worker.conftest import at_work, becomes, ended, patient, until
from tests.worker.task_bodies import act, act_async
from tests.worker.test_threads import Ends

RUN_OUT = "can't start new thread"


class Limit:
    """The limit of the user's processes, for threads that run calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = True
        self.refused = 0
        start = threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            if self.reached and thread.name.startswith("penstock-thread"):
                self.refused += 1
                raise RuntimeError(RUN_OUT)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)
        monkeypatch.setattr(thread_pool, "RETRY_AFTER", 0.02)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    return Limit(monkeypatch)


async def test_calls_wait_until_there_is_a_thread_and_it_is_said_once(
    limit: Limit, caplog: pytest.LogCaptureFixture
) -> None:
    ends = Ends()
    pool = CallThreadPool(2, ends)
    pool.start()
    for n in range(3):
        pool.submit(n, lambda: "ran")
    await until(lambda: limit.refused > 2, "it is tried again")
    assert ends.all == []
    limit.reached = False
    assert sorted(done[0] for done in await ends.wait_for(3)) == [0, 1, 2]
    assert caplog.text.count(RUN_OUT) == 1
    assert pool.close()


async def test_calls_share_the_threads_that_there_are(limit: Limit) -> None:
    ends = Ends()
    pool = CallThreadPool(4, ends)
    pool.start()
    limit.reached = False
    pool.submit("first", lambda: None)
    limit.reached = True
    for n in range(8):
        pool.submit(n, lambda: None)
    await ends.wait_for(9)
    assert limit.refused
    assert pool.close()


async def test_a_pool_that_is_closed_asks_for_no_more_threads(limit: Limit) -> None:
    pool = CallThreadPool(2, Ends())
    pool.start()
    pool.submit("call", lambda: None)
    pool.close()
    refused = limit.refused
    await asyncio.sleep(3 * thread_pool.RETRY_AFTER)
    assert limit.refused == refused


async def test_jobs_of_a_worker_without_threads_run_when_there_are_some(app: App, limit: Limit) -> None:
    plain, coroutine = app.task(name="act")(act), app.task(name="act_async")(act_async)
    async with at_work(app, concurrency=4, config=patient()):
        waiting = [await plain.aenqueue("return") for _ in range(3)]
        await until(lambda: limit.refused > 0, "there is no thread")
        beside = await coroutine.aenqueue("return")
        assert (await ended(beside)).state is State.COMPLETED
        limit.reached = False
        assert {(await ended(one)).state for one in waiting} == {State.COMPLETED}


async def test_a_worker_without_threads_gives_its_jobs_back_when_it_drains(app: App, limit: Limit) -> None:
    plain = app.task(name="act")(act)
    async with at_work(app, concurrency=4, config=patient()):
        waiting = [await plain.aenqueue("return") for _ in range(3)]
        await until(lambda: limit.refused > 0, "there is no thread")
    for one in waiting:
        job = await becomes(one, State.AVAILABLE)
        assert job.attempt == 0
