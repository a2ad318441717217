"""Finds server programs and free ports, and starts server processes."""

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
READY = 30.0  # timeout until a server answers (s), also on a busy machine


class ServerFailed(PenstockError):
    """A private server did not start or did not reach a state; the message includes the end of its log."""


def redis_program() -> str:
    """The path of redis-server or valkey-server. Raises ConfigError if neither is installed."""
    for name in ("redis-server", "valkey-server"):
        if (path := shutil.which(name)) is not None:
            return path
    raise ConfigError(
        "a private Redis needs redis-server or valkey-server on the PATH, and neither is installed: "
        "apt-get install redis-server (brew install redis)"
    )


# The kernel kills a server when its parent ends, and its parent is the *thread* that started it. So one
# thread, which lives as long as this process, starts all servers.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="servers")

# A launcher program, because a preexec_fn may deadlock in a process with threads. It ignores SIGXFSZ: a
# server at its file size limit gets an error from write(), as on a full disk, and is not killed.
_LAUNCHER = """
import ctypes, os, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this server has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start this program; it is killed when the current process ends."""
    return _starter.submit(_start, command).result()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 (a program of ours, in words of ours)
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C goes to this process alone, which stops its servers in order
    )


_handed_out: set[int] = set()


def free_port() -> int:
    """A free port whose cluster bus port (10 000 above) is also free.

    Both are below the range of outgoing connections, so a restarted server finds its port free.
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
    """Poll until the condition is true. Raises ServerFailed after the timeout."""
    began = time.monotonic()
    while not true():
        waited = time.monotonic() - began
        if waited > timeout:
            raise ServerFailed(f"waited {timeout:g} s for {what}")
        time.sleep(min(0.05, 0.01 + waited / 20))  # a look may cost several connections
