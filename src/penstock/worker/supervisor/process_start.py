"""Starts the interpreter of a worker process: as a fork of the supervisor, or as a new program.

A fork shares the supervisor's memory until one of the two writes to it, so it saves memory and the time of
the imports. It is safe only while the supervisor has one thread and has opened nothing: before its event loop
starts. Worker processes that are started later are new programs.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
from typing import Protocol

import msgspec

from penstock.worker.orders import ORDERS, Orders
from penstock.worker.signals import ignore_interrupts

__all__ = ["ForkedProcess", "StartedProcess", "can_fork", "fork", "spawn"]


class StartedProcess(Protocol):
    """A child of this process. `wait` returns its exit code, negative for a signal."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int: ...

    def send_signal(self, sig: int) -> None: ...


class ForkedProcess:
    """A child made by `fork`. `send_signal` may be called while another thread waits."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._reaping = threading.Lock()

    def wait(self) -> int:
        if self._code is None:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            with self._reaping:  # from here on the pid may belong to another process
                try:
                    self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                except ChildProcessError:  # somebody else has reaped it: its code is lost, as for subprocess
                    self._code = 0
        return self._code

    def send_signal(self, sig: int) -> None:
        with self._reaping:
            if self._code is None:
                os.kill(self.pid, sig)


def spawn(orders: Orders) -> subprocess.Popen[bytes]:
    """Start a worker process as a new program."""
    files = [orders.control, orders.table]
    if orders.metrics is not None:
        files.append(orders.metrics)
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.worker.process"],
        env={**os.environ, ORDERS: msgspec.json.encode(orders).decode()},
        pass_fds=files,
        stdin=subprocess.DEVNULL,
    )


def can_fork() -> bool:
    """Whether a fork of this process is safe: on Linux, and with a single thread.

    On macOS system libraries refuse to work in a fork.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1  # threads of libraries, which Python does not know
    except OSError:
        return False


def fork() -> ForkedProcess | None:
    """Fork this process: returns the child here, and None in the child, where SIGINT is ignored.

    Stop signals are blocked, and the child unblocks them itself: see `block_stop_signals`.
    """
    gc.collect()
    _return_free_memory()
    gc.freeze()  # a collection in either process would copy the memory of all objects that it visits
    pid = os.fork()
    if pid == 0:
        ignore_interrupts()
        return None
    return ForkedProcess(pid)


def _return_free_memory() -> None:
    """Return freed memory of the imports to the system: 0.6 MB with glibc, in each process."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
