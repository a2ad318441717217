"""A proxy that adds latency: `python benchmarks/delay_proxy.py PORT TARGET_PORT MS`.

The proxy forwards all bytes between two ports of this host, MS / 2 milliseconds later each way: a round trip
takes MS milliseconds longer. It keeps the order, drops nothing and does not limit the bandwidth.

It runs in its own process, on `select`: the timers of uvloop and epoll count in whole milliseconds, those of
`select` in microseconds. `select` is fast enough for the few connections of a benchmark.
"""

from __future__ import annotations

import asyncio
import ctypes
import select
import selectors
import statistics
import sys
import threading
import time

from penstock.verify.servers.proxy import Proxy


def _wake_on_time() -> None:
    """Switch off the kernel's timer slack, which wakes a process up to 50 µs late."""
    if sys.platform == "linux":
        set_timer_slack = 29
        ctypes.CDLL(None).prctl(set_timer_slack, 1)


def _overslept(seconds: float) -> float:
    """How much longer (s) than asked a wait takes on this machine: virtual machines wake up late."""
    took = []
    for _ in range(31):
        started = time.perf_counter()
        select.select([], [], [], seconds)
        took.append(time.perf_counter() - started)
    return max(0.0, min(seconds, statistics.median(took) - seconds))


def main() -> None:
    _wake_on_time()  # inherited by the proxy's thread
    port, target, ms = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    delay = ms / 2000
    if delay:
        delay -= _overslept(delay)
    Proxy(
        target,
        listen=port,
        delay_ms=delay * 2000,
        make_loop=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector()),
    )
    threading.Event().wait()  # until it is killed


if __name__ == "__main__":
    main()
