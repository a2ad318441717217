"""A master, a replica and the sentinels that make the one the other when it dies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tests.servers.fleet import Fleet, hosts
from tests.servers.programs import HOST, READY, free_port, until
from tests.servers.single import RedisServer, all_or_none, data_server

MASTER_NAME = "mymaster"


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
        """Whom the sentinels hold for the master now."""
        for sentinel in self.sentinels:
            if sentinel.running:
                return self.on_port(_master_port(sentinel))
        raise AssertionError("no sentinel is running")

    def replicas(self) -> list[RedisServer]:
        master = self.master()
        return [server for server in self.data if server is not master]

    def wait_ready(self) -> Self:
        """Until every sentinel knows the replicas, which are in step, and the other sentinels."""
        for sentinel in self.sentinels:
            sentinel.until(lambda s=sentinel: self._complete(s), "the sentinels to know each other")
        return self

    def wait_failover(self, before: RedisServer, *, timeout: float = READY) -> RedisServer:
        """Until another than `before` is the master for all of them, and takes writes."""

        def over() -> bool:
            if any(_master_port(s) == before.port for s in self.sentinels if s.running):
                return False
            return self.master().info("replication")["role"] == "master"

        until(over, "the failover", timeout=timeout)
        return self.master()

    def _complete(self, sentinel: RedisServer) -> bool:
        with sentinel.asked() as client:
            others = client.sentinel_sentinels(MASTER_NAME)
            replicas = client.sentinel_slaves(MASTER_NAME)
        return (
            len(others) == len(self.sentinels) - 1
            and len(replicas) == len(self.data) - 1
            and all(replica["master-link-status"] == "ok" for replica in replicas)
        )


def redis_sentinels(
    *settings: str, replicas: int = 1, sentinels: int = 3, appendonly: bool = False, password: str = ""
) -> Sentinels:
    """A master, replicas and sentinels, which find a dead master after a second.

    `settings` are for the servers with the data.
    """

    facts: dict[str, Any] = {"appendonly": appendonly, "password": password}
    with all_or_none():
        master = data_server(*settings, **facts)
        servants = [
            data_server(f"replicaof {HOST} {master.port}", *settings, **facts) for _ in range(replicas)
        ]
        for server in (master, *servants):
            server.wait_ready()
        for servant in servants:
            servant.wait_in_step()
        watchers = [_sentinel(master, password) for _ in range(sentinels)]
        for watcher in watchers:
            watcher.wait_ready()
        return Sentinels([master, *servants], watchers).wait_ready()


def _sentinel(master: RedisServer, password: str) -> RedisServer:
    port = free_port()
    settings = [
        f"port {port}",
        f"sentinel monitor {MASTER_NAME} {HOST} {master.port} 2",
        f"sentinel down-after-milliseconds {MASTER_NAME} 1000",
        f"sentinel failover-timeout {MASTER_NAME} 3000",
    ]
    if password:
        settings.append(f"sentinel auth-pass {MASTER_NAME} {password}")
    return RedisServer(settings, port=port, arguments=["--sentinel"])  # sentinels themselves ask no password


def _master_port(sentinel: RedisServer) -> int:
    with sentinel.asked() as client:
        return int(client.sentinel_get_master_addr_by_name(MASTER_NAME)[1])
