"""Close and cancel: all waiters are notified, and no job starts afterwards (Q10, Q13 - Q20)."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.pool import CancelToken, Pool, QueueClosed, Stopped, ThreadPool
from tests.pool.conftest import blocked_put, until


async def pool_of_50(front: Any, *, workers: int = 2, **facts: Any) -> tuple[Any, Any]:
    """A pool with 50 jobs waiting, and each worker at one."""
    work = front.work(held=True)
    pool = front.pool(work, workers=workers, capacity=50, **facts)
    for n in range(50 + workers):
        assert pool.try_put(n)
    await until(lambda: len(work.started) == workers)
    return pool, work


# --- close: drain


async def test_close_runs_what_is_queued_and_takes_no_more(front) -> None:
    pool, work = await pool_of_50(front)
    pool.close()
    pool.close()
    assert not work.finished, "it does not wait for them"
    with pytest.raises(QueueClosed):
        pool.try_put("late")
    assert len(pool) == 50
    work.open()
    await front.call(pool.join)
    assert sorted(work.finished) == list(range(52))
    assert pool.cancel() == []


async def test_a_closed_pool_uses_no_cpu(front) -> None:
    """Nobody spins: the process burns no time while one job keeps a closed pool open."""
    pool, work = await pool_of_50(front, workers=4)
    pool.cancel()
    pool.close()
    waiting = asyncio.create_task(front.call(pool.join))
    await until(lambda: pool._rules._waiters)
    burnt = time.process_time()
    assert await front.call(pool.wait, 0.3) is False
    assert time.process_time() - burnt < 0.1
    work.open()
    await waiting


# --- cancel: drop the rest


async def test_cancel_returns_what_had_not_begun_and_lets_the_running_finish(front) -> None:
    pool, work = await pool_of_50(front)
    dropped = pool.cancel()
    assert dropped == list(range(2, 52))
    assert (len(pool), pool.running) == (0, 2)
    assert pool.cancel() == []
    assert pool.token.cancelled
    assert not work.finished
    work.open()
    await front.call(pool.join)
    assert sorted(work.started) == sorted(work.finished) == [0, 1]


async def test_of_50_jobs_each_is_finished_running_or_dropped_and_none_is_two_of_these(front) -> None:
    work = front.work()
    pool = front.pool(work, workers=4, capacity=50)
    for n in range(50):
        assert pool.try_put(n)
    await until(lambda: work.finished)
    dropped = pool.cancel()
    await front.call(pool.join)
    assert sorted([*work.finished, *dropped]) == list(range(50))
    assert work.started == work.finished or sorted(work.started) == sorted(work.finished)


async def test_a_job_that_was_accepted_and_has_not_begun_is_dropped() -> None:
    seen: list[int] = []

    async def handler(job: int) -> None:
        seen.append(job)

    pool = Pool(handler, workers=3, capacity=3)
    assert all(pool.try_put(n) for n in range(6))
    assert pool.cancel() == [0, 1, 2, 3, 4, 5]  # no worker has had a step yet
    await pool.join()
    assert seen == []


async def eight_idle_workers(front):
    work = front.work(held=True)
    pool = front.pool(work, workers=8)
    for n in range(8):
        pool.try_put(n)
    await until(lambda: len(work.started) == 8)
    work.open()
    await until(lambda: pool.done == 8)
    return pool


async def test_one_signal_ends_all_idle_workers(front) -> None:
    for end in ("close", "cancel"):
        pool = await eight_idle_workers(front)
        assert front.workers() == 8
        getattr(pool, end)()
        assert await front.call(pool.wait, 5)
        assert front.workers() == 0


async def test_idle_workers_wait_without_a_limit_for_the_signal(
    front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who polls would end late."""
    limits: list[float | None] = []
    wait = threading.Condition.wait

    def noted(condition: threading.Condition, timeout: float | None = None) -> bool:
        if isinstance(condition._lock, type(threading.RLock())):  # the pool's, not that of an event
            limits.append(timeout)
        return wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", noted)
    pool = await eight_idle_workers(front)
    if limits:  # these are threads
        assert set(limits) == {None}
    else:
        assert not [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]
    pool.cancel()
    await front.call(pool.join)


# --- cancel wins: 1 000 trials


