"""How a process died, in words that an operator understands: a signal, an exit code, no memory."""

from __future__ import annotations

import signal

__all__ = ["how_it_ended", "oom_kills"]

_VMSTAT = "/proc/vmstat"


def how_it_ended(returncode: int | None, oom_kills_before: int | None = None) -> str:
    """What a process ended by: "killed by SIGSEGV", "exit code 3".

    `returncode` is as `subprocess` has it: minus the signal's number, or the exit code; None where
    nobody knows. `oom_kills_before` is what `oom_kills()` said when the process was started: a SIGKILL
    that nobody here sent is then told from the kernel's own for want of memory.
    """
    if returncode is None:
        return "gone, nobody knows how"
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
    """How many processes this kernel has killed for want of memory, containers' own limits included."""
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
