"""A child process that runs a worker's process tasks, one at a time, in its main thread.

Several calls may lie ready in the child; it begins a call only after reading its token (see `CallTokens`).
It ends when the worker closes the socket, and is killed when the worker dies. The worker may kill it at any
time, so nothing here needs a clean-up. Its stdout and stderr are the worker's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

from penstock.core.text import print_anything
from penstock.worker.pools.host import Host
from penstock.worker.pools.messages import (
    Broken,
    ChannelBroken,
    Frames,
    FromChild,
    Ready,
    RunJob,
    ToChild,
    WorkerHello,
    frame,
    to_child,
)
from penstock.worker.pools.shared_state import CallPage, Claims
from penstock.worker.process_identity import note_worker
from penstock.worker.shared_lease_table import LeaseTable

_log = logging.getLogger("penstock.worker")
_PR_SET_PDEATHSIG = 1
_READ = 1 << 18
#: Descriptors in every WorkerHello: the tokens and the call page. The worker's lease table may follow.
_FDS = 2


def main(fd: int) -> None:
    """Serve the worker at the other end of this socket, as a process that the worker has started."""
    serve(fd, os.getppid())


def serve(fd: int, parent: int) -> None:
    """Serve the worker at the other end of this socket until it closes it. Dies with the process `parent`."""
    os.set_inheritable(fd, False)
    connection = _WorkerSocket(socket.socket(fileno=fd))
    ignore_signals()
    hello = connection.receive()
    if not isinstance(hello, WorkerHello) or len(connection.fds) < _FDS:
        return
    note_worker(hello.parent)
    page = CallPage(connection.fds[1])
    table = LeaseTable.attach(connection.fds[2]) if len(connection.fds) > _FDS else None
    if table is not None:
        table.close_file()
    claims = Claims(connection.fds[0], die_with(parent))
    _yield_processors(hello)
    arena = CallPage.arena(connection.fds[1])
    os.close(connection.fds[1])
    host = Host(hello, connection.send, page, table, arena)
    try:
        host.open()
    except BaseException as error:  # noqa: BLE001  # boundary: any error of the user's modules and hooks
        text = "".join(traceback.format_exception(error, limit=-30))
        connection.send(Broken(f"{type(error).__qualname__}: {error}", text))
        return
    connection.send(Ready())
    while (number := claims.next()) is not None and (order := _order(connection, number)) is not None:
        sent = connection.send(host.attempt(order))
        if not sent:  # the calls behind it must not begin here
            with contextlib.suppress(AttributeError, OSError, ValueError):
                sys.stderr.write("penstock: a task has closed the socket to its worker\n")
            break
        _flush()
    host.close()


def _order(connection: _WorkerSocket, number: int) -> RunJob | None:
    """The claimed call; those before it were taken back by the worker."""
    while isinstance(order := connection.receive(), RunJob):
        if order.number == number:
            return order
    return None


class _WorkerSocket:
    """The socket to the worker; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self._lock = threading.Lock()
        self._frames = Frames()
        self._bodies: deque[bytes] = deque()
        #: The descriptors that came with the first message.
        self.fds: list[int] = []

    def send(self, message: FromChild) -> bool:
        """Send a message; False if the socket is closed."""
        data = frame(message)
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError:
            return False
        return True

    def receive(self) -> ToChild | None:
        """Wait for the next message; None if the worker has closed the socket, or a task has read from it."""
        try:
            while not self._bodies:
                data = self._read()
                if not data:
                    return None
                self._bodies.extend(self._frames.feed(data))
            return to_child(self._bodies.popleft())
        except (OSError, ChannelBroken):
            return None

    def _read(self) -> bytes:
        if self.fds:
            return self._socket.recv(_READ)
        data, self.fds, _, _ = socket.recv_fds(self._socket, _READ, 8)
        for fd in self.fds:  # programs started by a task must not keep them open
            os.set_inheritable(fd, False)
        return data


# ── the process ──────────────────────────────────────────────────────────────────────────────────


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM: terminals and systemd signal all processes, and the worker decides.

    Handlers that do nothing are used instead of SIG_IGN, which programs started by a task would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    try:
        faulthandler.enable()  # a crash in C prints its stack
    except (OSError, ValueError, AttributeError):  # no stderr
        pass
    print_anything()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a kill loses no complete line
        except (AttributeError, OSError, ValueError):
            pass


def _yield_processors(hello: WorkerHello) -> None:
    """Set the priority and the processors of this process."""
    if hello.nice:
        os.nice(hello.nice)
    if hello.cpus and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, hello.cpus)
        except OSError as error:
            _log.warning("process_cpus=%s: %s", ",".join(map(str, hello.cpus)), error)


def die_with(parent: int) -> Callable[[], bool] | None:
    """Let this process die with its worker.

    Where the system does not kill it at once, returns the check to make before each call.
    """
    signalled = _request_death_signal()
    if not signalled:
        threading.Thread(target=_watch, args=(parent,), name="penstock-parent", daemon=True).start()
    if os.getppid() != parent:  # the parent died before the request
        os._exit(1)
    return None if signalled else lambda: os.getppid() != parent


def _request_death_signal() -> bool:
    """Have Linux kill this process when the worker's thread that started it ends (its event loop's)."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # the task has closed it
            pass
