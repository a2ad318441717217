"""Who runs on this machine: the processes of a session, and the children of a process."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["children", "family"]


def children(pid: int) -> list[int]:
    """The living processes that this one has started itself."""
    return [child for child, parent, state in _all() if parent == pid and state != "Z"]


def family(leader: int) -> list[int]:
    """The living processes of the session that this one leads, itself first; parents dead or alive."""
    found = {pid for pid, _, state in _all() if state != "Z" and _session(pid) == leader}
    return sorted(found, key=lambda pid: (pid != leader, pid))


def _all() -> Iterator[tuple[int, int, str]]:
    """(pid, parent, state) of all."""
    if not Path("/proc/self/stat").exists():
        said = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,stat="],  # noqa: S607 (found on the path, as a shell would)
            capture_output=True,
            text=True,
            check=True,
        )
        for line in said.stdout.splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), state[0]
        return
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            facts = path.read_text().rpartition(")")[2].split()  # its name may contain anything
            yield int(path.parent.name), int(facts[1]), facts[0]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1
