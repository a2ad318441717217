"""Redis servers for one run, in a folder, on free ports of this host: as real as any, and ours to harm.

    with PrivateRedis(folder, "everysec") as server:
        app = App(server.url)
        server.restart()        # kill -9, and the same files again
        server.stop_for(3)      # it holds its connections and says nothing
        server.fill_disk(3)     # none of its files can grow

Each harm lasts as long as its call, and when that returns the server is whole again and answers; one that
is asked for meanwhile, by another thread, waits its turn. Servers end with the process that started them,
also when that one is killed; the folder stays.
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

from penstock.stores.redis.keys import Keys
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.topology import slot_of
from penstock.verify.servers.clusters import (
    SLOTS,
    cluster_settings,
    epoch,
    followers,
    form,
    holder,
    masters,
    share_of,
    wait_lost,
    wait_ok,
)
from penstock.verify.servers.nodes import Fsync, RedisNode, all_ready, data_node, fill, freeze, in_turn
from penstock.verify.servers.programs import HOST, free_port
from penstock.verify.servers.proxy import Relay

__all__ = ["LOST_BY_A_POWER_CUT", "Fsync", "PrivateCluster", "PrivateRedis"]

#: Seconds of acknowledged writes that a power cut takes, when it does its worst.
LOST_BY_A_POWER_CUT: dict[Fsync, float] = {"always": 0.0, "everysec": 1.0, "no": 2.0}


class PrivateRedis:
    """One Redis whose append-only file is synced as `fsync` says."""

    def __init__(self, folder: Path, fsync: Fsync = "everysec") -> None:
        self.fsync: Fsync = fsync
        self.turn = threading.Lock()
        self._node = data_node(folder, free_port(), fsync)
        all_ready([self._node])

    @property
    def url(self) -> str:
        return self._node.url

    @property
    def pid(self) -> int:
        return self._node.pid

    @in_turn
    def stop_for(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long."""
        freeze(self._node, seconds)

    @in_turn
    def restart(self) -> float:
        """kill -9, and start it on the same files; the seconds until it answered again.

        The system keeps what a process has written. With always that is all that was acknowledged; else it is
        not what came while a sync was under way, which Redis keeps back meanwhile: usually milliseconds, two
        seconds at worst. What a machine loses that goes dark is another matter: `power_cut`.
        """
        began = time.monotonic()
        self._node.kill()
        self._node.start_again()
        return time.monotonic() - began

    @in_turn
    def power_cut(self, lose: float | None = None) -> float:
        """As `restart`, of a machine that goes dark: the last `lose` seconds before are not on its disk.

        Left out, it is the most that `fsync` allows: nothing with always, a second with everysec. The
        seconds until it answered again, without those.
        """
        lose = LOST_BY_A_POWER_CUT[self.fsync] if lose is None else lose
        file = self._node.log_of_changes
        synced = file.stat().st_size
        time.sleep(lose)
        began = time.monotonic()
        self._node.kill()
        if lose and self._node.log_of_changes == file:
            os.truncate(file, synced)
        self._node.start_again()
        return time.monotonic() - began

    @in_turn
    def flush_scripts(self) -> None:
        """SCRIPT FLUSH."""
        self._node.flush_scripts()

    @in_turn
    def fill_disk(self, seconds: float) -> str:
        """Let none of its files grow for so long; what came of it, in words.

        The limit is the process's own (RLIMIT_FSIZE): its writes fail as on a full disk, with EFBIG in place
        of ENOSPC. It refuses writes then (MISCONF); with `always` it ends itself at the first, by design,
        and is started again when there is room.
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
    """A Redis Cluster: so many masters, and so many replicas of each.

    `shard` is whom a harm hits: the present master of that share of the slots, from 0. With `wait_replicas`,
    which is put into `url`, a write is acknowledged when so many replicas have it: a failover loses what
    they have not. With `relayed` clients come by `relays`, one before each node. Without `full_coverage` the
    other masters serve their slots while one of them is lost.
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
        relayed: bool = False,
        full_coverage: bool = False,
    ) -> None:
        self.shards = masters
        self.fsync: Fsync = fsync
        self.turn = threading.Lock()
        self.relays: list[Relay] = []
        self._replicas = replicas
        self._wait_replicas = min(wait_replicas, replicas)
        self._nodes: list[RedisNode] = []
        self._coverage = "yes" if full_coverage else "no"
        with contextlib.ExitStack() as begun:
            begun.callback(self.close)
            for number in range(masters * (1 + replicas)):
                self._nodes.append(self._member(folder / str(number), fsync, node_timeout, relayed))
            all_ready(self._nodes)
            form(self._nodes[:masters], self._nodes[masters:])
            begun.pop_all()

    def _member(self, folder: Path, fsync: Fsync, node_timeout: int, relayed: bool) -> RedisNode:
        port = free_port()
        settings = [*cluster_settings(node_timeout), f"cluster-require-full-coverage {self._coverage}"]
        if not relayed:
            return data_node(folder, port, fsync, settings)
        relay = Relay(port)
        self.relays.append(relay)
        settings += [f"cluster-announce-port {relay.port}", f"cluster-announce-bus-port {port + 10_000}"]
        node = data_node(folder, port, fsync, settings)
        node.known_port = relay.port
        return node

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{node.known_port}" for node in self._nodes[: self.shards])
        options = f"?wait_replicas={self._wait_replicas}" if self._wait_replicas else ""
        return f"redis+cluster://{hosts}{options}"

    def master(self, shard: int) -> RedisNode:
        """Who has the slots of this share now."""
        return holder(self._nodes, SLOTS * shard // self.shards)

    def homes(self, namespace: str, queues: Iterable[str]) -> dict[str, int]:
        """The shard of each of these queues in this namespace."""
        keys = Keys(Address.from_url(self.url).prefix, namespace)
        return {queue: share_of(slot_of(keys.queue(queue)), self.shards) for queue in queues}

    def reign(self) -> list[tuple[int, int]]:
        """Who the masters are, and since which epoch: another answer after each failover."""
        found = [self.master(shard) for shard in range(self.shards)]
        return [(node.known_port, epoch(node)) for node in found]

    @in_turn
    def stop_for(self, seconds: float, shard: int = 0) -> None:
        """SIGSTOP for a master, and SIGCONT after so long; its replica may have taken over."""
        freeze(self.master(shard), seconds)
        self._heal()

    @in_turn
    def restart(self, shard: int | None = None) -> float:
        """kill -9 for all, or one master, and start on the same files; the seconds until all was served."""
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
        self._heal()
        return took

    @in_turn
    def failover(self, shard: int = 0) -> float:
        """kill -9 for a master; its replica takes over, and it comes back as the replica of that one.

        The seconds until all slots were served again.
        """
        before = self.master(shard)
        began = time.monotonic()
        before.kill()
        witness = next(node for node in self._nodes if node is not before)
        witness.until(lambda: self.master(shard) is not before, "its replica to take over")
        wait_ok(self._nodes)
        took = time.monotonic() - began
        self._heal()
        return took

    @in_turn
    def lose(self, shard: int, until: Callable[[], None]) -> None:
        """End a master and its replicas; call `until` once the others have given its slots up; and when that
        returns, start them on their files, which have all that was acknowledged.

        The master is back before its replicas, so that none of them takes its place.
        """
        master = self.master(shard)
        gone = [master, *followers(self._nodes, master)]
        for node in gone:
            node.stop()
        wait_lost(self._nodes)
        until()
        master.start_again()
        wait_ok(self._nodes)
        self._heal()

    @in_turn
    def flush_scripts(self) -> None:
        """SCRIPT FLUSH on every node."""
        for node in self._nodes:
            node.flush_scripts()

    @in_turn
    def fill_disk(self, seconds: float, shard: int = 0) -> str:
        """As `PrivateRedis.fill_disk`, for one master; if it ends itself, its replica takes over."""
        said = fill(self.master(shard), seconds)
        self._heal()
        return said

    def close(self) -> None:
        for relay in self.relays:
            relay.close()
        for node in self._nodes:
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _heal(self) -> None:
        """Until every share has its master, and each of those its replicas in step: fit for the next harm."""
        for node in self._nodes:
            if not node.running:
                node.start_again()
        wait_ok(self._nodes)
        for node in self._nodes:
            node.until(lambda: len(masters(self._nodes)) == self.shards, "one master of each share")
        for shard in range(self.shards):
            master = self.master(shard)
            master.until(partial(self._followed, master), "its replicas to follow")
            for node in followers(self._nodes, master):
                node.wait_in_step()

    def _followed(self, master: RedisNode) -> bool:
        return len(followers(self._nodes, master)) == self._replicas
