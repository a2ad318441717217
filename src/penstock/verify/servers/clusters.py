"""A private Redis Cluster, and how its masters and replicas are made and found."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.stores.redis.layout import RedisKeys
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.topology import slot_of
from penstock.verify.servers.nodes import (
    HOST,
    READY,
    Fsync,
    RedisNode,
    data_node,
    free_port,
    start_all,
)
from penstock.verify.servers.proxy import Proxy
from penstock.verify.servers.servers import PrivateServers, one_fault_at_a_time


class PrivateCluster(PrivateServers):
    """A private Redis Cluster.

    - `masters`: number of masters; `replicas`: number of replicas of each.
    - `wait_replicas` is part of `url`: an enqueue is acknowledged when this many replicas have it; a failover
      may lose other writes.
    - `proxied`: clients connect through `proxies`, one in front of each node.
    - `full_coverage`: if True, no master serves while one shard is lost.

    A fault of `shard` (from 0) hits the present master of that shard.
    """

    def __init__(
        self,
        folder: Path,
        masters: int = 3,
        replicas: int = 1,
        *,
        fsync: Fsync = "everysec",
        node_timeout: int = 2_000,
        wait_replicas: int = 1,
        proxied: bool = False,
        full_coverage: bool = False,
    ) -> None:
        super().__init__(fsync)
        self.shards = masters
        self.proxies: list[Proxy] = []
        self._replicas = replicas
        self._wait_replicas = min(wait_replicas, replicas)
        self._coverage = "yes" if full_coverage else "no"
        with contextlib.ExitStack() as begun:
            begun.callback(self.close)
            for number in range(masters * (1 + replicas)):
                self.nodes.append(self._member(folder / str(number), fsync, node_timeout, proxied))
            start_all(self.nodes)
            form(self.nodes[:masters], self.nodes[masters:])
            begun.pop_all()

    def _member(self, folder: Path, fsync: Fsync, node_timeout: int, proxied: bool) -> RedisNode:
        port = free_port()
        settings = [*cluster_settings(node_timeout), f"cluster-require-full-coverage {self._coverage}"]
        if not proxied:
            return data_node(folder, port, fsync, settings)
        proxy = Proxy(port)
        self.proxies.append(proxy)
        settings += [f"cluster-announce-port {proxy.port}", f"cluster-announce-bus-port {port + _BUS}"]
        node = data_node(folder, port, fsync, settings)
        node.announced_port = proxy.port
        return node

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{node.announced_port}" for node in self.nodes[: self.shards])
        options = f"?wait_replicas={self._wait_replicas}" if self._wait_replicas else ""
        return f"redis+cluster://{hosts}{options}"

    def master(self, shard: int = 0) -> RedisNode:
        """The present master of this shard."""
        return master_of_slot(self.nodes, SLOTS * shard // self.shards)

    def shards_by_queue(self, namespace: str, queues: Iterable[str]) -> dict[str, int]:
        """The shard of each of these queues in this namespace."""
        keys = RedisKeys(Address.from_url(self.url).prefix, namespace)
        return {queue: shard_of_slot(slot_of(keys.queue(queue)), self.shards) for queue in queues}

    def masters_and_epochs(self) -> list[tuple[int, int]]:
        """Port and configuration epoch of each master; every failover changes them."""
        found = [self.master(shard) for shard in range(self.shards)]
        return [(node.announced_port, epoch(node)) for node in found]

    @one_fault_at_a_time
    def restart(self, shard: int | None = None) -> float:
        """Kill all nodes (or one master) and start them on the same files. Returns the downtime (s)."""
        hit = self.nodes if shard is None else [self.master(shard)]
        began = time.monotonic()
        for node in hit:
            node.kill()
        for node in hit:
            node.launch()
        for node in hit:
            node.wait_ready()
        wait_ok(self.nodes)
        took = time.monotonic() - began
        self.settle()
        return took

    @one_fault_at_a_time
    def failover(self, shard: int = 0) -> float:
        """Kill a master and wait for the failover; the old master returns as a replica.

        Returns the seconds until all slots were served again.
        """
        before = self.master(shard)
        began = time.monotonic()
        before.kill()
        witness = next(node for node in self.nodes if node is not before)
        witness.until(lambda: self.master(shard) is not before, "its replica to take over")
        wait_ok(self.nodes)
        took = time.monotonic() - began
        self.settle()
        return took

    @one_fault_at_a_time
    def lose(self, shard: int, until: Callable[[], None]) -> None:
        """Stop a master and its replicas, call `until`, then start them again with all their data.

        `until` is called once the other nodes have marked the shard's slots as failed. The master starts
        before its replicas, so that none of them replaces it.
        """
        master = self.master(shard)
        gone = [master, *replicas_of(self.nodes, master)]
        for node in gone:
            node.stop()
        wait_lost(self.nodes)
        until()
        master.start_again()
        wait_ok(self.nodes)
        self.settle()

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()
        super().close()

    def settle(self) -> None:
        """Wait until every shard has its master with all replicas in sync, ready for the next fault."""
        self.start_stopped()
        wait_ok(self.nodes)
        for node in self.nodes:
            node.until(lambda: len(masters(self.nodes)) == self.shards, "one master of each shard")
        for shard in range(self.shards):
            master = self.master(shard)
            master.until(partial(self._followed, master), "its replicas to follow")
            for node in replicas_of(self.nodes, master):
                node.wait_synced()

    def _followed(self, master: RedisNode) -> bool:
        return len(replicas_of(self.nodes, master)) == self._replicas


# ── nodes of a cluster ───────────────────────────────────────────────────────────────────────────


SLOTS = 16_384
#: How far the port of a node's cluster bus is above its own.
_BUS = 10_000
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
        _meet_missing(node, nodes)
    for node in nodes:
        node.until(partial(_has_met_all, node, nodes), "the nodes to know each other")


def _has_met_all(node: RedisNode, nodes: Sequence[RedisNode]) -> bool:
    """Whether the node knows all others and who serves the slots; else it meets those that it does not know.

    One CLUSTER MEET is not enough: a node gives a handshake up for good after the node timeout.
    """
    return _meet_missing(node, nodes) == 0 and int(_cluster_info(node)["cluster_slots_ok"]) == SLOTS


def _meet_missing(node: RedisNode, nodes: Sequence[RedisNode]) -> int:
    """Send CLUSTER MEET for each node that this one does not know, which does nothing during a handshake.

    Returns their number.
    """
    known = _known_bus_ports(node)
    missing = [other for other in nodes if other.port + _BUS not in known]
    for other in missing:
        _command(node, "CLUSTER", "MEET", HOST, other.port)
    return len(missing)


def _known_bus_ports(node: RedisNode) -> set[int]:
    """The bus ports of the nodes that this one knows, itself included; not those of open handshakes."""
    lines = [line.split() for line in _command(node, "CLUSTER", "NODES").decode().splitlines()]
    told = [(address, flags.split(",")) for _, address, flags, *_ in lines]
    return {
        int(address.partition("@")[2].partition(",")[0])
        for address, flags in told
        if "handshake" not in flags
    }


def _follow(replica: RedisNode, master: RedisNode) -> None:
    _command(replica, "CLUSTER", "REPLICATE", _command(master, "CLUSTER", "MYID"))


def _state_ok(node: RedisNode) -> bool:
    facts = _cluster_info(node)
    return facts["cluster_state"] == "ok" and int(facts["cluster_slots_ok"]) == SLOTS


def _lacks_slots(node: RedisNode) -> bool:
    return int(_cluster_info(node)["cluster_slots_fail"]) > 0


def _cluster_info(node: RedisNode) -> dict[str, str]:
    lines = _command(node, "CLUSTER", "INFO").decode().split()
    return dict(line.split(":", 1) for line in lines)
