"""The fault-injecting proxy: resets, half-open connections, latency, and normal service afterwards."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock import App
from penstock.errors import ConfigError
from penstock.verify.servers.proxy import Proxy
from tests.servers import RedisServer, until

PATIENCE = 60.0


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of an echo server."""
    ends: list[socket.socket] = []

    def serve(end: socket.socket) -> None:
        with contextlib.suppress(OSError), end:
            while data := end.recv(65_536):
                end.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = door.accept()
                ends.append(end)
                threading.Thread(target=serve, args=(end,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=accept, daemon=True).start()
        yield door.getsockname()[1]
        with contextlib.suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)
    for end in ends:
        end.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo) as proxy:
        yield proxy


@pytest.fixture
def call(proxy: Proxy) -> Iterator[Callable[[], socket.socket]]:
    with contextlib.ExitStack() as connections:
        yield lambda: connections.enter_context(socket.create_connection(("127.0.0.1", proxy.port), PATIENCE))


def echoed(connection: socket.socket, words: bytes) -> bytes:
    connection.sendall(words)
    received = b""
    while len(received) < len(words):
        more = connection.recv(65_536)
        if not more:
            break
        received += more
    return received


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_many_connections_are_kept_apart(proxy: Proxy, call: Callable[[], socket.socket]) -> None:
    connections = [call() for _ in range(50)]
    for n, connection in enumerate(connections):
        connection.sendall(b"%03d" % n)
    assert [connection.recv(3) for connection in connections] == [b"%03d" % n for n in range(50)]
    assert proxy.connections == 50


def test_more_than_a_socket_holds_arrives_whole(call: Callable[[], socket.socket]) -> None:
    connection = call()
    words = bytes(range(256)) * 40_000
    sender = in_thread(lambda: connection.sendall(words))
    time.sleep(0.2)  # no reader: the buffers fill up, and the proxy has to wait
    received = bytearray()
    while len(received) < len(words):
        received += connection.recv(1 << 20)
    sender.join(PATIENCE)
    assert received == words


def test_reset_affects_open_connections_and_no_later_ones(
    proxy: Proxy, call: Callable[[], socket.socket]
) -> None:
    connections = [call(), call()]
    for connection in connections:
        assert echoed(connection, b"hello") == b"hello"
    assert proxy.reset() == 2
    for connection in connections:
        with pytest.raises(ConnectionResetError) as caught:
            connection.recv(1)
        assert caught.value.errno == errno.ECONNRESET
    assert echoed(call(), b"again") == b"again"
    assert proxy.reset() == 1


def test_cut_closes_connections_in_order(proxy: Proxy, call: Callable[[], socket.socket]) -> None:
    connection = call()
    assert echoed(connection, b"hello") == b"hello"
    assert proxy.cut() == 1
    assert connection.recv(1) == b""


def test_half_open_connections_drop_all_bytes_and_stay_dead(
    proxy: Proxy, call: Callable[[], socket.socket]
) -> None:
    busy, idle = call(), call()
    assert echoed(busy, b"hello") == b"hello"
    fault = in_thread(lambda: proxy.half_open(0.5))
    until(lambda: proxy.drops_bytes, "bytes are dropped")
    busy.sendall(b"lost")
    late = call()  # the connection itself is accepted
    late.sendall(b"lost")
    busy.settimeout(0.2)
    with pytest.raises(TimeoutError):
        busy.recv(1)
    fault.join(PATIENCE)
    busy.sendall(b"lost too")
    with pytest.raises(TimeoutError):
        busy.recv(1)
    assert echoed(idle, b"nothing of mine was lost") == b"nothing of mine was lost"
    assert echoed(call(), b"new") == b"new"


def test_a_connection_closed_while_half_open_is_removed_afterwards(
    proxy: Proxy, call: Callable[[], socket.socket]
) -> None:
    connection = call()
    assert echoed(connection, b"hello") == b"hello"
    fault = in_thread(lambda: proxy.half_open(0.3))
    until(lambda: proxy.drops_bytes, "bytes are dropped")
    connection.close()
    fault.join(PATIENCE)
    until(lambda: not proxy.open_connections, "the connection is removed", timeout=PATIENCE)


def test_forgotten_connections_are_dead_and_new_ones_work(
    proxy: Proxy, call: Callable[[], socket.socket]
) -> None:
    connection = call()
    assert echoed(connection, b"hello") == b"hello"
    assert proxy.forget() == 1
    connection.sendall(b"lost")
    connection.settimeout(0.1)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    assert echoed(call(), b"new") == b"new"


def test_latency_delays_bytes_and_keeps_their_order(proxy: Proxy, call: Callable[[], socket.socket]) -> None:
    connection = call()
    assert echoed(connection, b"hello") == b"hello"
    fault = in_thread(lambda: proxy.latency(200, 2.0))
    until(lambda: proxy.delay > 0, "the latency has begun")
    began = time.monotonic()
    assert echoed(connection, b"alone") == b"alone"
    alone = time.monotonic() - began
    began = time.monotonic()
    for n in range(10):
        connection.sendall(b"%d" % n)
        time.sleep(0.01)
    received = b""
    while len(received) < 10:
        received += connection.recv(10)
    took = time.monotonic() - began
    assert received == b"0123456789"
    assert took >= 0.2
    assert took < 5 * alone, "latency does not add up over a stream"
    fault.join(PATIENCE)
    assert proxy.delay == 0
    assert echoed(connection, b"quick") == b"quick"


def test_faults_add_up_and_end_in_any_order(proxy: Proxy, call: Callable[[], socket.socket]) -> None:
    first = in_thread(lambda: proxy.latency(10, 0.2))
    second = in_thread(lambda: proxy.latency(20, 0.3))
    third = in_thread(lambda: proxy.half_open(0.1))
    until(lambda: proxy.delay == pytest.approx(0.015) and proxy.drops_bytes, "all of them last")
    third.join(PATIENCE)
    assert not proxy.drops_bytes
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert proxy.delay == 0
    assert echoed(call(), b"quick") == b"quick"


def test_a_connection_is_closed_if_no_server_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with Proxy(port) as proxy, socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as connection:
        assert connection.recv(1) == b""


def test_close_ends_all_connections_and_may_be_called_twice(echo: int) -> None:
    proxy = Proxy(echo)
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as connection:
        assert echoed(connection, b"hello") == b"hello"
        proxy.close()
        proxy.close()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), PATIENCE)


def test_a_url_leads_through_the_relay(redis: RedisServer) -> None:
    with Proxy.before(f"{redis.url}/3?timeout=2s") as proxy:
        assert proxy.url == f"redis://127.0.0.1:{proxy.port}/3?timeout=2s"
        with contextlib.closing(App(proxy.url, namespace="through-a-proxy")) as app:
            job = app.task(_nothing).enqueue()
            proxy.reset()
            assert job.status() == "available"
            assert job.cancel()
        assert proxy.connections >= 2


def _nothing() -> None:
    pass


def test_the_url_of_the_proxy_keeps_the_password() -> None:
    with Proxy.before("redis://:se%40cret@localhost") as proxy:
        assert proxy.url == f"redis://:se%40cret@127.0.0.1:{proxy.port}"


@pytest.mark.parametrize("url", ["rediss://a", "redis+cluster://a:1,b:2", "unix:///a.sock", "sqlite:///a.db"])
def test_an_unsupported_url_is_refused_with_a_reason(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"a proxy cannot be placed in front of .*: it needs one server without TLS"
    ):
        Proxy.before(url)
