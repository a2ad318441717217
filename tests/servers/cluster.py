"""A Redis Cluster: masters that share the slots, and replicas that take over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from redis.crc import key_slot

from tests.servers.fleet import Fleet, hosts
from tests.servers.programs import HOST, READY
from tests.servers.single import RedisServer, all_or_none, data_server

SLOTS = 16_384


class Cluster(Fleet):
    """Masters that share the slots, and their replicas."""

    def __init__(self, masters: Sequence[RedisServer], replicas: Sequence[RedisServer] = ()) -> None:
        super().__init__([*masters, *replicas])
        self.first_masters = list(masters)

    @property
    def url(self) -> str:
        secret = f":{self.servers[0].password}@" if self.servers[0].password else ""
        return f"redis+cluster://{secret}{hosts(self.first_masters)}"

    def masters(self) -> list[RedisServer]:
        """Who is a master now, by what the running ones say of themselves."""
        return [s for s in self.servers if s.running and s.info("replication")["role"] == "master"]

    def holder(self, key: str) -> RedisServer:
        """The master that has this key's slot now, by what most of its peers say."""
        slot = key_slot(key.encode())
        votes: dict[int, int] = {}
        for server in self.servers:
            if server.running:
                with server.asked() as client:
                    for start, end, master, *_ in client.execute_command("CLUSTER", "SLOTS"):
                        if start <= slot <= end:
                            votes[master[1]] = votes.get(master[1], 0) + 1
        return self.on_port(max(votes, key=lambda port: votes[port]))

    def replicas_of(self, master: RedisServer) -> list[RedisServer]:
        running = [s for s in self.servers if s.running and s is not master]
        told = [(server, server.info("replication")) for server in running]
        return [
            server for server, said in told if said["role"] == "slave" and said["master_port"] == master.port
        ]

    def wait_ready(self, *, timeout: float = READY) -> Self:
        """Until every running node says that all slots are served."""
        for server in self.servers:
            if server.running:
                server.until(lambda s=server: _state_ok(s), "the cluster to be ok", timeout=timeout)
        return self


def redis_cluster(
    *settings: str,
    masters: int = 3,
    replicas: int = 3,
    node_timeout: int = 1_500,
    appendonly: bool = False,
    password: str = "",
) -> Cluster:
    """A cluster; the replicas are dealt to the masters in turn. `node_timeout` is in milliseconds."""
    mode = ["cluster-enabled yes", f"cluster-node-timeout {node_timeout}", f"cluster-announce-ip {HOST}"]
    facts: dict[str, Any] = {"appendonly": appendonly, "password": password}
    with all_or_none():
        nodes = [data_server(*mode, *settings, **facts) for _ in range(masters + replicas)]
        for server in nodes:
            server.wait_ready()
        cluster = Cluster(nodes[:masters], nodes[masters:])
        _deal_slots(cluster.first_masters)
        _introduce(nodes)
        for number, servant in enumerate(nodes[masters:]):
            _follow(servant, nodes[number % masters])
        cluster.wait_ready()
        for servant in nodes[masters:]:
            servant.wait_in_step()
        return cluster


def _deal_slots(masters: Sequence[RedisServer]) -> None:
    for number, server in enumerate(masters):
        with server.asked() as client:
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            share = range(SLOTS * number // len(masters), SLOTS * (number + 1) // len(masters))
            client.execute_command("CLUSTER ADDSLOTS", *share)


def _introduce(nodes: Sequence[RedisServer]) -> None:
    """Everybody meets everybody, which is quicker than hearsay."""
    for server in nodes:
        with server.asked() as client:
            for other in nodes:
                if other is not server:
                    client.execute_command("CLUSTER MEET", HOST, other.port)
    for server in nodes:
        server.until(lambda s=server: _knows(s, len(nodes)), "the nodes to know each other")


def _follow(servant: RedisServer, master: RedisServer) -> None:
    with master.asked() as client:
        name = client.execute_command("CLUSTER MYID")
    with servant.asked() as client:
        client.execute_command("CLUSTER REPLICATE", name)


def _knows(server: RedisServer, n: int) -> bool:
    facts = _cluster_info(server)
    return int(facts["cluster_known_nodes"]) == n and int(facts["cluster_slots_ok"]) == SLOTS


def _state_ok(server: RedisServer) -> bool:
    facts = _cluster_info(server)
    return facts["cluster_state"] == "ok" and int(facts["cluster_slots_ok"]) == SLOTS


def _cluster_info(server: RedisServer) -> dict[str, str]:
    with server.asked() as client:
        told: Any = client.execute_command("CLUSTER INFO")
    if isinstance(told, dict):
        return told
    lines = (told.decode() if isinstance(told, bytes) else told).split()
    return dict(line.split(":", 1) for line in lines)
