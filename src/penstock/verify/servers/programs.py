"""Where servers come from: their programs, their processes, a port to listen on."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock.core.errors import ConfigError, PenstockError

__all__ = ["HOST", "READY", "ServerFailed", "free_port", "redis_program", "start", "until"]

HOST = "127.0.0.1"
READY = 30.0  # seconds in which a server must answer, on a busy machine too


class ServerFailed(PenstockError):
    """A server that was started here did not do what it must; the message says what, and its log why."""


def redis_program() -> str:
    """The path of the server's program. Raises ConfigError when there is none."""
    for name in ("redis-server", "valkey-server"):
        if (path := shutil.which(name)) is not None:
            return path
    raise ConfigError(
        "a Redis of one's own needs redis-server or valkey-server on the PATH, and neither is installed: "
        "apt-get install redis-server (brew install redis)"
    )


# The kernel is asked to kill a server when its parent ends, and for the kernel the parent is the *thread*
# that started it: so all are started by one that lives as long as this process.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="servers")

# A program of its own and not a preexec_fn, which may deadlock in a process with threads. What cannot grow a
# file shall hear of it from write(), as on a full disk, and not be killed for it.
_LAUNCHER = """
import ctypes, os, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("whoever wanted this server is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start this program as one that does not outlive us."""
    return _starter.submit(_start, command).result()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 (a program of ours, in words of ours)
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us, who end our servers in order
    )


_handed_out: set[int] = set()


def free_port() -> int:
    """A port that is free, and whose cluster bus (10 000 above) is free.

    Both lie below those that a kernel gives to outgoing connections: a server that is down for a
    while finds its port again.
    """
    while True:
        port = 10_100 + secrets.randbelow(12_000)
        if port not in _handed_out and _is_free(port) and _is_free(port + 10_000):
            _handed_out.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def until(true: Callable[[], bool], what: str, *, timeout: float = READY) -> None:
    """Wait until it is true: no server notifies of any of this. Raises ServerFailed."""
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise ServerFailed(f"waited {timeout:g} s for {what}")
        time.sleep(0.01)
