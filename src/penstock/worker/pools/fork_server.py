"""A process of one thread that forks the children of a worker, so that a child needs no interpreter start.

The process has imported Penstock and, if asked to, the app. It runs nothing else, so that a fork copies no
lock that another thread holds. It ends when the worker closes the socket, and is killed when the worker dies;
its children die with it.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import stat
import struct
import sys
import threading

from penstock.app.loading import load_app
from penstock.worker.logs import configure_logs
from penstock.worker.pools import child
from penstock.worker.pools.messages import REAP, Frames, Reply, WorkerHello, to_child

_PID = struct.Struct("<q")
_READ = 1 << 20


def main(fd: int, preload: bool) -> None:
    """Serve the worker at the other end of this socket; returns in a child when it has ended."""
    os.set_inheritable(fd, False)
    child.ignore_signals()
    control = socket.socket(fileno=fd)
    control.setblocking(True)
    hello = _hello(control)
    if hello is None:
        return
    child.die_with(hello.parent)
    why = _import_app(hello) if preload else ""
    if why:
        control.send(Reply.UNCLEAN + why.encode(errors="replace")[:2000])
        return
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, the pages of these objects
    control.send(Reply.READY)
    own_pid = os.getpid()
    try:
        forked = _Server(control).serve()
    except ConnectionError:  # the worker has closed the socket
        return
    if forked is not None:
        child.serve(forked, own_pid)


def _hello(control: socket.socket) -> WorkerHello | None:
    for body in Frames().feed(control.recv(_READ)):
        hello = to_child(body)
        return hello if isinstance(hello, WorkerHello) else None
    return None


# ── the app ──────────────────────────────────────────────────────────────────────────────────────


def _import_app(hello: WorkerHello) -> str:
    """Import the app; returns why the process must not be forked, or an empty text."""
    if hello.app is None or hello.app.startswith("__main__:"):
        return "the app is not known as module:attribute"
    before = set(_descriptors())
    sys.path[:], sys.argv[:] = hello.path, hello.argv
    if hello.config is not None:
        configure_logs(hello.config)
    try:
        load_app(hello.app)
    except BaseException as error:  # noqa: BLE001  # boundary: any error of the user's modules; a child reports it
        return f"the app cannot be imported ({type(error).__qualname__})"
    if len(os.listdir("/proc/self/task")) > 1:
        names = ", ".join(thread.name for thread in threading.enumerate()[1:])
        return f"the import of the app starts threads{f' ({names})' if names else ''}"
    opened = [path for fd, path in _descriptors().items() if fd not in before and _is_shared(fd)]
    return f"the import of the app opens {', '.join(opened)}" if opened else ""


def _descriptors() -> dict[int, str]:
    """The open descriptors of this process, and what they refer to."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            pass
    return found


def _is_shared(fd: int) -> bool:
    """Whether parent and child would disturb each other: a connection, or a position in a file."""
    import fcntl

    mode = os.fstat(fd).st_mode
    appends = stat.S_ISREG(mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
    return not (stat.S_ISCHR(mode) or stat.S_ISDIR(mode) or appends)


# ── children ─────────────────────────────────────────────────────────────────────────────────────


class _Server:
    """Forks and reaps children on request, and reports their ends. Unreaped, a child keeps its pid."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._pids: dict[int, int] = {}  # by pidfd

    def serve(self) -> int | None:
        """Serve until the worker closes the socket; returns the socket's descriptor in a new child."""
        control = self._control.fileno()
        while True:
            ready = [fd for fd, _ in self._poll.poll()]
            for fd in ready:  # before requests, which may reap a child and close its descriptor
                if fd != control:
                    self._report_end(fd)
            if control not in ready:
                continue
            data, fds, _, _ = socket.recv_fds(self._control, 64, 2)
            if not data:
                return None
            if data[:1] == REAP:
                self._reap(_PID.unpack_from(data, 1)[0])
            elif self._fork(*fds) == 0:
                return fds[0]

    def _fork(self, connection: int, stderr: int) -> int:
        pid = -1
        try:
            pid = os.fork()
            if pid == 0:
                self._become_child(stderr)
                return 0
            os.setpgid(pid, pid)  # here, too: the worker may kill the group at once
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            if pid > 0:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            self._control.send(Reply.of(Reply.FAILED, 0, error.errno or 0))
        else:
            self._pids[pidfd] = pid
            self._poll.register(pidfd, select.POLLIN)
            self._control.send(Reply.of(Reply.FORKED, pid, 0))
        os.close(connection)
        os.close(stderr)
        return pid

    def _become_child(self, stderr: int) -> None:
        os.setpgid(0, 0)
        os.dup2(stderr, 2)
        os.close(stderr)
        self._control.close()
        for pidfd in self._pids:
            os.close(pidfd)

    def _report_end(self, pidfd: int) -> None:
        pid = self._pids[pidfd]
        self._poll.unregister(pidfd)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self._control.send(Reply.of(Reply.EXITED, pid, code))

    def _reap(self, pid: int) -> None:
        pidfd = next((fd for fd, known in self._pids.items() if known == pid), None)
        if pidfd is not None:
            os.waitpid(pid, 0)
            del self._pids[pidfd]
            try:
                self._poll.unregister(pidfd)
            except KeyError:  # its end was reported
                pass
            os.close(pidfd)
