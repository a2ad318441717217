"""The worker's ends of the socket and of the stderr of a child. Neither lets the worker wait for a child."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

# ── the socket ───────────────────────────────────────────────────────────────────────────────────

_READ_MESSAGES = 1 << 18
#: Maximum number of queued messages that one system call sends.
_TOGETHER = 64


class ChildConnection:
    """Calls `on_data` with each piece of data and `on_closed` once, when the other side is closed."""

    def __init__(
        self, end: socket.socket, on_data: Callable[[bytes], None], on_closed: Callable[[], None]
    ) -> None:
        end.setblocking(False)
        self._socket = end
        self._on_data = on_data
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[bytes] = deque()  # messages; the first may be the rest of one
        self._first_is_rest = False
        self._open = True
        self._ending = False
        self._paused = False
        self._loop.add_reader(end, self._read)

    @property
    def unsent(self) -> int:
        """Size (bytes) of the messages that the kernel has not taken."""
        return sum(map(len, self._unsent))

    def send(self, messages: Sequence[bytes]) -> None:
        """Send these messages, now or when the other side has read what was sent before."""
        if not self._open or self._ending:
            return
        if self._unsent:
            self._unsent.extend(messages)
            return
        data = b"".join(messages)
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the other side is closed: reading shows it
            return
        if sent < len(data):
            self._unsent.extend(messages)
            self._drop(sent)
            self._loop.add_writer(self._socket, self._send_rest)

    def withdraw(self, n: int) -> None:
        """Drop the last `n` messages, apart from those that the kernel has, also in part."""
        if not self._unsent:
            return
        for _ in range(min(n, len(self._unsent) - self._first_is_rest)):
            self._unsent.pop()
        if not self._unsent:
            self._all_sent()

    def pause(self, seconds: float) -> None:
        """Read nothing for this time, so that several messages arrive together."""
        if self._open and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._socket)
            self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._paused = False
        if self._open:
            self._loop.add_reader(self._socket, self._read)
            self._read()

    def end_input(self) -> None:
        """Close the sending side after all messages were sent."""
        if self._open and not self._ending:
            self._ending = True
            if not self._unsent:
                self._shut_down()

    def close(self) -> None:
        if self._open:
            self._open = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._socket.close()
            self._unsent.clear()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_MESSAGES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        elif self._open:
            self._loop.remove_reader(self._socket)
            self._on_closed()

    def _send_rest(self) -> None:
        try:
            sent = self._socket.sendmsg(list(islice(self._unsent, _TOGETHER)))
        except BlockingIOError:
            return
        except OSError:  # the other side is closed: reading shows it
            self._unsent.clear()
        else:
            self._drop(sent)
        if not self._unsent:
            self._all_sent()

    def _drop(self, sent: int) -> None:
        """Remove the bytes that the kernel has taken."""
        unsent = self._unsent
        while sent:
            first = unsent.popleft()
            self._first_is_rest = sent < len(first)
            if self._first_is_rest:
                unsent.appendleft(first[sent:])
                return
            sent -= len(first)

    def _all_sent(self) -> None:
        self._first_is_rest = False
        self._loop.remove_writer(self._socket)
        if self._ending:
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the other side is closed
            pass


# ── stderr ───────────────────────────────────────────────────────────────────────────────────────

_READ_STDERR = 1 << 16
#: Size of the kept end (bytes), and the maximum number of its lines.
_KEPT, _LINES = 4096, 20
#: If the worker's stderr is full, it is tried again after this time (s).
_RETRY = 0.05
#: What a pipe with room takes without blocking (bytes).
_PIECE: int = getattr(select, "PIPE_BUF", 512)


class ChildStderr:
    """A pipe that a child writes to. `write_end` is closed by its user once the child has it.

    While nobody reads the worker's stderr, the child waits, as if it wrote there itself; the worker does not.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._tail = b""
        self._unwritten = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._open = True

    def start(self) -> None:
        """Pass on what the child writes, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self.pump)

    def pump(self) -> None:
        """Pass on what has arrived."""
        if self._open and not self._unwritten:
            self._read()

    def last_lines(self) -> str:
        """The last lines that the child has written; an empty text if it has written none."""
        if self._open:
            self._read()  # whether or not it can be passed on
        lines = self._tail.decode(errors="replace").splitlines()
        return "\n".join(lines[-_LINES:])

    def close(self) -> None:
        """Close the pipe; what the worker's stderr does not take now is dropped."""
        if self._open:
            self._open = False
            if self._retry is not None:
                self._retry.cancel()
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._read_end)
            os.close(self._read_end)

    def _read(self) -> None:
        try:
            data = os.read(self._read_end, _READ_STDERR)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._tail = (self._tail + data)[-_KEPT:]
        self._unwritten = write_ready(2, (self._unwritten + data)[-_READ_STDERR:])
        if self._unwritten and self._loop is not None and self._retry is None:
            self._loop.remove_reader(self._read_end)
            self._retry = self._loop.call_later(_RETRY, self._write_again)

    def _write_again(self) -> None:
        assert self._loop is not None
        self._unwritten = write_ready(2, self._unwritten)
        if self._unwritten:
            self._retry = self._loop.call_later(_RETRY, self._write_again)
        else:
            self._retry = None
            self._loop.add_reader(self._read_end, self.pump)


def write_ready(fd: int, data: bytes) -> bytes:
    """Write as much as does not block; returns the rest. Without a reader, everything counts as written."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    try:
        while data and poll.poll(0):
            data = data[os.write(fd, data[:_PIECE]) :]
    except BlockingIOError:
        return data
    except OSError:  # the worker has no stderr, or nobody reads it
        return b""
    return data
