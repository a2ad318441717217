"""Servers that all tests of one process share, started on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tests.servers.cluster import Cluster, redis_cluster
from tests.servers.fleet import Fleet
from tests.servers.single import RedisServer, redis_server

T = TypeVar("T", bound=RedisServer | Fleet)


class Shared(Generic[T]):
    """Started by the first who asks."""

    def __init__(self, start: Callable[[], T]) -> None:
        self._start = start
        self.started: T | None = None

    def get(self) -> T:
        if self.started is None:
            self.started = self._start()
        return self.started

    def close(self) -> None:
        if self.started is not None:
            self.started.close()
            self.started = None


def _calm_server() -> RedisServer:
    return _calm(redis_server())


def _calm_cluster() -> Cluster:
    # without replicas it starts quicker; a long timeout, as a busy machine is no reason to call a node dead
    made = redis_cluster(replicas=0, node_timeout=15_000)
    for server in made.servers:
        _calm(server)
    return made


def _calm(server: RedisServer) -> RedisServer:
    """It looks around once a second and not ten times: four to a process, which mostly wait, would be busy
    with that for a large part of the run. (A cluster that forms needs the ten.)"""
    with server.patient_client() as client:
        client.config_set("hz", 1)
    return server


SHARED_REDIS = Shared(_calm_server)
SHARED_CLUSTER = Shared(_calm_cluster)


def remove_keys(servers: Iterable[RedisServer], having: str) -> None:
    """Every key whose name has this in it."""
    for server in servers:
        with server.patient_client() as client:
            found = list(client.scan_iter(match=f"*{having}*", count=1_000))
            with client.pipeline(transaction=False) as together:  # each key has a slot of its own
                for key in found:
                    together.unlink(key)
                together.execute()
