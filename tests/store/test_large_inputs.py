"""The results that one job of a flow takes: read in steps of bounded size, and together of bounded size."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, ArgumentError, JobDead, Worker
from penstock.client.flows import values
from penstock.core.job import Ref
from penstock.stores.contract import Store
from penstock.workflows import chord


class Reads:
    """A store that notes how many nodes each call reads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def flow_nodes(self, ref: Ref, indexes: Any, *, results: bool = True) -> Any:
        self.sizes.append(len(indexes))
        return await self._store.flow_nodes(ref, indexes, results=results)


async def _run(app: App, members: int, size: int) -> Any:
    @app.task(name=f"member-{members}")
    async def member() -> str:
        return "x" * size

    @app.task(name=f"body-{members}")
    async def body(texts: list[str]) -> int:
        return len(texts)

    handle = await chord([member.job() for _ in range(members)], body).aenqueue()
    await Worker(app, burst=True).run()
    return await handle.aresult(10)


@pytest.fixture
def app(store: Store) -> App:
    made = App("memory://")
    made.use_store(store)
    return made


async def test_a_job_whose_results_are_too_large_is_dead_with_the_way_out(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "LARGEST_INPUTS", 20_000)
    assert await _run(app, 9, 2_000) == 9
    with pytest.raises(JobDead, match=r"more than 20 kB.*store large data elsewhere") as dead:
        await _run(app, 11, 2_000)
    assert len(dead.value.errors) == 1


async def test_large_results_are_read_a_few_at_a_time_and_small_ones_together(
    app: App, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "_FIRST", 4)
    monkeypatch.setattr(values, "_AT_ONCE", 10_000)
    reads: Any = Reads(store)
    app.use_store(reads)
    assert await _run(app, 20, 2_000) == 20
    assert max(reads.sizes) <= 5
    reads.sizes.clear()
    assert await _run(app, 200, 1) == 200
    assert len(reads.sizes) < 10


async def test_the_arguments_of_a_call_that_lacks_some_are_as_bounded_as_others(app: App) -> None:
    @app.task
    async def work(text: str, other: int) -> None: ...

    with pytest.raises(ArgumentError, match=r"most of them in 'text'.*App\(max_payload="):
        work.partial("x" * 1_100_000)
