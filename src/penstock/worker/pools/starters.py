"""How a pool starts child processes: as new interpreters, or forked from a server process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from penstock.worker.pools.messages import WorkerHello
from penstock.worker.pools.spawn import spawn

__all__ = ["ChildStarter", "SpawnStarter", "StartedChild", "can_fork"]


class StartedChild(Protocol):
    """A child process that was started and is not reaped yet, so that its pid is its own."""

    pid: int

    def watch(self, exited: Callable[[], None]) -> None:
        """Call `exited` on the event loop when the process has ended. RuntimeError: there is no thread."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Block until the process has ended, and reap it; returns its exit code, minus its signal, if known.

        Raises `subprocess.TimeoutExpired` after `timeout` seconds.
        """
        ...


class ChildStarter(Protocol):
    """Starts child processes."""

    async def start(self, hello: WorkerHello, connection: int, stderr: int) -> StartedChild:
        """Start a process with this socket and this stderr. Raises OSError or ChildBroken."""
        ...

    def close(self) -> None:
        """Free what starting needs, after the children have ended."""


def can_fork() -> bool:
    """Whether children can be forked from a server process: on Linux from 5.3 on."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


class SpawnStarter:
    """Starts each child as a new interpreter."""

    async def start(self, hello: WorkerHello, connection: int, stderr: int) -> StartedChild:
        return _SpawnedChild(spawn(connection, stderr))

    def close(self) -> None:
        pass


class _SpawnedChild:
    """A child process of this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process

    def watch(self, exited: Callable[[], None]) -> None:
        loop, name = asyncio.get_running_loop(), f"penstock-child-{self.pid}"
        threading.Thread(target=self._await_exit, args=(loop, exited), name=name, daemon=True).start()

    def wait(self, timeout: float | None = None) -> int | None:
        return self._process.wait(timeout)

    def _await_exit(self, loop: asyncio.AbstractEventLoop, exited: Callable[[], None]) -> None:
        """Wait for the exit, in a thread, without reaping the process."""
        try:
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            else:
                self._process.wait()
        except ChildProcessError:  # reaped by `wait`, or by code that waits for all children
            pass
        try:
            loop.call_soon_threadsafe(exited)
        except RuntimeError:  # the loop is closed, and the pool with it
            pass
