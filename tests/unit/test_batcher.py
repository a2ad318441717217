"""Group commit: no call waits for others, calls during a write go together, each has its own answer."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.loops import Batcher


class Wire:
    """A write that takes as long as the test wants."""

    def __init__(self, *, held: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.fails: Exception | None = None
        if not held:
            self.gate.set()

    async def send(self, items: list[int]) -> list[int | BaseException]:
        self.batches.append(list(items))
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        return [ValueError(f"{n} is negative") if n < 0 else n * 10 for n in items]


async def ticks(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_when_nothing_is_in_flight_an_item_goes_at_once() -> None:
    wire = Wire(held=False)
    batcher = Batcher(wire.send)
    assert await batcher.put(1) == 10
    assert await batcher.put(2) == 20
    assert wire.batches == [[1], [2]]


async def test_jobs_enqueued_at_once_go_in_one_write() -> None:
    wire = Wire(held=False)
    batcher = Batcher(wire.send)
    assert await asyncio.gather(*(batcher.put(n) for n in range(5))) == [0, 10, 20, 30, 40]
    assert wire.batches == [[0, 1, 2, 3, 4]]


async def test_calls_during_a_write_go_together_in_the_next_one() -> None:
    wire = Wire()
    batcher = Batcher(wire.send)
    first = batcher.put(1)
    await ticks()
    later = []
    for n in (2, 3, 4):
        later.append(batcher.put(n))
        await ticks()
    assert wire.batches == [[1]]
    wire.gate.set()
    assert await asyncio.gather(first, *later) == [10, 20, 30, 40]
    assert wire.batches == [[1], [2, 3, 4]]


async def test_one_batch_is_in_flight_at_a_time() -> None:
    in_flight = most = 0

    async def send(items: list[int]) -> list[int]:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return items

    batcher = Batcher(send, limit=3)

    async def producer(start: int) -> None:
        for n in range(20):
            assert await batcher.put(start + n) == start + n

    await asyncio.gather(*(producer(100 * k) for k in range(7)))
    assert most == 1


async def test_no_batch_is_larger_than_the_limit_and_the_order_is_kept() -> None:
    wire = Wire(held=False)
    batcher = Batcher(wire.send, limit=4)
    await asyncio.gather(*(batcher.put(n) for n in range(10)))
    assert wire.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_an_error_of_one_item_is_its_own() -> None:
    batcher = Batcher(Wire(held=False).send)
    good, bad, other = await asyncio.gather(
        batcher.put(1), batcher.put(-2), batcher.put(3), return_exceptions=True
    )
    assert (good, other) == (10, 30)
    assert isinstance(bad, ValueError)


async def test_a_write_that_fails_fails_for_all_of_its_batch_and_for_no_other() -> None:
    wire = Wire()
    wire.fails = OSError("the disk is full")
    batcher = Batcher(wire.send, limit=2)
    waiting = [batcher.put(n) for n in (1, 2, 3)]
    await ticks()

    async def heal() -> None:
        with pytest.raises(OSError, match="full"):
            await waiting[0]
        wire.fails = None

    healer = asyncio.create_task(heal())
    wire.gate.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    await healer
    assert [type(one) for one in found[:2]] == [OSError, OSError]
    assert wire.batches == [[1, 2], [3]]
    assert await batcher.put(4) == 40


async def test_a_caller_that_gives_up_takes_nothing_back() -> None:
    wire = Wire()
    batcher = Batcher(wire.send)
    first = batcher.put(1)
    await ticks()
    second, third = batcher.put(2), batcher.put(3)
    first.cancel()
    second.cancel()
    wire.gate.set()
    assert await third == 30
    assert wire.batches == [[1], [2, 3]]
    assert first.cancelled()
    assert second.cancelled()


async def test_a_task_that_is_cancelled_while_it_waits_does_not_cancel_the_batch() -> None:
    wire = Wire()
    batcher = Batcher(wire.send)

    async def put(n: int) -> int:
        return await batcher.put(n)

    tasks = [asyncio.create_task(put(n)) for n in (1, 2, 3)]
    await ticks()
    tasks[1].cancel()
    await ticks()
    wire.gate.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert (found[0], found[2]) == (10, 30)
    assert isinstance(found[1], asyncio.CancelledError)
    assert wire.batches == [[1, 2, 3]]


async def test_drained_waits_for_all_that_was_put() -> None:
    wire = Wire()
    batcher = Batcher(wire.send, limit=1)
    answers = [batcher.put(n) for n in (1, 2, 3)]
    drained = asyncio.create_task(batcher.drained())
    await ticks()
    assert not drained.done()
    wire.gate.set()
    await asyncio.wait_for(drained, 60)
    assert [answer.result() for answer in answers] == [10, 20, 30]
    await batcher.drained()  # nothing is in flight: at once


async def test_an_item_put_while_the_last_batch_is_answered_is_not_forgotten() -> None:
    wire = Wire(held=False)
    batcher = Batcher(wire.send)
    seen: list[int] = []

    async def chain(n: int) -> None:
        while n < 50:
            n = await batcher.put(n) // 10 + 1
            seen.append(n)

    await asyncio.wait_for(asyncio.gather(chain(0), chain(25)), 60)
    assert sorted(seen) == sorted([*range(1, 51), *range(26, 51)])
