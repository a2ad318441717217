"""Flows on Redis: keys of another type, and processes that die between two scripts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.flow import FlowState, NodeState
from penstock.core.job import State
from penstock.stores.contract import FlowChange
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.verbs import flow_ends, flow_store
from tests.store.facts import DEAD, end, new, take_one
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


async def test_a_member_whose_end_the_server_has_lost_keeps_the_result_of_its_second_end(
    store: RedisStore, corruptor: RedisCorruptor, clock: ManualClock
) -> None:
    """A server that restarts without its last moments may have lost the end that a flow has counted."""
    flow = await started(store, 2, [(0, 1)], queues={0: "other"})
    job = await take_one(store, "other")
    with corruptor.client() as client:
        begin = corruptor.key("other", "")
        before = {name: client.dump(name) for name in client.scan_iter() if name.startswith(begin)}
        await end(store, job, result=b"1")
        await advance(store)
        for name in [name for name in client.scan_iter() if name.startswith(begin)]:
            client.delete(name)
        for name, value in before.items():
            client.restore(name, 0, value)
    clock.advance(1)
    await end(store, job, result=b"2")
    await advance(store)
    (node,) = await store.flow_nodes(flow.ref, [0])
    assert node is not None
    assert (node.state, node.result) == (COMPLETED, b"2")
    assert await states(store, flow) == [COMPLETED, ACTIVE]


async def test_no_version_of_a_flow_is_used_twice(store: RedisStore, corruptor: RedisCorruptor) -> None:
    """A change that was computed before the server lost its last moments must not be stored after it."""
    flow = await started(store, 2)
    key, versions = corruptor.key(flow.queue, f"flow/{flow.id}"), set()
    with corruptor.client() as client:
        before = client.dump(key)
        for index in range(2):
            await run_one(store, flow, index)
            versions.add(client.hget(key, "v"))
            client.restore(key, 0, before, replace=True)
    assert len(versions) == 2


async def test_an_end_is_removed_by_the_step_that_counts_it(
    store: RedisStore, corruptor: RedisCorruptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that loses its last moments loses both, or none."""
    flow = await started(store, 2, [(0, 1)], queues={0: "other"})
    commit = flow_ends.commit

    def dying(*args: Any) -> Any:
        yield from commit(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(flow_ends, "commit", dying)
        with pytest.raises(KeyboardInterrupt):
            await run_one(store, flow, 0, queue="other")
    assert await states(store, flow) == [COMPLETED, ACTIVE]
    with corruptor.client() as client:
        assert client.hlen(corruptor.key("other", "ends")) == 0


async def test_that_an_id_is_taken_is_noted_by_the_step_that_starts_the_node(store: RedisStore) -> None:
    flow = flow_of()
    await store.enqueue([new(f"{flow.id}.0")])
    await store.put_flow(flow, nodes_of(flow, 1))  # its process does nothing more
    await advance(store)
    assert await states(store, flow) == [GONE]
    assert await store.cancel([ref_of(flow, 0)]) == [State.CANCELLED]
    await advance(store)
    assert await states(store, flow) == [GONE]
