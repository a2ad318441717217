"""Check who else can use a Redis server: passwords and reachable addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.core.loopback import is_loopback
from penstock.stores.contract import Finding, Level
from penstock.stores.redis.server_facts import ServerFacts
from penstock.stores.redis.wire.address import Address

__all__ = ["Access", "access", "access_of"]


class Access(NamedTuple):
    """How we reach the servers: whether with a password or certificate, and by which host beyond loopback."""

    secret: bool = True
    remote: str = ""


def access_of(address: Address) -> Access:
    """The access that an address has."""
    options = address.options
    secret = address.password or options.get("ssl_certfile") or options.get("credential_provider")
    beyond = [node.host for node in address.nodes if node.port and not is_loopback(node.host)]
    return Access(bool(secret), beyond[0] if beyond else "")


def access(server: ServerFacts, ours: Access) -> Iterator[Finding]:
    """Report a server that everyone on the network can use: we use it without a secret, so others can."""
    if ours.secret:
        return
    bound = server.setting("bind")
    if ours.remote:
        where = f"it is reached over the network ({ours.remote})"
    elif server.setting("protected-mode") == "no" and bound is not None and _beyond_loopback(bound):
        where = f"it accepts connections from other machines (bind {bound or '*'}, protected-mode no)"
    else:
        yield Finding(Level.FINE, "access", "no password, but only this machine reaches the server")
        return
    yield Finding(
        Level.WARNING,
        "access",
        f"the server asks for no password, and {where}: everyone there can read, change and remove jobs",
        "set requirepass or ACL users, and write the URL as redis://:PASSWORD@HOST",
    )


def _beyond_loopback(bound: str) -> bool:
    """`bound`: the setting `bind`, such as "127.0.0.1 -::1"; "" stands for every address."""
    addresses = [word.removeprefix("-") for word in bound.split()]
    return not addresses or any(not is_loopback(address) for address in addresses)
