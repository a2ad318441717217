"""One worker process: its start, its shared lease table, its socket, and its end.

It starts as a fork of the supervisor, or as a new program. A fork shares the supervisor's memory until one of
the two writes to it, so it saves memory and the time of the imports. It is safe only while the supervisor has
one thread and has opened nothing: before its event loop starts. Worker processes that are started later are
new programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from typing import Protocol

import msgspec

from penstock.config import Config
from penstock.core.ids import mint
from penstock.worker.metrics_page import MetricsPage
from penstock.worker.orders import (
    ORDERS,
    REPLACE,
    ChildHello,
    ChildMessage,
    ChildRequest,
    Death,
    Orders,
    Refusal,
)
from penstock.worker.queues import Queue
from penstock.worker.shared_lease_table import LeaseTable
from penstock.worker.signals import ignore_interrupts, oom_kills

_log = logging.getLogger("penstock.supervisor")
#: Maximum size (bytes) of a message of a worker process: they have an address, or a reason.
_LONGEST = 1 << 20


class WorkerProcess:
    """One worker process, its lease table, and a socket by which each notices the other's death."""

    def __init__(
        self, app: str, config: Config, queues: tuple[Queue, ...] | None, burst: bool, death: Death | None
    ) -> None:
        self.id = mint()
        self.cause: str | None = None
        #: The jobs (queue, id) that it was killed for, with the time (s) that each had from its start.
        self.overdue: dict[tuple[str, str], float] = {}
        self.refusal: str | None = None
        self.ready_for_signals = False
        #: Its end, once it is awaited: the exit code.
        self.end: asyncio.Future[int]
        #: The process that takes its place, and the one whose place it takes, which drains once it serves.
        self.successor: WorkerProcess | None = None
        self.replaces: WorkerProcess | None = None
        self.replaced = asyncio.Event()  # its successor serves
        self._greeted = asyncio.Event()  # it has sent its hello
        self._asked_to_end = False
        self.extended_ns = 0  # when its leases were last extended for it
        self.looked_ns = 0  # when its table was last read
        self.asked_ns = 0  # when the store was last asked for the jobs of its fetch
        self.queues: tuple[str, ...] = ()  # those it serves
        self.extending: asyncio.Task[None] | None = None  # the task that extends its leases
        self.oom_kills_before = oom_kills()
        self.table = LeaseTable.create(config.concurrency)
        self.metrics = MetricsPage.create() if config.metrics_port else None
        self._control, self._child_end = socket.socketpair()
        # orders are visible in the environment of a new program, so without the encryption key: the child
        # reads its own configuration
        child_config = dataclasses.replace(config, key="")
        self._orders = Orders(
            app,
            child_config,
            queues,
            burst,
            self.id,
            os.getpid(),
            self._child_end.fileno(),
            self.table.fileno(),
            death,
            None if self.metrics is None else self.metrics.fileno(),
        )
        self._process: StartedProcess

    def start(self) -> None:
        """Start it as a new program. Raises OSError if the system has no room for another process."""
        try:
            self._process = spawn(self._orders)
        except OSError:
            self.close_in_fork()
            raise
        finally:
            self._child_end.close()

    def fork(self) -> Orders | None:
        """Start it as a fork of this process: returns None here, and its orders in the child.

        Raises OSError if the system has no room for another process.
        """
        try:
            child = fork()
        except OSError:
            self.close_in_fork()
            self._child_end.close()
            raise
        if child is None:
            self._control.close()
            self._child_end.detach()  # the child opens it again, from its orders
            return self._orders
        self._process = child
        self._child_end.close()
        return None

    def close_in_fork(self) -> None:
        """In the fork for another child: close this child's socket, or it would not notice the supervisor's
        death, and its table."""
        self._control.close()
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(
        self,
        on_hello: Callable[[ChildHello], None],
        on_request: Callable[[str], None],
        deaths: asyncio.Queue[Death],
    ) -> int:
        """Wait until the process has ended; returns its exit code, negative for a signal.

        Passes its hello and its requests on, and sends it the `deaths` that no other process takes first.
        """
        receiving = asyncio.create_task(self._receive(on_hello, on_request))
        sending = asyncio.create_task(self._send(deaths))
        try:
            code = await self._exit()
            sending.cancel()
            # its last message is in the socket, or none comes; another holder of the socket is not waited for
            await asyncio.wait({receiving}, timeout=0.1)
            return code
        finally:
            sending.cancel()
            receiving.cancel()
            self._control.close()

    async def _send(self, deaths: asyncio.Queue[Death]) -> None:
        """Send deaths to the process, once it is ready."""
        loop = asyncio.get_running_loop()
        await self._greeted.wait()
        while True:
            death = await deaths.get()
            with contextlib.suppress(OSError):  # it has just ended, too
                await loop.sock_sendall(self._control, msgspec.json.encode(death) + b"\n")

    async def _receive(
        self, on_hello: Callable[[ChildHello], None], on_request: Callable[[str], None]
    ) -> None:
        loop, rest = asyncio.get_running_loop(), b""
        self._control.setblocking(False)
        while data := await loop.sock_recv(self._control, 65_536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                try:
                    message = msgspec.json.decode(line, type=ChildMessage)
                except msgspec.DecodeError as error:  # a task may write to the socket
                    self.kill(f"killed by its supervisor: it sent a message that cannot be read: {error}")
                    return
                if isinstance(message, Refusal):
                    self.refusal = message.why
                elif isinstance(message, ChildRequest):
                    on_request(message.act)
                else:
                    self.ready_for_signals, self.queues = True, message.queues
                    self._greeted.set()
                    on_hello(message)
            if len(rest) > _LONGEST:
                self.kill("killed by its supervisor: it sent bytes that are no message")
                return

    async def _exit(self) -> int:
        """Wait for the exit in a separate thread: the loop's shared threads are few, children may be many."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def report(code: int) -> None:
            if not ended.done():
                ended.set_result(code)

        def wait() -> None:
            code = 1
            try:
                code = self._process.wait()
            finally:  # also after an error, or the supervisor would wait for ever
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(report, code)

        threading.Thread(target=wait, name=f"penstock-worker-{self.pid}", daemon=True).start()
        return await ended

    def ended_as_requested(self, code: int) -> bool:
        """Whether it ended as a worker should and holds no job."""
        if self.table.entries():
            return False
        # before and after its event loop runs, no handler catches SIGTERM, which then ends the process
        return code in (0, REPLACE) or (self._asked_to_end and code == -signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        self._asked_to_end |= number == signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self, cause: str) -> None:
        if self.cause is None:
            self.cause = cause
            _log.error("worker %s (pid %d) is killed: %s", self.id, self.pid, cause)
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        self.table.close()
        if self.metrics is not None:
            self.metrics.close()


# ── the interpreter ──────────────────────────────────────────────────────────────────────────────


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

    Signals are blocked, and the child unblocks them itself: see `block_signals`.
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


# ── orphans ──────────────────────────────────────────────────────────────────────────────────────


def orphan_reaper(own: Callable[[], Collection[int]]) -> Callable[[], None]:
    """Return a function that reaps ended orphans, and leaves the processes in `own()` to their waiters.

    Orphans are processes that a task has left behind, while the supervisor is process 1 of a container. The
    kernel gives orphans to process 1. Without a reaper each of them keeps its entry in the process table
    until the container ends. A supervisor that is not process 1 has no orphans: its function does nothing.
    """
    if os.getpid() != 1:
        return lambda: None

    def reap() -> None:
        # WNOWAIT only looks: an own child is left to the thread that waits for it, and ends this round
        while (ended := _ended_child()) is not None and ended not in own():
            os.waitpid(ended, os.WNOHANG)

    return reap


def _ended_child() -> int | None:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no child at all
        return None
    return None if found is None else found.si_pid
