"""Adding jobs: the size limit, waiting producers in order, and refusals (Q2 - Q6)."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from penstock.errors import ConfigError, QueueClosed, QueueFull
from tests.pool.conftest import Loops, blocked, blocked_put, until


async def full_pool(front: Any, *, workers: int = 1, capacity: int = 2) -> tuple[Any, Any]:
    """A pool whose workers are at work and whose queue is full."""
    work = front.work(held=True)
    pool = front.pool(work, workers=workers, capacity=capacity)
    for n in range(workers + capacity):
        assert pool.try_put(n)
    await until(lambda: len(work.started) == workers)
    return pool, work


async def test_a_full_queue_blocks_the_next_put_until_one_is_taken(front) -> None:
    pool, work = await full_pool(front)
    putting = await blocked_put(front, pool, "late")
    assert blocked(pool) == 1
    assert not putting.done()
    work.open()
    await putting
    await front.call(pool.stop)
    assert work.finished == [0, 1, 2, "late"]


async def test_those_who_are_blocked_get_in_in_the_order_of_their_coming(front) -> None:
    pool, work = await full_pool(front, capacity=1)
    putting = [await blocked_put(front, pool, f"p{n}") for n in range(20)]
    work.open()
    await asyncio.gather(*putting)
    await front.call(pool.stop)
    assert work.finished == [0, 1, *(f"p{n}" for n in range(20))]


async def test_blocked_callers_are_not_overtaken(front) -> None:
    queue = front.Queue(1)
    assert queue.try_put("first")
    putting = await blocked_put(front, queue, "second")
    assert await front.call(queue.get) == "first"
    assert not queue.try_put("third")
    await putting
    assert await front.call(queue.get) == "second"


async def test_a_put_whose_time_is_over_raises_and_has_put_nothing(front) -> None:
    pool, work = await full_pool(front)
    began = time.monotonic()
    with pytest.raises(QueueFull, match="the queue 'pool' is full"):
        await front.call(pool.put, "late", timeout=0.05)
    assert time.monotonic() - began >= 0.045
    with pytest.raises(QueueFull):
        await front.call(pool.put, "late", timeout=0)
    assert (len(pool), blocked(pool)) == (2, 0)
    work.open()
    await front.call(pool.stop)
    assert "late" not in work.started


async def test_a_caller_that_gives_up_in_the_queue_delays_no_other(front) -> None:
    pool, work = await full_pool(front, capacity=1)
    first = await blocked_put(front, pool, "first")
    hasty = await blocked_put(front, pool, "hasty", 0.02)
    last = await blocked_put(front, pool, "last")
    with pytest.raises(QueueFull):
        await hasty
    work.open()
    await asyncio.gather(first, last)
    await front.call(pool.stop)
    assert work.finished == [0, 1, "first", "last"]


async def test_a_put_with_time_enough_gets_in(front) -> None:
    pool, work = await full_pool(front)
    putting = await blocked_put(front, pool, "late", 20)
    work.open()
    await putting
    await front.call(pool.stop)
    assert work.finished[-1] == "late"


async def test_a_cancelled_put_has_put_nothing() -> None:
    front = Loops()
    pool, work = await full_pool(front)
    putting = await blocked_put(front, pool, "late")
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert (len(pool), blocked(pool)) == (2, 0)
    work.open()
    await pool.stop()
    assert work.finished == [0, 1, 2]


async def test_a_put_that_is_cancelled_as_its_turn_comes_has_put_nothing_and_the_next_one_gets_in() -> None:
    front = Loops()
    queue = front.Queue(1)
    await queue.put("in")
    first = await blocked_put(front, queue, "first")
    second = await blocked_put(front, queue, "second")
    assert await queue.get() == "in"  # this wakes the first, which has not run since
    first.cancel()
    await second
    assert first.cancelled()
    assert await queue.get() == "second"
    assert len(queue) == 0


async def test_try_put_says_no_at_once_and_changes_nothing(front) -> None:
    pool, work = await full_pool(front)
    for _ in range(20):  # nothing makes room meanwhile: who waits would wait for ever
        assert pool.try_put("more") is False
    assert (len(pool), pool.running, blocked(pool)) == (2, 1, 0)
    work.open()
    await front.call(pool.stop)
    assert "more" not in work.started


async def test_a_flood_is_answered_with_503_beyond_what_fits(front) -> None:
    work = front.work(held=True)
    pool = front.pool(work, workers=3, capacity=5)

    def answer(job: int) -> tuple[int, dict[str, str], str]:
        if pool.try_put(job):
            return 202, {}, "{}"
        return 503, {"Retry-After": "1"}, '{"error":"max capacity reached"}'

    answers = [answer(n)[0] for n in range(50)]
    assert answers == [202] * (3 + 5) + [503] * 42
    assert answer(99) == (503, {"Retry-After": "1"}, '{"error":"max capacity reached"}')
    work.open()
    await until(lambda: pool.done == 8)
    assert answer(99)[0] == 202
    report = await front.call(pool.stop)
    assert report.done == 9
    assert sorted(work.finished) == [*range(8), 99]


async def test_length_capacity_and_running_are_true_after_each_step(front) -> None:
    work = front.work(held=True)
    pool = front.pool(work, workers=2, capacity=3)
    seen = [(len(pool), pool.running)]
    for n in range(6):
        pool.try_put(n)
        seen.append((len(pool), pool.running))
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (3, 2), (3, 2)]
    assert pool.capacity == 3
    work.open()
    await until(lambda: pool.done == 5)
    assert (len(pool), pool.running) == (0, 0)
    await front.call(pool.stop)
    assert (len(pool), pool.running) == (0, 0)


async def test_capacity_0_only_hands_over(front) -> None:
    work = front.work(held=True)
    pool = front.pool(work, workers=2, capacity=0)
    assert [pool.try_put(n) for n in range(4)] == [True, True, False, False]
    putting = await blocked_put(front, pool, "late")
    assert (len(pool), pool.running) == (0, 2)
    work.open()
    await putting
    await front.call(pool.stop)
    assert sorted(map(str, work.finished)) == ["0", "1", "late"]


async def test_a_queue_of_capacity_0_takes_a_job_when_somebody_asks_for_one(front) -> None:
    queue = front.Queue(0)
    assert not queue.try_put("nobody is there")
    putting = await blocked_put(front, queue, "here")
    assert await front.call(queue.get) == "here"
    await putting
    getting = asyncio.create_task(front.call(queue.get))
    await until(lambda: queue._rules._takers)
    assert queue.try_put("there")
    assert not queue.try_put("too many")
    assert await getting == "there"


async def test_after_close_or_cancel_nothing_goes_in(front) -> None:
    for end in ("close", "cancel"):
        pool = front.pool(front.work())
        getattr(pool, end)()
        with pytest.raises(QueueClosed, match="the queue 'pool' is closed: it takes no new jobs"):
            pool.try_put(1)
        with pytest.raises(QueueClosed):
            await front.call(pool.put, 1)
        assert len(pool) == 0


async def test_blocked_callers_are_notified_of_the_close(front) -> None:
    for end in ("close", "cancel"):
        pool, work = await full_pool(front)
        putting = [await blocked_put(front, pool, f"p{n}") for n in range(3)]
        getattr(pool, end)()
        told = await asyncio.gather(*putting, return_exceptions=True)
        assert [type(error) for error in told] == [QueueClosed] * 3
        work.open()
        await front.call(pool.join)
        assert len(work.started) == (3 if end == "close" else 1)


@pytest.mark.parametrize("timeout", [-1, math.nan, "1s", True])
async def test_a_timeout_that_is_none_is_refused(front, timeout: Any) -> None:
    pool = front.pool(front.work())
    with pytest.raises(ConfigError, match="is not a number of seconds: give 0"):
        await front.call(pool.put, 1, timeout=timeout)
    assert (len(pool), front.workers()) == (0, 0)
    with pytest.raises(ConfigError, match="is not a number of seconds"):
        await front.call(pool.wait, timeout)
    with pytest.raises(ConfigError, match="is not a number of seconds"):
        await front.call(pool.stop, timeout=timeout)
    assert pool.try_put(1)  # it is still open
    assert (await front.call(pool.stop)).done == 1


async def test_an_endless_timeout_is_none(front) -> None:
    pool, work = await full_pool(front)
    putting = await blocked_put(front, pool, "late", math.inf)
    work.open()
    await putting
    report = await front.call(pool.stop, timeout=math.inf)
    assert report.done == 4
