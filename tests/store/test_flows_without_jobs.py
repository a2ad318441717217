"""Groups of no members: alone, as a part of a flow, and with a body."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import App, ConfigError, JobExists, Worker
from penstock.stores.contract import Store
from penstock.workflows import Flow, FlowState, chain, chord, group


@pytest.fixture
def app(store: Store) -> App:
    made = App("memory://")
    made.use_store(store)
    return made


class Tasks:
    def __init__(self, app: App) -> None:
        @app.task
        async def one(x: int = 0) -> int:
            return x

        @app.task
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        self.one, self.total = one, total


FLOWS: dict[str, tuple[Any, Any]] = {
    "group([])": (lambda tasks: group([]), []),
    "group()": (lambda tasks: group(), []),
    "map": (lambda tasks: tasks.one.map([]), []),
    "starmap": (lambda tasks: tasks.one.starmap([]), []),
    "chunks": (lambda tasks: tasks.total.chunks([], 10), []),
    "chord([])": (lambda tasks: chord([], tasks.total), 0),
    "chord of a map": (lambda tasks: chord(tasks.one.map([]), tasks.total), 0),
    "chord of nothing": (lambda tasks: chord([], group([])), []),
    "chain": (lambda tasks: chain(group([])), []),
    "chain with a job": (lambda tasks: chain(group([]), tasks.total), 0),
    "groups in a group": (lambda tasks: group([group([]), tasks.one.map([])]), [[], []]),
    "on_success": (lambda tasks: group([]).on_success(tasks.total), []),
    "on_complete": (lambda tasks: tasks.one.map([]).on_complete(tasks.one.job(1)), []),
}


@pytest.mark.parametrize("name", FLOWS)
async def test_a_group_of_no_members_gives_an_empty_list(app: App, name: str) -> None:
    make, value = FLOWS[name]
    handle = await make(Tasks(app)).aenqueue(id="import-7", name=name)
    await Worker(app, burst=True).run()
    assert await handle.aresult(10) == value
    assert await handle.astatus() is FlowState.COMPLETED
    assert handle.id == "import-7"


async def test_a_flow_without_jobs_and_without_an_app_answers_everything() -> None:
    handle = await group([]).aenqueue()
    assert (await handle.ainfo()).ended
    assert await handle.aprogress() == await asyncio.to_thread(handle.progress)
    assert await handle.acancel() is FlowState.COMPLETED
    assert await handle.aretry() is FlowState.COMPLETED
    assert await asyncio.to_thread(group([]).enqueue().result) == []
    with pytest.raises(ConfigError, match="policy"):
        await group([]).aenqueue(policy="nonsense")


async def test_a_map_of_nothing_is_stored_with_its_id(app: App) -> None:
    tasks = Tasks(app)
    await tasks.one.map([]).aenqueue(id="nightly")
    with pytest.raises(JobExists):
        await tasks.one.map([1]).aenqueue(id="nightly")


async def test_a_chain_and_a_graph_of_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one job"):
        chain([])
    with pytest.raises(ConfigError, match="no nodes"):
        await Flow().aenqueue()
