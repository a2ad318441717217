"""A server has lost the list of queues: it is made again by those that enqueue and by workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.stores.contract import WorkerInfo
from penstock.stores.redis.store import RedisStore
from tests.servers import Cluster, RedisServer, remove_keys
from tests.store.facts import new
from tests.store.flow_facts import flow_of, nodes_of, put


@pytest.fixture
def clustered(cluster: Cluster, prefix: str) -> Iterator[RedisStore]:
    """A store on a Cluster, by the clock of its servers."""
    made = RedisStore(f"{cluster.url}?prefix={prefix}")
    yield made
    made.close()
    remove_keys(cluster.masters(), prefix)


def lose_lists(store: RedisStore, cluster: Cluster) -> None:
    """As a replica does that becomes the master before it knows the lists. The queues are elsewhere."""
    for key in (store._context.redis_keys.queues, store._context.redis_keys.flow_queues):
        with cluster.holder(key.decode()).patient_client() as client:
            assert client.delete(key)


async def fill(store: RedisStore) -> None:
    """A job in the queue a, and a flow in b."""
    await store.enqueue([new(queue="a")])
    flow = flow_of(queue="b")
    await put(store, flow, nodes_of(flow, 1))


async def names(store: RedisStore) -> list[str]:
    return [info.name for info in await store.queues()]


async def test_a_queue_is_listed_again_after_a_server_has_lost_everything(
    store: RedisStore, redis: RedisServer, prefix: str
) -> None:
    await store.enqueue([new(queue="a")])
    remove_keys([redis], prefix)
    assert await names(store) == []
    await store.enqueue([new(queue="a")])
    assert await names(store) == ["a"]


async def test_a_producer_lists_queues_again_on_a_cluster(clustered: RedisStore, cluster: Cluster) -> None:
    await fill(clustered)
    lose_lists(clustered, cluster)
    await clustered.enqueue([new(queue="a")])
    assert await names(clustered) == []  # the queue is not new, and was listed less than a minute ago
    clustered._context._listed_until = 0.0
    await clustered.enqueue([new(queue="a")])
    assert await names(clustered) == ["a"]


async def test_a_worker_lists_its_queues_and_those_with_flows_again_on_a_cluster(
    clustered: RedisStore, cluster: Cluster
) -> None:
    await fill(clustered)
    lose_lists(clustered, cluster)
    await clustered.announce(WorkerInfo("w", "host", 1, 0, ("a", "b", "none"), (), 4, 0, seen_at=0))
    assert await names(clustered) == ["a", "b"]
    assert len((await clustered.list_flows()).flows) == 1
