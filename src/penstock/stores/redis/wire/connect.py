"""Connect to a server: open the socket, do the handshake of TLS, and find the credentials for AUTH."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.faults import cannot_connect
from penstock.stores.redis.wire.handshake import Kind
from penstock.stores.redis.wire.sockets import open_socket, open_socket_async, undone_on_error
from penstock.stores.redis.wire.tls import tls_context

__all__ = ["Abortable", "connect", "connect_async", "settings", "where"]


class Abortable(asyncio.BaseProtocol):
    """A protocol that can close its connection at once."""

    transport: asyncio.Transport | None = None  # None until there is a connection

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


P = TypeVar("P", bound=Abortable)


def where(address: Address, node: Node, kind: Kind) -> str:
    return f"the sentinel {node}" if kind == "sentinel" else address.at(node)


def settings(address: Address, kind: Kind) -> tuple[bool, Mapping[str, Any]]:
    """Return whether to use TLS, and the options of TLS and of the socket."""
    if kind == "sentinel":
        return address.sentinel_tls, address.sentinel_options
    return address.tls, address.options


def connect(
    address: Address, node: Node, kind: Kind, timeout: float
) -> tuple[socket.socket, tuple[str, ...]]:
    """Open a socket; return it with the arguments of AUTH. Raises StoreError."""
    until = time.monotonic() + timeout
    tls, options = settings(address, kind)
    try:
        sock = open_socket(node, options, until)
        if tls and node.port:
            with undone_on_error(sock.close):
                context = tls_context(options)
                sock.settimeout(max(until - time.monotonic(), 0.01))
                sock = context.wrap_socket(sock, server_hostname=node.host)
    except (OSError, ValueError, TypeError) as error:
        raise cannot_connect(error, where(address, node, kind), waited=timeout) from None
    with undone_on_error(sock.close):
        return sock, _known(address, kind) or _arguments(_asked(options.get("credential_provider")))


async def connect_async(
    address: Address, node: Node, kind: Kind, timeout: float, protocol: Callable[[], P]
) -> tuple[P, tuple[str, ...]]:
    """Connect this protocol to the server; return it with the arguments of AUTH. Raises StoreError."""
    _, options = settings(address, kind)
    try:
        async with asyncio.timeout(timeout):
            transport, made = await _connected(address, node, kind, time.monotonic() + timeout, protocol)
    except (OSError, ValueError, TypeError) as error:
        raise cannot_connect(error, where(address, node, kind), waited=timeout) from None
    with undone_on_error(transport.abort):
        given: Any = _known(address, kind)
        if not given:
            given = _asked(options.get("credential_provider"), "get_credentials_async")
            given = await given if inspect.isawaitable(given) else given
        return made, _arguments(given)


async def _connected(
    address: Address, node: Node, kind: Kind, until: float, protocol: Callable[[], P]
) -> tuple[Any, P]:
    loop = asyncio.get_running_loop()
    tls, options = settings(address, kind)
    sock = await open_socket_async(node, options, until)
    with undone_on_error(sock.close):
        if node.port == 0:
            return await loop.create_unix_connection(protocol, sock=sock)
        if not tls:
            return await loop.create_connection(protocol, sock=sock)
        made: list[P] = []

        def noted() -> P:
            made.append(protocol())
            return made[0]

        # asyncio closes TLS politely and keeps reading for a while: without this, the number of the closed
        # socket could belong to another connection by then
        with undone_on_error(lambda: made and made[0].abort()):
            return await loop.create_connection(
                noted,
                sock=sock,
                ssl=tls_context(options),
                server_hostname=node.host,
                ssl_handshake_timeout=until - time.monotonic() + 5,  # the caller's timeout comes first
            )


def _asked(provider: Any, method: str = "get_credentials") -> Any:
    """Ask the credential provider, if there is one. Providers of redis-py 5.2.0 have no async method."""
    if provider is None:
        return None
    ask = getattr(provider, method, None) or provider.get_credentials
    return ask()


def _arguments(given: Any) -> tuple[str, ...]:
    """Return credentials as arguments of AUTH: a password, or a user name and a password."""
    if not given:
        return ()
    return (given,) if isinstance(given, str) else tuple(map(str, given))


def _known(address: Address, kind: Kind) -> tuple[str, ...]:
    user, password = address.username, address.password
    if kind == "sentinel":
        user, password = address.sentinel_username, address.sentinel_password
    if not password:
        return ()
    return (user, password) if user else (password,)
