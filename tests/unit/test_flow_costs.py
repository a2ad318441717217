"""The work for flows grows with what is to be done: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from penstock.client.flows.values import needed
from penstock.core.flow import FlowNode, NodeState
from penstock.core.job import Ref
from penstock.stores.contract import FLOW_STEP, FlowChange
from penstock.stores.memory import MemoryStore
from tests.store.flow_facts import flow_of, nodes_of


def calls_of(act: Callable[[], Any]) -> int:
    """The number of calls of functions, also of those in C, that this takes."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def calls_to_advance(idle: int) -> int:
    """What it takes to continue one flow beside others that only wait."""
    store = MemoryStore(f"beside {idle}")
    for _ in range(idle):
        flow = flow_of()
        store.sync.put_flow(flow, nodes_of(flow, 2, [(0, 1)]))
    large = flow_of()
    nodes = nodes_of(large, FLOW_STEP + 10)
    store.sync.put_flow(large, nodes[:FLOW_STEP], start=False)
    store.sync.put_flow(large, nodes[FLOW_STEP:])
    calls = calls_of(store.sync.advance_flows)
    assert store.sync.advance_flows() == 0
    store.sync.change_flow(large.ref, FlowChange.CANCEL)
    store.close()
    return calls


def test_flows_that_wait_cost_nothing_while_another_goes_on() -> None:
    assert calls_to_advance(500) <= calls_to_advance(5) * 1.05


def calls_to_read(members: int) -> int:
    """What it takes to read a join of so many members; each page must be full, and no node come twice."""
    reading, asked = needed([members]), list[int]()

    def read() -> None:
        wanted = next(reading)
        try:
            while True:
                asked.extend(wanted)
                wanted = reading.send([node_of(index) for index in wanted])
        except StopIteration:
            pass

    def node_of(index: int) -> FlowNode:
        if index < members:
            return FlowNode(index, NodeState.COMPLETED, Ref("default", str(index)), result=b"1")
        return FlowNode(index, NodeState.COMPLETED, inputs=tuple(range(members)))

    calls = calls_of(read)
    assert sorted(asked) == list(range(members + 1))
    return calls


def test_reading_the_values_of_a_group_is_linear() -> None:
    assert calls_to_read(20_000) <= 10.5 * calls_to_read(2_000)
