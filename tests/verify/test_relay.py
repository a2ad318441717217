"""A wire that is harmed harms nobody's data: it tears, falls silent or slows down, and is whole again."""

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
from penstock.verify.servers.proxy import Relay
from tests.servers import RedisServer, until

PATIENCE = 10.0


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says what it is told."""
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
def relay(echo: int) -> Iterator[Relay]:
    with Relay(echo) as relay:
        yield relay


@pytest.fixture
def call(relay: Relay) -> Iterator[Callable[[], socket.socket]]:
    with contextlib.ExitStack() as wires:
        yield lambda: wires.enter_context(socket.create_connection(("127.0.0.1", relay.port), PATIENCE))


def said_back(wire: socket.socket, words: bytes) -> bytes:
    wire.sendall(words)
    heard = b""
    while len(heard) < len(words):
        more = wire.recv(65_536)
        if not more:
            break
        heard += more
    return heard


def in_the_meantime(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_many_connections_are_kept_apart(relay: Relay, call: Callable[[], socket.socket]) -> None:
    wires = [call() for _ in range(50)]
    for n, wire in enumerate(wires):
        wire.sendall(b"%03d" % n)
    assert [wire.recv(3) for wire in wires] == [b"%03d" % n for n in range(50)]
    assert relay.connections == 50


def test_more_than_a_socket_holds_arrives_whole(call: Callable[[], socket.socket]) -> None:
    wire = call()
    words = bytes(range(256)) * 40_000
    sender = in_the_meantime(lambda: wire.sendall(words))
    time.sleep(0.2)  # nobody reads: the buffers fill up, and the wire has to wait
    heard = bytearray()
    while len(heard) < len(words):
        heard += wire.recv(1 << 20)
    sender.join(PATIENCE)
    assert heard == words


def test_a_reset_is_told_to_all_of_now_and_to_none_of_later(
    relay: Relay, call: Callable[[], socket.socket]
) -> None:
    wires = [call(), call()]
    for wire in wires:
        assert said_back(wire, b"hello") == b"hello"
    assert relay.reset() == 2
    for wire in wires:
        with pytest.raises(ConnectionResetError) as caught:
            wire.recv(1)
        assert caught.value.errno == errno.ECONNRESET
    assert said_back(call(), b"again") == b"again"
    assert relay.reset() == 1


def test_a_cut_is_an_orderly_end(relay: Relay, call: Callable[[], socket.socket]) -> None:
    wire = call()
    assert said_back(wire, b"hello") == b"hello"
    assert relay.cut() == 1
    assert wire.recv(1) == b""


def test_half_open_connections_swallow_everything_and_stay_dead(
    relay: Relay, call: Callable[[], socket.socket]
) -> None:
    busy, idle = call(), call()
    assert said_back(busy, b"hello") == b"hello"
    harm = in_the_meantime(lambda: relay.half_open(0.5))
    until(lambda: relay.swallows, "the wire is dead")
    busy.sendall(b"lost")
    late = call()  # it is even answered, as by a machine that is just going down
    late.sendall(b"lost")
    busy.settimeout(0.2)
    with pytest.raises(TimeoutError):
        busy.recv(1)
    harm.join(PATIENCE)
    busy.sendall(b"lost too")
    with pytest.raises(TimeoutError):
        busy.recv(1)
    assert said_back(idle, b"nothing of mine was lost") == b"nothing of mine was lost"
    assert said_back(call(), b"new") == b"new"


def test_who_gives_up_a_dead_connection_is_buried_when_it_is_over(
    relay: Relay, call: Callable[[], socket.socket]
) -> None:
    wire = call()
    assert said_back(wire, b"hello") == b"hello"
    harm = in_the_meantime(lambda: relay.half_open(0.3))
    until(lambda: relay.swallows, "the wire is dead")
    wire.close()
    harm.join(PATIENCE)
    until(lambda: not relay.wires, "nothing is left of it", timeout=PATIENCE)


def test_forgotten_connections_are_dead_and_new_ones_work(
    relay: Relay, call: Callable[[], socket.socket]
) -> None:
    wire = call()
    assert said_back(wire, b"hello") == b"hello"
    assert relay.forget() == 1
    wire.sendall(b"lost")
    wire.settimeout(0.1)
    with pytest.raises(TimeoutError):
        wire.recv(1)
    assert said_back(call(), b"new") == b"new"


def test_a_long_wire_takes_its_time_and_keeps_the_order(
    relay: Relay, call: Callable[[], socket.socket]
) -> None:
    wire = call()
    assert said_back(wire, b"hello") == b"hello"
    harm = in_the_meantime(lambda: relay.latency(200, 1.0))
    until(lambda: relay.delay > 0, "the wire is long")
    began = time.monotonic()
    for n in range(10):
        wire.sendall(b"%d" % n)
        time.sleep(0.01)
    heard = b""
    while len(heard) < 10:
        heard += wire.recv(10)
    took = time.monotonic() - began
    assert heard == b"0123456789"
    assert took >= 0.2
    assert took < 1.5, "each delays itself, not those behind it"
    harm.join(PATIENCE)
    assert relay.delay == 0
    assert said_back(wire, b"quick") == b"quick"


def test_harms_add_up_and_end_in_any_order(relay: Relay, call: Callable[[], socket.socket]) -> None:
    first = in_the_meantime(lambda: relay.latency(10, 0.2))
    second = in_the_meantime(lambda: relay.latency(20, 0.3))
    third = in_the_meantime(lambda: relay.half_open(0.1))
    until(lambda: relay.delay == pytest.approx(0.015) and relay.swallows, "all of them last")
    third.join(PATIENCE)
    assert not relay.swallows
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert relay.delay == 0
    assert said_back(call(), b"quick") == b"quick"


def test_nobody_behind_it_is_hung_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with Relay(port) as relay, socket.create_connection(("127.0.0.1", relay.port), PATIENCE) as wire:
        assert wire.recv(1) == b""


def test_closing_ends_everything_and_closing_twice_is_once(echo: int) -> None:
    relay = Relay(echo)
    with socket.create_connection(("127.0.0.1", relay.port), PATIENCE) as wire:
        assert said_back(wire, b"hello") == b"hello"
        relay.close()
        relay.close()
        with contextlib.suppress(ConnectionResetError):
            assert wire.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", relay.port), PATIENCE)


def test_a_url_leads_through_the_relay(redis: RedisServer) -> None:
    with Relay.before(f"{redis.url}/3?timeout=2s") as relay:
        assert relay.url == f"redis://127.0.0.1:{relay.port}/3?timeout=2s"
        with contextlib.closing(App(relay.url, namespace="through-a-relay")) as app:
            job = app.task(_nothing).enqueue()
            relay.reset()
            assert job.status() == "available"
            assert job.cancel()
        assert relay.connections >= 2


def _nothing() -> None:
    pass


def test_a_password_goes_with_the_url() -> None:
    with Relay.before("redis://:se%40cret@localhost") as relay:
        assert relay.url == f"redis://:se%40cret@127.0.0.1:{relay.port}"


@pytest.mark.parametrize("url", ["rediss://a", "redis+cluster://a:1,b:2", "unix:///a.sock", "sqlite:///a.db"])
def test_what_it_cannot_stand_before_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match=r"no relay can stand before .*: it takes one server without TLS"):
        Relay.before(url)
