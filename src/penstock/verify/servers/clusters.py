"""Forms a Redis Cluster of servers, and finds the masters and replicas in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from penstock.verify.servers.nodes import RedisNode
from penstock.verify.servers.programs import HOST, READY

__all__ = [
    "SLOTS",
    "cluster_settings",
    "epoch",
    "form",
    "master_of_slot",
    "masters",
    "replicas_of",
    "shard_of_slot",
    "wait_lost",
    "wait_ok",
]

SLOTS = 16_384
T = TypeVar("T", bound=RedisNode)


def cluster_settings(node_timeout: int) -> list[str]:
    """The lines of redis.conf for a cluster node; `node_timeout` is in milliseconds."""
    return ["cluster-enabled yes", f"cluster-node-timeout {node_timeout}", f"cluster-announce-ip {HOST}"]


def form(first: Sequence[RedisNode], replica_nodes: Sequence[RedisNode] = ()) -> None:
    """Form a cluster: the `first` servers become masters, the others their replicas, assigned round robin."""
    nodes = [*first, *replica_nodes]
    _assign_slots(first)
    _meet_all(nodes)
    for number, replica in enumerate(replica_nodes):
        _follow(replica, first[number % len(first)])
    wait_ok(nodes)
    for replica in replica_nodes:
        replica.wait_synced()


def wait_ok(nodes: Sequence[RedisNode], *, timeout: float = READY) -> None:
    """Wait until every running node reports that all slots are served."""
    for node in nodes:
        if node.running:
            node.until(partial(_state_ok, node), "the cluster to be ok", timeout=timeout)


def wait_lost(nodes: Sequence[RedisNode]) -> None:
    """Wait until every running node reports slots that no master serves."""
    for node in nodes:
        if node.running:
            node.until(partial(_lacks_slots, node), "the cluster to give slots up")


def shard_of_slot(slot: int, shards: int) -> int:
    """The shard (from 0) of a slot, in a cluster of this many shards."""
    return next(share for share in range(shards) if slot < SLOTS * (share + 1) // shards)


def masters(nodes: Sequence[T]) -> list[T]:
    """The running nodes that report the role of master."""
    return [node for node in nodes if node.running and node.info("replication")["role"] == "master"]


def master_of_slot(nodes: Sequence[T], slot: int) -> T:
    """The master of this slot according to most nodes. It may be dead without their knowledge."""
    votes: Counter[int] = Counter()
    for node in nodes:
        if node.running:
            for start, end, master, *_ in _command(node, "CLUSTER", "SLOTS"):
                if start <= slot <= end:
                    votes[master[1]] += 1
    ((port, _),) = votes.most_common(1)
    return next(node for node in nodes if node.announced_port == port)


def epoch(node: RedisNode) -> int:
    """The node's configuration epoch; a failover gives the new master a higher one."""
    return int(_cluster_info(node)["cluster_my_epoch"])


def replicas_of(nodes: Sequence[T], master: RedisNode) -> list[T]:
    """The running nodes that report to be replicas of this master."""
    told = [(node, node.info("replication")) for node in nodes if node.running and node is not master]
    return [
        node
        for node, said in told
        if said["role"] == "slave" and said["master_port"] == master.announced_port
    ]


def _command(node: RedisNode, *command: Any) -> Any:
    """Send a command and return the raw answer, without the driver's parsing."""
    with node.patient_client() as client:
        ask: Any = client.execute_command
        return ask(*command)


def _assign_slots(first: Sequence[RedisNode]) -> None:
    for number, node in enumerate(first):
        _command(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        share = range(SLOTS * number // len(first), SLOTS * (number + 1) // len(first))
        _command(node, "CLUSTER", "ADDSLOTS", *share)


def _meet_all(nodes: Sequence[RedisNode]) -> None:
    """Introduce every node to every other one, which is faster than waiting for gossip."""
    for node in nodes:
        for other in nodes:
            if other is not node:
                _command(node, "CLUSTER", "MEET", HOST, other.port)
    for node in nodes:
        node.until(partial(_knows, node, len(nodes)), "the nodes to know each other")


def _follow(replica: RedisNode, master: RedisNode) -> None:
    _command(replica, "CLUSTER", "REPLICATE", _command(master, "CLUSTER", "MYID"))


def _knows(node: RedisNode, n: int) -> bool:
    facts = _cluster_info(node)
    return int(facts["cluster_known_nodes"]) == n and int(facts["cluster_slots_ok"]) == SLOTS


def _state_ok(node: RedisNode) -> bool:
    facts = _cluster_info(node)
    return facts["cluster_state"] == "ok" and int(facts["cluster_slots_ok"]) == SLOTS


def _lacks_slots(node: RedisNode) -> bool:
    return int(_cluster_info(node)["cluster_slots_fail"]) > 0


def _cluster_info(node: RedisNode) -> dict[str, str]:
    lines = _command(node, "CLUSTER", "INFO").decode().split()
    return dict(line.split(":", 1) for line in lines)
