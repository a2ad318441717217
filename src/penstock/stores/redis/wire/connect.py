"""Connect to a server: open the socket, TLS, the credentials, and the handshake with Redis.

Sync and async connections are set up in the same way; only the waiting differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import TLS_OPTIONS, VERIFY_MODES, Address, Node
from penstock.stores.redis.wire.faults import ErrorReply, Lost, Unsent, cannot_connect, read

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


# ── TLS: the `ssl.SSLContext` of an address, from its options ──


_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the context for these options. The authorities of the system are trusted, and those given.

    A context is made again when one of its files has changed, so that renewed certificates are used; to make
    one takes 25 ms, mostly for the authorities of the system. Raises OSError, ValueError.
    """
    paths = ssl.get_default_verify_paths()
    files = [options.get(name) for name in _FILES] + [paths.cafile, paths.capath]
    facts = sorted((name, _hashable(value)) for name, value in options.items() if name in TLS_OPTIONS)
    return _made(tuple(facts), tuple(map(_stamp, files)))


def _hashable(value: Any) -> Any:
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return tuple(value) if isinstance(value, (list, set)) else value


def _stamp(file: str | None) -> tuple[int, ...]:
    """Return what changes when the file does."""
    try:
        found = os.stat(file or "")
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=16)
def _made(facts: tuple[tuple[str, Any], ...], stamps: tuple[tuple[int, ...], ...]) -> ssl.SSLContext:
    options = dict(facts)
    asked = options.get("ssl_cert_reqs", "required")
    verify_mode = asked if isinstance(asked, ssl.VerifyMode) else VERIFY_MODES[asked]
    check_hostname = options.get("ssl_check_hostname")
    context = ssl.create_default_context()
    context.check_hostname = False  # it cannot be on while the mode is CERT_NONE
    context.verify_mode = verify_mode
    context.check_hostname = verify_mode != ssl.CERT_NONE and (check_hostname is None or bool(check_hostname))
    for flag in options.get("ssl_include_verify_flags") or ():
        context.verify_flags |= flag
    for flag in options.get("ssl_exclude_verify_flags") or ():
        context.verify_flags &= ~flag
    if (least := options.get("ssl_min_version")) is not None:
        context.minimum_version = ssl.TLSVersion(int(least))
    if ciphers := options.get("ssl_ciphers"):
        context.set_ciphers(ciphers)
    _load_files(context, options)
    return context


def _load_files(context: ssl.SSLContext, options: Mapping[str, Any]) -> None:
    certificate: Any = options.get("ssl_certfile")
    key, ca_file = options.get("ssl_keyfile"), options.get("ssl_ca_certs")
    ca_path, ca_data = options.get("ssl_ca_path"), options.get("ssl_ca_data")
    try:
        if certificate or key:
            context.load_cert_chain(certificate, key, options.get("ssl_password"))
        if ca_file or ca_path or ca_data:
            context.load_verify_locations(ca_file, ca_path, ca_data)
    except FileNotFoundError as error:  # which does not name the file
        missing = [file for file in (certificate, key, ca_file) if file and not os.path.exists(file)]
        raise FileNotFoundError(error.errno, error.strerror, *missing[:1]) from None


# ── a connection, and the credentials for AUTH ──


#: The use of a connection: calls; calls that wait for replicas (WAIT blocks the calls behind it); a query
#: to a sentinel; messages.
Kind = Literal["calls", "waits", "sentinel", "messages"]


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


# ── the handshake: authenticate, select the database, and check the server ──


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


def handshake_error(
    lost: Lost | Unsent, replies: list[Any], address: Address, node: Node, kind: Kind
) -> StoreError:
    """The error for a connection that broke during its handshake: the server's error reply, if any."""
    there = where(address, node, kind)
    for reply in replies:
        if isinstance(reply, ErrorReply):
            error = read(str(reply), there).error
            if error is not None:
                return error
    tls, options = settings(address, kind)
    if isinstance(lost.cause, ssl.SSLError):
        return cannot_connect(lost.cause, there, waited=0)
    if node.port == 0 or (kind == "sentinel" and not tls):
        return StoreUnavailable(f"{there}: {lost}")
    if not tls:
        return StoreUnavailable(f"{there}: {lost} (if that port speaks TLS, use rediss://)")
    if options.get("ssl_certfile"):
        return StoreUnavailable(f"{there}: {lost}")
    hint = "if it requires a client certificate, give ?ssl_certfile= and ssl_keyfile="
    return StoreUnavailable(f"{there}: {lost} ({hint})")
