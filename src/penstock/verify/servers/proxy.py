"""A wire before a server, which can be torn, go dead, or become long, while both ends do nothing wrong.

    with Relay.before("redis://localhost:6379/1") as relay:
        app = App(relay.url)      # the same Redis, on this wire
        relay.reset()             # all connections of now: "connection reset by peer"
        relay.half_open(5)        # nobody is told of anything, nothing arrives
        relay.latency(80, 10)     # a round trip takes 80 ms longer

It listens on a free port of 127.0.0.1 and lives in a thread of its own, with any number of connections.
What a wire delays keeps its order and does not delay what follows: the wire is long, not thin.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self, cast
from urllib.parse import urlsplit

from penstock.core.errors import ConfigError

__all__ = ["End", "Relay", "Wire"]

_HOST = "127.0.0.1"
_REDIS = 6379
_SMALL = 131_072
_AHEAD = 0.1  # a thin wire takes in so much (s) more than it has passed on
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing discards what is unsent, and says RST


@dataclass(frozen=True, eq=False)
class _Harm:
    """What is done to the wires for a while."""

    swallows: bool = False
    delay: float = 0.0


class Relay:
    """Passes everything on between its port and a server, until told otherwise.

    `url` is only known of one made by `before`. `listen`: the port to be on, else a free one; `delay_ms`: how
    much longer a round trip takes, always; `bytes_per_second`: how much passes each way of a connection;
    `make_loop`: for whoever needs timers finer than epoll's.
    """

    def __init__(
        self,
        port: int,
        host: str = _HOST,
        *,
        listen: int = 0,
        delay_ms: float = 0.0,
        bytes_per_second: float = 0.0,
        make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop,
    ) -> None:
        self._target = (host, port)
        self._door = socket.create_server((_HOST, listen))
        self.port: int = self._door.getsockname()[1]
        self.url = ""
        #: How many there have been.
        self.connections = 0
        self.bytes_per_second = bytes_per_second  # 0: no limit
        if bytes_per_second:  # what the system takes in ahead of us has not passed the wire
            self._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        self._harms = [_Harm(delay=delay_ms / 2000)]
        self._lock = threading.Lock()
        self.wires: set[Wire] = set()
        self._make_loop = make_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._live, name="relay", daemon=True)
        self._thread.start()
        self._ready.wait()

    @classmethod
    def before(cls, url: str) -> Self:
        """A relay before the one Redis of this URL; its `url` is the same through the relay."""
        parts = urlsplit(url)
        if parts.scheme != "redis" or not parts.hostname or "," in parts.netloc:
            raise ConfigError(
                f"no relay can stand before {parts.scheme}://: it takes one server without TLS, redis://HOST:PORT"
            )
        relay = cls(parts.port or _REDIS, parts.hostname)
        secret, at, _ = parts.netloc.rpartition("@")
        relay.url = parts._replace(netloc=f"{secret}{at}{_HOST}:{relay.port}").geturl()
        return relay

    # ── the harm ─────────────────────────────────────────────────────────────────────────────────

    def reset(self) -> int:
        """Tear all connections of now, with a RST to both ends; how many there were."""
        return self._do(lambda wire: wire.reset())

    def cut(self) -> int:
        """End all connections of now in order, as a server does that is stopped; how many there were."""
        return self._do(lambda wire: wire.hang_up())

    def forget(self) -> int:
        """As a router whose table is full: the connections of now stay open and nothing comes through.

        New ones work. How many there were.
        """
        return self._do(lambda wire: wire.lose())

    def half_open(self, seconds: float) -> None:
        """Swallow everything both ways for so long, and tell nobody; connections stay open.

        A connection that lost a byte then stays dead, for what would follow makes no sense; it ends when
        one of its ends gives up.
        """
        with self._meanwhile(_Harm(swallows=True)):
            time.sleep(seconds)
        self._do(lambda wire: wire.bury())

    def latency(self, ms: float, seconds: float) -> None:
        """Make a round trip take `ms` longer, for so long."""
        with self._meanwhile(_Harm(delay=ms / 2000)):
            time.sleep(seconds)

    @contextlib.contextmanager
    def _meanwhile(self, harm: _Harm) -> Iterator[None]:
        """They add up: several may last at a time, and end in any order."""
        try:
            with self._lock:
                self._harms = [*self._harms, harm]
            yield
        finally:
            with self._lock:
                self._harms = [other for other in self._harms if other is not harm]

    @property
    def swallows(self) -> bool:
        return any(harm.swallows for harm in self._harms)

    @property
    def delay(self) -> float:
        """Seconds, each way."""
        return sum(harm.delay for harm in self._harms)

    # ── what a wire asks ─────────────────────────────────────────────────────────────────────────

    def passes(self, end: End, data: bytes) -> bool:
        """Whether what came in at this end goes out at the other; empty `data` is the end of all."""
        if self.swallows:
            end.wire.lose()
        return not end.wire.lost or (not data and not self.swallows)

    # ── its life ─────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Close the door and all connections; a second time does nothing."""
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it ended in between
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=self._make_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await self._loop.create_server(self._accepted, sock=self._door)
        self._ready.set()
        await self._closing.wait()
        server.close()
        await self._to_all(lambda wire: wire.abort())

    def _accepted(self) -> End:
        self.connections += 1
        return Wire(self, self._target).near

    def _do(self, act: Callable[[Wire], None]) -> int:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._to_all(act), self._loop).result()

    async def _to_all(self, act: Callable[[Wire], None]) -> int:
        wires = list(self.wires)
        for wire in wires:
            act(wire)
        ending = [end.gone for wire in wires for end in wire.ends if end.ending]
        if ending:
            await asyncio.wait(ending)
        return len(wires)


