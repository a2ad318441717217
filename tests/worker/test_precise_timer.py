"""PreciseTimer: calls a function once, at the last instant that was set."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from penstock.maintenance import promoter
from penstock.maintenance.promoter import PreciseTimer

SOON = 60.0


@pytest.fixture(params=["timerfd", "loop"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PreciseTimer]:
    """A timer of the kernel, or one of the event loop where the system has none."""
    if request.param == "loop":
        monkeypatch.setattr(promoter, "_libc", lambda: None)
    elif promoter._libc() is None:
        pytest.skip("no timerfd here")
    return PreciseTimer


class Calls:
    def __init__(self) -> None:
        self.at: list[float] = []
        self._called = asyncio.Event()

    def __call__(self) -> None:
        self.at.append(time.monotonic())
        self._called.set()

    async def one(self) -> None:
        async with asyncio.timeout(SOON):
            await self._called.wait()
        self._called.clear()


async def test_a_timer_calls_once_and_not_before_its_instant(made: Callable[..., PreciseTimer]) -> None:
    calls = Calls()
    timer = made(calls)
    at = time.monotonic() + 0.01
    timer.set(at)
    await calls.one()
    assert calls.at[0] >= at - 0.001, "the timer of an event loop counts whole milliseconds"
    await asyncio.sleep(0.02)
    assert len(calls.at) == 1
    timer.close()


async def test_a_timer_can_be_set_again_from_its_call(made: Callable[..., PreciseTimer]) -> None:
    calls = Calls()
    timer = made(calls)
    for _ in range(3):
        timer.set(time.monotonic() + 0.001)
        await calls.one()
    assert len(calls.at) == 3
    timer.close()


async def test_an_instant_that_has_passed_is_now(made: Callable[..., PreciseTimer]) -> None:
    calls = Calls()
    timer = made(calls)
    timer.set(time.monotonic() - 60)
    await calls.one()
    timer.close()


@pytest.mark.parametrize("first", [0.001, 60.0])
async def test_the_last_instant_counts(made: Callable[..., PreciseTimer], first: float) -> None:
    calls = Calls()
    timer = made(calls)
    timer.set(time.monotonic() + first)
    timer.set(at := time.monotonic() + 0.02)
    await calls.one()
    assert calls.at[0] >= at - 0.001
    timer.close()


async def test_a_timer_that_was_cancelled_or_closed_calls_nothing(made: Callable[..., PreciseTimer]) -> None:
    calls = Calls()
    cancelled, closed, unused = made(calls), made(calls), made(calls)
    for timer in (cancelled, closed):
        timer.set(time.monotonic() + 0.001)
    cancelled.cancel()
    closed.close()
    unused.close()
    await asyncio.sleep(0.02)
    assert calls.at == []
    cancelled.close()
    closed.close()


async def test_a_closed_timer_leaves_no_descriptor(made: Callable[..., PreciseTimer]) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    timers = [made(lambda: None) for _ in range(20)]
    for timer in timers:
        timer.set(time.monotonic() + 60)
    for timer in timers:
        timer.close()
    assert (len(os.listdir("/proc/self/fd")) if before else 0) <= before + 1
