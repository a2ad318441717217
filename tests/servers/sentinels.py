"""A master, a replica, and the sentinels that fail over between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from penstock.verify.servers.servers import (
    MASTER_NAME,
    agreed_master,
    master_port,
    sentinel_settings,
    shorten_intervals,
)
from tests.servers.fleet import Fleet, hosts
from tests.servers.programs import HOST, READY, free_port, until
from tests.servers.single import RedisServer, all_or_none, data_server


class Sentinels(Fleet):
    """A master, its replicas, and the sentinels that watch them."""

    def __init__(self, data: Sequence[RedisServer], sentinels: Sequence[RedisServer]) -> None:
        super().__init__([*data, *sentinels])
        self.data = list(data)
        self.sentinels = list(sentinels)

    @property
    def url(self) -> str:
        secret = f":{self.data[0].password}@" if self.data[0].password else ""
        return f"redis+sentinel://{secret}{hosts(self.sentinels)}/{MASTER_NAME}"

    def master(self) -> RedisServer:
        """Whom the sentinels hold for the master now; some of them may still name one that was killed."""
        asked = [sentinel for sentinel in self.sentinels if sentinel.running]
        assert asked, "no sentinel is running"
        masters = [self.on_port(master_port(sentinel)) for sentinel in asked]
        return next((one for one in masters if one.running), masters[0])

    def replicas(self) -> list[RedisServer]:
        master = self.master()
        return [server for server in self.data if server is not master]

    def wait_ready(self) -> Self:
        """Until every sentinel knows the replicas, which are in step, and the other sentinels."""
        until(
            lambda: agreed_master(self.data, self.sentinels) is not None, "the sentinels to know each other"
        )
        return self

    def wait_failover(self, before: RedisServer, *, timeout: float = READY) -> RedisServer:
        """Until another than `before` is the master for all of them, and takes writes."""

        def over() -> bool:
            if any(master_port(s) == before.port for s in self.sentinels if s.running):
                return False
            return self.master().info("replication")["role"] == "master"

        until(over, "the failover", timeout=timeout)
        return self.master()


def redis_sentinels(
    *settings: str, replicas: int = 1, sentinels: int = 3, appendonly: bool = False, password: str = ""
) -> Sentinels:
    """A master, replicas and sentinels, which find a dead master after a second.

    `settings` are for the servers with the data.
    """

    facts: dict[str, Any] = {"appendonly": appendonly, "password": password}
    with all_or_none():
        master = data_server(*settings, **facts)
        replica_nodes = [
            data_server(f"replicaof {HOST} {master.port}", *settings, **facts) for _ in range(replicas)
        ]
        for server in (master, *replica_nodes):
            server.wait_ready()
        for replica in replica_nodes:
            replica.wait_synced()
        watchers = [_sentinel(master, password) for _ in range(sentinels)]
        for watcher in watchers:
            shorten_intervals(watcher.wait_ready())
        return Sentinels([master, *replica_nodes], watchers).wait_ready()


def _sentinel(master: RedisServer, password: str) -> RedisServer:
    port = free_port()
    settings = sentinel_settings(port, master, down_after=1_000, password=password)
    return RedisServer(settings, port=port, arguments=["--sentinel"])
