"""The worker's side of the process that forks its children."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import struct
import subprocess
from collections import deque
from collections.abc import Callable

from penstock.worker.pools.calls import ChildBroken, NoChild
from penstock.worker.pools.messages import FORK, REAP, Reply, WorkerHello, frame
from penstock.worker.pools.starters import kill_group, spawn_server

_log = logging.getLogger("penstock.worker")
_READ = 4096
#: A fork takes milliseconds. A server that has not answered for this long (s) hangs, and is replaced.
_FORK_WITHIN = 10.0


class ForkStarter:
    """Starts children by forks of a server process, which is started for the first child.

    With `preload` the server imports the app before it forks. If that leaves threads or connections, which a
    fork would copy, the server is replaced by one that has not imported the app. A server that hangs in a
    fork is replaced, too; it stays until the children that it has forked before have ended.
    """

    def __init__(self, *, preload: bool) -> None:
        self._preload = preload
        self._server: _ForkServer | None = None
        self._retired: list[_ForkServer] = []

    async def start(self, hello: WorkerHello, connection: int, stderr: int) -> ForkedChild:
        while True:
            server = self._server
            if server is None or server.lost or server.retired:
                self._retired = [one for one in (*self._retired, server) if one is not None and not one.lost]
                server = self._server = _ForkServer(hello, self._preload)
            try:
                why = await asyncio.shield(server.ready)
            except asyncio.CancelledError:
                if server.ready.cancelled() and not _is_cancelled():
                    continue  # another start has given this server up
                server.give_up()
                raise
            if not why:
                return await server.fork(connection, stderr)
            if self._server is server:
                self._preload, self._server = False, None
                server.close()
                _log.warning("process_start=preload: %s; children import the app after the fork", why)

    def close(self) -> None:
        for server in (*self._retired, self._server):
            if server is not None:
                server.close()


def _is_cancelled() -> bool:
    """Whether the current task was cancelled, not what it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _ForkServer:
    """One server process and the socket to it."""

    def __init__(self, hello: WorkerHello, preload: bool) -> None:
        self._loop = asyncio.get_running_loop()
        #: Why the server must not fork; an empty text when it is ready.
        self.ready: asyncio.Future[str] = self._loop.create_future()
        #: Whether the server has ended.
        self.lost = False
        #: Whether it hangs, and is kept only for its children, which die with it.
        self.retired = False
        self._forks: deque[asyncio.Future[ForkedChild]] = deque()
        self._children: dict[int, ForkedChild] = {}
        self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._control.send(frame(hello))
            self._process = spawn_server(server_end.fileno(), preload)
        except (OSError, ChildBroken):
            self._control.close()
            raise
        finally:
            server_end.close()
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read)

    def fork(self, connection: int, stderr: int) -> asyncio.Future[ForkedChild]:
        """Fork a child with these descriptors. The future gets NoChild if that takes too long."""
        forked: asyncio.Future[ForkedChild] = self._loop.create_future()
        socket.send_fds(self._control, [FORK], [connection, stderr])
        self._forks.append(forked)
        self._loop.call_later(_FORK_WITHIN, self._check, forked)
        return forked

    def reap(self, child: ForkedChild) -> None:
        """Let the server reap this child, which has ended."""
        if self._children.pop(child.pid, None) is not None and not self.lost:
            try:
                self._control.send(REAP + struct.pack("<q", child.pid))
            except OSError:  # the server has ended
                pass
            self._close_if_unused()

    def close(self) -> None:
        """End the server."""
        if self.lost:
            return
        self.lost = True
        if not self._loop.is_closed():
            self._loop.remove_reader(self._control)
        self._control.close()
        self._process.kill()
        self._process.wait()
        if not self.ready.done():
            self.ready.cancel()

    def give_up(self) -> None:
        """End the server if it is not ready: its import may hang, and the next one's need not."""
        if not self.ready.done():
            self.close()

    def _check(self, forked: asyncio.Future[ForkedChild]) -> None:
        """Retire the server if it has not answered this request.

        The request is not repeated at another server: this one may go on, and fork a second child with the
        same connection. `_adopt` ends such a child.
        """
        if forked not in self._forks or self.lost or self.retired:
            return
        self.retired = True
        error = NoChild(
            f"the process that forks children did not answer for {_FORK_WITHIN:g} s; it is replaced"
        )
        for waiting in self._forks:
            if not waiting.done():
                waiting.set_exception(error)
        for child in self._children.values():
            child.watch_end()
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.retired and not self._children:
            self.close()

    def _read(self) -> None:
        while not self.lost:
            try:
                data = self._control.recv(_READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._on_lost()
                return
            try:
                self._handle(data[:1], data)
            except (struct.error, IndexError, ValueError):  # a task has written to the socket
                self._on_lost()
                return

    def _handle(self, kind: bytes, data: bytes) -> None:
        if kind == Reply.READY or kind == Reply.UNCLEAN:
            if not self.ready.done():
                self.ready.set_result(data[1:].decode(errors="replace"))
            return
        pid, value = Reply.event(data)
        if kind == Reply.EXITED:
            if (child := self._children.get(pid)) is not None:
                child.on_exit(value)
            return
        forked = self._forks.popleft()
        if kind == Reply.FORKED:
            self._adopt(forked, pid)
        elif not forked.done():
            forked.set_exception(OSError(value, os.strerror(value)))

    def _adopt(self, forked: asyncio.Future[ForkedChild], pid: int) -> None:
        try:
            child = self._children[pid] = ForkedChild(self, pid)
        except OSError as error:
            kill_group(pid)
            self._control.send(REAP + struct.pack("<q", pid))
            if not forked.done():
                forked.set_exception(error)
            return
        if not forked.done():
            forked.set_result(child)
            return
        kill_group(pid)  # the caller has given up
        child.wait()

    def _on_lost(self) -> None:
        """Report that the server has ended; its children are killed with it."""
        error = ChildBroken("the process that forks children has ended")
        if not self.ready.done():
            self.ready.set_exception(error)  # before `close`, which cancels it
        self.close()
        for forked in self._forks:
            if not forked.done():
                forked.set_exception(error)
        for child in list(self._children.values()):
            child.on_exit(-signal.SIGKILL)


class ForkedChild:
    """A child process of the server."""

    def __init__(self, server: _ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._pidfd = os.pidfd_open(pid)
        self._code: int | None = None
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._watched = False  # whether the event loop watches the descriptor
        self._exited: Callable[[], None] | None = None

    def watch(self, exited: Callable[[], None]) -> None:
        self._exited = exited
        if self._ended:
            self._loop.call_soon(exited)

    def watch_end(self) -> None:
        """See the end of the process without the server, which hangs. The exit code stays unknown."""
        if self._pidfd >= 0 and not self._watched:
            self._watched = True
            self._loop.add_reader(self._pidfd, self._on_end)

    def on_exit(self, code: int | None) -> None:
        """Note the exit code that the server has seen; None: it has seen none."""
        if not self._ended:
            self._ended, self._code = True, code
            if self._exited is not None:
                self._exited()

    def _on_end(self) -> None:
        self._stop_watching()
        self.on_exit(None)

    def _stop_watching(self) -> None:
        if self._watched and not self._loop.is_closed():
            self._loop.remove_reader(self._pidfd)
        self._watched = False

    def wait(self, timeout: float | None = None) -> int | None:
        if self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("a child process", timeout or 0.0)
            self._stop_watching()
            os.close(self._pidfd)
            self._pidfd = -1
            self._server.reap(self)
        return self._code
