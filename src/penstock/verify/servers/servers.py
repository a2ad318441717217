"""Private Redis servers for one run, alone or with Sentinels, on free ports of this host.

They have methods that inject faults:

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import redis

from penstock.verify.servers.nodes import (
    HOST,
    Fsync,
    RedisNode,
    data_node,
    fill,
    free_port,
    freeze,
    redis_program,
    start_all,
)

#: How many seconds of acknowledged writes a power cut loses in the worst case.
LOST_BY_A_POWER_CUT: dict[Fsync, float] = {"always": 0.0, "everysec": 1.0, "no": 2.0}


S = TypeVar("S", bound="PrivateServers")
P = ParamSpec("P")
R = TypeVar("R")


def one_fault_at_a_time(inject: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorator: servers have one fault at a time, so that a paused one is not restarted in between."""

    @wraps(inject)
    def waiting(servers: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with servers.fault_lock:
            return inject(servers, *args, **kwargs)

    return waiting


class PrivateServers(ABC):
    """The Redis servers of one run; `fsync` is the `appendfsync` setting of those with data, `nodes`.

    A fault hits the present master. A cluster has one for each shard (from 0).
    """

    def __init__(self, fsync: Fsync) -> None:
        self.fsync: Fsync = fsync
        self.fault_lock = threading.Lock()
        self.nodes: list[RedisNode] = []

    @abstractmethod
    def master(self, shard: int = 0) -> RedisNode:
        """The present master."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until all servers are healthy, and ready for the next fault."""

    @one_fault_at_a_time
    def stop_for(self, seconds: float, shard: int = 0) -> None:
        """Pause a master (SIGSTOP) for this many seconds; its replica may take over."""
        freeze(self.master(shard), seconds)
        self.settle()

    @one_fault_at_a_time
    def flush_scripts(self) -> None:
        """Send SCRIPT FLUSH to every server with data."""
        for node in self.nodes:
            node.flush_scripts()

    @one_fault_at_a_time
    def fill_disk(self, seconds: float, shard: int = 0) -> str:
        """Make a master's writes to disk fail for this many seconds. Returns what happened, in words.

        A process limit (RLIMIT_FSIZE) makes them fail with EFBIG instead of ENOSPC. Redis then refuses writes
        (MISCONF), and answers PING with an error, so a replica may take over. With `always` it exits at the
        first write, by design, and is started again afterwards.
        """
        said = fill(self.master(shard), seconds)
        self.settle()
        return said

    def start_stopped(self) -> None:
        """Start the servers again that have exited."""
        for node in self.nodes:
            if not node.running:
                node.start_again()

    def close(self) -> None:
        """Kill all servers."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PrivateRedis(PrivateServers):
    """One Redis server."""

    def __init__(self, folder: Path, fsync: Fsync = "everysec") -> None:
        super().__init__(fsync)
        self._node = data_node(folder, free_port(), fsync)
        self.nodes = [self._node]
        start_all(self.nodes)

    @property
    def url(self) -> str:
        return self._node.url

    @property
    def pid(self) -> int:
        return self._node.pid

    def master(self, shard: int = 0) -> RedisNode:
        return self._node

    def settle(self) -> None:
        self.start_stopped()

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


# ── sentinels ────────────────────────────────────────────────────────────────────────────────────


MASTER_NAME = "mymaster"
#: Intervals of a sentinel (ms): of its questions to a server, and of its messages to other sentinels.
_INTERVALS = ("info-period", 1_000, "publish-period", 500)
T = TypeVar("T", bound=RedisNode)


def sentinel_settings(port: int, master: RedisNode, *, down_after: int, password: str = "") -> list[str]:
    """The lines of redis.conf for a sentinel of this master.

    A master is down for a sentinel if it has not answered for `down_after` (ms), and down for all if two
    sentinels agree. The sentinels themselves need no password.
    """
    settings = [
        f"port {port}",
        f"sentinel monitor {MASTER_NAME} {HOST} {master.port} 2",
        f"sentinel down-after-milliseconds {MASTER_NAME} {down_after}",
        f"sentinel failover-timeout {MASTER_NAME} {3 * down_after}",
    ]
    return [*settings, f"sentinel auth-pass {MASTER_NAME} {password}"] if password else settings


def shorten_intervals(sentinel: RedisNode) -> None:
    """Let a running sentinel notice changes sooner. A start resets this; Redis before 7 does not know it.

    By default, a sentinel asks for the role of a server every 10 s, and waits 8 s more before it makes a
    former master a replica.
    """
    with sentinel.patient_client() as client, contextlib.suppress(redis.ResponseError):
        ask: Any = client.execute_command
        ask("SENTINEL", "DEBUG", *_INTERVALS)


def master_port(sentinel: RedisNode) -> int:
    """The port of the master according to this sentinel."""
    with sentinel.patient_client() as client:
        ask: Any = client.sentinel_get_master_addr_by_name
        return int(ask(MASTER_NAME)[1])


def agreed_master(data: Sequence[T], sentinels: Sequence[RedisNode]) -> T | None:
    """The master if the whole set is healthy, else None.

    Healthy: all sentinels name the same master, know each other and see no problem, and all other servers are
    synced replicas.
    """
    views = {_view(sentinel) for sentinel in sentinels}
    if len(views) != 1:
        return None
    ((port, others, replica_nodes),) = views
    if not port:
        return None
    master = next(node for node in data if node.port == port)
    well = (
        others == len(sentinels) - 1
        and len(replica_nodes) == len(data) - 1
        and master.info("replication")["role"] == "master"
        and all(_follows(node, port) for node in data if node is not master)
    )
    return master if well else None


def _pinged_since(sentinel: RedisNode, since: float) -> bool:
    """Whether the sentinel has reached the master after that moment (monotonic, s).

    Until then the sentinel still uses answers from before, i.e. during a fault.
    """
    passed = time.monotonic() - since
    with sentinel.patient_client() as client:
        ask: Any = client.sentinel_master
        return float(ask(MASTER_NAME)["last-ok-ping-reply"]) < passed * 1000


def _view(sentinel: RedisNode) -> tuple[int, int, tuple[int, ...]]:
    """A sentinel's view: the master's port (0 if unhealthy), the number of other sentinels, and the ports of
    the healthy replicas."""
    with sentinel.patient_client() as client:
        ask: Any = client
        master: dict[str, Any] = ask.sentinel_master(MASTER_NAME)
        others: list[Any] = ask.sentinel_sentinels(MASTER_NAME)
        replica_nodes: list[dict[str, Any]] = ask.sentinel_slaves(MASTER_NAME)
    known = {int(one["port"]) for one in replica_nodes if _flags(one) == {"slave"} and _is_linked(one)}
    return int(master["port"]) if _flags(master) == {"master"} else 0, len(others), tuple(sorted(known))


def _flags(told: dict[str, Any]) -> set[str]:
    return set(str(told["flags"]).split(","))


def _is_linked(replica: dict[str, Any]) -> bool:
    return bool(replica["master-link-status"] == "ok")


def _follows(node: RedisNode, port: int) -> bool:
    told = node.info("replication")
    return (told["role"], told.get("master_port"), told.get("master_link_status")) == ("slave", port, "up")


class PrivateSentinels(PrivateServers):
    """Private servers for one run: a master and its replicas, monitored by three sentinels.

    `wait_replicas` is part of `url`: an enqueue is acknowledged when this many replicas have it; a failover
    may lose other writes. A master counts as down after `down_after` (ms).
    """

    def __init__(
        self,
        folder: Path,
        replicas: int = 1,
        *,
        fsync: Fsync = "everysec",
        down_after: int = 2_000,
        wait_replicas: int = 1,
    ) -> None:
        super().__init__(fsync)
        self._wait_replicas = min(wait_replicas, replicas)
        first = data_node(folder / "0", free_port(), fsync)
        follow = [f"replicaof {HOST} {first.port}"]
        replica_nodes = [
            data_node(folder / f"{n}", free_port(), fsync, follow) for n in range(1, 1 + replicas)
        ]
        self.nodes = [first, *replica_nodes]
        self._sentinels = [_sentinel(folder / f"sentinel-{n}", first, down_after) for n in range(3)]
        with contextlib.ExitStack() as begun:
            begun.callback(self.close)
            start_all(self.nodes)
            for replica in replica_nodes:
                replica.wait_synced()
            start_all(self._sentinels)
            self._shorten_intervals()
            self.settle()
            begun.pop_all()

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{node.port}" for node in self._sentinels)
        options = f"?wait_replicas={self._wait_replicas}" if self._wait_replicas else ""
        return f"redis+sentinel://{hosts}/{MASTER_NAME}{options}"

    def master(self, shard: int = 0) -> RedisNode:
        """The present master according to the sentinels."""
        port = master_port(self._sentinels[0])
        return next(node for node in self.nodes if node.port == port)

    def masters_and_epochs(self) -> tuple[int, int]:
        """The master's port and its configuration epoch; every failover changes them."""
        with self._sentinels[0].patient_client() as client:
            ask: Any = client.sentinel_master
            told: dict[str, Any] = ask(MASTER_NAME)
        return int(told["port"]), int(told["config-epoch"])

    @one_fault_at_a_time
    def restart(self) -> float:
        """Kill all servers and sentinels, and start them on the same files. Returns the downtime (s)."""
        began = time.monotonic()
        nodes = [*self.nodes, *self._sentinels]
        for node in nodes:
            node.kill()
        start_all(nodes)
        took = time.monotonic() - began
        self._shorten_intervals()
        self.settle()
        return took

    @one_fault_at_a_time
    def failover(self) -> float:
        """Kill the master and wait for the failover; the old master returns as a replica.

        Returns the seconds without a master.
        """
        before = self.master()
        began = time.monotonic()
        before.kill()
        first = self._sentinels[0]
        first.until(lambda: master_port(first) != before.port, "a replica to take over")
        first.until(lambda: self.master().info("replication")["role"] == "master", "its role of master")
        took = time.monotonic() - began
        self.settle()
        return took

    def close(self) -> None:
        for sentinel in self._sentinels:
            sentinel.close()
        super().close()

    def _shorten_intervals(self) -> None:
        for sentinel in self._sentinels:
            shorten_intervals(sentinel)

    def settle(self) -> None:
        """Wait until all servers run, and the sentinels agree on a master that all others replicate."""
        since = time.monotonic()

        def settled() -> bool:
            self.start_stopped()
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):  # on a busy machine
                heard = all(_pinged_since(sentinel, since) for sentinel in self._sentinels)
                return heard and agreed_master(self.nodes, self._sentinels) is not None
            return False

        self._sentinels[0].until(settled, "the sentinels to agree", timeout=60.0)


def _sentinel(folder: Path, master: RedisNode, down_after: int) -> RedisNode:
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = sentinel_settings(port, master, down_after=down_after)
    return RedisNode(redis_program(), folder.resolve(), settings, port=port, arguments=["--sentinel"])
