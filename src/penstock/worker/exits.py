"""Describes how a process ended: a signal, an exit code, or out of memory."""

from __future__ import annotations

import signal

__all__ = ["how_it_ended", "oom_kills"]

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
