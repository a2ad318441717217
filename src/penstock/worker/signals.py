"""What a worker does when the operating system speaks to it.

INT and TERM drain, a second one stops at once; TSTP and USR1 stop fetching; TTIN dumps all stacks.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Callable

__all__ = ["DRAIN", "QUIET", "dump_stacks_on_request", "ignore_interrupts", "listen", "listen_for_stacks"]


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
        except NotImplementedError:  # Windows: the loop cannot; a plain handler reaches it
            signal.signal(number, lambda *_, act=act: loop.call_soon_threadsafe(act))


def dump_stacks_on_request() -> None:
    """TTIN prints the stacks of all threads to stderr, even while a C call holds the GIL."""
    for number in _STACKS:
        faulthandler.register(number, file=sys.stderr or 2, all_threads=True)


def listen_for_stacks(tell: Callable[[], None]) -> None:
    """TTIN prints the stacks of this process, and then calls `tell`: to pass it on."""
    loop = asyncio.get_running_loop()
    for number in _STACKS:
        loop.add_signal_handler(number, tell)
        faulthandler.register(number, file=sys.stderr or 2, all_threads=True, chain=True)


def ignore_interrupts() -> None:
    """A terminal's ctrl-C reaches the whole group: a child leaves the decision to its supervisor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
