"""Workers of the pool: each job runs once, until none is left (Q1, Q7 - Q9, Q11, Q12, Q21)."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from penstock.errors import QueueClosed
from penstock.pool import JobQueue, Pool, ThreadPool, spawn, spawn_thread
from tests.pool.conftest import Loops, until


async def test_a_spawned_task_is_kept_until_it_ends() -> None:
    woken: weakref.ref[asyncio.Future[None]]

    async def waits_for_what_nobody_else_has() -> str:
        nonlocal woken
        future = asyncio.get_running_loop().create_future()
        woken = weakref.ref(future)
        await future
        return "done"

    task = weakref.ref(spawn(waits_for_what_nobody_else_has(), name="alone"))
    await asyncio.sleep(0)
    gc.collect()
    kept, future = task(), woken()
    assert kept is not None
    assert future is not None
    future.set_result(None)
    assert await kept == "done"


async def test_the_error_of_what_was_spawned_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("no")

    def fails_too(what: str) -> None:
        raise ValueError(what)

    task = spawn(fails(), name="alone")
    await asyncio.wait([task])
    spawn_thread(fails_too, "not either").join()
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "the spawned task alone failed: ValueError('no')",
        "the spawned thread penstock-spawn-fails_too failed: ValueError('not either')",
    ]
    assert all(record.exc_info for record in caplog.records)


async def test_a_spawned_thread_runs_its_call() -> None:
    seen: list[Any] = []
    spawn_thread(lambda *args, **kwargs: seen.append((args, kwargs)), 1, b=2).join()
    assert seen == [((1,), {"b": 2})]


async def test_a_worker_of_ones_own_loops_until_the_queue_is_closed_and_empty(front) -> None:
    queue = front.Queue(10)
    for n in range(5):
        assert queue.try_put(n)
    queue.close()
    seen: list[int] = []
    await front.iterate(queue, seen)
    assert seen == [0, 1, 2, 3, 4]
    with pytest.raises(QueueClosed, match="nothing more will come"):
        await front.call(queue.get)


async def test_a_worker_that_waits_ends_when_the_queue_is_closed(front) -> None:
    queue = front.Queue(10)
    seen: list[int] = []
    loops = [asyncio.create_task(front.iterate(queue, seen)) for _ in range(3)]
    await until(lambda: len(queue._rules._takers) == 3)
    queue.try_put(1)
    queue.close()
    await asyncio.gather(*loops)
    assert seen == [1]


async def test_a_cancelled_get_has_taken_nothing() -> None:
    queue: JobQueue[str] = JobQueue(5)
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await until(lambda: len(queue._rules._takers) == 2)
    assert queue.try_put("job")  # this wakes the first, which has not run since
    first.cancel()
    assert await second == "job"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.01)
    assert queue.try_put("next")
    assert await asyncio.wait_for(queue.get(), 60) == "next"


async def test_each_of_10_000_jobs_goes_to_exactly_one_of_4_workers(front) -> None:
    work = front.work()
    pool = front.pool(work, workers=4, capacity=50)
    for first in range(0, 10_000, 2_500):

        async def put_all(first: int = first) -> None:
            for n in range(first, first + 2_500):
                if not pool.try_put(n):
                    await front.call(pool.put, n)

        await put_all()
    report = await front.call(pool.stop)
    assert sorted(work.finished) == list(range(10_000))
    assert (report.done, report.failed, report.dropped, report.still_running) == (10_000, 0, (), ())


async def test_many_producers_and_many_workers_lose_and_double_nothing() -> None:
    seen: list[int] = []
    pool = ThreadPool(seen.append, workers=4, capacity=3)

    def produce(first: int) -> None:
        for n in range(first, first + 500):
            pool.put(n, timeout=60)

    producers = [spawn_thread(produce, first) for first in range(0, 4_000, 500)]
    for producer in producers:
        await asyncio.to_thread(producer.join)
    await asyncio.to_thread(pool.stop)
    assert sorted(seen) == list(range(4_000))
    for first in range(0, 4_000, 500):
        own = [n for n in seen if first <= n < first + 500]
        assert len(own) == 500


async def test_never_more_run_at_once_than_there_are_workers(front) -> None:
    work = front.work(held=True)
    pool = front.pool(work, workers=3, capacity=20)
    for n in range(12):
        pool.try_put(n)
    await until(lambda: len(work.started) == 3)
    assert pool.running == 3
    assert front.workers() == 3
    work.open()
    await front.call(pool.stop)
    assert len(work.finished) == 12


async def test_workers_start_as_they_are_needed(front) -> None:
    work = front.work(held=True)
    pool = front.pool(work, workers=8)
    assert front.workers() == 0
    pool.try_put(1)
    pool.try_put(2)
    await until(lambda: len(work.started) == 2)
    assert front.workers() == 2
    work.open()
    await until(lambda: pool.done == 2)
    for n in range(20):
        assert pool.try_put(n)
        await until(lambda n=n: pool.done == 3 + n)
    assert front.workers() == 2
    await front.call(pool.stop)
    assert front.workers() == 0


async def test_join_returns_though_handlers_raise(front) -> None:
    work = front.work()
    work.fails = set(range(10))
    pool = front.pool(work, workers=4, on_error=lambda job, error: None)
    for n in range(10):
        pool.try_put(n)
    pool.close()
    await front.call(pool.join)
    assert (pool.done, pool.failed, pool.running) == (0, 10, 0)
    assert front.workers() == 0


async def test_joining_a_pool_that_never_had_a_job_returns_at_once(front) -> None:
    pool = front.pool(front.work())
    pool.close()
    await front.call(pool.join)
    assert await front.call(pool.wait, 0) is True


async def test_wait_says_whether_all_have_ended_and_leaves_nothing_behind(front) -> None:
    work = front.work(held=True)
    pool = front.pool(work, workers=2)
    pool.try_put(1)
    await until(lambda: work.started == [1])
    before = front.everybody()
    began = time.monotonic()
    assert await front.call(pool.wait, 0.1) is False  # not closed
    assert time.monotonic() - began >= 0.095
    pool.close()
    assert await front.call(pool.wait, 0.1) is False  # not done
    assert front.everybody() == before
    assert pool.running == 1
    work.open()
    assert await front.call(pool.wait, 20) is True
    assert front.everybody() == before - 1
    assert work.finished == [1]


async def test_all_waiters_are_notified(front) -> None:
    work = front.work(held=True)
    pool = front.pool(work)
    pool.try_put(1)
    waiting = [asyncio.create_task(front.call(pool.wait, 20)) for _ in range(5)]
    await until(lambda: len(pool._rules._waiters) == 5)
    pool.close()
    work.open()
    assert await asyncio.gather(*waiting) == [True] * 5


async def test_a_job_may_not_wait_for_its_own_pool() -> None:
    told: list[str] = []

    def tell(job: str, error: BaseException) -> None:
        told.append(str(error))

    async def handler(verb: str) -> None:
        await getattr(pool, verb)()

    def handle(verb: str) -> None:
        getattr(threads, verb)()

    pool = Pool(handler, workers=1, capacity=3, on_error=tell)
    threads = ThreadPool(handle, workers=1, capacity=3, on_error=tell)
    for verb in ("join", "wait", "stop"):
        await pool.put(verb)
        threads.put(verb)
    await pool.stop()
    threads.stop()
    assert told == ["a job of the pool 'pool' would wait for its own end"] * 6


async def test_a_failing_job_is_reported_and_counted_and_the_worker_continues(front) -> None:
    work, told = front.work(), []
    work.fails = {2, 5}
    pool = front.pool(work, on_error=lambda job, error: told.append((job, str(error))))
    for n in range(8):
        pool.try_put(n)
    report = await front.call(pool.stop)
    assert work.finished == [0, 1, 3, 4, 6, 7]
    assert told == [(2, "job 2 fails"), (5, "job 5 fails")]
    assert (report.done, report.failed) == (6, 2)


async def test_without_a_listener_a_failing_job_is_logged(front, caplog: pytest.LogCaptureFixture) -> None:
    work = front.work()
    work.fails = {1}
    pool = front.pool(work, name="mail")
    pool.try_put(1)
    await front.call(pool.stop)
    (record,) = caplog.records
    assert record.getMessage() == "pool mail: a job failed: ValueError('job 1 fails')"
    assert record.name == "penstock.pool"
    assert record.exc_info


async def test_a_failing_listener_does_not_end_the_worker(front, caplog: pytest.LogCaptureFixture) -> None:
    def broken(job: int, error: BaseException) -> None:
        raise KeyError(job)

    work = front.work()
    work.fails = {1}
    pool = front.pool(work, on_error=broken)
    pool.try_put(1)
    pool.try_put(2)
    report = await front.call(pool.stop)
    assert (report.done, report.failed) == (1, 1)
    assert caplog.messages == ["pool pool: on_error failed"]


async def test_a_job_that_exits_its_thread_does_not_end_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock.pool")
    seen: list[int] = []

    def handler(job: int) -> None:
        if job % 2:
            raise SystemExit(job)
        seen.append(job)

    pool = ThreadPool(handler, workers=1, capacity=9)
    for n in range(9):
        pool.put(n)
    report = await asyncio.to_thread(pool.stop)
    assert seen == [0, 2, 4, 6, 8]
    assert (report.done, report.failed) == (5, 4)


async def test_a_job_that_waited_for_something_cancelled_does_not_end_the_worker() -> None:
    gone = asyncio.get_running_loop().create_future()
    gone.cancel()
    told: list[BaseException] = []
    seen: list[int] = []

    async def handler(job: int) -> None:
        if job == 1:
            await gone
        seen.append(job)

    pool = Pool(handler, workers=1, capacity=9, on_error=lambda job, error: told.append(error))
    for n in range(3):
        await pool.put(n)
    report = await pool.stop()
    assert seen == [0, 2]
    assert [type(error) for error in told] == [asyncio.CancelledError]
    assert (report.done, report.failed) == (2, 1)


async def test_a_handler_that_is_not_async_fails_with_the_way_out() -> None:
    told: list[BaseException] = []
    pool: Any = Pool(lambda job: job, workers=1, capacity=1, on_error=lambda job, error: told.append(error))  # type: ignore[arg-type]
    await pool.put(7)
    await pool.stop()
    assert "returned a int, which cannot be awaited: give an async function, or use ThreadPool" in str(
        told[0]
    )


@pytest.mark.parametrize("pool", [Pool, ThreadPool])
async def test_a_handler_that_returns_what_would_do_its_work_has_failed(pool: Any) -> None:
    def yields(job: int) -> Iterator[int]:
        yield job

    async def returns(job: int) -> Any:
        return yields(job)

    failed: list[str] = []
    handler = returns if pool is Pool else lambda job: returns(job)
    made = pool(handler, workers=1, capacity=9, on_error=lambda job, error: failed.append(str(error)))
    assert made.try_put(1)
    made.close()
    if pool is Pool:
        await made.join()
    else:
        await asyncio.to_thread(made.join)
    kind = "a generator" if pool is Pool else "a coroutine"
    assert failed == [
        f for f in failed if f.startswith(f"the handler did not do its work: it returned {kind}")
    ]
    assert (made.done, made.failed, len(failed)) == (0, 1, 1)


async def test_a_loop_that_ends_takes_the_workers_with_it_and_the_next_one_may_go_on() -> None:
    seen: list[int] = []
    told: list[Any] = []
    held = True

    async def handler(job: int) -> None:
        if held:
            await asyncio.Event().wait()
        seen.append(job)

    pool = Pool(handler, workers=1, capacity=5, on_error=lambda job, error: told.append((job, type(error))))

    async def first() -> None:
        for n in range(3):
            await pool.put(n)
        await asyncio.sleep(0)

    async def second() -> None:
        await pool.put(3)
        await pool.stop()

    await asyncio.to_thread(asyncio.run, first())
    held = False
    await asyncio.to_thread(asyncio.run, second())
    assert told == [(0, asyncio.CancelledError)]
    assert seen == [1, 2, 3]


async def test_a_pool_without_references_still_runs_its_jobs() -> None:
    front = Loops()
    work = front.work(held=True)
    front.pool(work).try_put(1)
    await until(lambda: work.started)
    gc.collect()
    work.open()
    await until(lambda: work.finished)


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
async def test_an_idle_worker_keeps_no_job_alive(front, fails: bool) -> None:
    class Job:
        pass

    work = front.work()
    pool = front.pool(work, on_error=lambda job, error: None)
    job = Job()
    gone = weakref.ref(job)
    if fails:
        work.fails.add(job)
    gc.disable()
    try:
        pool.try_put(job)
        await until(lambda: pool.done + pool.failed == 1)
        for held in (work.started, work.finished, work.fails):
            held.clear()
        del job
        await until(lambda: gone() is None)
    finally:
        gc.enable()
    await front.call(pool.stop)


async def test_a_handler_that_never_waits_leaves_the_loop_its_turns() -> None:
    seen: list[int] = []

    async def handler(job: int) -> None:
        seen.append(job)

    pool = Pool(handler, workers=1, capacity=1_000)
    for n in range(1_000):
        pool.try_put(n)
    while not seen:
        await asyncio.sleep(0)
    assert len(seen) < 10
    assert len(pool.cancel()) == 1_000 - len(seen)
    await pool.join()


async def test_a_worker_does_not_have_the_context_of_who_put_the_first_job() -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen: list[str] = []

    async def handler(job: int) -> None:
        seen.append(tenant.get())

    def handle(job: int) -> None:
        seen.append(tenant.get())
        tenant.set("the job before")

    tenant.set("north")
    pool, threads = Pool(handler, workers=1, capacity=2), ThreadPool(handle, workers=1, capacity=2)
    await pool.put(1)
    await pool.stop()
    threads.put(1)
    threads.put(2)
    threads.stop()
    assert seen == ["nobody"] * 3


async def test_workers_are_named_after_their_pool(front) -> None:
    work = front.work(held=True)
    pool = front.pool(work, name="mail", workers=2)
    pool.try_put(1)
    pool.try_put(2)
    await until(lambda: len(work.started) == 2)
    names = {task.get_name() for task in asyncio.all_tasks()} | {t.name for t in threading.enumerate()}
    assert {"penstock-mail-1", "penstock-mail-2"} <= names
    work.open()
    await front.call(pool.stop)
