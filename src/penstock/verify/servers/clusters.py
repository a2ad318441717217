"""Redis servers become a Cluster, and say who is who in it."""

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
    "followers",
    "form",
    "holder",
    "masters",
    "share_of",
    "wait_lost",
    "wait_ok",
]

SLOTS = 16_384
T = TypeVar("T", bound=RedisNode)


def cluster_settings(node_timeout: int) -> list[str]:
    """The lines of redis.conf that make a server a node; `node_timeout` is in milliseconds."""
    return ["cluster-enabled yes", f"cluster-node-timeout {node_timeout}", f"cluster-announce-ip {HOST}"]


def form(first: Sequence[RedisNode], servants: Sequence[RedisNode] = ()) -> None:
    """Make one cluster of servers that answer: the first share the slots, the others follow them in turn."""
    nodes = [*first, *servants]
    _deal_slots(first)
    _introduce(nodes)
    for number, servant in enumerate(servants):
        _follow(servant, first[number % len(first)])
    wait_ok(nodes)
    for servant in servants:
        servant.wait_in_step()


def wait_ok(nodes: Sequence[RedisNode], *, timeout: float = READY) -> None:
    """Until every running node says that all slots are served."""
    for node in nodes:
        if node.running:
            node.until(partial(_state_ok, node), "the cluster to be ok", timeout=timeout)


def wait_lost(nodes: Sequence[RedisNode]) -> None:
    """Until every running node says that there are slots which nobody serves."""
    for node in nodes:
        if node.running:
            node.until(partial(_lacks_slots, node), "the cluster to give slots up")


def share_of(slot: int, shards: int) -> int:
    """Which of so many shares of the slots it is in, from 0."""
    return next(share for share in range(shards) if slot < SLOTS * (share + 1) // shards)


def masters(nodes: Sequence[T]) -> list[T]:
    """Who is a master now, by what the running ones say of themselves."""
    return [node for node in nodes if node.running and node.info("replication")["role"] == "master"]


def holder(nodes: Sequence[T], slot: int) -> T:
    """The master that has this slot now, by what most of its peers say; it may be dead, and they not know."""
    votes: Counter[int] = Counter()
    for node in nodes:
        if node.running:
            for start, end, master, *_ in _asked(node, "CLUSTER", "SLOTS"):
                if start <= slot <= end:
                    votes[master[1]] += 1
    ((port, _),) = votes.most_common(1)
    return next(node for node in nodes if node.known_port == port)


def epoch(node: RedisNode) -> int:
    """Its own configuration epoch; who takes over gets a higher one."""
    return int(_cluster_info(node)["cluster_my_epoch"])


def followers(nodes: Sequence[T], master: RedisNode) -> list[T]:
    """The running replicas of this master, by what they say of themselves."""
    told = [(node, node.info("replication")) for node in nodes if node.running and node is not master]
    return [
        node for node, said in told if said["role"] == "slave" and said["master_port"] == master.known_port
    ]


def _asked(node: RedisNode, *command: Any) -> Any:
    """Word by word: the driver has no opinion then on what the answer means."""
    with node.asked() as client:
        ask: Any = client.execute_command
        return ask(*command)


def _deal_slots(first: Sequence[RedisNode]) -> None:
    for number, node in enumerate(first):
        _asked(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        share = range(SLOTS * number // len(first), SLOTS * (number + 1) // len(first))
        _asked(node, "CLUSTER", "ADDSLOTS", *share)


def _introduce(nodes: Sequence[RedisNode]) -> None:
    """Everybody meets everybody, which is quicker than hearsay."""
    for node in nodes:
        for other in nodes:
            if other is not node:
                _asked(node, "CLUSTER", "MEET", HOST, other.port)
    for node in nodes:
        node.until(partial(_knows, node, len(nodes)), "the nodes to know each other")


def _follow(servant: RedisNode, master: RedisNode) -> None:
    _asked(servant, "CLUSTER", "REPLICATE", _asked(master, "CLUSTER", "MYID"))


def _knows(node: RedisNode, n: int) -> bool:
    facts = _cluster_info(node)
    return int(facts["cluster_known_nodes"]) == n and int(facts["cluster_slots_ok"]) == SLOTS


def _state_ok(node: RedisNode) -> bool:
    facts = _cluster_info(node)
    return facts["cluster_state"] == "ok" and int(facts["cluster_slots_ok"]) == SLOTS


def _lacks_slots(node: RedisNode) -> bool:
    return int(_cluster_info(node)["cluster_slots_fail"]) > 0


def _cluster_info(node: RedisNode) -> dict[str, str]:
    lines = _asked(node, "CLUSTER", "INFO").decode().split()
    return dict(line.split(":", 1) for line in lines)
