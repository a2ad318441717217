"""The tasks of the measurement of flows."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.counters import count, instant
from benchmarks.tasks import Tasks
from penstock.workflows import current_flow

__all__ = ["STEPS", "FlowTasks"]

#: Steps of the job of many steps; it reports how long each tenth of them took.
STEPS = 1_000


class FlowTasks(Tasks):
    """An app with tasks that have results, and with jobs of many steps."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        app = self.app

        @app.task(name="number")
        async def number(n: int) -> int:
            count()
            return n

        @app.task(name="total")
        async def total(numbers: list[int]) -> int:
            now = time.monotonic_ns()
            instant(now, now)
            return sum(numbers)

        @app.task(name="stepping")
        async def stepping(steps: int) -> list[float]:
            flow, took = current_flow(), []
            for _ in range(10):
                started = time.perf_counter()
                for step in range(steps // 10):
                    await flow.step("add", int, step)
                took.append(time.perf_counter() - started)
            return took

        @app.task(name="waiting")
        async def waiting(n: int) -> None:
            await current_flow().wait_for("go", key=n)
            count()

        self.number = number
        self.total = total
        self.stepping = stepping
        self.waiting = waiting
