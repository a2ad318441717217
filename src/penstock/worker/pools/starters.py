"""Starts the child processes of a pool as new interpreters; `fork_starter.py` forks them from a server.

A start that fails sets the pause before the next one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.config import Config
from penstock.core.running import start_folder
from penstock.core.text import number
from penstock.worker.logs import log_with_traceback
from penstock.worker.pools.calls import ChildBroken, NoChild
from penstock.worker.pools.messages import WorkerHello

_log = logging.getLogger("penstock.worker")


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


# ── new interpreters ─────────────────────────────────────────────────────────────────────────────

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
        cwd=start_folder(),
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


def worker_hello(app: str | None, config: Config | None, nice: int, cpus: tuple[int, ...]) -> WorkerHello:
    """The first message to a child of this process; it names the script as which this one was started."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return WorkerHello(
        parent=os.getpid(),
        path=list(sys.path),
        argv=list(sys.argv),
        main_module=None if spec is None else spec.name,
        main_file=None if file is None else os.path.abspath(file),
        app=app,
        config=config,
        nice=nice,
        cpus=cpus,
    )


# ── failed starts ────────────────────────────────────────────────────────────────────────────────

#: After a child that could not start, the next one waits this long, doubling (s).
_FIRST_BACKOFF = 0.5
_LAST_BACKOFF = 30.0
#: After a child for which the system had no resources, the next one waits this long (s).
RETRY_AFTER = 0.5
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS}


class StartFailures:
    """The failed starts since the last child that got ready."""

    def __init__(self, start_timeout: float) -> None:
        self._start_timeout = start_timeout
        self._failures = 0
        self._last: ChildBroken | None = None
        self._not_before = 0.0

    def clear(self) -> None:
        """Note that a child is ready."""
        self._failures, self._last = 0, None

    @property
    def any(self) -> bool:
        """Whether no child has got ready since the last failure."""
        return self._last is not None

    def reason_to_wait(self) -> NoChild | None:
        """Why no child may be started yet; None if one may."""
        if self._last is None or time.monotonic() >= self._not_before:
            return None
        return NoChild(self._last.why, self._last.traceback)

    def note(self, error: OSError | RuntimeError | MemoryError | ChildBroken) -> ChildBroken:
        """Log a failed start and set the pause before the next one. Returns the error for a call."""
        broken = error if isinstance(error, ChildBroken) else self._as_broken(error)
        if isinstance(broken, NoChild):
            if not isinstance(self._last, NoChild):
                _log.error(
                    "a child process %s; its jobs are released, and the start is retried", broken.cause
                )
            wait = RETRY_AFTER
        else:
            wait = min(_LAST_BACKOFF, _FIRST_BACKOFF * 2**self._failures)
            self._failures += 1
            says = "a child process %s; the next one waits %.3g s"
            log_with_traceback(_log, logging.ERROR, broken.traceback, says, broken.cause, wait)
        self._last, self._not_before = broken, time.monotonic() + wait
        return broken

    def _as_broken(self, error: OSError | RuntimeError | MemoryError) -> ChildBroken:
        if not isinstance(error, OSError) or error.errno in _NO_ROOM:
            return NoChild(str(error) or type(error).__name__)
        if isinstance(error, TimeoutError):
            return ChildBroken(
                f"its imports and start-up hooks took more than {number(self._start_timeout)} s"
            )
        return ChildBroken(str(error))