async def test_in_1_000_trials_no_job_of_a_loop_starts_after_cancel_has_returned() -> None:
    luck = random.Random(4)
    for _ in range(1_000):
        started: list[int] = []

        async def handler(job: int, started: list[int] = started) -> None:
            started.append(job)
            await asyncio.sleep(0)

        pool = Pool(handler, workers=4, capacity=20)
        for n in range(24):
            pool.try_put(n)
        for _ in range(luck.randrange(8)):
            await asyncio.sleep(0)
        dropped = pool.cancel()
        at_return = list(started)
        await pool.join()
        assert started == at_return
        assert sorted([*started, *dropped]) == list(range(24))


def test_in_1_000_trials_no_job_of_a_thread_begins_after_cancel_has_returned() -> None:
    luck = random.Random(4)
    caught = 0
    for _ in range(1_000):
        started: list[int] = []
        go = threading.Event()

        def handler(job: int, started: list[int] = started, go: threading.Event = go) -> None:
            started.append(job)
            go.wait()

        pool = ThreadPool(handler, workers=2, capacity=20)
        for n in range(22):
            pool.try_put(n)
        go.set()  # from here on they race
        for _ in range(luck.randrange(300)):
            pass
        dropped = pool.cancel()
        with pool._lock:
            begun = pool.done + pool.running  # nothing else may begin
        pool.join()
        assert len(started) == pool.done == begun
        assert sorted([*started, *dropped]) == list(range(22))
        caught += bool(dropped)
    assert caught > 100, "nearly all of them were over before they could be cancelled: this proves nothing"


def test_in_1_000_trials_a_token_that_two_threads_cancel_loses_and_doubles_nothing() -> None:
    for _ in range(1_000):
        started: list[int] = []
        above = CancelToken()
        pool = ThreadPool(started.append, workers=2, capacity=10, token=above)
        accepted = 0
        dropped: list[list[int]] = []
        others = [
            threading.Thread(target=lambda: dropped.append(pool.cancel())),  # noqa: B023
            threading.Thread(target=above.cancel),
        ]
        for other in others:
            other.start()
        try:
            while pool.try_put(accepted):
                accepted += 1
        except QueueClosed:
            pass
        for other in others:
            other.join()
        dropped.append(pool.cancel())
        pool.join()
        assert sorted([*started, *dropped[0], *dropped[1]]) == list(range(accepted))


async def test_close_and_cancel_race_with_blocked_puts_and_nothing_is_lost(front) -> None:
    for trial in range(60):
        work = front.work()
        pool = front.pool(work, workers=2, capacity=2)
        putting = [asyncio.create_task(front.call(pool.put, n)) for n in range(12)]
        if trial % 2:
            await until(lambda work=work: work.started)
        dropped = pool.cancel() if trial % 3 else pool.close() or []
        told = await asyncio.gather(*putting, return_exceptions=True)
        await front.call(pool.join)
        accepted = [n for n, answer in enumerate(told) if answer is None]
        assert sorted([*work.finished, *dropped]) == accepted
        assert all(answer is None or isinstance(answer, QueueClosed) for answer in told)


# --- running jobs


async def test_running_tasks_are_cancelled_on_demand() -> None:
    told: list[Any] = []
    never = asyncio.Event()
    cleaned: list[int] = []

    async def handler(job: int) -> None:
        try:
            await never.wait()
        finally:
            cleaned.append(job)

    pool = Pool(handler, workers=2, capacity=5, on_error=lambda job, error: told.append((job, type(error))))
    for n in range(5):
        pool.try_put(n)
    await until(lambda: len(pool._rules.running_jobs) == 2)
    assert pool.cancel(running=True) == [2, 3, 4]
    await asyncio.wait_for(pool.join(), 60)
    assert cleaned == [0, 1]
    assert told == [(0, asyncio.CancelledError), (1, asyncio.CancelledError)]
    assert pool.failed == 2


