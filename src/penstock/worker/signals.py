"""Signal handlers of a worker.

INT and TERM drain, a second one stops at once. TSTP and USR1 stop fetching. TTIN dumps all stacks.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Callable

__all__ = [
    "DRAIN",
    "QUIET",
    "block_stop_signals",
    "dump_stacks_on_request",
    "ignore_interrupts",
    "listen",
    "listen_for_stacks",
    "unblock_stop_signals",
]


def _present(*names: str) -> tuple[signal.Signals, ...]:
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


DRAIN = _present("SIGINT", "SIGTERM")
QUIET = _present("SIGTSTP", "SIGUSR1")
_STACKS = _present("SIGTTIN")


def listen(stop: Callable[[], None], quiet: Callable[[], None], *, drain: tuple[signal.Signals, ...]) -> None:
    """Call `stop` for the signals in `drain` (again for each repetition), `quiet` for TSTP and USR1."""
    loop = asyncio.get_running_loop()
    for number, act in [*((s, stop) for s in drain), *((s, quiet) for s in QUIET)]:
        try:
            loop.add_signal_handler(number, act)
        except NotImplementedError:  # Windows: the loop cannot do this; a plain handler calls into the loop
            signal.signal(number, lambda *_, act=act: loop.call_soon_threadsafe(act))


def dump_stacks_on_request() -> None:
    """TTIN prints the stacks of all threads to stderr, even while a C call holds the GIL."""
    for number in _STACKS:
        faulthandler.register(number, file=sys.stderr or 2, all_threads=True)


def listen_for_stacks(on_dump: Callable[[], None]) -> None:
    """On TTIN, print the stacks of this process, then call `on_dump`, which passes the signal on."""
    loop = asyncio.get_running_loop()
    for number in _STACKS:
        loop.add_signal_handler(number, on_dump)
        faulthandler.register(number, file=sys.stderr or 2, all_threads=True, chain=True)


def ignore_interrupts() -> None:
    """Ignore SIGINT: ctrl-C in a terminal signals all processes of the group, and the supervisor decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def block_stop_signals() -> None:
    """Let INT and TERM wait: one that comes before `listen` would end this process without its children."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, DRAIN)


def unblock_stop_signals() -> None:
    """Take INT and TERM again; one that has waited comes now."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, DRAIN)
