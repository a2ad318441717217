"""Many waits for results share one periodic query."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.core.job import State
from penstock.stores.sqlite import SqliteStore
from tests.stores.sqlite.conftest import KEPT, OpenStore, new, settlements, take

SOON = 60.0


class Asked:
    """Counts what a store object asks its file for."""

    def __init__(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.questions = 0
        run = store._runner.run

        def counting(*args: Any) -> Any:
            self.questions += 1
            return run(*args)

        monkeypatch.setattr(store._runner, "run", counting)


async def test_a_thousand_waits_look_together(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store, worker = open_store(), open_store()
    jobs = [new() for _ in range(1_000)]
    await store.enqueue(jobs)
    asked = Asked(store, monkeypatch)
    waits = [asyncio.create_task(store.wait_for_end([job.ref], timeout=60_000)) for job in jobs]
    await asyncio.sleep(0.2)
    assert asked.questions <= 5, "who begins together is looked after together"
    await asyncio.sleep(1.5)
    assert asked.questions <= 10, "while nothing happens there is one look a second"
    for _ in range(10):
        await worker.settle(settlements(await take(worker, 100), KEPT))
    async with asyncio.timeout(SOON):
        found = await asyncio.gather(*waits)
    assert {job and job.state for (job,) in found} == {State.COMPLETED}
    assert asked.questions <= 40, "each ring is one look, however many wait"


async def test_without_waits_there_is_no_query(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    job = new()
    await store.enqueue([job])
    asked = Asked(store, monkeypatch)
    await store.wait_for_end([job.ref], timeout=10)
    before = asked.questions
    await asyncio.sleep(1.2)
    assert asked.questions == before


async def test_a_write_waits_for_one_round_of_reads_at_most(store: SqliteStore) -> None:
    job = new()
    await store.enqueue([job])
    reads, over = 0, False

    async def read() -> None:
        nonlocal reads
        while not over:
            await store.get([job.ref])
            reads += 1

    readers = [asyncio.create_task(read()) for _ in range(50)]
    waited = []
    for _ in range(30):
        await asyncio.sleep(0)
        before = reads
        await store.enqueue([new()])
        waited.append(reads - before)
    over = True
    await asyncio.gather(*readers)
    assert sorted(waited)[15] <= 2 * len(readers), waited
    assert max(waited) <= 4 * len(readers), waited
