"""Starts and kills child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from penstock.worker.pools.calls import ChildBroken

__all__ = ["kill_group", "spawn", "spawn_server"]

_CHILD = "from penstock.worker.pools.child import main; main(int(sys.argv[1]))"
_SERVER = "from penstock.worker.pools.fork_server import main; main(int(sys.argv[1]), {preload})"


def spawn(fd: int, stderr: int) -> subprocess.Popen[bytes]:
    """Start a child as a new interpreter."""
    return _start(_CHILD, fd, stderr)


def spawn_server(fd: int, preload: bool) -> subprocess.Popen[bytes]:
    """Start the process that forks children; `preload`: after the import of the app."""
    return _start(_SERVER.format(preload=preload), fd, None)


def _start(code: str, fd: int, stderr: int | None) -> subprocess.Popen[bytes]:
    """Start an interpreter with the same flags, in its own process group, out of reach of a terminal's ^C."""
    if not sys.executable:
        raise ChildBroken("sys.executable is empty: it is unknown which Python to start")
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    # where to import Penstock from; the user's own path comes with Hello
    homes = dict.fromkeys([str(Path(__file__).parents[3]), str(Path(msgspec.__file__).parents[1])])
    return subprocess.Popen(  # noqa: S603 (our own program, fixed arguments)
        [
            sys.executable,
            *flags,
            "-P",
            "-c",
            "import sys; sys.path += sys.argv[2:]; " + code,
            str(fd),
            *homes,
        ],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        process_group=0,
    )


def kill_group(pid: int) -> None:
    """Kill the process and those that it has started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # no process left
        pass
