"""A wire that is slow: `python benchmarks/relay.py PORT TARGET_PORT MS` passes everything on between two
ports of this host, half of MS later each way, so that a round trip takes MS ms more than without.

A process of its own. Not on uvloop and not on epoll, whose timers count in whole milliseconds: `select`
waits for microseconds, and a relay has few connections. Order is kept, nothing is dropped, and what is
under way costs no further delay to what follows it: it is a long wire, not a thin one.
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

from penstock.verify.servers.proxy import Relay


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
    _wake_on_time()  # inherited by the relay's thread
    port, target, ms = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    delay = ms / 2000
    if delay:
        delay -= _overslept(delay)
    Relay(
        target,
        listen=port,
        delay_ms=delay * 2000,
        make_loop=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector()),
    )
    threading.Event().wait()  # until it is killed


if __name__ == "__main__":
    main()
