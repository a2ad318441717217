"""A set of servers that are started and stopped together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tests.servers.programs import HOST
from tests.servers.single import RedisServer


class Fleet:
    """Servers that belong together."""

    def __init__(self, servers: Sequence[RedisServer]) -> None:
        self.servers = list(servers)

    def on_port(self, port: int) -> RedisServer:
        return next(server for server in self.servers if server.port == port)

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hosts(servers: Sequence[RedisServer]) -> str:
    return ",".join(f"{HOST}:{server.port}" for server in servers)
