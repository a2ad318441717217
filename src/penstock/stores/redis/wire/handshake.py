"""The handshake of a new connection: authenticate, select the database, and check the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.faults import ErrorReply, read

__all__ = ["Handshake", "Kind", "OnConnect", "Server"]

#: The use of a connection: calls; calls that wait for replicas (WAIT blocks the calls behind it); a query
#: to a sentinel; messages.
Kind = Literal["calls", "waits", "sentinel", "messages"]

OLDEST = (6, 2)


@dataclass(frozen=True)
class Server:
    """Facts that a server gives about itself in the handshake."""

    node: Node
    version: str = ""
    mode: str = ""
    role: str = ""
    run_id: str = ""


OnConnect = Callable[[Server], None]


class Handshake:
    """The commands of the handshake, sent in one write, and the reading of their replies."""

    def __init__(self, address: Address, node: Node, kind: Kind, credentials: tuple[str, ...]) -> None:
        self._address = address
        self._node = node
        self._kind = kind
        self.commands: list[tuple[str, ...]] = []
        self._must = 0  # number of first commands that must be answered with OK
        if credentials:
            self.commands.append(("AUTH", *credentials))
        if kind != "sentinel" and address.db:
            self.commands.append(("SELECT", str(address.db)))
        self._must = len(self.commands)
        if kind != "sentinel":
            self.commands.append(("CLIENT", "SETNAME", "penstock"))
        self.commands.append(("INFO", "server"))
        if address.mode == "sentinel" and kind != "sentinel":
            self.commands.append(("ROLE",))

    def read(self, replies: list[Any]) -> Server:
        """The server's facts. Raises StoreUnavailable for a temporary fault, StoreError for a lasting one."""
        where = self._address.at(self._node)
        for reply in replies[: self._must]:
            if isinstance(reply, ErrorReply):
                if "cluster mode" in str(reply):  # SELECT
                    raise self._is_cluster(where)
                error = read(str(reply), where).error
                assert error is not None
                raise error
        facts = self._info(replies, where)
        server = Server(
            self._node,
            version=facts.get("redis_version", ""),
            mode=facts.get("redis_mode", ""),
            role=self._role(replies),
            run_id=facts.get("run_id", ""),
        )
        self._check(server, where)
        return server

    def _info(self, replies: list[Any], where: str) -> dict[str, str]:
        at = self._must if self._kind == "sentinel" else self._must + 1
        reply = replies[at] if at < len(replies) else replies[0]
        if isinstance(reply, ErrorReply):
            if str(reply).startswith("NOPERM"):
                return {}  # the user may not read INFO
            error = read(str(reply), where).error
            assert error is not None
            raise error
        if not isinstance(reply, bytes):
            raise StoreError(f"{where} does not answer as a Redis does: is this the right port?")
        lines = reply.decode("utf-8", "replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _role(self, replies: list[Any]) -> str:
        role = replies[-1]
        return role[0].decode() if isinstance(role, list) and role else ""

    def _is_cluster(self, where: str) -> StoreError:
        return StoreError(f"{where} is a node of a cluster: use {self._address.as_mode('cluster')}")

    def _check(self, server: Server, where: str) -> None:
        address = self._address
        if self._kind == "sentinel":
            return
        if server.mode == "sentinel":
            raise StoreError(f"{where} is a sentinel: use {address.as_mode('sentinel')}")
        if server.mode == "cluster" and address.mode != "cluster":
            raise self._is_cluster(where)
        if server.mode == "standalone" and address.mode == "cluster":
            raise StoreError(f"{where} is not a node of a cluster: use {address.as_mode('single')}")
        if server.version and _number(server.version) < OLDEST:
            raise StoreError(
                f"{where} is Redis {server.version}; Penstock needs Redis 6.2 or newer, or Valkey: upgrade it"
            )
        if server.role and server.role != "master":
            raise StoreUnavailable(f"{where} is a {server.role} now; the sentinels have not noticed yet")


def _number(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdigit() else 99 for part in parts)
