"""Connections to real servers and to programs that are none: addresses, credentials, deadlines, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
import uvloop
from redis.credentials import UsernamePasswordCredentialProvider

from penstock.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.async_connection import open_async_connection
from penstock.stores.redis.wire.connect import Kind, open_socket, open_socket_async
from penstock.stores.redis.wire.sync_connection import open_sync_connection
from penstock.verify.servers.nodes import RedisNode
from tests.servers import RedisServer
from tests.servers.programs import free_port, until
from tests.stores.redis.both_runners import Asker, plain, push

NewRedis = Callable[..., RedisServer]
CALLS: Kind = "calls"
DOORS = ["async", "uvloop", "sync"]


def single(port: int, host: str = "127.0.0.1", **facts: Any) -> Address:
    return Address(mode="single", nodes=(Node(host, port),), **facts)


async def opened(door: str, address: Address, timeout: float) -> Any:
    """An open connection; by uvloop it is of no use, because its loop has ended."""
    node, kind = address.nodes[0], CALLS
    if door == "async":
        return await open_async_connection(address, node, kind, timeout)
    if door == "sync":
        return await asyncio.to_thread(open_sync_connection, address, node, kind, timeout)
    return await asyncio.to_thread(lambda: uvloop.run(open_async_connection(address, node, kind, timeout)))


@contextlib.contextmanager
def imposter(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A program that is no Redis: `answer` has each of its connections, one after another. Its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    taken, _ = listening.accept()
                except OSError:
                    return
                with taken, contextlib.suppress(OSError):
                    answer(taken)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def answering(text: bytes) -> Callable[[socket.socket], None]:
    """Sends this in answer to whatever comes."""

    def answer(taken: socket.socket) -> None:
        while taken.recv(65_536):
            taken.sendall(text)

    return answer


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port at which connections are neither accepted nor refused, as behind a firewall."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, contextlib.ExitStack() as others:
        for _ in range(4):  # they fill its queue
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


# ── addresses ────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_with_ipv6_alone(ask: Asker, new_redis: NewRedis) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    server = new_redis("bind 127.0.0.1 ::1")
    ask.to(f"redis://[::1]:{server.port}")
    assert await ask([push("list", 1)]) == [1]


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Node]:
    """`two_addresses(a, b)` is a node whose host has these two ports of this machine as its addresses."""
    resolve = socket.getaddrinfo

    def of(first: int, second: int) -> Node:
        def resolved(host: str, *args: Any, flags: int = 0, **options: Any) -> list[Any]:
            if host != "two.example" or flags & socket.AI_NUMERICHOST:
                return resolve(host, *args, flags=flags, **options)
            kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
            return [(*kind, ("127.0.0.1", first)), (*kind, ("127.0.0.1", second))]

        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        return Node("two.example", 6379)

    return of


@pytest.mark.parametrize("door", ["async", "sync"])
@pytest.mark.parametrize("first", ["refuses", "is silent"])
async def test_the_second_address_of_a_host_is_tried(
    door: str, first: str, two_addresses: Callable[[int, int], Node]
) -> None:
    with silent_port() as silent, socket.create_server(("127.0.0.1", 0)) as good, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = silent if first == "is silent" else closed.getsockname()[1]
        node = two_addresses(port, good.getsockname()[1])
        until = time.monotonic() + 1.0
        if door == "sync":
            found = await asyncio.to_thread(open_socket, node, {}, until)
        else:
            found = await open_socket_async(node, {}, until)
        with found:
            assert found.getpeername() == good.getsockname()


@pytest.mark.parametrize("door", ["async", "sync"])
async def test_the_error_of_the_last_address_is_raised(
    door: str, two_addresses: Callable[[int, int], Node]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        address = replace(single(0), nodes=(two_addresses(port, port),))
        with pytest.raises(StoreUnavailable, match=r"redis://two.example:6379 does not .*connection refused"):
            await opened(door, address, 1.0)


@pytest.mark.parametrize("door", ["async", "sync"])
async def test_a_dead_connection_of_tcp_is_probed_for(door: str, redis: RedisServer) -> None:
    def settings(sock: Any) -> list[int]:
        keepalive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return [bool(keepalive), *(sock.getsockopt(socket.IPPROTO_TCP, name) for name in names)]

    names = (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    found = []
    for options in (
        {},
        {"socket_keepalive": False},
        {"socket_keepalive_options": {socket.TCP_KEEPIDLE: 7}},
    ):
        connection = await opened(door, single(redis.port, options=options), 2.0)
        sock = connection._sock if door == "sync" else connection._transport.get_extra_info("socket")
        found.append(settings(sock))
        connection.close()
    system = found[1][2:]
    assert found == [[True, 1, 30, 5, 3], [False, 1, *system], [True, 1, 7, *system[1:]]]


async def test_the_family_that_a_client_asks_for_is_used(ask: Asker, redis: RedisServer) -> None:
    ask.to(single(redis.port, "localhost", options={"socket_type": socket.AF_INET}))
    assert await ask([plain("PING")]) == [b"PONG"]
    ask.close()
    ask.to(single(redis.port, options={"socket_type": socket.AF_INET6}, timeout=200))
    (answer,) = await ask([plain("PING")])
    assert isinstance(answer, StoreUnavailable)
    assert "the host name does not resolve" in str(answer)


def test_uvloop_connects_by_tcp_and_by_a_unix_socket(new_redis: NewRedis) -> None:
    server = new_redis(unixsocket=True)

    async def main() -> list[Any]:
        answers = []
        for url in (server.url, server.unix_url):
            address = Address.from_url(url)
            connection = await open_async_connection(address, address.nodes[0], "calls", 2.0)
            answers.append(connection.server and connection.server.mode)
            connection.close()
        return answers

    assert uvloop.run(main()) == ["standalone", "standalone"]


@pytest.mark.server
async def test_valkey_is_a_server_too(ask: Asker, tmp_path: Path) -> None:
    program = shutil.which("valkey-server")
    if program is None:
        pytest.skip("valkey-server is not installed (Debian has it from 13 on)")
    port = free_port()
    node = RedisNode(program, tmp_path, [f"port {port}", 'save ""'], port=port)
    node.launch()
    with contextlib.closing(node.wait_ready()):
        assert await ask.to(node.url)([push("list", 1)]) == [1]


# ── credentials ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("user", ["", "jobs"])
async def test_credentials_of_a_provider_are_used(ask: Asker, new_redis: NewRedis, user: str) -> None:
    server = new_redis(password="s3cret")
    with server.patient_client() as client:
        client.execute_command("ACL", "SETUSER", "jobs", "on", ">s3cret", "+@all", "~*")
    provider = UsernamePasswordCredentialProvider(user or None, "s3cret")
    with contextlib.closing(redis_py.Redis("127.0.0.1", server.port, credential_provider=provider)) as client:
        ask.to(Address.of(client))
    assert await ask([plain("ACL", "WHOAMI")]) == [(user or "default").encode()]


async def test_a_user_of_the_acl_connects(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis()
    with server.patient_client() as client:
        client.execute_command("ACL", "SETUSER", "a/b", "on", ">p@ss:w/rd", "+@all", "~*")
        ask.to(f"redis://a%2Fb:p%40ss%3Aw%2Frd@127.0.0.1:{server.port}/2")
        assert await ask([plain("ACL", "WHOAMI"), push("list", 1)]) == [b"a/b", 1]
        names = [entry["name"] for entry in client.client_list() if entry["user"] == "a/b"]
        assert names == ["penstock"]


async def test_a_user_that_may_not_even_see_the_server_connects(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis()
    with server.patient_client() as client:
        client.execute_command("ACL", "SETUSER", "small", "on", ">word", "+ping", "+select", "~*")
    assert await ask.to(f"redis://small:word@127.0.0.1:{server.port}/1")([plain("PING")]) == [b"PONG"]


async def test_a_user_that_may_not_select_is_told(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis()
    with server.patient_client() as client:
        client.execute_command("ACL", "SETUSER", "small", "on", ">word", "+ping", "~*")
    (answer,) = await ask.to(f"redis://small:word@127.0.0.1:{server.port}/1")([plain("PING")])
    assert isinstance(answer, StoreError)
    assert not isinstance(answer, StoreUnavailable)
    assert "does not let this user do that" in str(answer)


async def test_a_password_for_a_server_without_one_is_said(ask: Asker, redis: RedisServer) -> None:
    (answer,) = await ask.to(f"redis://:word@127.0.0.1:{redis.port}")([plain("PING")])
    assert isinstance(answer, StoreError)
    assert "has no password, but the URL has one" in str(answer)


# ── deadlines ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
async def test_a_port_that_does_not_accept_is_given_up(door: str, scheme: str) -> None:
    with silent_port() as port:
        address = Address.from_url(f"{scheme}://127.0.0.1:{port}")
        async with asyncio.timeout(60):
            with pytest.raises(StoreUnavailable, match=rf"{scheme}://127.0.0.1:{port} does not answer \(no"):
                await opened(door, address, 0.3)


@pytest.mark.parametrize("door", DOORS)
async def test_a_server_that_accepts_and_never_answers_is_given_up(door: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with asyncio.timeout(60):
            with pytest.raises(StoreUnavailable, match=r"has not answered .*if that port speaks TLS"):
                await opened(door, single(port), 0.3)
            address = single(port, tls=True)
            with pytest.raises(StoreUnavailable, match=r"no TLS connection within 0.3 s"):
                await opened(door, address, 0.3)


async def test_a_server_that_loads_its_data_is_waited_for(
    ask: Asker, new_redis: NewRedis, tmp_path: Path
) -> None:
    first = new_redis(folder=tmp_path)
    with first.patient_client() as client:
        client.mset({f"key-{n}": "x" * 2_000 for n in range(400)})
        client.save()
    first.kill()
    slow = new_redis(folder=tmp_path)  # it has loaded all when it is ready
    slow.kill()
    with (tmp_path / "redis.conf").open("a") as config:
        config.write("key-load-delay 2000\nloading-process-events-interval-bytes 1024\n")
    slow.launch()

    def loads() -> bool:
        with contextlib.suppress(redis_py.ConnectionError), contextlib.closing(slow.client()) as client:
            return bool(client.info("persistence")["loading"])
        return False

    until(loads, "the loading")
    assert await ask.to(f"{slow.url}?timeout=20s")([push("list", 1)]) == [1]


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
async def test_a_server_that_closes_at_once_is_said(door: str, scheme: str) -> None:
    with imposter(lambda taken: None) as port:
        address = Address.from_url(f"{scheme}://127.0.0.1:{port}")
        with pytest.raises(
            StoreUnavailable, match=r"closed the connection|connection was lost|reset by peer"
        ):
            await opened(door, address, 5.0)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (b"-DENIED Redis is running in protected mode\r\n", StoreError, "is in protected mode: give it a"),
        (b"-ERR max number of clients reached\r\n", StoreUnavailable, "refuses more clients"),
    ],
)
async def test_a_refusal_that_comes_before_our_first_byte_is_read(
    ask: Asker, text: bytes, error: type[StoreError], says: str
) -> None:
    def refuse(taken: socket.socket) -> None:
        taken.sendall(text)
        taken.shutdown(socket.SHUT_WR)
        taken.recv(65_536)

    with imposter(refuse) as port:
        (answer,) = await ask.to(single(port, timeout=300))([plain("PING")])
        ask.close()
    assert type(answer) is error
    assert says in str(answer)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "its reply is not in Redis's protocol"),
        (b":1\r\n:1\r\n", "does not answer as a Redis does: is this the right port"),
    ],
)
async def test_a_program_that_is_no_redis_is_said(ask: Asker, text: bytes, says: str) -> None:
    with imposter(answering(text)) as port:
        (answer,) = await ask.to(single(port, timeout=300))([plain("PING")])
        ask.close()
    assert isinstance(answer, StoreError)
    assert f"redis://127.0.0.1:{port}" in str(answer)
    assert says in str(answer)
