"""A Redis Cluster: masters that share the slots, and replicas that take over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from redis.crc import key_slot

from penstock.verify.servers import clusters
from tests.servers.fleet import Fleet, hosts
from tests.servers.programs import READY
from tests.servers.single import RedisServer, all_or_none, data_server


class Cluster(Fleet):
    """Masters that share the slots, and their replicas."""

    def __init__(self, masters: Sequence[RedisServer], replicas: Sequence[RedisServer] = ()) -> None:
        super().__init__([*masters, *replicas])
        self.first_masters = list(masters)

    @property
    def url(self) -> str:
        secret = f":{self.servers[0].password}@" if self.servers[0].password else ""
        return f"redis+cluster://{secret}{hosts(self.first_masters)}"

    def masters(self) -> list[RedisServer]:
        """Who is a master now, by what the running ones say of themselves."""
        return clusters.masters(self.servers)

    def holder(self, key: str) -> RedisServer:
        """The master that has this key's slot now, by what most of its peers say."""
        return clusters.master_of_slot(self.servers, key_slot(key.encode()))

    def replicas_of(self, master: RedisServer) -> list[RedisServer]:
        return clusters.replicas_of(self.servers, master)

    def wait_ready(self, *, timeout: float = READY) -> Self:
        """Until every running node says that all slots are served."""
        clusters.wait_ok(self.servers, timeout=timeout)
        return self


def redis_cluster(
    *settings: str,
    masters: int = 3,
    replicas: int = 3,
    node_timeout: int = 1_500,
    appendonly: bool = False,
    password: str = "",
) -> Cluster:
    """A cluster; the replicas are dealt to the masters in turn. `node_timeout` is in milliseconds."""
    mode = clusters.cluster_settings(node_timeout)
    facts: dict[str, Any] = {"appendonly": appendonly, "password": password}
    with all_or_none():
        nodes = [data_server(*mode, *settings, **facts) for _ in range(masters + replicas)]
        for server in nodes:
            server.wait_ready()
        clusters.form(nodes[:masters], nodes[masters:])
        return Cluster(nodes[:masters], nodes[masters:])
