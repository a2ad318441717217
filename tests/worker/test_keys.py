"""Keys in a worker: concurrency per key, order, and fair shares of tenants."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from penstock.app.app import App
from penstock.errors import Retry
from tests.worker.conftest import in_a_burst


async def test_of_each_key_so_many_run_at_once_as_it_may(app: App) -> None:
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @app.task(concurrency_key="device", max_running_per_key=2)
    async def command(device: str) -> None:
        now[device] += 1
        most[device] = max(most[device], now[device])
        await asyncio.sleep(0.005)
        now[device] -= 1

    for n in range(30):
        await command.aenqueue(f"d{n % 3}")
    await in_a_burst(app, concurrency=20)
    assert most == {"d0": 2, "d1": 2, "d2": 2}


async def test_of_an_ordered_key_each_comes_after_the_one_before_has_ended(app: App) -> None:
    seen: dict[str, list[int]] = {}

    @app.task(concurrency_key="device", ordered=True)
    async def command(device: str, number: int) -> None:
        await asyncio.sleep(0)
        tried = (device, number) in failed
        failed.add((device, number))
        if number % 4 == 0 and not tried:
            raise Retry(delay=0.01)
        seen.setdefault(device, []).append(number)

    failed: set[tuple[str, int]] = set()
    for n in range(20):
        for device in ("a", "b"):
            await command.aenqueue(device, n)
    await in_a_burst(app, concurrency=10)
    assert seen == {"a": list(range(20)), "b": list(range(20))}


async def test_tenants_take_turns(app: App) -> None:
    seen: list[str] = []

    @app.task(fair_by="tenant")
    async def work(tenant: str) -> None:
        seen.append(tenant)

    for tenant in ["large"] * 50 + ["small"] * 2:
        await work.aenqueue(tenant)
    await in_a_burst(app, concurrency=1)
    assert seen[:4].count("small") == 2


@pytest.mark.parametrize("burst", [1, 4])
async def test_a_rate_limited_job_runs_when_it_is_due(app: App, burst: int) -> None:
    seen: list[int] = []

    @app.task(concurrency_key="key", max_running_per_key=9, rate_per_key="50/s", burst_per_key=burst)
    async def call(key: str, number: int) -> None:
        seen.append(number)

    for n in range(6):
        await call.aenqueue("k", n)
    await in_a_burst(app, concurrency=9)
    assert seen == list(range(6))
