"""One worker process: its start, its shared lease table, its socket, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import msgspec

from penstock.config import Config
from penstock.core.ids import mint
from penstock.worker.exits import oom_kills
from penstock.worker.process import ORDERS, REPLACE, ChildHello, Death, Orders, Refusal, Said
from penstock.worker.queues import Queue
from penstock.worker.shared_lease_table import LeaseTable

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
        self.greeted = False  # whether it is ready for signals
        self._told_to_end = False
        self.extended_ns = 0  # when its leases were last extended for it
        self.looked_ns = 0  # when its table was last read
        self.keeping: asyncio.Task[None] | None = None  # the task that extends its leases
        self.ooms_before = oom_kills()
        self.table = LeaseTable.create(config.concurrency)
        self._mine, theirs = socket.socketpair()
        # orders are visible in the environment, so without the encryption key: the child reads its own
        # configuration
        told = dataclasses.replace(config, key="")
        orders = Orders(
            app, told, queues, burst, self.id, os.getpid(), theirs.fileno(), self.table.fileno(), death
        )
        env = {**os.environ, ORDERS: msgspec.json.encode(orders).decode()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.worker.process"],
            env=env,
            pass_fds=[theirs.fileno(), self.table.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self, said_hello: Callable[[ChildHello], None]) -> int:
        """Wait until the process has ended; returns its exit code, negative for a signal.

        Passes its hello on.
        """
        messages = asyncio.create_task(self._hear(said_hello))
        try:
            code = await self._exit()
            # its last message is in the socket, or none comes; another holder of the socket is not waited for
            await asyncio.wait({messages}, timeout=0.1)
            return code
        finally:
            messages.cancel()
            self._mine.close()

    async def _hear(self, said_hello: Callable[[ChildHello], None]) -> None:
        loop, heard = asyncio.get_running_loop(), b""
        self._mine.setblocking(False)
        while part := await loop.sock_recv(self._mine, 65_536):
            *lines, heard = (heard + part).split(b"\n")
            for line in lines:
                said = msgspec.json.decode(line, type=Said)
                if isinstance(said, Refusal):
                    self.refusal = said.why
                else:
                    self.greeted = True
                    said_hello(said)

    async def _exit(self) -> int:
        """Wait for the exit in a separate thread: the loop's shared threads are few, children may be many."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def tell(code: int) -> None:
            if not ended.done():
                ended.set_result(code)

        def wait() -> None:
            code = self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, code)

        threading.Thread(target=wait, name=f"penstock-worker-{self.pid}", daemon=True).start()
        return await ended

    def ended_as_asked(self, code: int) -> bool:
        """Whether it ended as a worker should and holds no job."""
        if self.table.entries():
            return False
        # before and after its event loop runs, no handler catches SIGTERM, which then ends the process
        return code in (0, REPLACE) or (self._told_to_end and code == -signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        self._told_to_end |= number == signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self, cause: str) -> None:
        if self.cause is None:
            self.cause = cause
            _log.error("worker %s (pid %d) is killed: %s", self.id, self.pid, cause)
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        self.table.close()
