"""Redis Cluster: every key is found on its node, during slot migrations and failovers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest
import redis as driver
import redis.asyncio as async_driver
from redis.crc import key_slot

from penstock.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.async_runner import AsyncRunner
from penstock.stores.redis.wire.sync_runner import SyncRunner
from penstock.stores.redis.wire.topology import slot_of
from tests.servers import Cluster, RedisServer, remove_keys
from tests.stores.redis.both_runners import Asker, plain, push

NewCluster = Callable[..., Cluster]


@pytest.mark.parametrize("key", [b"a", b"{a}b", b"x{a}b{c}", b"{}a", b"a{", b"a}b{c", b"{{a}}", b""])
def test_a_key_has_the_slot_that_the_driver_says(key: bytes) -> None:
    assert slot_of(key) == key_slot(key)


async def test_every_key_is_asked_of_its_node(ask: Asker, cluster: Cluster) -> None:
    ask.to(cluster.url)
    answers = await ask([push(f"{ask.kind}:{n % 50}", n) for n in range(500)])
    assert answers == [n // 50 + 1 for n in range(500)]
    remove_keys(cluster.masters(), f"{ask.kind}:")


async def test_one_node_is_enough_to_know_all(ask: Asker, cluster: Cluster) -> None:
    ask.to(f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.masters()[1].port}")
    assert await ask([push(f"one-{ask.kind}:{n}", n) for n in range(20)]) == [1] * 20
    remove_keys(cluster.masters(), f"one-{ask.kind}:")


async def test_a_command_without_a_key_goes_to_any_node(ask: Asker, cluster: Cluster) -> None:
    assert await ask.to(cluster.url)([plain("PING")] * 3) == [b"PONG"] * 3


async def test_every_master_can_be_asked(cluster: Cluster) -> None:
    runner = AsyncRunner(Address.from_url(cluster.url))
    found = await runner.everywhere([plain("PING"), plain("INFO", "server")])
    assert sorted(node.port for node in found) == sorted(server.port for server in cluster.masters())
    assert all(b"tcp_port:%d" % node.port in answers[1] for node, answers in found.items())
    runner.close()


async def test_a_single_server_behind_cluster_gets_the_right_url(ask: Asker, redis: RedisServer) -> None:
    (answer,) = await ask.to(f"redis+cluster://127.0.0.1:{redis.port}")([plain("PING")])
    assert isinstance(answer, StoreError)
    assert f"use redis://127.0.0.1:{redis.port}" in str(answer)


async def test_a_cluster_that_is_away_is_said(ask: Asker) -> None:
    (answer,) = await ask.to("redis+cluster://127.0.0.1:1,127.0.0.1:2?timeout=300ms")([plain("PING")])
    assert isinstance(answer, StoreUnavailable)
    assert "connection refused" in str(answer)


@pytest.mark.slow
async def test_a_slot_on_the_move_is_followed(ask: Asker, new_cluster: NewCluster) -> None:
    cluster = new_cluster(replicas=0)
    ask.to(cluster.url)
    key = "{moving}list"
    slot = key_slot(key.encode())
    assert await ask([push(key, 0)]) == [1]
    source = cluster.holder(key)
    target = next(server for server in cluster.masters() if server is not source)
    with source.patient_client() as old, target.patient_client() as new:
        ids = {server: client.cluster("MYID").decode() for server, client in ((source, old), (target, new))}
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        assert await ask([push(key, 1)]) == [2]  # the key is still at its old place
        old.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        assert await ask([push(key, 2), push(key, 3), push("{moving}new", 1)]) == [3, 4, 1]  # ASK
        for client in (new, old):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
    assert await ask([push(key, 4)]) == [5]  # MOVED
    assert await ask([push(key, 5)]) == [6]


@pytest.mark.slow
async def test_a_killed_master_is_followed_by_its_replica(ask: Asker, new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    ask.to(cluster.url + "?timeout=30s")
    key = "{some}list"
    assert await ask([push(key, 0, replicas=1)])
    cluster.holder(key).kill()
    answers = await asyncio.gather(*(ask([push(key, n)]) for n in range(1, 10)))
    assert all(isinstance(answer, int) for (answer,) in answers)
    with cluster.holder(key).patient_client() as client:
        assert {int(n) for n in client.lrange(key, 0, -1)} == set(range(10))


async def test_a_cluster_client_is_taken_for_what_it_is(ask: Asker, cluster: Cluster) -> None:
    with contextlib.closing(driver.RedisCluster("127.0.0.1", cluster.masters()[0].port)) as client:
        address = Address.of(client)
        assert address.mode == "cluster"
        assert await ask.to(address)([plain("PING")]) == [b"PONG"]
        assert client.ping()


async def test_an_async_cluster_client_is_taken_too(ask: Asker, cluster: Cluster) -> None:
    client = async_driver.RedisCluster.from_url(f"redis://127.0.0.1:{cluster.masters()[0].port}")
    assert await ask.to(Address.of(client))([plain("PING")]) == [b"PONG"]
    await client.aclose()


async def test_messages_arrive_from_every_node(cluster: Cluster) -> None:
    runner = AsyncRunner(Address.from_url(cluster.url))
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    await runner.listen(b"all", heard.put_nowait, lambda: None)
    for server in cluster.masters():
        with server.patient_client() as client:
            client.publish("all", str(server.port))
    ports = {int(await heard.get()) for _ in cluster.masters()}
    assert ports == {server.port for server in cluster.masters()}
    runner.close()


def test_a_thread_listener_gets_messages_too(cluster: Cluster) -> None:
    runner = SyncRunner(Address.from_url(cluster.url))
    with runner.listener(b"thread") as listener:
        runner.run([plain("PUBLISH", "thread", "1")])
        assert listener.receive(5) == b"1"
    runner.close()
