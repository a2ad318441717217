"""Private Redis servers for one run, on free ports of this host, with methods that inject faults.

    with PrivateRedis(folder, "everysec") as server:
        app = App(server.url)
        server.restart()        # SIGKILL, then a start on the same files
        server.stop_for(3)      # connections stay open, and nothing is answered for 3 s
        server.fill_disk(3)     # its writes to disk fail for 3 s

A fault lasts as long as its call; when the call returns, the server is healthy and answers. Calls from
several threads run one after another. Servers end with the process that started them, even if it is killed;
the folder stays.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Self

from penstock.stores.redis.keys import RedisKeys
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.topology import slot_of
from penstock.verify.servers.clusters import (
    SLOTS,
    cluster_settings,
    epoch,
    form,
    master_of_slot,
    masters,
    replicas_of,
    shard_of_slot,
    wait_lost,
    wait_ok,
)
from penstock.verify.servers.nodes import (
    Fsync,
    RedisNode,
    data_node,
    fill,
    freeze,
    one_fault_at_a_time,
    start_all,
)
from penstock.verify.servers.programs import HOST, free_port
from penstock.verify.servers.proxy import Proxy

__all__ = ["LOST_BY_A_POWER_CUT", "Fsync", "PrivateCluster", "PrivateRedis"]

#: How many seconds of acknowledged writes a power cut loses in the worst case.
LOST_BY_A_POWER_CUT: dict[Fsync, float] = {"always": 0.0, "everysec": 1.0, "no": 2.0}


class PrivateRedis:
    """One Redis server; `fsync` is its `appendfsync` setting."""

    def __init__(self, folder: Path, fsync: Fsync = "everysec") -> None:
        self.fsync: Fsync = fsync
        self.fault_lock = threading.Lock()
        self._node = data_node(folder, free_port(), fsync)
        start_all([self._node])

    @property
    def url(self) -> str:
        return self._node.url

    @property
    def pid(self) -> int:
        return self._node.pid

    @one_fault_at_a_time
    def stop_for(self, seconds: float) -> None:
        """Pause the server (SIGSTOP) for this many seconds."""
        freeze(self._node, seconds)

    @one_fault_at_a_time
    def restart(self) -> float:
        """Kill the server and start it on the same files. Returns the downtime (s).

        The system keeps everything that the process has written. With `always` nothing acknowledged is lost.
        Otherwise writes are lost that Redis delayed during a file sync: usually milliseconds of them, at most
        two seconds. For the loss of the machine's power see `power_cut`.
        """
        began = time.monotonic()
        self._node.kill()
        self._node.start_again()
        return time.monotonic() - began

    @one_fault_at_a_time
    def power_cut(self, lose: float | None = None) -> float:
        """As `restart`, after a power cut: the last `lose` seconds of writes are not on disk.

        Default of `lose`: the most that `fsync` allows (`always`: 0 s, `everysec`: 1 s, `no`: 2 s). Returns
        the downtime (s).
        """
        lose = LOST_BY_A_POWER_CUT[self.fsync] if lose is None else lose
        file = self._node.append_only_file
        synced = file.stat().st_size
        time.sleep(lose)
        began = time.monotonic()
        self._node.kill()
        if lose and self._node.append_only_file == file:
            os.truncate(file, synced)
        self._node.start_again()
        return time.monotonic() - began

    @one_fault_at_a_time
    def flush_scripts(self) -> None:
        """Send SCRIPT FLUSH."""
        self._node.flush_scripts()

    @one_fault_at_a_time
    def fill_disk(self, seconds: float) -> str:
        """Make the server's writes to disk fail for this many seconds. Returns what happened, in words.

        A process limit (RLIMIT_FSIZE) makes them fail with EFBIG instead of ENOSPC. Redis then refuses writes
        (MISCONF). With `always` it exits at the first write, by design, and is started again afterwards.
        """
        said = fill(self._node, seconds)
        if not self._node.running:
            self._node.start_again()
        return said

    def close(self) -> None:
        self._node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PrivateCluster:
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
        self.shards = masters
        self.fsync: Fsync = fsync
        self.fault_lock = threading.Lock()
        self.proxies: list[Proxy] = []
        self._replicas = replicas
        self._wait_replicas = min(wait_replicas, replicas)
        self._nodes: list[RedisNode] = []
        self._coverage = "yes" if full_coverage else "no"
        with contextlib.ExitStack() as begun:
            begun.callback(self.close)
            for number in range(masters * (1 + replicas)):
                self._nodes.append(self._member(folder / str(number), fsync, node_timeout, proxied))
            start_all(self._nodes)
            form(self._nodes[:masters], self._nodes[masters:])
            begun.pop_all()

    def _member(self, folder: Path, fsync: Fsync, node_timeout: int, proxied: bool) -> RedisNode:
        port = free_port()
        settings = [*cluster_settings(node_timeout), f"cluster-require-full-coverage {self._coverage}"]
        if not proxied:
            return data_node(folder, port, fsync, settings)
        proxy = Proxy(port)
        self.proxies.append(proxy)
        settings += [f"cluster-announce-port {proxy.port}", f"cluster-announce-bus-port {port + 10_000}"]
        node = data_node(folder, port, fsync, settings)
        node.announced_port = proxy.port
        return node

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{node.announced_port}" for node in self._nodes[: self.shards])
        options = f"?wait_replicas={self._wait_replicas}" if self._wait_replicas else ""
        return f"redis+cluster://{hosts}{options}"

    def master(self, shard: int) -> RedisNode:
        """The present master of this shard."""
        return master_of_slot(self._nodes, SLOTS * shard // self.shards)

    def shards_by_queue(self, namespace: str, queues: Iterable[str]) -> dict[str, int]:
        """The shard of each of these queues in this namespace."""
        keys = RedisKeys(Address.from_url(self.url).prefix, namespace)
        return {queue: shard_of_slot(slot_of(keys.queue(queue)), self.shards) for queue in queues}

    def masters_and_epochs(self) -> list[tuple[int, int]]:
        """Port and configuration epoch of each master; every failover changes them."""
        found = [self.master(shard) for shard in range(self.shards)]
        return [(node.announced_port, epoch(node)) for node in found]

    @one_fault_at_a_time
    def stop_for(self, seconds: float, shard: int = 0) -> None:
        """Pause a master for this many seconds; its replica may take over."""
        freeze(self.master(shard), seconds)
        self._repair()

    @one_fault_at_a_time
    def restart(self, shard: int | None = None) -> float:
        """Kill all nodes (or one master) and start them on the same files. Returns the downtime (s)."""
        hit = self._nodes if shard is None else [self.master(shard)]
        began = time.monotonic()
        for node in hit:
            node.kill()
        for node in hit:
            node.launch()
        for node in hit:
            node.wait_ready()
        wait_ok(self._nodes)
        took = time.monotonic() - began
        self._repair()
        return took

    @one_fault_at_a_time
    def failover(self, shard: int = 0) -> float:
        """Kill a master and wait for the failover; the old master returns as a replica.

        Returns the seconds until all slots were served again.
        """
        before = self.master(shard)
        began = time.monotonic()
        before.kill()
        witness = next(node for node in self._nodes if node is not before)
        witness.until(lambda: self.master(shard) is not before, "its replica to take over")
        wait_ok(self._nodes)
        took = time.monotonic() - began
        self._repair()
        return took

    @one_fault_at_a_time
    def lose(self, shard: int, until: Callable[[], None]) -> None:
        """Stop a master and its replicas, call `until`, then start them again with all their data.

        `until` is called once the other nodes have marked the shard's slots as failed. The master starts
        before its replicas, so that none of them replaces it.
        """
        master = self.master(shard)
        gone = [master, *replicas_of(self._nodes, master)]
        for node in gone:
            node.stop()
        wait_lost(self._nodes)
        until()
        master.start_again()
        wait_ok(self._nodes)
        self._repair()

    @one_fault_at_a_time
    def flush_scripts(self) -> None:
        """Send SCRIPT FLUSH to every node."""
        for node in self._nodes:
            node.flush_scripts()

    @one_fault_at_a_time
    def fill_disk(self, seconds: float, shard: int = 0) -> str:
        """As `PrivateRedis.fill_disk`, for one master; if it exits, its replica takes over."""
        said = fill(self.master(shard), seconds)
        self._repair()
        return said

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()
        for node in self._nodes:
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repair(self) -> None:
        """Wait until every shard has its master with all replicas in sync, ready for the next fault."""
        for node in self._nodes:
            if not node.running:
                node.start_again()
        wait_ok(self._nodes)
        for node in self._nodes:
            node.until(lambda: len(masters(self._nodes)) == self.shards, "one master of each shard")
        for shard in range(self.shards):
            master = self.master(shard)
            master.until(partial(self._followed, master), "its replicas to follow")
            for node in replicas_of(self._nodes, master):
                node.wait_synced()

    def _followed(self, master: RedisNode) -> bool:
        return len(replicas_of(self._nodes, master)) == self._replicas
