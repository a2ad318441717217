"""The tasks of the measurement of features: one per feature, and all take the same argument."""

from __future__ import annotations

from typing import Any

from benchmarks.counters import count
from benchmarks.tasks import Tasks
from penstock import Batch

__all__ = ["KEYS", "FeatureTasks"]

#: Number of concurrency keys, and of tenants.
KEYS = 1_000


class FeatureTasks(Tasks):
    """An app with a task per feature. `periodic`: number of entries that are due every second."""

    def __init__(self, url: str, *, periodic: int = 0, **options: Any) -> None:
        super().__init__(url, **options)
        app = self.app

        @app.task(name="plain")
        async def plain(n: int) -> None:
            count()

        @app.task(name="unique", unique=True)
        async def unique(n: int) -> None:
            count()

        @app.task(name="partition", concurrency_key=lambda n: str(n % KEYS))
        async def partition(n: int) -> None:
            count()

        @app.task(name="fair", fair_by=lambda n: str(n % KEYS))
        async def fair(n: int) -> None:
            count()

        @app.task(name="batch", batch=Batch(max_size=100, max_wait="1s"))
        async def batch(members: list[int]) -> None:
            for _ in members:
                count()

        @app.task(name="result")
        async def result(n: int) -> int:
            count()
            return n

        @app.task(name="tick")
        async def tick() -> None:
            """Run every second; not counted."""

        for number in range(periodic):
            app.periodic(every="1s", task=tick, name=f"tick-{number}")

        self.of_features = {task.name: task for task in (plain, unique, partition, fair, batch, result)}
