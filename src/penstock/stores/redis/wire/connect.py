"""Connect to a server: redis-py's connection classes open the socket (TCP, TLS, Unix).

The open socket is then taken from redis-py and given to a `SyncConnection` or an `AsyncConnection`: these
read replies faster, and know whether a call was sent.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from typing import Any

import redis.asyncio.connection
import redis.connection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from penstock.core.errors import StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.faults import cannot_connect
from penstock.stores.redis.wire.handshake import Kind

__all__ = ["connect", "connect_async", "credentials", "where"]


def where(address: Address, node: Node, kind: Kind) -> str:
    return f"the sentinel {node}" if kind == "sentinel" else address.at(node)


def connect(
    address: Address, node: Node, kind: Kind, timeout: float
) -> tuple[socket.socket, tuple[str, ...]]:
    """Open a socket; return it with the arguments of AUTH. Raises StoreError."""
    try:
        connection = _class(redis.connection, address, node, kind)(**_settings(address, node, kind, timeout))
        connection.connect()
    except (RedisError, OSError, ValueError, TypeError) as error:
        raise cannot_connect(error, where(address, node, kind), waited=timeout) from None
    taken: socket.socket = connection._sock
    connection._sock = None
    return taken, _known(address, kind) or credentials(_provider(address, kind))


async def connect_async(
    address: Address, node: Node, kind: Kind, timeout: float
) -> tuple[asyncio.StreamWriter, tuple[str, ...]]:
    """As `connect`; the caller sets the protocol of the writer's transport."""
    try:
        chosen = _class(redis.asyncio.connection, address, node, kind)
        connection = chosen(**_settings(address, node, kind, timeout))
        async with asyncio.timeout(timeout):
            await connection.connect()
    except (RedisError, OSError, ValueError, TypeError) as error:
        raise cannot_connect(error, where(address, node, kind), waited=timeout) from None
    reader: asyncio.StreamReader = connection._reader
    taken: asyncio.StreamWriter = connection._writer
    connection._reader = connection._writer = None
    said = _known(address, kind)
    provider = _provider(address, kind)
    if not said and provider is not None:
        asked = provider.get_credentials_async()
        said = credentials(None, await asked if inspect.isawaitable(asked) else asked)
    if reader.at_eof():  # the next protocol would get no EOF, and the handshake would time out
        taken.transport.abort()
        raise StoreUnavailable(f"{where(address, node, kind)}: it closed the connection")
    return taken, said


def credentials(provider: Any, given: Any = None) -> tuple[str, ...]:
    """Return the credentials of a redis-py credential provider as arguments of AUTH."""
    if provider is not None:
        given = provider.get_credentials()
    if not given:
        return ()
    return (given,) if isinstance(given, str) else tuple(map(str, given))


def _provider(address: Address, kind: Kind) -> Any:
    options = address.sentinel_options if kind == "sentinel" else address.options
    return options.get("credential_provider")


def _known(address: Address, kind: Kind) -> tuple[str, ...]:
    user, password = address.username, address.password
    if kind == "sentinel":
        user, password = address.sentinel_username, address.sentinel_password
    if not password:
        return ()
    return (user, password) if user else (password,)


def _class(module: Any, address: Address, node: Node, kind: Kind) -> Any:
    if node.port == 0:
        return module.UnixDomainSocketConnection
    tls = address.sentinel_tls if kind == "sentinel" else address.tls
    return module.SSLConnection if tls else module.Connection


def _settings(address: Address, node: Node, kind: Kind, timeout: float) -> dict[str, Any]:
    """Return the options of a connection that opens its socket once and sends nothing on it."""
    given = address.sentinel_options if kind == "sentinel" else address.options
    tls = address.sentinel_tls if kind == "sentinel" else address.tls
    options = {
        name: value
        for name, value in given.items()
        if name != "credential_provider" and value is not None and (tls or not name.startswith("ssl_"))
    }
    if node.port == 0:
        options = {"path": node.host}
    else:
        options |= {"host": node.host, "port": node.port}
    return options | {
        "socket_connect_timeout": timeout,
        "socket_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "redis_connect_func": _say_nothing,
        "protocol": 2,
    }


def _say_nothing(connection: Any) -> None:
    """Replace redis-py's handshake by nothing: `handshake.py` does it in one round trip."""
