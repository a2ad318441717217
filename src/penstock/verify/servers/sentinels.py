"""A private Redis master with replicas and sentinels, which fail over when the master is down."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import redis

from penstock.verify.servers.nodes import (
    Fsync,
    RedisNode,
    data_node,
    fill,
    freeze,
    one_fault_at_a_time,
    start_all,
)
from penstock.verify.servers.programs import HOST, free_port, redis_program

__all__ = [
    "MASTER_NAME",
    "PrivateSentinels",
    "agreed_master",
    "master_port",
    "sentinel_settings",
    "shorten_intervals",
]

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


class PrivateSentinels:
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
        self.fsync: Fsync = fsync
        self.fault_lock = threading.Lock()
        self._wait_replicas = min(wait_replicas, replicas)
        first = data_node(folder / "0", free_port(), fsync)
        follow = [f"replicaof {HOST} {first.port}"]
        replica_nodes = [
            data_node(folder / f"{n}", free_port(), fsync, follow) for n in range(1, 1 + replicas)
        ]
        self._data = [first, *replica_nodes]
        self._sentinels = [_sentinel(folder / f"sentinel-{n}", first, down_after) for n in range(3)]
        with contextlib.ExitStack() as begun:
            begun.callback(self.close)
            start_all(self._data)
            for replica in replica_nodes:
                replica.wait_synced()
            start_all(self._sentinels)
            self._shorten_intervals()
            self._settle()
            begun.pop_all()

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{node.port}" for node in self._sentinels)
        options = f"?wait_replicas={self._wait_replicas}" if self._wait_replicas else ""
        return f"redis+sentinel://{hosts}/{MASTER_NAME}{options}"

    def master(self) -> RedisNode:
        """The present master according to the sentinels."""
        port = master_port(self._sentinels[0])
        return next(node for node in self._data if node.port == port)

    def masters_and_epochs(self) -> tuple[int, int]:
        """The master's port and its configuration epoch; every failover changes them."""
        with self._sentinels[0].patient_client() as client:
            ask: Any = client.sentinel_master
            told: dict[str, Any] = ask(MASTER_NAME)
        return int(told["port"]), int(told["config-epoch"])

    @one_fault_at_a_time
    def stop_for(self, seconds: float) -> None:
        """Pause the master for this many seconds; a replica may take over."""
        freeze(self.master(), seconds)
        self._settle()

    @one_fault_at_a_time
    def restart(self) -> float:
        """Kill all servers and sentinels, and start them on the same files. Returns the downtime (s)."""
        began = time.monotonic()
        nodes = [*self._data, *self._sentinels]
        for node in nodes:
            node.kill()
        start_all(nodes)
        took = time.monotonic() - began
        self._shorten_intervals()
        self._settle()
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
        self._settle()
        return took

    @one_fault_at_a_time
    def flush_scripts(self) -> None:
        """Send SCRIPT FLUSH to the master and the replicas."""
        for node in self._data:
            node.flush_scripts()

    @one_fault_at_a_time
    def fill_disk(self, seconds: float) -> str:
        """As `PrivateRedis.fill_disk`, for the master.

        A master that cannot write answers PING with an error, so sentinels may fail over to a replica.
        """
        said = fill(self.master(), seconds)
        self._settle()
        return said

    def close(self) -> None:
        for node in (*self._sentinels, *self._data):
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shorten_intervals(self) -> None:
        for sentinel in self._sentinels:
            shorten_intervals(sentinel)

    def _settle(self) -> None:
        """Wait until all servers run, and the sentinels agree on a master that all others replicate."""
        since = time.monotonic()

        def settled() -> bool:
            for node in self._data:
                if not node.running:
                    node.start_again()
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):  # on a busy machine
                heard = all(_pinged_since(sentinel, since) for sentinel in self._sentinels)
                return heard and agreed_master(self._data, self._sentinels) is not None
            return False

        self._sentinels[0].until(settled, "the sentinels to agree", timeout=60.0)


def _sentinel(folder: Path, master: RedisNode, down_after: int) -> RedisNode:
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = sentinel_settings(port, master, down_after=down_after)
    return RedisNode(redis_program(), folder.resolve(), settings, port=port, arguments=["--sentinel"])
