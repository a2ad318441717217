"""A wire that is slow: `python benchmarks/relay.py PORT TARGET_PORT MS` passes everything on between two
ports of this host, half of MS later each way, so that a round trip takes MS ms more than without.

A process of its own. Not on uvloop and not on epoll, whose timers count in whole milliseconds: `select`
waits for microseconds, and a relay has few connections. Order is kept, nothing is dropped, and what is
under way costs no further delay to what follows it: it is a long wire, not a thin one.
"""

from __future__ import annotations

import asyncio
import collections
import ctypes
import select
import selectors
import statistics
import sys
import time
from typing import cast

_HOST = "127.0.0.1"


class _Half(asyncio.Protocol):
    """One end: what comes in here goes out at the other, in time."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._under_way: collections.deque[tuple[float, bytes]] = collections.deque()
        self._early: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.other: _Half | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def join(self, other: _Half) -> None:
        self.other, other.other = other, self
        for data in self._early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
            return
        self._under_way.append((self._loop.time() + self._delay, data))
        if self._timer is None:
            self._timer = self._loop.call_at(self._under_way[0][0], self._deliver)

    def connection_lost(self, exc: Exception | None) -> None:
        self.data_received(b"")  # the end travels as long as everything else

    def _deliver(self) -> None:
        """Pass on all that is due by now."""
        assert self.other is not None
        self._timer = None
        now = self._loop.time()
        while self._under_way and self._under_way[0][0] <= now:
            _, data = self._under_way.popleft()
            self.other.put(data)
        if self._under_way:
            self._timer = self._loop.call_at(self._under_way[0][0], self._deliver)

    def put(self, data: bytes) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if data:
            self._transport.write(data)
        else:
            self._transport.close()


async def _serve(port: int, target: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    joining: set[asyncio.Task[None]] = set()

    async def join(near: _Half) -> None:
        _, far = await loop.create_connection(lambda: _Half(delay), _HOST, target)
        near.join(far)

    def accepted() -> _Half:
        near = _Half(delay)
        task = loop.create_task(join(near))
        joining.add(task)
        task.add_done_callback(joining.discard)
        return near

    server = await loop.create_server(accepted, _HOST, port)
    await server.serve_forever()


def _wake_on_time() -> None:
    """The kernel may otherwise wake us 50 µs late, to do so for several at once."""
    if sys.platform == "linux":
        set_timer_slack = 29
        ctypes.CDLL(None).prctl(set_timer_slack, 1)


def _overslept(seconds: float) -> float:
    """How much longer a wait of so long takes here: virtual machines wake up late."""
    took = []
    for _ in range(31):
        started = time.perf_counter()
        select.select([], [], [], seconds)
        took.append(time.perf_counter() - started)
    return max(0.0, min(seconds, statistics.median(took) - seconds))


def main() -> None:
    _wake_on_time()
    port, target, ms = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    delay = ms / 2000
    if delay:
        delay -= _overslept(delay)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_serve(port, target, delay))


if __name__ == "__main__":
    main()
