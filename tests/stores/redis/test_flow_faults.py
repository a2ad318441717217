"""Flows on Redis: keys of another type, and processes that die between two scripts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.flow import FlowPolicy, FlowState, NodeState
from penstock.core.job import State
from penstock.stores.contract import FlowChange, Settlement
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.verbs import flow_store, settling
from tests.store.facts import COMPLETED as COMPLETED_JOB
from tests.store.facts import DEAD, end, new, take
from tests.store.flow_facts import (
    advance,
    flow_of,
    nodes_of,
    put,
    ref_of,
    run_one,
    started,
    states,
    the_flow,
)
from tests.store.redis_corruptor import RedisCorruptor

ACTIVE, COMPLETED, GONE = NodeState.ACTIVE, NodeState.COMPLETED, NodeState.GONE


async def test_a_flow_whose_key_holds_something_else_stops_no_other(
    store: RedisStore, corruptor: RedisCorruptor
) -> None:
    bad, well = flow_of(queue="bad"), flow_of(queue="well")
    for flow in (bad, well):
        await put(store, flow, nodes_of(flow, 2, [(0, 1)]))
    key = corruptor.key("bad", f"flow/{bad.id}")
    with corruptor.client() as client:
        client.delete(key)
        client.set(key, b"somebody else's")
    await store.delete([ref_of(bad, 0), ref_of(well, 0)])
    await advance(store)
    assert await states(store, well) == [GONE, NodeState.SKIPPED]
    with corruptor.client() as client:
        assert client.hlen(corruptor.key("bad", "ends")) == 1  # it is counted when the key is repaired


async def test_a_retried_member_that_ends_before_the_retry_of_its_flow_is_stored_is_counted(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await started(store, 2, [(0, 1)])
    await run_one(store, flow, 0, DEAD)
    assert (await the_flow(store, flow)).state is FlowState.FAILED

    def dying(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(flow_store, "register", dying)  # after the retry of the job
        with pytest.raises(KeyboardInterrupt):
            await store.change_flow(flow.ref, FlowChange.RETRY)
    await run_one(store, flow, 0)
    await advance(store)
    assert await states(store, flow) == [COMPLETED, ACTIVE]


async def test_that_an_id_is_taken_is_noted_by_the_step_that_starts_the_node(store: RedisStore) -> None:
    flow = flow_of()
    await store.enqueue([new(f"{flow.id}.0")])
    await store.put_flow(flow, nodes_of(flow, 1))  # its process does nothing more
    await advance(store)
    assert await states(store, flow) == [GONE]
    assert await store.cancel([ref_of(flow, 0)]) == [State.CANCELLED]
    await advance(store)
    assert await states(store, flow) == [GONE]


async def test_a_worker_that_dies_after_it_has_settled_a_member_has_counted_it(
    store: RedisStore, corruptor: RedisCorruptor
) -> None:
    flow = await started(store, 4, [(0, 3), (1, 3), (2, 3)])
    first, second, _ = await take(store, 3)
    await end(store, first, result=b"1")
    with corruptor.client() as client:
        assert not client.exists(corruptor.key(flow.queue, "ends"))
        client.delete(corruptor.key(flow.queue, f"flow/{flow.id}"))
    await end(store, second)  # as the end of any job
    await advance(store)


async def test_an_end_between_reading_and_storing_a_change_is_not_lost(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await started(store, 4, [(0, 3), (1, 3), (2, 3)], FlowPolicy.FINISH)
    first, second, third = await take(store, 3)
    await end(store, first)
    whole, settled = flow_store.register, 0

    def slowly(*arguments: Any) -> Any:  # the flow has been read: another worker settles a member now
        nonlocal settled
        settled += 1
        if settled == 1:
            yield from settling.settle(arguments[0], [Settlement(second.lease, COMPLETED_JOB)])
        yield from whole(*arguments)

    monkeypatch.setattr(flow_store, "register", slowly)
    await end(store, third, DEAD)
    assert settled == 2, "the change was computed from what another end has changed"
    assert await states(store, flow) == [COMPLETED, COMPLETED, NodeState.DEAD, NodeState.SKIPPED]
    assert (await the_flow(store, flow)).state is FlowState.FAILED
