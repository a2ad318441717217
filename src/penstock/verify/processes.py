"""Lists processes of this machine: those of a session, and the children of a process."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


def children(pid: int) -> list[int]:
    """The living direct children of this process."""
    return [child for child, parent, state in _all() if parent == pid and state != "Z"]


def session_processes(leader: int) -> list[int]:
    """The living processes of this leader's session, the leader first; also those whose parent is dead."""
    found = {pid for pid, _, state in _all() if state != "Z" and _session(pid) == leader}
    return sorted(found, key=lambda pid: (pid != leader, pid))


def _all() -> Iterator[tuple[int, int, str]]:
    """(pid, parent, state) of every process."""
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
        with contextlib.suppress(OSError):  # the process has just ended
            facts = path.read_text().rpartition(")")[2].split()  # a process name may contain spaces and ")"
            yield int(path.parent.name), int(facts[1]), facts[0]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1
