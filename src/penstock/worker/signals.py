"""Signals of worker processes: what a worker does on them, and by which of them a process has ended.

INT and TERM drain, a second one stops at once. TSTP and USR1 stop fetching. TTIN dumps all stacks.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Callable
from types import FrameType


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
    """Ignore SIGINT: ctrl-C in a terminal signals all processes of the group, and the supervisor decides.

    A handler that does nothing is used instead of SIG_IGN, which programs started by a task would inherit.
    """
    signal.signal(signal.SIGINT, _do_nothing)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal that means nothing to this process."""


def block_signals() -> None:
    """Let all these signals wait: one that comes before `listen` would end or stop this process alone."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, (*DRAIN, *QUIET, *_STACKS))


def unblock_signals() -> None:
    """Take them again; one that has waited comes now."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*DRAIN, *QUIET, *_STACKS))


# ── how a process ended: a signal, an exit code, or out of memory ────────────────────────────────

_VMSTAT = "/proc/vmstat"


def how_it_ended(returncode: int | None, oom_kills_before: int | None = None) -> str:
    """How a process ended, such as "killed by SIGSEGV" or "exit code 3".

    `returncode` is that of `subprocess`: the exit code, minus the signal's number, or None if unknown.
    `oom_kills_before` is the value of `oom_kills()` when the process was started. With it, a SIGKILL by the
    kernel's out-of-memory killer is distinguished from other SIGKILLs.
    """
    if returncode is None:
        return "ended, cause unknown"
    if returncode >= 0:
        return f"exit code {returncode}"
    name = _signal_name(-returncode)
    if name != "SIGKILL":
        return f"killed by {name}"
    now = oom_kills()
    if now is None or oom_kills_before is None:
        return "killed by SIGKILL (out of memory?)"
    return "killed by SIGKILL (out of memory)" if now > oom_kills_before else "killed by SIGKILL"


def oom_kills() -> int | None:
    """Number of processes this kernel has killed for lack of memory, also over a container's limit."""
    try:
        with open(_VMSTAT, encoding="ascii") as lines:
            for line in lines:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
