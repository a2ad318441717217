"""Parts of flows nest to any depth: far beyond what Python's recursion allows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from penstock import App, Worker
from penstock.inspector import Inspector
from penstock.stores.contract import Store
from penstock.workflows import Flow, FlowState, chain, chord, group

_DEPTH = 1_100
assert sys.getrecursionlimit() < _DEPTH


@pytest.fixture
def app(store: Store) -> App:
    made = App("memory://")
    made.use_store(store)
    return made


def _graph(part: Any) -> Flow:
    flow = Flow()
    flow.add(part)
    return flow


async def _run(app: App) -> None:
    while True:
        await Worker(app, burst=True).run()
        if not await app.store.advance_flows():
            return


NESTS: dict[str, Callable[[Any, Any], Any]] = {
    "group": lambda part, task: group([part]),
    "chain": lambda part, task: chain([part]),
    "chord": lambda part, task: chord(group([part]), group([])),
    "graph": lambda part, task: _graph(part),
    "mixed": lambda part, task: chain(group(chain([part])), group([])),
    "on_error": lambda part, task: group([part]).on_error(task.job(1)),
}


@pytest.mark.parametrize("shape", NESTS)
async def test_a_flow_of_any_depth_is_stored_shown_and_cancelled(app: App, shape: str) -> None:
    @app.task
    async def task(x: int) -> int:
        return x

    part: Any = task.using(delay="1h").job(7)
    for _ in range(_DEPTH):
        part = NESTS[shape](part, task)
    handle = await part.aenqueue(id="deep")
    inspector = Inspector(app.store)
    shown = await inspector.flows.graph("default/deep", limit=100)
    assert shown is not None
    assert await handle.astatus() is FlowState.RUNNING
    await handle.acancel()
    while await app.store.advance_flows():
        pass
    assert await handle.astatus() is FlowState.CANCELLED


async def test_the_result_of_a_deep_flow_is_as_deep(app: App) -> None:
    @app.task
    async def one() -> int:
        return 1

    part: Any = one.job()
    for _ in range(_DEPTH):
        part = group([part])
    handle = await part.aenqueue()
    await _run(app)
    value, depth = await handle.aresult(10), 0
    while value != 1:
        (value,), depth = value, depth + 1
    assert depth == _DEPTH
