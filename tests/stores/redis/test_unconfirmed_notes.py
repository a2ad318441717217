"""What one slot of a Cluster notes for another stays until replicas of the other have confirmed its write.

Otherwise a failover between the two would lose the end of a member, the job of a node, or a signal.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.cluster import RedisCluster

from penstock.core.clock import ManualClock
from penstock.core.errors import NotReplicated
from penstock.core.flow import NodeState
from penstock.core.job import State
from penstock.core.relations import FlowMember
from penstock.stores.contract import Signal, SignalWait
from penstock.stores.redis.layout import RedisKeys
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.verbs.signalling import _UNCONFIRMED
from tests.servers import Cluster
from tests.store.facts import LEASE, add, end, ids, new, suspended, take, take_one
from tests.store.flow_facts import advance, flow_of, nodes_of, ref_of, run_one, started, states
from tests.store.redis_corruptor import RedisCorruptor


@pytest.fixture
def url(cluster: Cluster, prefix: str) -> str:
    return f"{cluster.url}?prefix={prefix}"


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[RedisStore]:
    """A store that needs no replicas."""
    made = RedisStore(url, clock=clock)
    yield made
    made.close()


@pytest.fixture
def unconfirmed(url: str, clock: ManualClock) -> Iterator[RedisStore]:
    """A store that wants more replicas than there are."""
    made = RedisStore(f"{url}&wait_replicas=9&wait_timeout=1ms", clock=clock)
    yield made
    made.close()


@pytest.fixture
def corruptor(cluster: Cluster, prefix: str) -> RedisCorruptor:
    return RedisCorruptor(lambda: RedisCluster("127.0.0.1", cluster.first_masters[0].port), prefix)


async def test_a_flow_without_enough_replicas_is_stored_and_says_so(unconfirmed: RedisStore) -> None:
    flow = flow_of()
    with pytest.raises(NotReplicated, match=rf"1 flow\(s\) are stored.*{flow.id}"):
        await unconfirmed.put_flow(flow, nodes_of(flow, 1))
    assert await states(unconfirmed, flow) == [NodeState.ACTIVE]


async def test_a_member_added_without_enough_replicas_is_stored_and_says_so(
    store: RedisStore, unconfirmed: RedisStore
) -> None:
    flow = await started(store, 3, [(0, 1), (1, 2)], joins=[1])
    extra = new(f"{flow.id}.3", flow=FlowMember("default", flow.id, 0))
    with pytest.raises(NotReplicated, match=rf"1 job\(s\) are stored.*{extra.id}"):
        await unconfirmed.add_to_flow(flow.ref, 1, [extra], key="0/add!")
    assert await unconfirmed.add_to_flow(flow.ref, 1, [extra], key="0/add!") is not None  # it was added
    assert (await states(store, flow))[3:] == [NodeState.ACTIVE]


async def test_the_end_of_a_member_stays_noted(
    store: RedisStore, unconfirmed: RedisStore, corruptor: RedisCorruptor
) -> None:
    flow = await started(store, 2, [(0, 1)], queues={0: "other"})
    await run_one(unconfirmed, flow, 0, queue="other", result=b"1")
    assert await states(store, flow) == [NodeState.COMPLETED, NodeState.ACTIVE]
    assert await unconfirmed.advance_flows() == 0
    with corruptor.client() as client:
        assert client.hlen(corruptor.key("other", "ends")) == 1
        await advance(store)
        assert client.hlen(corruptor.key("other", "ends")) == 0
    assert await states(store, flow) == [NodeState.COMPLETED, NodeState.ACTIVE]


async def test_the_job_of_a_node_stays_noted_and_is_enqueued_once(
    store: RedisStore, unconfirmed: RedisStore, corruptor: RedisCorruptor
) -> None:
    flow = await started(store, 2, [(0, 1)], queues={1: "other"})
    await run_one(unconfirmed, flow, 0)
    assert ids(await take(store, 9, "other")) == [ref_of(flow, 1).id]
    with corruptor.client() as client:
        assert client.hlen(corruptor.key("default", "out")) == 1
        await store.prune()
        assert client.hlen(corruptor.key("default", "out")) == 0
    assert await take(store, 9, "other") == []


async def test_a_signal_stays_noted_and_is_received_once(
    store: RedisStore, unconfirmed: RedisStore, corruptor: RedisCorruptor, clock: ManualClock, prefix: str
) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await store.await_signals([SignalWait(job.lease, "w", "packed", "7", LEASE)])
    await end(store, job, suspended())
    with pytest.raises(NotReplicated, match=r"1 signal\(s\) are stored"):
        await unconfirmed.send_signals([Signal("packed", "7", b"1")])
    (found,) = await store.get([job.ref])
    assert found is not None
    assert found.state is State.AVAILABLE
    noted = RedisKeys(prefix, "").signals + b":out"
    with corruptor.client() as client:
        assert client.hlen(noted) == 1
        clock.advance(_UNCONFIRMED)
        await store.prune()
        assert client.hlen(noted) == 0
    (step,) = await store.steps(job.ref)
    assert step.value == b"1"
