"""Open the socket of a connection: TCP, to each address of a host in turn, or a Unix socket.

The sync and the async door open sockets alike; only the waiting differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.stores.redis.wire.address import Node

__all__ = ["open_socket", "open_socket_async", "undone_on_error"]

#: Family, type and protocol of a socket, a name that is not used, and the address for `connect`.
_AddressInfo = tuple[int, int, int, str, Any]

#: Probes of an idle connection find a dead server after 45 s: options of TCP → seconds, or probes.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


def open_socket(node: Node, options: Mapping[str, Any], until: float) -> socket.socket:
    """Connect to the server before `until`. Raises OSError."""
    infos = _unix(node) if node.port == 0 else socket.getaddrinfo(*_query(node, options))
    for info, seconds, is_last in _tries(infos, until):
        try:
            sock = _new(info, options)
            with undone_on_error(sock.close):
                sock.settimeout(seconds)
                sock.connect(info[4])
            return sock
        except OSError:
            if is_last:
                raise
    raise OSError("the host has no address")


async def open_socket_async(node: Node, options: Mapping[str, Any], until: float) -> socket.socket:
    """As `open_socket`; the socket does not block."""
    loop = asyncio.get_running_loop()
    for info, seconds, is_last in _tries(await _resolved(node, options), until):
        try:
            sock = _new(info, options)
            with undone_on_error(sock.close):
                sock.setblocking(False)
                async with asyncio.timeout(seconds):
                    await loop.sock_connect(sock, info[4])
            return sock
        except OSError:
            if is_last:
                raise
    raise OSError("the host has no address")


def _tries(infos: Sequence[_AddressInfo], until: float) -> Iterator[tuple[_AddressInfo, float, bool]]:
    """Yield each address, its timeout, and whether it is the last, which gets all of the time that is left.

    The others get half of it: with a dead address first, the next one is reached in time.
    """
    for left, info in zip(range(len(infos) - 1, -1, -1), infos, strict=True):
        seconds = max(until - time.monotonic(), 0.01)
        yield info, seconds / 2 if left else seconds, not left


async def _resolved(node: Node, options: Mapping[str, Any]) -> Sequence[_AddressInfo]:
    if node.port == 0:
        return _unix(node)
    host, port, family, kind = _query(node, options)
    try:  # the number of an address needs no resolver, and no thread for it
        return socket.getaddrinfo(host, port, family, kind, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(host, port, family=family, type=kind)


def _query(node: Node, options: Mapping[str, Any]) -> tuple[str, int, int, int]:
    """Return the arguments of getaddrinfo. `socket_type` is redis-py's name for the family."""
    return node.host, node.port, options.get("socket_type") or 0, socket.SOCK_STREAM


def _unix(node: Node) -> Sequence[_AddressInfo]:
    return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", node.host)]


def _new(info: _AddressInfo, options: Mapping[str, Any]) -> socket.socket:
    family, kind, protocol, _, _ = info
    sock = socket.socket(family, kind, protocol)
    if family == socket.AF_UNIX:
        return sock
    with undone_on_error(sock.close):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if options.get("socket_keepalive") is not False:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # a client of redis-py without such options has None, or a placeholder
            given = options.get("socket_keepalive_options")
            for name, value in (given if isinstance(given, Mapping) else _KEEPALIVE).items():
                sock.setsockopt(socket.IPPROTO_TCP, name, value)
    return sock


@contextlib.contextmanager
def undone_on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the block raises, or is cancelled."""
    done = False
    try:
        yield
        done = True
    finally:
        if not done:
            undo()
