"""Many queues: what one step of maintenance reads does not grow with queues times running jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.stores.contract import MOST_FETCHED, Share
from penstock.stores.sql.verbs import pruning
from penstock.stores.sqlite import SqliteStore
from tests.store.facts import LEASE, new, token

QUEUES, RUNNING = 400, 400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def steps_of_prune(store: SqliteStore) -> int:
    """The steps of SQLite's virtual machine, in hundreds: as many on every machine."""
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    await store.prune()
    runner: Any = store._runner
    cx = runner._transactions._cx
    assert cx is not None
    cx.set_progress_handler(count, 100)
    try:
        await store.prune()
    finally:
        cx.set_progress_handler(None, 0)
    return counted


async def test_prune_does_not_look_at_all_running_jobs_once_per_queue(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await store.enqueue([new(queue=f"q-{n}") for n in range(QUEUES)])
    none_running = await steps_of_prune(store)
    await store.enqueue([new(queue="busy") for _ in range(RUNNING)])
    share = [Share("busy", RUNNING, RUNNING)]
    found = await store.fetch(share, limit=RUNNING, lease=LEASE, worker="w1", token=token())
    assert len(found.jobs) == RUNNING
    assert await steps_of_prune(store) < 2 * none_running
    store.close()


async def test_a_step_of_prune_looks_at_a_bounded_number_of_queues(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "MOST_PRUNED", 20)
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await store.enqueue([new(queue=f"q-{n}") for n in range(40)])
    few = await steps_of_prune(store)
    await store.enqueue([new(queue=f"r-{n}") for n in range(400)])
    assert await steps_of_prune(store) < 2 * few
    store.close()


async def test_a_fetch_of_many_queues_lets_other_calls_of_its_process_run_in_between(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    shares = [Share(f"q-{n}", 1, 1) for n in range(3 * MOST_FETCHED)]
    answered: list[str] = []

    async def noted(name: str, call: Awaitable[Any]) -> None:
        await call
        answered.append(name)

    fetch = store.fetch(shares, limit=1, lease=LEASE, worker="w1", token=token())
    await asyncio.gather(noted("fetch", fetch), noted("enqueue", store.enqueue([new()])))
    assert answered == ["enqueue", "fetch"]
    store.close()