async def test_a_job_that_was_to_be_cancelled_is_logged_as_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Only a cancellation of something that the job awaits is one."""
    caplog.set_level("INFO", "penstock.pool")

    async def handler(job: asyncio.Future[None]) -> None:
        await job

    pool = Pool(handler, workers=2, capacity=5, name="own")
    jobs = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for job in jobs:
        pool.try_put(job)
    await until(lambda: len(pool._rules.running_jobs) == 2)
    jobs[0].cancel()
    await until(lambda: pool.failed == 1)
    assert pool.cancel(running=True) == []
    await asyncio.wait_for(pool.join(), 20)
    levels = [(record.levelname, record.exc_info is not None) for record in caplog.records]
    assert levels == [("ERROR", True), ("INFO", False)]
    assert "pool own: a running job was cancelled" in caplog.text


async def test_a_job_may_cancel_its_own_pool_and_goes_on() -> None:
    seen: list[Any] = []

    async def handler(job: int) -> None:
        seen.append(pool.cancel(running=True))
        await asyncio.sleep(0)
        seen.append("went on")

    pool = Pool(handler, workers=1, capacity=5)
    for n in range(3):
        pool.try_put(n)
    await pool.join()
    assert seen == [[1, 2], "went on"]

    def handle(job: int) -> None:
        seen.append(threads.cancel())

    seen.clear()
    threads = ThreadPool(handle, workers=1, capacity=5)
    threads.put(0)
    threads.join()
    assert seen == [[]]


def test_a_job_in_a_thread_looks_at_the_token() -> None:
    at_it = threading.Event()
    saw: list[bool] = []

    def handler(job: int) -> None:
        at_it.set()
        saw.append(pool.token.wait(20))

    pool = ThreadPool(handler, workers=1, capacity=5)
    pool.put(1)
    assert at_it.wait(60)
    pool.cancel()
    assert pool.wait(60)
    assert saw == [True]


# --- the token


def test_a_child_is_cancelled_with_its_parent_and_not_the_other_way_round() -> None:
    parent = CancelToken()
    child, other = CancelToken(parent), CancelToken(parent)
    grandchild = CancelToken(child)
    child.cancel()
    assert (parent.cancelled, child.cancelled, other.cancelled, grandchild.cancelled) == (
        False,
        True,
        False,
        True,
    )
    parent.cancel()
    parent.cancel()
    assert other.cancelled
    assert CancelToken(parent).cancelled


def test_a_token_is_waited_for() -> None:
    token = CancelToken()
    assert token.wait(0) is False
    assert token.wait(0.01) is False
    waiting = threading.Thread(target=token.wait)
    waiting.start()
    token.cancel()
    waiting.join(60)
    assert not waiting.is_alive()
    assert token.wait(float("inf")) is True


def test_a_parent_does_not_keep_its_children() -> None:
    parent = CancelToken()
    for _ in range(1_000):
        CancelToken(parent)
    assert len(parent._children) < 10


async def test_a_token_cancels_the_pools_that_hang_on_it_and_a_pool_not_its_token(front) -> None:
    above = CancelToken()
    pool, work = await pool_of_50(front, token=above)
    other, other_work = await pool_of_50(front, token=above)
    other.cancel()
    assert not above.cancelled
    assert not pool.token.cancelled
    putting = await blocked_put(front, pool, "late")
    above.cancel()
    with pytest.raises(QueueClosed):
        await putting
    assert (len(pool), pool.running) == (50, 2)  # they wait for whoever collects them
    work.open()
    other_work.open()
    report = await front.call(pool.stop)
    assert sorted(work.finished) == [0, 1]
    assert report == Stopped(done=2, failed=0, dropped=tuple(range(2, 52)), still_running=())
    await front.call(other.join)


async def test_a_token_may_be_cancelled_from_another_thread(front) -> None:
    above = CancelToken()
    pool, work = await pool_of_50(front, token=above)
    putting = await blocked_put(front, pool, "late")
    waiting = asyncio.create_task(front.call(pool.wait, 20))
    await asyncio.to_thread(above.cancel)
    with pytest.raises(QueueClosed):
        await putting
    work.open()
    assert await waiting is True
    assert len(pool.cancel()) == 50


# --- stop


async def test_stop_drains(front) -> None:
    pool, work = await pool_of_50(front)
    work.open()
    report = await front.call(pool.stop, timeout=20)
    assert report == Stopped(done=52, failed=0, dropped=(), still_running=())
    assert not pool.token.cancelled


async def test_stop_drops_what_has_not_begun_when_the_time_is_over(front) -> None:
    pool, work = await pool_of_50(front)
    report = await front.call(pool.stop, timeout=0.05)
    assert report.done == 0
    assert report.dropped == tuple(range(2, 52))
    assert sorted(report.still_running) == [0, 1]
    work.open()
    await front.call(pool.join)
    assert sorted(work.finished) == [0, 1]
    assert (await front.call(pool.stop)).done == 2


async def test_stop_without_draining_drops_at_once_and_waits_for_the_running(front) -> None:
    pool, work = await pool_of_50(front)
    stopping = asyncio.create_task(front.call(pool.stop, drain=False))
    await until(lambda: pool._rules._waiters)
    work.open()
    report = await stopping
    assert report == Stopped(done=2, failed=0, dropped=tuple(range(2, 52)), still_running=())


async def test_a_block_of_a_loop_drains_at_its_end_and_cancels_when_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cut_off: list[int] = []

    async def block(pool: Pool[int], error: Exception | None) -> None:
        async with pool:
            for n in range(10):
                await pool.put(n)
            await asyncio.sleep(0)
            if error:
                raise error

    async def quick(job: int) -> None: ...

    async def slow(job: int) -> None:
        await asyncio.Event().wait()

    drained = Pool(quick, workers=2, capacity=10)
    await block(drained, None)
    assert drained.done == 10
    assert not caplog.records
    cancelled = Pool(slow, workers=2, capacity=10, on_error=lambda job, error: cut_off.append(job))
    with pytest.raises(KeyError):
        await block(cancelled, KeyError("no"))
    assert cut_off == [0, 1]
    assert caplog.messages == ["pool pool dropped 8 job(s): KeyError('no')"]


def test_a_block_of_threads_drains_at_its_end_and_cancels_when_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = threading.Event()

    def block(pool: ThreadPool[int], error: Exception | None) -> None:
        with pool:
            for n in range(10):
                pool.put(n)
            if error:
                assert begun.wait(60)
                raise error

    def slow(job: int) -> None:
        begun.set()
        assert cancelled.token.wait(60)

    drained: ThreadPool[int] = ThreadPool(lambda job: None, workers=2, capacity=10)
    block(drained, None)
    assert drained.done == 10
    assert not caplog.records
    cancelled = ThreadPool(slow, workers=1, capacity=10)
    with pytest.raises(KeyError):
        block(cancelled, KeyError("no"))
    assert (cancelled.done, cancelled.running) == (1, 0)
    assert caplog.messages == ["pool pool dropped 9 job(s): KeyError('no')"]


# --- in the wrong place


async def test_a_pool_of_a_loop_says_so_when_a_thread_uses_it() -> None:
    async def handler(job: int) -> None: ...

    pool = Pool(handler, workers=1, capacity=1, name="mail")
    await pool.put(1)
    for verb, way_out in (
        (lambda: pool.try_put(2), "asyncio.run_coroutine_threadsafe"),
        (pool.close, "loop.call_soon_threadsafe"),
        (pool.cancel, "loop.call_soon_threadsafe"),
    ):
        with pytest.raises(RuntimeError, match=f"Pool 'mail' was used outside of its event loop.*{way_out}"):
            await asyncio.to_thread(verb)
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        await asyncio.to_thread(asyncio.run, pool.put(2))
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(pool.put(2), loop).result(60))
    await pool.stop()
    assert pool.done == 2


def test_a_pool_may_be_made_and_ended_without_a_loop() -> None:
    async def handler(job: int) -> None: ...

    pool = Pool(handler, workers=1, capacity=1)
    with pytest.raises(RuntimeError, match="outside of its event loop"):
        pool.try_put(1)
    assert len(pool) == 0
    pool.close()
    assert pool.cancel() == []


def test_a_signal_handler_may_end_a_pool_whose_lock_its_own_thread_holds() -> None:
    pool: ThreadPool[int] = ThreadPool(lambda job: None, workers=1, capacity=1)
    ends: list[Callable[[], object]] = [pool.close, pool.cancel]
    with pool._lock:
        for end in ends:
            end()
    assert pool.wait(60)


def test_a_thread_that_cannot_be_started_is_an_error_and_no_call_is_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool: ThreadPool[int] = ThreadPool(lambda job: None, workers=1, capacity=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            pool.put(1)
    assert (len(pool), pool.running) == (0, 0)
    pool.put(2)
    assert pool.stop(timeout=20).done == 1
