"""A TCP proxy in front of a server that injects network faults: resets, half-open connections, latency.

    with Proxy.before("redis://localhost:6379/1") as proxy:
        app = App(proxy.url)      # the same Redis, through the proxy
        proxy.reset()             # all open connections: "connection reset by peer"
        proxy.half_open(5)        # connections stay open for 5 s, and no byte arrives
        proxy.latency(80, 10)     # for 10 s each round trip takes 80 ms longer

The proxy listens on a free port of 127.0.0.1, runs in its own thread and serves any number of connections.
Latency keeps the order of the bytes and does not limit the bandwidth.
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

_HOST = "127.0.0.1"
_REDIS = 6379
_RECEIVE_BUFFER = 131_072
_READ_AHEAD = 0.1  # with a bandwidth limit: how much traffic (in seconds) is read before it is due
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing discards unsent bytes and sends RST


@dataclass(frozen=True, eq=False)
class _Fault:
    """A network fault that lasts for a while; `delay` is in seconds, each way."""

    drops_bytes: bool = False
    delay: float = 0.0


class Proxy:
    """Forwards all bytes between its port and a server, except during a fault.

    - `url`: set only by `before`; else empty.
    - `listen`: the port to listen on (default: a free one).
    - `delay_ms`: permanent extra time of each round trip.
    - `bytes_per_second`: bandwidth of each direction of a connection (0: no limit).
    - `make_loop`: makes the event loop; needed for timers finer than epoll's.
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
        self._listener = socket.create_server((_HOST, listen))
        self.port: int = self._listener.getsockname()[1]
        self.url = ""
        #: Number of connections accepted so far.
        self.connections = 0
        self.bytes_per_second = bytes_per_second  # 0: no limit
        if bytes_per_second:  # a large receive buffer in the kernel would hide the limit
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        self._faults = [_Fault(delay=delay_ms / 2000)]
        self._lock = threading.Lock()
        self.open_connections: set[ProxiedConnection] = set()
        self._make_loop = make_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._ready.wait()

    @classmethod
    def before(cls, url: str) -> Self:
        """A proxy in front of the Redis server of this URL; `proxy.url` is the same URL through the proxy."""
        parts = urlsplit(url)
        if parts.scheme != "redis" or not parts.hostname or "," in parts.netloc:
            raise ConfigError(
                f"a proxy cannot be placed in front of {parts.scheme}://: it needs one server without TLS, "
                "redis://HOST:PORT"
            )
        proxy = cls(parts.port or _REDIS, parts.hostname)
        secret, at, _ = parts.netloc.rpartition("@")
        proxy.url = parts._replace(netloc=f"{secret}{at}{_HOST}:{proxy.port}").geturl()
        return proxy

    # ── faults ───────────────────────────────────────────────────────────────────────────────────

    def reset(self) -> int:
        """Reset all open connections (RST to both ends). Returns their number."""
        return self._run_on_all(lambda connection: connection.reset())

    def cut(self) -> int:
        """Close all open connections in order, as a stopping server does. Returns their number."""
        return self._run_on_all(lambda connection: connection.close())

    def forget(self) -> int:
        """Forward nothing more on the open connections, and keep them open. Returns their number.

        A router with a full connection table does this. New connections work.
        """
        return self._run_on_all(lambda connection: connection.stop_forwarding())

    def half_open(self, seconds: float) -> None:
        """Drop all bytes in both directions for this many seconds; connections stay open.

        A connection that has lost bytes forwards nothing afterwards, because later bytes would make no
        sense. It ends when the client or the server closes it.
        """
        with self._fault_lasting(_Fault(drops_bytes=True)):
            time.sleep(seconds)
        self._run_on_all(lambda connection: connection.abort_if_half_closed())

    def latency(self, ms: float, seconds: float) -> None:
        """Delay each round trip by `ms` for this many seconds."""
        with self._fault_lasting(_Fault(delay=ms / 2000)):
            time.sleep(seconds)

    @contextlib.contextmanager
    def _fault_lasting(self, fault: _Fault) -> Iterator[None]:
        """Several faults may overlap, and end in any order; their delays add up."""
        try:
            with self._lock:
                self._faults = [*self._faults, fault]
            yield
        finally:
            with self._lock:
                self._faults = [other for other in self._faults if other is not fault]

    @property
    def drops_bytes(self) -> bool:
        return any(fault.drops_bytes for fault in self._faults)

    @property
    def delay(self) -> float:
        """Seconds, each way."""
        return sum(fault.delay for fault in self._faults)

    # ── called by the connections ────────────────────────────────────────────────────────────────

    def forwards(self, end: ConnectionEnd, data: bytes) -> bool:
        """Whether bytes received at this end are sent at the other; empty `data` means end of stream."""
        if self.drops_bytes:
            end.connection.stop_forwarding()
        return not end.connection.dropped_bytes or (not data and not self.drops_bytes)

    # ── start and stop ───────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Close the listening socket and all connections; a second call does nothing."""
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended in between
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._make_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await self._loop.create_server(self._accept, sock=self._listener)
        self._ready.set()
        await self._closing.wait()
        server.close()
        await self._for_each_connection(lambda connection: connection.abort())

    def _accept(self) -> ConnectionEnd:
        self.connections += 1
        return ProxiedConnection(self, self._target).client_end

    def _run_on_all(self, act: Callable[[ProxiedConnection], None]) -> int:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._for_each_connection(act), self._loop).result()

    async def _for_each_connection(self, act: Callable[[ProxiedConnection], None]) -> int:
        connections = list(self.open_connections)
        for connection in connections:
            act(connection)
        ending = [end.closed for connection in connections for end in connection.ends if end.ending]
        if ending:
            await asyncio.wait(ending)
        return len(connections)


