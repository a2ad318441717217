"""One worker process: its start, its shared lease table, its socket, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable

import msgspec

from penstock.config import Config
from penstock.core.ids import mint
from penstock.worker.exits import oom_kills
from penstock.worker.metrics_page import MetricsPage
from penstock.worker.orders import REPLACE, ChildHello, ChildMessage, ChildRequest, Death, Orders, Refusal
from penstock.worker.queues import Queue
from penstock.worker.shared_lease_table import LeaseTable
from penstock.worker.supervisor.process_start import StartedProcess, fork, spawn

__all__ = ["WorkerProcess"]

_log = logging.getLogger("penstock.supervisor")


class WorkerProcess:
    """One worker process, its lease table, and a socket by which each notices the other's death."""

    def __init__(
        self, app: str, config: Config, queues: tuple[Queue, ...] | None, burst: bool, death: Death | None
    ) -> None:
        self.id = mint()
        self.cause: str | None = None
        #: The jobs (queue, id) that it was killed for, with their timeout messages.
        self.overdue: dict[tuple[str, str], str] = {}
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
                message = msgspec.json.decode(line, type=ChildMessage)
                if isinstance(message, Refusal):
                    self.refusal = message.why
                elif isinstance(message, ChildRequest):
                    on_request(message.act)
                else:
                    self.ready_for_signals = True
                    self._greeted.set()
                    on_hello(message)

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