class Wire:
    """One connection: the client's end is near, the server's is far."""

    def __init__(self, relay: Relay, target: tuple[str, int]) -> None:
        self.relay = relay
        self.near, self.far = End(self, upward=True), End(self, upward=False)
        self.near.other, self.far.other = self.far, self.near
        self.ends = (self.near, self.far)
        self.lost = False  # bytes are missing: nothing of it may be passed on any more
        self._target = target
        self._joining: asyncio.Task[None] | None = None

    def join(self) -> None:
        """The client is there: call the server."""
        self.relay.wires.add(self)
        self._joining = asyncio.get_running_loop().create_task(self._call())

    def lose(self) -> None:
        self.lost = True

    def bury(self) -> None:
        """One end gave up while nobody was told of anything: tell the other now."""
        if self.lost and any(end.ending for end in self.ends):
            self.abort()

    def hang_up(self) -> None:
        for end in self.ends:
            if end.transport is not None:
                end.transport.close()

    def reset(self) -> None:
        for end in self.ends:
            if end.transport is not None and not end.transport.is_closing():
                wire = end.transport.get_extra_info("socket")
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.abort()

    def abort(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
        for end in self.ends:
            if end.transport is not None:
                end.transport.abort()

    def over(self) -> None:
        """An end is gone."""
        if all(end.transport is None or end.gone.done() for end in self.ends):
            self.relay.wires.discard(self)

    async def _call(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.far, *self._target)
        except OSError:  # nobody there: the client sees that it is hung up on
            self.hang_up()
        else:
            self.near.deliver()


class End(asyncio.Protocol):
    """One end of a connection: what comes in here goes out at the other, in time."""

    def __init__(self, wire: Wire, *, upward: bool) -> None:
        self.wire = wire
        self.upward = upward  # what comes in here is for the server
        self.other: End
        self.transport: asyncio.Transport | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way: collections.deque[tuple[float, bytes]] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None
        self._thin_until = 0.0

    @property
    def ending(self) -> bool:
        return self.transport is not None and self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.upward:
            self.wire.join()

    def data_received(self, data: bytes) -> None:
        relay = self.wire.relay
        if relay.passes(self, data):
            due = asyncio.get_running_loop().time() + relay.delay
            if relay.bytes_per_second:  # a thin wire: what follows waits
                due = max(due, self._thin_until) + len(data) / relay.bytes_per_second
                self._thin_until = due
                self._held_up()
            self._under_way.append((due, data))
            self.deliver()

    def _held_up(self) -> None:
        """Read no more than a thin wire carries in a moment, as a real one."""
        loop = asyncio.get_running_loop()
        ahead = self._thin_until - loop.time()
        if ahead > _AHEAD and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            loop.call_later(ahead - _AHEAD / 2, self._read_on)

    def _read_on(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set_result(None)
        self.data_received(b"")  # the end travels as long as everything else
        self.wire.over()

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def deliver(self) -> None:
        """Pass on all that is due by now, once there is somebody to take it."""
        if self._timer is not None or self.other.transport is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._under_way and self._under_way[0][0] <= now:
            self.other.put(self._under_way.popleft()[1])
        if self._under_way:
            self._timer = loop.call_at(self._under_way[0][0], self._late)

    def put(self, data: bytes) -> None:
        assert self.transport is not None
        if self.transport.is_closing():
            return
        if data:
            self.transport.write(data)
        else:
            self.transport.close()

    def _late(self) -> None:
        self._timer = None
        self.deliver()
