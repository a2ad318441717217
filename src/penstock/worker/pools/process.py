"""One child process as seen by its worker: start, messages, kill, and the cause of its death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from penstock.core.job import Progress
from penstock.core.outcomes import Outcome, Raised
from penstock.worker.exits import how_it_ended, oom_kills
from penstock.worker.pools.messages import (
    Broken,
    Failed,
    Frames,
    FromChild,
    FunctionReturned,
    FunctionStarted,
    Progressed,
    Ready,
    RunJob,
    ToChild,
    WorkerHello,
    frame,
)

__all__ = ["ChildBroken", "ChildDied", "ChildFailed", "ChildProcess", "EncodedResult", "NoChild", "Work"]

_log = logging.getLogger("penstock.worker")

_BOOT = (
    "import sys; sys.path += sys.argv[2:]; "
    "from penstock.worker.pools.child import main; main(int(sys.argv[1]))"
)


class EncodedResult(msgspec.Struct, frozen=True):
    """The encoded result of a process task; None if the task keeps no result."""

    result: bytes | None


class ChildFailed(Exception):
    """The function raised in its child; `outcome` is the attempt's outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(_describe(outcome))
        self.outcome = outcome


class ChildDied(Exception):
    """The child's process ended during the job. `cause` says how; `killed`: by the worker."""

    def __init__(self, cause: str, *, killed: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.killed = killed


class ChildBroken(ChildDied):
    """The child could not start: its app cannot be imported, or a start-up hook fails."""

    def __init__(self, why: str, traceback: str = "") -> None:
        super().__init__(f"could not start: {why}")
        self.traceback = traceback


class NoChild(ChildBroken):
    """The system has no descriptors, processes, threads or memory for a child; the job is not to blame."""


class Work:
    """One job given to the pool, until its end."""

    __slots__ = ("child", "created", "end", "on_progress", "on_start", "order", "started", "ticket")

    def __init__(
        self,
        ticket: Any,
        order: RunJob,
        end: asyncio.Future[EncodedResult],
        on_start: Callable[[], None] | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.ticket = ticket
        self.order = order
        self.created = time.monotonic()  # when `order.now` was read
        self.end = end
        self.on_start = on_start
        self.on_progress = on_progress
        self.child: ChildProcess | None = None
        self.started: float | None = None

    def fail(self, error: Exception) -> None:
        if not self.end.done():
            self.end.set_exception(error)


class ChildProcess(asyncio.Protocol):
    """One process and the socket to it.

    `on_free(child)` is called each time it becomes ready for a job, except the first time.
    `on_death(child, error)` is called once when the process has ended.
    """

    def __init__(
        self,
        on_free: Callable[[ChildProcess], None],
        on_death: Callable[[ChildProcess, ChildDied], None],
    ) -> None:
        self.pid = 0
        #: Number of jobs it was given.
        self.jobs = 0
        #: The job it has now.
        self.work: Work | None = None
        self._on_free = on_free
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._frames = Frames()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._oom_kills_before = oom_kills()
        self._killed: str | None = None  # why the worker killed it
        self._cause: str | None = None  # how it ended, until that is reported
        self._gone = False
        self._socket_closed = False  # whether its end of the socket is closed

    async def open(self, hello: WorkerHello) -> None:
        """Start the process and wait until it is ready for jobs.

        Raises ChildBroken if it does not get ready.
        """
        own_end, child_end = socket.socketpair()
        try:
            self._process = _spawn(child_end.fileno())
        except (OSError, ChildBroken):
            own_end.close()
            raise
        finally:
            child_end.close()
        self.pid = self._process.pid
        name = f"penstock-child-{self.pid}"
        try:
            threading.Thread(target=self._await_exit, args=(self._process,), name=name, daemon=True).start()
            self._socket = own_end.dup()
        except (OSError, RuntimeError):
            own_end.close()
            raise
        await self._loop.create_unix_connection(lambda: self, sock=own_end)
        self._send(hello)
        await self._ready

    def take(self, work: Work) -> None:
        """Run this job."""
        work.child, self.work = self, work
        self.jobs += 1
        waited = int((time.monotonic() - work.created) * 1000)
        self._send(msgspec.structs.replace(work.order, now=work.order.now + waited))

    def kill(self) -> None:
        """Kill the process and its own children now."""
        self._kill("killed by its worker")

    def close_input(self) -> None:
        """Close the sending side of the socket: the child ends after its current job."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the child has closed it
                self._socket.shutdown(socket.SHUT_WR)

    def end(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the process to end, then kill it. Blocks for that time."""
        self.close_input()
        if self._process is not None and not self._gone:
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                pass
            self._kill_group()
            self._process.wait()
            self._gone = True
        self._close_socket()
        if self.work is not None:
            self.work.fail(ChildDied(self._killed or "ended by its worker", killed=True))
            self.work = None

    def _send(self, message: ToChild) -> None:
        if self._transport is not None:
            self._transport.write(frame(message))

    # ── messages from the child ──────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, but not by inheritance

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self._handle_message(message)

    def _handle_message(self, message: FromChild) -> None:
        work = self.work
        match message:
            case Ready():
                if not self._ready.done():
                    self._ready.set_result(None)
            case Broken():
                if not self._ready.done():
                    self._ready.set_exception(ChildBroken(message.cause, message.traceback))
            case FunctionStarted() if work is not None:
                work.started = time.monotonic()
                if work.on_start is not None:
                    work.on_start()
            case Progressed() if work is not None and work.on_progress is not None:
                work.on_progress(message.progress)
            case FunctionReturned() | Failed() if work is not None and self._killed is None:
                self._ended(work, message)
            case _:
                pass  # the end of a job after the worker decided to kill it

    def _ended(self, work: Work, message: FunctionReturned | Failed) -> None:
        self.work = None
        if isinstance(message, Failed):
            work.fail(ChildFailed(message.as_outcome()))
        elif not work.end.done():
            work.end.set_result(EncodedResult(message.result))
        self._on_free(self)

    # ── the end of the process ───────────────────────────────────────────────────────────────────

    def _await_exit(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the exit, in a thread. The process is not reaped here, so that its pid stays its own."""
        try:
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            else:
                process.wait()
        except ChildProcessError:  # reaped by `end`, or by code that waits for all children
            pass
        try:
            self._loop.call_soon_threadsafe(self._exited)
        except RuntimeError:  # the loop is closed, and the pool with it
            pass

    def _exited(self) -> None:
        """Note that the process has ended; its last messages may still be in the socket."""
        if self._gone or self._process is None:
            return
        self._kill_group()  # its own children must not outlive it: a job could run twice at a time
        code = self._process.wait()
        self._gone = True
        self._cause = self._killed or how_it_ended(code, self._oom_kills_before)
        if self._socket_closed or self._transport is None:
            self._report_end()
        else:
            self._loop.call_later(0.5, self._report_end)  # in case another process keeps the socket open

    def connection_lost(self, exc: Exception | None) -> None:
        self._socket_closed = True
        if self._cause is not None:
            self._report_end()
        elif not self._gone:  # usually the process is about to end
            closed = "killed by its worker: it had closed its socket"
            self._loop.call_later(1.0, self._kill, closed)

    def _report_end(self) -> None:
        cause, self._cause = self._cause, None
        if cause is None:
            return
        self._close_socket()
        if not self._ready.done():
            self._ready.set_exception(ChildBroken(cause))
            return
        error = ChildDied(cause, killed=self._killed is not None)
        work, self.work = self.work, None
        if work is not None:
            work.fail(error)
        self._on_death(self, error)

    def _kill(self, why: str) -> None:
        if not self._gone and self._killed is None:
            self._killed = why
            self._kill_group()

    def _close_socket(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # no process left
            pass


def _spawn(fd: int) -> subprocess.Popen[bytes]:
    """Start an interpreter with the same flags, in its own process group, out of reach of a terminal's ^C."""
    if not sys.executable:
        raise ChildBroken("sys.executable is empty: it is unknown which Python to start")
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    # where to import Penstock from; the user's own path comes with Hello
    homes = dict.fromkeys([str(Path(__file__).parents[3]), str(Path(msgspec.__file__).parents[1])])
    return subprocess.Popen(  # noqa: S603 (our own program, fixed arguments)
        [sys.executable, *flags, "-P", "-c", _BOOT, str(fd), *homes],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        process_group=0,
    )


def _describe(outcome: Outcome) -> str:
    if isinstance(outcome, Raised):
        return f"{outcome.error.kind}: {outcome.error.message}"
    return str(outcome)