class ProxiedConnection:
    """One connection through the proxy, with an end to the client and an end to the server."""

    def __init__(self, proxy: Proxy, target: tuple[str, int]) -> None:
        self.proxy = proxy
        self.client_end, self.server_end = (
            ConnectionEnd(self, from_client=True),
            ConnectionEnd(self, from_client=False),
        )
        self.client_end.other, self.server_end.other = self.server_end, self.client_end
        self.ends = (self.client_end, self.server_end)
        self.dropped_bytes = False  # bytes are missing: later bytes must not be forwarded
        self._target = target
        self._connecting: asyncio.Task[None] | None = None

    def connect_to_server(self) -> None:
        """Connect to the server; called when the client has connected."""
        self.proxy.open_connections.add(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def stop_forwarding(self) -> None:
        self.dropped_bytes = True

    def abort_if_half_closed(self) -> None:
        """Abort if one end was closed while the proxy dropped all bytes: the other end does not know yet."""
        if self.dropped_bytes and any(end.ending for end in self.ends):
            self.abort()

    def close(self) -> None:
        for end in self.ends:
            if end.transport is not None:
                end.transport.close()

    def reset(self) -> None:
        for end in self.ends:
            if end.transport is not None and not end.transport.is_closing():
                connection = end.transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.abort()

    def abort(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        for end in self.ends:
            if end.transport is not None:
                end.transport.abort()

    def end_closed(self) -> None:
        """Remove this connection from the open ones if both ends are closed."""
        if all(end.transport is None or end.closed.done() for end in self.ends):
            self.proxy.open_connections.discard(self)

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.server_end, *self._target)
        except OSError:  # the server does not listen: close the client's connection
            self.close()
        else:
            self.client_end.deliver()


class ConnectionEnd(asyncio.Protocol):
    """One end of a connection: bytes received here are sent at the other end when they are due."""

    def __init__(self, connection: ProxiedConnection, *, from_client: bool) -> None:
        self.connection = connection
        self.from_client = from_client
        self.other: ConnectionEnd
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_transit: collections.deque[tuple[float, bytes]] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None
        self._busy_until = 0.0

    @property
    def ending(self) -> bool:
        return self.transport is not None and self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.from_client:
            self.connection.connect_to_server()

    def data_received(self, data: bytes) -> None:
        proxy = self.connection.proxy
        if proxy.forwards(self, data):
            due = asyncio.get_running_loop().time() + proxy.delay
            if proxy.bytes_per_second:  # later bytes wait for earlier ones
                due = max(due, self._busy_until) + len(data) / proxy.bytes_per_second
                self._busy_until = due
                self._limit_reading()
            self._in_transit.append((due, data))
            self.deliver()

    def _limit_reading(self) -> None:
        """Pause reading while more than `_READ_AHEAD` seconds of traffic wait."""
        loop = asyncio.get_running_loop()
        ahead = self._busy_until - loop.time()
        if ahead > _READ_AHEAD and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            loop.call_later(ahead - _READ_AHEAD / 2, self._resume_reading)

    def _resume_reading(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)
        self.data_received(b"")  # the end of the stream is delayed as its bytes are
        self.connection.end_closed()

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def deliver(self) -> None:
        """Send all bytes that are due, if the other end is connected."""
        if self._timer is not None or self.other.transport is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._in_transit and self._in_transit[0][0] <= now:
            self.other.put(self._in_transit.popleft()[1])
        if self._in_transit:
            self._timer = loop.call_at(self._in_transit[0][0], self._on_timer)

    def put(self, data: bytes) -> None:
        assert self.transport is not None
        if self.transport.is_closing():
            return
        if data:
            self.transport.write(data)
        else:
            self.transport.close()

    def _on_timer(self) -> None:
        self._timer = None
        self.deliver()
