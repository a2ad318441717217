"""A Redis master, its replicas, and the sentinels that put one of those in its place when it is gone."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import redis

from penstock.verify.servers.nodes import Fsync, RedisNode, all_ready, data_node, fill, freeze, in_turn
from penstock.verify.servers.programs import HOST, free_port, redis_program

__all__ = ["MASTER_NAME", "PrivateSentinels", "agreed", "master_port", "sentinel_settings"]

MASTER_NAME = "mymaster"
T = TypeVar("T", bound=RedisNode)


def sentinel_settings(port: int, master: RedisNode, *, down_after: int, password: str = "") -> list[str]:
    """The lines of redis.conf of a sentinel that watches this master. It is gone for whom it has not answered
    for `down_after` (ms), and gone when two say so. The sentinels themselves ask for no password."""
    settings = [
        f"port {port}",
        f"sentinel monitor {MASTER_NAME} {HOST} {master.port} 2",
        f"sentinel down-after-milliseconds {MASTER_NAME} {down_after}",
        f"sentinel failover-timeout {MASTER_NAME} {3 * down_after}",
    ]
    return [*settings, f"sentinel auth-pass {MASTER_NAME} {password}"] if password else settings


def master_port(sentinel: RedisNode) -> int:
    """The port of the master, as this one has it."""
    with sentinel.asked() as client:
        ask: Any = client.sentinel_get_master_addr_by_name
        return int(ask(MASTER_NAME)[1])


def agreed(data: Sequence[T], sentinels: Sequence[RedisNode]) -> T | None:
    """The master, if all is well: every sentinel names it, knows the others and finds nothing amiss with any
    server, all of which but one are replicas in step. None while that is not so."""
    views = {_view(sentinel) for sentinel in sentinels}
    if len(views) != 1:
        return None
    ((port, others, servants),) = views
    if not port:
        return None
    master = next(node for node in data if node.port == port)
    well = (
        others == len(sentinels) - 1
        and len(servants) == len(data) - 1
        and master.info("replication")["role"] == "master"
        and all(_follows(node, port) for node in data if node is not master)
    )
    return master if well else None


def _has_heard(sentinel: RedisNode, since: float) -> bool:
    """Whether the master has answered it after that moment (monotonic, s): harm that is over is held against
    a server as long as nobody has asked it anew."""
    passed = time.monotonic() - since
    with sentinel.asked() as client:
        ask: Any = client.sentinel_master
        return float(ask(MASTER_NAME)["last-ok-ping-reply"]) < passed * 1000


def _view(sentinel: RedisNode) -> tuple[int, int, tuple[int, ...]]:
    """What it thinks: the master's port, or 0 if that is in trouble; how many sentinels else it knows; the
    ports of the replicas that are well."""
    with sentinel.asked() as client:
        ask: Any = client
        master: dict[str, Any] = ask.sentinel_master(MASTER_NAME)
        others: list[Any] = ask.sentinel_sentinels(MASTER_NAME)
        servants: list[dict[str, Any]] = ask.sentinel_slaves(MASTER_NAME)
    known = {int(one["port"]) for one in servants if _flags(one) == {"slave"} and _is_linked(one)}
    return int(master["port"]) if _flags(master) == {"master"} else 0, len(others), tuple(sorted(known))


def _flags(told: dict[str, Any]) -> set[str]:
    return set(str(told["flags"]).split(","))


def _is_linked(servant: dict[str, Any]) -> bool:
    return bool(servant["master-link-status"] == "ok")


def _follows(node: RedisNode, port: int) -> bool:
    told = node.info("replication")
    return (told["role"], told.get("master_port"), told.get("master_link_status")) == ("slave", port, "up")


class PrivateSentinels:
    """Servers for one run, as `PrivateRedis`: a master and its replicas, watched by three sentinels.

    With `wait_replicas`, which is put into `url`, a write is acknowledged when so many replicas have it: a
    failover loses what they have not. A master counts as gone after `down_after` (ms).
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
        self.turn = threading.Lock()
        self._wait_replicas = min(wait_replicas, replicas)
        first = data_node(folder / "0", free_port(), fsync)
        follow = [f"replicaof {HOST} {first.port}"]
        servants = [data_node(folder / f"{n}", free_port(), fsync, follow) for n in range(1, 1 + replicas)]
        self._data = [first, *servants]
        self._sentinels = [_sentinel(folder / f"sentinel-{n}", first, down_after) for n in range(3)]
        with contextlib.ExitStack() as begun:
            begun.callback(self.close)
            all_ready(self._data)
            for servant in servants:
                servant.wait_in_step()
            all_ready(self._sentinels)
            self._settle()
            begun.pop_all()

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{node.port}" for node in self._sentinels)
        options = f"?wait_replicas={self._wait_replicas}" if self._wait_replicas else ""
        return f"redis+sentinel://{hosts}/{MASTER_NAME}{options}"

    def master(self) -> RedisNode:
        """Whom the sentinels hold for the master now."""
        port = master_port(self._sentinels[0])
        return next(node for node in self._data if node.port == port)

    def reign(self) -> tuple[int, int]:
        """Who the master is, and since which epoch: another answer after each failover."""
        with self._sentinels[0].asked() as client:
            ask: Any = client.sentinel_master
            told: dict[str, Any] = ask(MASTER_NAME)
        return int(told["port"]), int(told["config-epoch"])

    @in_turn
    def stop_for(self, seconds: float) -> None:
        """SIGSTOP for the master, and SIGCONT after so long; its replica may have taken over."""
        freeze(self.master(), seconds)
        self._settle()

    @in_turn
    def restart(self) -> float:
        """kill -9 for all, sentinels too, and start on the same files; the seconds until they answered."""
        began = time.monotonic()
        nodes = [*self._data, *self._sentinels]
        for node in nodes:
            node.kill()
        all_ready(nodes)
        took = time.monotonic() - began
        self._settle()
        return took

    @in_turn
    def failover(self) -> float:
        """kill -9 for the master; a replica takes over, and it comes back as the replica of that one.

        The seconds until there was a master again.
        """
        before = self.master()
        began = time.monotonic()
        before.kill()
        first = self._sentinels[0]
        first.until(lambda: master_port(first) != before.port, "a replica to take over")
        first.until(lambda: self.master().info("replication")["role"] == "master", "it to know that")
        took = time.monotonic() - began
        self._settle()
        return took

    @in_turn
    def flush_scripts(self) -> None:
        """SCRIPT FLUSH on every server with data."""
        for node in self._data:
            node.flush_scripts()

    @in_turn
    def fill_disk(self, seconds: float) -> str:
        """As `PrivateRedis.fill_disk`, for the master. Sentinels take one that cannot write for a dead one
        (its answer to PING is an error), so that its replica may take over."""
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

    def _settle(self) -> None:
        """Until all run, and the sentinels agree on a master whom all others follow."""
        since = time.monotonic()

        def settled() -> bool:
            for node in self._data:
                if not node.running:
                    node.start_again()
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):  # on a busy machine
                heard = all(_has_heard(sentinel, since) for sentinel in self._sentinels)
                return heard and agreed(self._data, self._sentinels) is not None
            return False

        self._sentinels[0].until(settled, "the sentinels to agree", timeout=60.0)


def _sentinel(folder: Path, master: RedisNode, down_after: int) -> RedisNode:
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = sentinel_settings(port, master, down_after=down_after)
    return RedisNode(redis_program(), folder.resolve(), settings, port=port, arguments=["--sentinel"])
