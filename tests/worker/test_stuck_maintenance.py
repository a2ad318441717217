"""Jobs that the store cannot move cost an idle worker almost nothing, and a fault ends none of its loops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from penstock import App, RecordSetAside, Worker
from penstock.maintenance.promoter import Promoter
from penstock.maintenance.service import Backoff, Service
from penstock.stores.contract import Due, Fetched, Pruned, SetAside, Share, Store, Wake

BROKEN = SetAside("job", "default", "j-1", "cut short")


class _Overdue:
    """A store whose due job no promotion moves, and whose waits come back at once because of it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
        self.calls += 1
        return Due(0, 1_000, 2_000)

    async def fetch(self, queues: Sequence[Share], **options: Any) -> Fetched:
        self.calls += 1
        return Fetched([], 2_000, 1_000)

    async def wait(self, queues: Sequence[str], **options: Any) -> Wake:
        self.calls += 1
        return Wake.WORK


async def test_a_due_job_that_cannot_be_promoted_causes_no_tight_loop() -> None:
    app = App("memory://")
    store = _Overdue(app.store)
    app.use_store(cast(Store, store))
    worker = Worker(app, ["default"])
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0.5)  # long enough for thousands of rounds
    worker.stop()
    await running
    assert store.calls < 150


def test_a_backoff_asks_again_at_once_first_and_then_ever_more_seldom() -> None:
    backoff = Backoff(most=5.0, free=2)
    pauses = [backoff.next_pause() for _ in range(20)]
    assert pauses[:4] == [0.0, 0.0, 0.001, 0.002]
    assert pauses[-1] == 5.0
    backoff.reset()
    assert backoff.next_pause() == 0.0


async def test_a_promotion_that_moves_nothing_backs_off_until_something_moves() -> None:
    answers = [Due(0, 1_000, 2_000)] * 15 + [Due(1, None, 2_000)] + [Due(0, 1_000, 2_000)] * 2

    class Answering:
        async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
            return answers.pop(0)

    promoter = Promoter(cast(Store, Answering()), ["default"])
    pauses = [await promoter.tick() for _ in range(17)]
    assert pauses[0] == 0.0
    assert pauses[14] == 5.0
    assert pauses[16] == 0.0


async def test_expired_jobs_that_are_cancelled_hold_up_no_promotion() -> None:
    answers = [Due(0, instant, 2_000) for instant in range(1_000, 1_050)]

    class Answering:
        async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
            return answers.pop(0)

    promoter = Promoter(cast(Store, Answering()), ["default"])
    assert [await promoter.tick() for _ in range(50)] == [0.0] * 50


async def test_a_fault_in_one_loop_of_a_worker_ends_neither_it_nor_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Faulty(Service):
        name = "faulty"
        ticks = 0

        async def tick(self) -> float:
            self.ticks += 1
            if self.ticks == 1:
                raise KeyError("nobody thought of this")
            self.stop()
            return 0.0

    service = Faulty()
    await asyncio.wait_for(service.run(), 60)
    assert service.ticks == 2
    assert "faulty failed and continues" in caplog.text


async def test_what_a_store_sets_aside_is_an_event_and_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("memory://")
    told: asyncio.Queue[RecordSetAside] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    app.on(RecordSetAside)(lambda event: loop.call_soon_threadsafe(told.put_nowait, event))

    class Telling:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        async def prune(self, **options: Any) -> Pruned:
            return Pruned(0, 0, 0, set_aside=(BROKEN,))

    inner = app.store
    app.use_store(cast(Store, Telling()))
    worker = Worker(app, ["default"])
    running = asyncio.create_task(worker.run())
    event = await asyncio.wait_for(told.get(), 60)
    worker.stop()
    await running
    assert (event.kind, event.queue, event.id, event.cause) == ("job", "default", "j-1", "cut short")
    assert "record cannot be read and was set aside: job j-1 of the queue default: cut short" in caplog.text
